#pragma once
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/kv_move.h"
#include "cache/cache_of.h"
#include "cache/cuda_page_pool.h"
#include "cache/kv_cache.h"

namespace facet {

// K/V rows in the memory of a GPU, in device order (kernels/attention.h).
class CudaKvCache final : public KvCache {
 public:
  // The device outlives the cache, and so does the pool.
  static Result<std::unique_ptr<CudaKvCache>> create(cuda::Device& d, const ModelCfg& m, const KvPlan& p,
                                                     PagePool* pool = nullptr);
  ~CudaKvCache() override;
  // Benches: rows are random where nothing was written, from now on.
  void fill_random() { static_cast<CudaPagePool*>(pool_)->fill_random(); }

 private:
  CudaKvCache(cuda::Device& d, const ModelCfg& m, const KvPlan& p) : KvCache(m, p), device_(d) {}
  void move_row(int layer, SlotId s, int from, int to) override;
  void moves_done(SlotId s) override;

  cuda::Device& device_;
  KvLayer* device_layers_ = nullptr;  // those that own rows
  cuda::KvMoves moves_;
};

template <>
struct CacheOf<Cuda> {
  static Result<std::unique_ptr<PagePool>> pool(Cuda& b, const ModelCfg& m, const KvPlan& p, int64_t more,
                                                int64_t limit) {
    auto pool = CudaPagePool::create(
        b.device(), limit > 0 ? limit : pool_bytes(m, p, CudaPagePool::kPage, CudaPagePool::kReadBeyond) + more);
    if (!pool) return pool.error();
    return std::unique_ptr<PagePool>(std::move(*pool));
  }
  static Result<std::unique_ptr<KvCache>> create(Cuda& b, const ModelCfg& m, const KvPlan& p,
                                                 PagePool* pool = nullptr) {
    auto c = CudaKvCache::create(b.device(), m, p, pool);
    if (!c) return c.error();
    return std::unique_ptr<KvCache>(std::move(*c));
  }
  static int count(Cuda&) { return 1; }
  static std::vector<KvLayer> views(Cuda&, const KvCache& c) { return {c.layers().begin(), c.layers().end()}; }
};

}  // namespace facet
