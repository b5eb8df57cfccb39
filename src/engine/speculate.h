#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "api/config.h"
#include "api/request.h"
#include "engine/constrain.h"
#include "engine/device_ops.h"
#include "session/sequence.h"
#include "spec/accept.h"
#include "spec/admit.h"
#include "spec/drafter.h"
#include "spec/length.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// A decoding sequence that takes part in the next step.
struct DraftRequest {
  SlotId slot = 0;
  int position = 0;  // rows in the cache; the newest token comes next
  int32_t newest = 0;
  std::span<const int32_t> history = {};  // the sequence, with the newest token
  int room = 0;                           // drafts that can still become tokens of the answer
  const Tokenizer* stops = nullptr;       // where the answer ends; null: nowhere
  const GrammarState* grammar = nullptr;  // what may come next; null: anything
  GrammarMasks* masks = nullptr;          // with it
  GrammarWork* work = nullptr;            // what drafts may take of it; once it is over there are no more
  const Tokenizer* tokenizer = nullptr;   // with it
};

// Why a request with drafters was, or in the end is, decoded plainly; empty: it is not. A few plain tokens before the
// end give up nothing.
std::string plain_reason(bool wanted, const Usage& u);

// Drafters beside an engine: which drafts a step verifies, the features it leaves, and what was learned from it.
class Speculator {
 public:
  // sequences: by slot; their DraftState is the speculator's.
  Speculator(DeviceOps& ops, const EngineConfig& c, std::span<Sequence> sequences, bool drafts_are_forced);

  bool has_drafters() const { return !drafters_.empty(); }
  const char* method_name(int m) const { return m < 0 ? "none" : drafters_[size_t(m)]->name(); }

  // A request of an owner runs in the slot, until end(), which is told its answer if later requests of the owner may
  // draft from it. owner null: it neither leaves nor takes anything.
  void begin(SlotId s, const std::string* owner);
  void end(SlotId s, std::span<const int32_t> answer = {});

  // Fills tree(slot) of every sequence; node 0 alone where nothing is drafted.
  void propose(std::span<const DraftRequest> requests);

  const DraftTree& tree(SlotId s) const { return draft(s).tree; }
  const char* method(SlotId s) const;
  // Something was drafted, though nothing of it may be worth verifying.
  bool drafted(SlotId s) const { return draft(s).choice.method >= 0 || !draft(s).forced.empty(); }
  // Tokens on the way from node 0, without it, to the node: what its row's penalties look at.
  std::span<const int32_t> path_to(SlotId s, int node) const;

  // drawn: the target's token after each node.
  const Accepted& verify(SlotId s, std::span<const int32_t> drawn, Usage& u, int generated);

  std::string inactive_reason(bool wanted, const Usage& u) const {
    // Nobody asked for what is looked for anyway: nothing repeats, and nobody misses it.
    const bool unasked = drafters_.size() == 1 && foreteller_ == 0 && optional_;
    return drafters_.empty() || unasked ? "" : plain_reason(wanted, u);
  }
  // A drafter that was tried often and never right, each reported once; -1: none.
  int never_right();

  // A step of decoding sequences only took so long, from its forward pass to the drawn tokens.
  void observe_step(int rows, double seconds) { step_times_.observe(rows, seconds); }

  // Hands the features of committed rows to the drafters, or keeps them where the drafter has no use for them yet.
  void absorb(std::span<const Committed> rows);
  // The drafters absorb the features that wait. Before the state of a running sequence is copied or forked.
  void flush(SlotId s);
  // Memory of the drafters for the rows [position, position + n), and for the features that wait before them. A drafter
  // that has none when it comes to that gives the sequence up; false: make room first.
  bool prepare(SlotId s, int position, int n);
  // Features that wait are absorbed where those of n more rows would find no place beside them.
  void make_place(SlotId s, int position, int n);
  // Rows that a draft for which there is so much room takes beside the newest token's.
  int draft_rows(int room) const { return std::min(room, std::max({limits_.max, limits_.tree, limits_.foretold})); }

 private:
  struct Tried {
    int64_t rounds = 0, right = 0;  // of the engine's life
    bool reported = false;
    // Of chains, lately: tokens that came of them, and that their drafter's own probabilities promised.
    double came = 0, promised = 0;
    void compare(double expected, int kept) {
      constexpr double kForget = .98;
      came = came * kForget + kept, promised = promised * kForget + expected;
    }
    double correction() const {
      constexpr double kFirst = 8, kLeast = .25, kMost = 1.5;  // tokens for which it is thought of as right
      return std::clamp((came + kFirst) / (promised + kFirst), kLeast, kMost);
    }
  };
  DraftState& draft(SlotId s) { return sequences_[size_t(s)].draft; }
  const DraftState& draft(SlotId s) const { return sequences_[size_t(s)].draft; }
  // Rows whose features a drafter has absorbed, or that wait for it.
  int reached(size_t d, SlotId s) const { return drafters_[d]->held(s) + draft(s).waiting[d]; }
  bool can_wait(size_t d, const Committed& c) const;
  std::span<const int32_t> tokens_of(SlotId s, int position, int n);
  void keep_features(size_t d, const Committed& c);
  void flush(size_t d, SlotId s);
  bool propose_text(const DraftRequest& q, DraftState& round, int n_seq);
  std::span<const float> foretell(const DraftRequest& q, Draft& d);
  void begin_draft(const DraftRequest& q, Draft& d, int most) const;
  void extend(Draft& d, const DraftRequest& q);
  void build_tree(Draft& d, const DraftRequest& q);
  void build_chain(Draft& d, const DraftRequest& q, DraftState& r);
  void build_branches(Draft& d, const DraftRequest& q, DraftState& r);
  void build_foretold(Draft& d, const DraftRequest& q, DraftState& r);
  static void write_paths(DraftState& r);
  void admit(std::span<const DraftRequest> requests, double spent);
  void cut(DraftState& r, int n);
  size_t make_legal(Draft& d, const DraftRequest& q);
  void measure_steps(int most);

  DeviceOps& ops_;
  std::span<AnyDrafter* const> drafters_;
  std::span<Sequence> sequences_;
  DraftLimits limits_;
  int n_vocab_;
  int foreteller_ = -1;     // the drafter that is asked before it is chosen; -1: none
  bool optional_;           // drafters that are there are taken, and none is fine
  bool drafts_are_forced_;  // the drafter's own opinion means nothing
  bool branches_;           // what is foretold may be a tree: on a GPU its steps cost more than those of chains
  StepTimes step_times_;
  std::vector<DraftTimes> draft_times_;
  std::array<HitRate, 2> hit_rate_;  // of the grammar's own text: where it leaves a choice, where it is forced
  std::vector<Tried> tried_;         // by drafter
  std::vector<bool> buffer_taken_;
  std::vector<std::vector<Draft>> drafts_;  // by drafter: of one round
  std::vector<float> foretold_;
  std::vector<BatchDraft> batch_;
  int64_t round_ = 0;
  SlotId newest_ = -1;  // where a request began last: a slot that never drafted begins with what that one knows
  std::vector<Committed> absorbed_;
  std::vector<std::vector<int32_t>> committed_tokens_;  // by slot, of the rows that a drafter absorbs
};

}  // namespace facet
