#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "model/types.h"

namespace facet {

constexpr int kMaxTop = 64;  // candidates a drafted position
// Rows of features that a slot keeps for a drafter that is not asked: the more at once, the less each costs. 8 MB of
// floats, where that is more than 64 rows.
constexpr int waiting_features(int cols) { return std::clamp((2 << 20) / std::max(1, cols), 64, 256); }

// One sequence's part of a round of drafting. The caller fills slot .. n_top and node 0, propose() the rest.
//
// Node 0 is the newest token: drawn by the target, its K/V not yet in the target's cache. The caller verifies
// token[0..] in one target step at positions position, position + 1, ...
struct Draft {
  SlotId slot = 0;
  int position = 0;                       // of node 0: the rows in the target's cache
  int max_draft = 0;                      // at most so many tokens after node 0; fewer is fine, 0 asks for none
  int max_depth = 0;                      // and so many on a path; 0: as many
  bool branches = false;                  // a drafter that foretells may answer with a tree
  std::span<const int32_t> history = {};  // the sequence up to node 0, with it
  int n_top = 0;                          // candidates wanted for every drafted position; 0: the chain alone
  std::vector<int32_t> token = {};        // node 0, then the chain: token[i] is the guess for position + i

  // Of a tree, by token, parents first, parent[0] = -1; empty: a chain. top and top_log_prob then are those of each token
  // itself, given its parent, and every first part of the tokens is a tree that is worth its size.
  std::vector<int16_t> parent = {};

  // n_top > 0: the candidates for position + 1 + d are [d * n_top, (d + 1) * n_top), best first, for
  // d < n_draft(), with their natural log-probabilities under the drafter. Id -1: there are no more.
  std::vector<int32_t> top = {};
  std::vector<float> top_log_prob = {};
  // By drafted position, where the drafter knows it better than by its log-probabilities: the chance that the token is
  // right if those before it are. Empty: it does not.
  std::vector<float> confidence = {};

  int n_draft() const { return int(token.size()) - 1; }
};

// Rows of the target that became permanent: prompt chunks as well as verified tokens.
struct Committed {
  SlotId slot = 0;
  int position = 0;                     // of the first kept row; the rows are consecutive from here
  int row = 0;                          // first row of the sequence in the features
  int n = 0;                            // rows kept, at least 1
  std::span<const int16_t> path = {};   // kept rows relative to `row`, ascending (a tree); empty: the first n
  std::span<const int32_t> token = {};  // of the kept rows, n of them
  int at(int i) const { return row + (path.empty() ? i : path[size_t(i)]); }
};

// What the target left for a drafter. Rows are indexed by token of the target's step.
template <class Rows>
struct Features {
  Rows taps = {};          // [T, n_tap * D]: the residual stream after each of tap_layers(), in that order
  Rows final_hidden = {};  // [T, D] after the output norm
};

// Proposes tokens that the target then verifies. What it proposes decides how fast text comes, never which text.
// Called once per step, not per layer: virtual is the right tool here. AnyDrafter is all of it that needs no backend's
// types.
//
// Per slot the drafter holds state for rows [0, held(slot)). absorb() extends it, rewind() and forget() cut it. Every
// (sequence, position) is absorbed exactly once, in order: the position of an absorb is held(slot).
class AnyDrafter {
 public:
  virtual ~AnyDrafter() = default;

  virtual const char* name() const = 0;                 // "dflash", "mtp", "suffix"
  virtual int max_draft() const = 0;                    // longest chain it can propose
  virtual std::span<const int> tap_layers() const = 0;  // layers of the target whose output it wants; may be empty
  virtual bool wants_final_hidden() const = 0;

  // True: what propose() would draft costs next to nothing, and its log-probabilities are chances that tokens are right,
  // so that it is asked before it is chosen; where it has nothing to offer, the round does without it.
  virtual bool foretells() const { return false; }
  // A request of this owner runs in the slot, from begin() to end(), which is told its answer; empty: nothing of it may
  // be kept. One that is given up and goes on later begins anew.
  virtual void begin(SlotId, const std::string& /*owner*/) {}
  virtual void end(SlotId, std::span<const int32_t> /*answer*/) {}

  // Fills every draft with a chain and, on request, candidates. held(slot) == Draft::position, and ready(slot). Leaves
  // no trace in the state.
  virtual void propose(std::span<Draft> drafts) = 0;
  // One that foretells: goes on behind a chain of another drafter, up to max_draft tokens, each with its
  // log-probability. Asked after propose() for the same slot and history.
  virtual void extend(Draft&) {}

  virtual int held(SlotId s) const = 0;
  // Whether it can propose what follows the rows that it holds; it can when the last of them was just absorbed.
  virtual bool ready(SlotId) const { return true; }
  // The sequence goes back to `len` rows. Returns how many rows of state are left: len, or fewer when state from
  // before `len` was lost to what came after; the target then computes those rows again, so that drafts stay as good.
  virtual int rewind(SlotId s, int len) = 0;
  // Rows of rows() that are left where a sequence goes back to `len`; these must be in reach of it.
  virtual int rows_left(int len) const { return len; }
  virtual void forget(SlotId s) = 0;  // back to no rows and no memory
  // Memory for `n` rows behind those that the slot holds, so that absorb() and propose() do not fail for want of it.
  // False: there is none now.
  virtual bool prepare(SlotId, int /*n*/) { return true; }
  // `to`, which holds nothing, gets the state of `from`.
  virtual Status fork(SlotId from, SlotId to) = 0;

  // False: nothing is kept of a sequence but its length, and copies leave the drafter out.
  virtual bool has_state() const { return true; }
  // A copy of the state in other memory: the rows of its own cache, if it has one, and what it has beside them.
  virtual KvCache* rows() { return nullptr; }
  virtual std::vector<float> save(SlotId) { return {}; }
  // held: the rows of the sequence. False: this is no state of this drafter.
  virtual bool load(SlotId s, int held, std::span<const float> beside) = 0;
};

template <Backend B>
class Drafter : public AnyDrafter {
 public:
  using Rows = typename B::Rows;
  // Features of rows just committed, at most plan.max_step in all, of several sequences in one go; a slot comes up
  // once at most. The features are overwritten after the call.
  virtual void absorb(std::span<const Committed> rows, const Features<Rows>& f) = 0;
};

// What a drafter may use of its target. Everything outlives the drafter.
template <Backend B>
struct TargetView {
  B& b;
  const ModelCfg& m;
  const ModelW<B>& w;
  std::span<const typename B::KvLayer> kv;  // one view per layer, for drafters that read the target's rows
  KvPlan plan;                              // slots, context, tokens of a step, margin
  PagePool* pool = nullptr;                 // memory for rows; null: the drafter's own
};

}  // namespace facet
