#pragma once
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/kv_move.h"
#include "cache/cache_of.h"
#include "cache/kv_cache.h"

namespace facet {

// K/V rows in the memory of a GPU, in device order (kernels/attend.h). All of the plan is allocated at once.
class CudaKvCache final : public KvCache {
 public:
  // The device outlives the cache.
  static Result<std::unique_ptr<CudaKvCache>> create(cuda::Device& d, const ModelCfg& m, const KvPlan& p);
  ~CudaKvCache() override;
  void fill_random();  // for benches

 private:
  CudaKvCache(cuda::Device& d, const ModelCfg& m, const KvPlan& p) : KvCache(m, p), device_(d) {}
  std::byte* zeroed(int64_t bytes, const char* what);
  Status make_present(SlotId, int, int) override { return Ok{}; }
  void move_row(int layer, SlotId s, int from, int to) override;
  void moves_done(SlotId s) override;
  void copy_rings(SlotId s, int checkpoint, bool save) override;

  cuda::Device& device_;
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
  std::byte* saved_ = nullptr;
  int64_t saved_slot_ = 0;
  KvLayer* device_layers_ = nullptr;  // those that own rows
  cuda::KvMoves moves_;
};

template <>
struct CacheOf<Cuda> {
  static Result<std::unique_ptr<KvCache>> create(Cuda& b, const ModelCfg& m, const KvPlan& p) {
    auto c = CudaKvCache::create(b.device(), m, p);
    if (!c) return c.error();
    return std::unique_ptr<KvCache>(std::move(*c));
  }
  static std::vector<KvLayer> views(const KvCache& c) { return {c.layers().begin(), c.layers().end()}; }
};

}  // namespace facet
