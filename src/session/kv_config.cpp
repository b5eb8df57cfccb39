#include "session/kv_config.h"

#include <algorithm>

namespace facet {

KvPlan kv_plan(const EngineConfig& c) {
  // Drafts come on top of a chunk, so that they never keep a prompt waiting, and on top
  // of the margin, so that a conversation can go back as far as without them.
  const int draft = c.draft.any() ? c.draft.rows() : 0;
  return {.k = *c.kv_k,
          .v = *c.kv_v,
          .layers = c.kv_layers,
          .share = c.kv_layout != KvLayout::kShared ? 0
                   : c.backend == "cuda"            ? kCudaSharedHead
                                                    : 1,
          .max_seq = c.max_seq,
          .max_ctx = c.n_ctx,
          .max_step = std::max(c.chunk, c.max_seq) + c.max_seq * draft,
          .margin = c.margin + draft,
          .snapshots = std::max(0, c.snapshots)};
}

}  // namespace facet
