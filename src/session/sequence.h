#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "api/request.h"
#include "session/active_request.h"
#include "spec/accept.h"
#include "spec/length.h"
#include "spec/tree.h"

namespace facet {

// What the next step verifies of a sequence, and what the last one left of it (Speculator).
struct DraftState {
  DraftChooser chooser = {};  // what its rounds have taught; the next sequence in the slot goes on from it
  DraftChoice choice = {};    // who drafts in this round
  bool asked = false;         // there was room for a draft
  bool cut = false;           // a chain was not worth verifying to its end
  bool refused = false;       // the grammar forbids the draft behind the last one
  DraftTree tree = {};
  std::vector<float> chance = {};   // of each draft, that it becomes a token
  int own = 0;                      // drafts of the method itself, where others go on behind them; 0: all
  std::vector<int32_t> paths = {};  // [node][kMaxTreeNodes]: of a tree that is no chain
  std::vector<bool> forced = {};    // of each draft that is the grammar's own text; empty: it is a drafter's
  Accepted accepted = {};
  std::vector<int> waiting = {};  // by drafter: features that it has not absorbed yet
  int feature_buffer = -1;        // where they lie, while it runs
};

// Everything of a sequence that is not the cache's or a drafter's: one of these for every slot. What the cache has of
// it is KvCache::Sequence.
struct Sequence {
  enum class Use : uint8_t { kFree, kFilling, kIdle, kRunning };  // kFilling: a state is being copied there
  Use use = Use::kFree;
  std::vector<int32_t> tokens = {};  // the first rows.len(slot) are computed
  std::string salt = {};
  uint64_t used = 0;                  // clock of its last use
  uint64_t copied = 0;                // idle: the same, when a copy of it had gone to host memory
  bool snapshot = false;              // idle: a fork of what ran, for any number of requests
  bool decoding = false;              // running: its prompt is computed
  std::vector<int> snapshot_at = {};  // running: lengths at which a snapshot is taken, ascending
  // Running or idle: rows of the prompt, to which the session can go back. A snapshot of them is taken before it can no
  // more; 0: there is one, or none is wanted.
  int prompt_end = 0;
  ActiveRequest work = {};  // running
  DraftState draft = {};    // running
  // Running: the tokens that the step drew, and what the request wants to know of them.
  std::vector<int32_t> drawn = {};
  std::vector<TokenLogprobs> drawn_logprobs = {};

  bool running() const { return use == Use::kRunning; }
  bool idle() const { return use == Use::kIdle; }
  // Nothing is left of it but what its rounds have taught.
  void reset() {
    DraftState next{.chooser = std::move(draft.chooser), .waiting = std::move(draft.waiting)};
    std::ranges::fill(next.waiting, 0);
    *this = Sequence{};
    draft = std::move(next);
  }
};

}  // namespace facet
