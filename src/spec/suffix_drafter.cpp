#include "spec/suffix_drafter.h"

#include "base/check.h"

namespace facet {

// An idle sequence has no index: reading it again costs less than a step.
void SuffixDraft::end(SlotId s, std::span<const int32_t> answer) {
  Slot& q = at(s);
  if (std::exchange(q.begun, false)) store_.add(q.owner, answer);
  forget(s, q.held);
}

void SuffixDraft::propose(Draft& d) {
  Slot& s = at(d.slot);
  guesser_.use(s.trust);
  guesser_.learn(d.history, s.record, s.cursors);
  if (!s.index.extend(d.history)) return;  // it is read in a few rounds
  guesser_.guess(d.history, s.index, s.begun ? store_.find(s.owner) : nullptr, s.cursors,
                 {.nodes = d.max_draft, .depth = d.max_depth > 0 ? d.max_depth : d.max_draft, .branches = d.branches},
                 s.record, tree_);
  for (int i = 1; i <= tree_.n_draft(); ++i) {
    const size_t parent = size_t(tree_.parent[size_t(i)]);
    d.token.push_back(tree_.token[size_t(i)]);
    d.top.push_back(tree_.token[size_t(i)]);
    d.top_log_prob.push_back(std::log(tree_.chance[size_t(i)] / tree_.chance[parent]));
  }
  d.parent = tree_.parent;
}

void SuffixDraft::extend(Draft& d) {
  Slot& s = at(d.slot);
  const int room = d.max_draft - d.n_draft();
  if (room < 1 || s.index.n_token() != d.history.size()) return;
  const size_t before = std::min(d.history.size() - 1, size_t(SuffixIndex::kMostLength));
  tail_.assign(d.history.end() - 1 - ptrdiff_t(before), d.history.end() - 1);
  tail_.insert(tail_.end(), d.token.begin(), d.token.end());
  guesser_.use(s.trust);
  guesser_.go_on(d.history, tail_, s.index, s.cursors, room, tree_);
  for (int i = 1; i <= tree_.n_draft(); ++i) {
    d.token.push_back(tree_.token[size_t(i)]);
    d.top_log_prob.push_back(std::log(tree_.chance[size_t(i)] / tree_.chance[size_t(i) - 1]));
  }
}

void SuffixDraft::absorb(const Committed& c) {
  int& held = at(c.slot).held;
  CHECK(c.n > 0 && c.position == held, "{} rows from {} on for slot {} that holds {}", c.n, c.position, c.slot, held);
  held += c.n;
}

int SuffixDraft::rewind(SlotId s, int len) {
  Slot& q = at(s);
  q.index.truncate(size_t(len));
  q.cursors.clear();
  q.trust = {};
  q.record.n_history = 0;
  return q.held = len;
}

void SuffixDraft::forget(SlotId s, int held) {
  Slot& q = at(s);
  q.index.clear();
  q.cursors.clear();
  q.trust = {};
  q.record = {};
  q.held = held;
}

}  // namespace facet
