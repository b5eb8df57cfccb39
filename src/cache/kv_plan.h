#pragma once
#include <span>
#include <string>
#include <vector>

#include "formats/kv_codec.h"
#include "model/types.h"

namespace facet {

// How many rows a step may bring and the cache must hold.
struct KvPlan {
  KvType k = KvType::kF16, v = KvType::kF16;
  std::vector<KvOfLayers> layers = {};  // those with types of their own; of two entries for one the last counts
  int share = 0;  // layers whose K is V and whose heads are at least so wide keep both in one row, of K's type; 0: none
  int max_seq = 1;     // sequences of one step
  int max_ctx = 4096;  // rows of a full layer per sequence
  int max_step = 512;  // tokens of one step; the staging area
  int margin = 64;     // tokens of one sequence in a step that go straight to the rings, and rows that a
                       // rewind can take back at any time; at least a verify chain or tree
  int snapshots = 0;   // sequences that are kept beside those of a step, to go on from
  int resident() const { return max_seq + snapshots; }  // slots
  KvPair of_layer(size_t l) const;
};

inline bool kv_shared(const LayerCfg& c, const KvPlan& p) { return c.shares(p.share); }
bool kv_shared(const ModelCfg& m, const KvPlan& p);        // some layer
bool kv_shared_codes(const ModelCfg& m, const KvPlan& p);  // some layer, in a quantised type
// Bytes of a row of layer l; v is 0 where K's bytes hold both.
struct KvRowBytes {
  int64_t k = 0, v = 0;
  int64_t both() const { return k + v; }
};
KvRowBytes kv_row_bytes(const ModelCfg& m, size_t l, const KvPlan& p);

// Rows of a ring: a step of at most `margin` tokens never overwrites a row that one of its tokens can see.
inline int64_t ring_rows(const LayerCfg& c, const KvPlan& p) {
  return std::min<int64_t>(p.max_ctx, c.window - 1 + p.margin);
}

// Bytes by purpose. All but staging is taken from a pool of pages as rows are written; the figures are for sequences
// that are as long as they may be, `full` and `rings` of those of a step, `snapshots` of the rings of the others, whose
// rows of full layers are mostly shared.
struct KvBytes {
  int64_t full = 0, rings = 0, staging = 0, snapshots = 0;
  int64_t total() const { return full + rings + staging + snapshots; }
};
KvBytes kv_bytes(const ModelCfg& m, const KvPlan& p);
// Pages of host memory: some 64 rows of a full layer, so that little is copied where sequences part.
int64_t host_page_bytes(const ModelCfg& m, const KvPlan& p);
// The same in whole pages, with the rows that kernels may read beyond a sequence's end.
int64_t pool_bytes(const ModelCfg& m, const KvPlan& p, int64_t page_bytes, int64_t rows_read_beyond);
// Of a pool for all stages of a pipeline together (cache_of_stages.h), what each gets: by what its layers' rows take,
// and on the last stage `more` for drafters. own: the model as far as each stage has rows.
std::vector<int64_t> stage_limits(int64_t limit, std::span<const ModelCfg> own, const KvPlan& p, int64_t more);

// One line of a memory table.
struct MemoryLine {
  std::string name, detail;
  int64_t bytes = 0;
};
struct MemoryPlan {
  std::vector<MemoryLine> lines;
  int64_t available = 0;  // 0: unknown
  // Memory of several devices: each holds what its own plan says, and there are no other lines.
  std::string name = {};  // of a device
  std::vector<MemoryPlan> parts = {};
  int64_t total() const;
  bool fits() const;                  // each device's
  const MemoryPlan& fullest() const;  // the device that has least left, or this
  std::string table() const;
  std::string line() const;  // "154.83 MiB of 21.52 GiB: weights 7.45 MiB, cache 128.00 MiB, work 19.38 MiB"
};
std::string human_bytes(int64_t n);  // "17.39 GiB"

}  // namespace facet
