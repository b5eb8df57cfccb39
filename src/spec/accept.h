#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "spec/tree.h"

namespace facet {

// What a verification leaves of a draft.
struct Accepted {
  std::vector<int16_t> path;  // nodes kept, starting with 0, ascending
  int32_t next = -1;          // the target's own token after the path; -1: it could not be drawn
  int n_draft() const { return int(path.size()) - 1; }
};

// drawn[i] is the token that the target draws after node i's path: the largest logit when greedy, else a draw under the
// request's whole sampler chain with the key (seed, position) and the path in its history. A draft survives if it is
// that token. Every token that comes out is one that the target drew, so the text is that of plain decoding: the same
// greedy text, and for the same seed the same sampled text.
void accept(const DraftTree& tree, std::span<const int32_t> drawn, Accepted& out);

}  // namespace facet
