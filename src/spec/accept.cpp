#include "spec/accept.h"

#include "base/check.h"

namespace facet {

void accept(const DraftTree& tree, std::span<const int32_t> drawn, Accepted& out) {
  CHECK(int(drawn.size()) == tree.size(), "{} tokens drawn for {} nodes", drawn.size(), tree.size());
  out.path.assign(1, 0);
  // Children come after their parent, so one pass walks the path.
  int at = 0;
  for (int i = 1; i < tree.size(); ++i)
    if (tree.parent[size_t(i)] == at && tree.token[size_t(i)] == drawn[size_t(at)]) out.path.push_back(int16_t(at = i));
  out.next = drawn[size_t(at)];
}

}  // namespace facet
