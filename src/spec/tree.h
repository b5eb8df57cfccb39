#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/step.h"
#include "spec/drafter.h"

namespace facet {

constexpr int kMaxDraftNodes = kMaxTreeNodes - 1;  // beside node 0

// What the target verifies for one sequence in one step. Node 0 is the newest token. A node's parent comes before it;
// siblings have different tokens.
struct DraftTree {
  std::vector<int32_t> token;
  std::vector<int16_t> parent;  // parent[0] = -1
  std::vector<int16_t> depth;   // depth[0] = 0
  bool is_chain = true;         // parent[i] == i - 1

  int size() const { return int(token.size()); }
  void reset(int32_t node0);
  int add(int32_t id, int at);  // the new node
};

// Of each token of a draft behind node 0, which is a tree or a chain, the chance that it becomes one of the text, by its
// drafter's probabilities.
std::span<const float> chances_of(const Draft& d, std::vector<float>& out);

// The draft's chain: at most n_node nodes after node 0.
void chain_tree(const Draft& d, int n_node, DraftTree& out);

// The n_node likeliest continuations as a tree (DDTree): a node's score is the sum of the log-probabilities of the
// candidates on its path, each position judged on its own, and nodes come in the order of their scores. Ties: the
// smaller depth, then the smaller rank, then the older parent. Candidates without an id or a finite
// log-probability are passed over, and those that `may` refuses behind a node that is in the tree by then. d.n_top > 0,
// 1 <= n_node <= kMaxDraftNodes.
using MayFollow = std::function<bool(int node, int32_t id)>;
void best_first_tree(const Draft& d, int n_node, DraftTree& out, const MayFollow& may = {});

}  // namespace facet
