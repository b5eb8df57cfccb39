#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/check.h"
#include "grammar/masks.h"
#include "spec/tree.h"

namespace facet {

// The states of a draft's nodes, each after its path: a row of a verification is drawn under the mask of its own state,
// so drafts change no text.
struct GrammarPath {
  std::vector<GrammarState> states = {};  // [0]: of node 0

  // Adds those of nodes that the tree has got since. False: the grammar forbids one.
  bool extend(const GrammarVocab& vocab, const DraftTree& tree) {
    while (states.size() < size_t(tree.size())) {
      const size_t node = states.size();
      GrammarState s = states[size_t(tree.parent[node])];
      if (!s.advance(vocab, tree.token[node])) return false;
      states.push_back(std::move(s));
    }
    return true;
  }
  bool may_follow(const GrammarVocab& vocab, const DraftTree& tree, int node, int32_t id) {
    return extend(vocab, tree) && states[size_t(node)].accepts(vocab, {&id, 1}) == 1;
  }
};

// A token of the mask that ends nothing: the first from number `from` on, then from 0 on; -1: there is none. For
// engines whose text means nothing (EngineDebug::forced_drafts).
inline int32_t allowed_token(std::span<const uint32_t> mask, const GrammarVocab& vocab, int32_t from) {
  const int n = vocab.size();
  for (int i = 0; i < n; ++i) {
    const int id = int((int64_t(from) + i) % n);
    if ((mask[size_t(id) / 32] >> (id % 32) & 1) != 0 && !vocab.is_eog(id)) return id;
  }
  return -1;
}

// Memory for the masks of a step's rows, kept between steps.
class StepMasks {
 public:
  void clear() { used_ = 0; }
  // No token of a vocabulary; rows of the output matrix without a token never get one.
  std::span<uint32_t> add(int n_vocab) {
    if (used_ == rows_.size()) rows_.emplace_back();
    std::vector<uint32_t>& row = rows_[used_++];
    row.assign((size_t(n_vocab) + 31) / 32, 0);
    return row;
  }

  // One token and no other.
  std::span<const uint32_t> only(int32_t id, int n_vocab) {
    const std::span<uint32_t> row = add(n_vocab);
    if (id >= 0 && id < n_vocab) row[size_t(id) / 32] = uint32_t(1) << (id % 32);
    return row;
  }

 private:
  std::deque<std::vector<uint32_t>> rows_;  // which stay where they are
  size_t used_ = 0;
};

}  // namespace facet
