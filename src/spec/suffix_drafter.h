#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "spec/answer_memory.h"
#include "spec/drafter.h"
#include "spec/suffix.h"

namespace facet {

// A drafter without a file, for every model: what followed the same tokens before, in the sequence itself and, where
// there is a memory of answers, in those of the same owner. It tells what it would draft, and how sure it is of it,
// before it is chosen: where nothing matches it costs a round nothing.
class SuffixDraft {
 public:
  // slots: of the cache. memory: token ids of earlier answers; 0: none.
  SuffixDraft(int slots, size_t memory) : slots_(size_t(slots)), store_(memory) {}

  void begin(SlotId s, const std::string& owner) { at(s).owner = owner, at(s).begun = true; }
  void end(SlotId s, std::span<const int32_t> answer);
  void propose(Draft& d);
  // Behind a draft of another drafter, as many tokens as d.max_draft leaves room for, with log-probabilities.
  void extend(Draft& d);
  void absorb(const Committed& c);
  int held(SlotId s) const { return slots_[size_t(s)].held; }
  int rewind(SlotId s, int len);
  void forget(SlotId s, int held = 0);
  const AnswerStore& store() const { return store_; }

 private:
  struct Slot {
    int held = 0;
    SuffixIndex index;
    CopyCursors cursors;
    CopyTrust trust;
    CopyRecord record;
    std::string owner;
    bool begun = false;
  };
  Slot& at(SlotId s) { return slots_[size_t(s)]; }

  std::vector<Slot> slots_;
  CopyGuesser guesser_;
  CopyTree tree_;
  std::vector<int32_t> tail_;
  AnswerStore store_;
};

template <Backend B>
class SuffixDrafter final : public Drafter<B> {
 public:
  using typename Drafter<B>::Rows;
  explicit SuffixDrafter(const TargetView<B>& t, size_t memory = 0) : draft_(t.plan.resident(), memory) {}

  const char* name() const override { return "suffix"; }
  int max_draft() const override { return kMaxTreeNodes - 1; }
  std::span<const int> tap_layers() const override { return {}; }
  bool wants_final_hidden() const override { return false; }
  bool foretells() const override { return true; }
  void begin(SlotId s, const std::string& owner) override { draft_.begin(s, owner); }
  void end(SlotId s, std::span<const int32_t> answer) override { draft_.end(s, answer); }

  void absorb(std::span<const Committed> rows, const Features<Rows>&) override {
    for (const Committed& c : rows) draft_.absorb(c);
  }
  void propose(std::span<Draft> drafts) override {
    for (Draft& d : drafts) draft_.propose(d);
  }
  void extend(Draft& d) override { draft_.extend(d); }
  int held(SlotId s) const override { return draft_.held(s); }
  int rewind(SlotId s, int len) override { return draft_.rewind(s, len); }
  void forget(SlotId s) override { draft_.forget(s); }
  Status fork(SlotId from, SlotId to) override {
    draft_.forget(to, draft_.held(from));
    return Ok{};
  }
  bool has_state() const override { return false; }
  bool load(SlotId s, int held, std::span<const float> beside) override {
    draft_.forget(s, held);
    return beside.empty();
  }

 private:
  SuffixDraft draft_;
};

}  // namespace facet
