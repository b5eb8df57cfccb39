#include "spec/tree.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/check.h"

namespace facet {

void DraftTree::reset(int32_t node0) {
  token.assign(1, node0);
  parent.assign(1, -1);
  depth.assign(1, 0);
  is_chain = true;
}

int DraftTree::add(int32_t id, int at) {
  const int node = size();
  is_chain &= at == node - 1;
  token.push_back(id);
  parent.push_back(int16_t(at));
  depth.push_back(int16_t(depth[size_t(at)] + 1));
  return node;
}

std::span<const float> chances_of(const Draft& d, std::vector<float>& out) {
  out.assign(1, 1.f);
  const int n = std::min(d.n_draft(), int(d.top_log_prob.size()));
  for (int i = 1; i <= n; ++i) {
    const size_t parent = d.parent.empty() ? size_t(i) - 1 : size_t(d.parent[size_t(i)]);
    out.push_back(out[parent] * std::exp(std::min(0.f, d.top_log_prob[size_t(i) - 1])));
  }
  out.erase(out.begin());
  return out;
}

void chain_tree(const Draft& d, int n_node, DraftTree& out) {
  out.reset(d.token[0]);
  for (int i = 1; i <= std::min(n_node, d.n_draft()); ++i) out.add(d.token[size_t(i)], i - 1);
}

namespace {

// A node that may come next: the candidate of `rank` for the position after `parent`.
struct Next {
  double score;
  int depth, rank, parent;
  bool operator<(const Next& o) const {  // in a priority_queue: the one on top is not less than any other
    if (score != o.score) return score < o.score;
    if (depth != o.depth) return depth > o.depth;
    if (rank != o.rank) return rank > o.rank;
    return parent > o.parent;
  }
};

}  // namespace

void best_first_tree(const Draft& d, int n_node, DraftTree& out, const MayFollow& may) {
  CHECK(d.n_top > 0 && n_node >= 1 && n_node <= kMaxDraftNodes, "a tree of {} nodes from {} candidates", n_node,
        d.n_top);
  const int depths = std::min(d.n_draft(), int(d.top.size()) / d.n_top);
  auto at = [&](int depth, int rank) { return size_t(depth - 1) * size_t(d.n_top) + size_t(rank); };
  std::priority_queue<Next> open;
  // The best candidate of a position from `rank` on that can be a node.
  auto offer = [&](double base, int depth, int rank, int parent) {
    for (; depth <= depths && rank < d.n_top; ++rank)
      if (const int32_t id = d.top[at(depth, rank)];
          id >= 0 && std::isfinite(d.top_log_prob[at(depth, rank)]) && (!may || may(parent, id)))
        return open.push({base + double(d.top_log_prob[at(depth, rank)]), depth, rank, parent});
  };
  out.reset(d.token[0]);
  offer(0, 1, 0, 0);
  while (out.size() <= n_node && !open.empty()) {
    const Next n = open.top();
    open.pop();
    const int node = out.add(d.top[at(n.depth, n.rank)], n.parent);
    offer(n.score - double(d.top_log_prob[at(n.depth, n.rank)]), n.depth, n.rank + 1, n.parent);
    offer(n.score, n.depth + 1, 0, node);
  }
}

}  // namespace facet
