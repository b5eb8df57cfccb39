#include "cache/cuda_kv_cache.h"

#include <cuda_runtime.h>

#include "base/check.h"

namespace facet {

Result<std::unique_ptr<CudaKvCache>> CudaKvCache::create(cuda::Device& d, const ModelCfg& m, const KvPlan& p,
                                                         PagePool* pool) {
  d.make_current();
  std::unique_ptr<CudaKvCache> c(new CudaKvCache(d, m, p));
  std::unique_ptr<PagePool> own;
  if (!pool) {
    auto made = CudaPagePool::create(d, pool_bytes(m, p, CudaPagePool::kPage, CudaPagePool::kReadBeyond));
    if (!made) return made.error();
    own = std::move(*made);
  }
  if (auto ok = c->allocate(m, pool, std::move(own)); !ok) return ok.error();
  std::vector<KvLayer> owned;
  for (int l : c->owners_) owned.push_back(c->layers_[size_t(l)]);
  c->device_layers_ = static_cast<KvLayer*>(d.allocate(owned.size() * sizeof(KvLayer), "the list of layers"));
  if (auto ok = d.status(); !ok) return ok.error();
  FACET_CUDA_CHECK(cudaMemcpyAsync(c->device_layers_, owned.data(), owned.size() * sizeof(KvLayer),
                                   cudaMemcpyHostToDevice, d.stream()));
  FACET_CUDA_CHECK(cudaStreamSynchronize(d.stream()));  // `owned` ends here
  return c;
}

CudaKvCache::~CudaKvCache() {
  device_.make_current();
  device_.release(device_layers_);
  release_all();
}

// Every layer moves the same rows: the first one's list serves all.
void CudaKvCache::move_row(int layer, SlotId, int from, int to) {
  if (layer != owners_.front()) return;
  CHECK(moves_.n < cuda::kMaxMoves, "a path of more than {} rows", cuda::kMaxMoves);
  moves_.from[moves_.n] = from, moves_.to[moves_.n] = to;
  ++moves_.n;
}
void CudaKvCache::moves_done(SlotId s) {
  if (moves_.n > 0) {
    device_.make_current();
    cuda::kv_move(device_.stream(), device_layers_, int(owners_.size()), s, moves_);
  }
  moves_.n = 0;
}

}  // namespace facet
