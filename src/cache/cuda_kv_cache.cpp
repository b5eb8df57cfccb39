#include "cache/cuda_kv_cache.h"

#include <cuda_runtime.h>

#include <initializer_list>

#include "backend/cuda/kernels/probe.h"
#include "base/check.h"

namespace facet {

// Null: there was no memory (Device::status).
std::byte* CudaKvCache::zeroed(int64_t bytes, const char* what) {
  void* p = device_.allocate(size_t(bytes), what);
  if (p) FACET_CUDA_CHECK(cudaMemsetAsync(p, 0, size_t(bytes), device_.stream()));
  return static_cast<std::byte*>(p);
}

Result<std::unique_ptr<CudaKvCache>> CudaKvCache::create(cuda::Device& d, const ModelCfg& m, const KvPlan& p) {
  std::unique_ptr<CudaKvCache> c(new CudaKvCache(d, m, p));
  int64_t rows = 0, saved = 0, k_stage = 0, v_stage = 0;
  for (int l : c->owners_) {
    const KvLayer& k = c->layers_[size_t(l)];
    rows += (k.k_slot + k.v_slot) * p.max_seq;
    if (k.window == 0) continue;
    saved += k.cap * (k.k_row + k.v_row);
    k_stage = std::max(k_stage, k.k_row), v_stage = std::max(v_stage, k.v_row);
  }
  const bool stages = p.max_step > p.margin;
  c->memory_ = c->zeroed(rows + (stages ? (k_stage + v_stage) * p.max_step : 0), "K/V rows"), c->bytes_ = rows;
  c->saved_ = c->zeroed(saved * p.max_seq * p.checkpoints, "checkpoints"), c->saved_slot_ = saved;
  c->device_layers_ =
      reinterpret_cast<KvLayer*>(c->zeroed(int64_t(c->owners_.size() * sizeof(KvLayer)), "the list of layers"));
  if (auto ok = d.status(); !ok) return ok.error();

  std::byte *at = c->memory_, *stage = c->memory_ + rows;
  std::vector<KvLayer> owned;
  for (int l : c->owners_) {
    KvLayer& k = c->layers_[size_t(l)];
    k.k = at, at += k.k_slot * p.max_seq;
    k.v = at, at += k.v_slot * p.max_seq;
    if (k.window && stages) k.k_stage = stage, k.v_stage = stage + k_stage * p.max_step;
    owned.push_back(k);
  }
  FACET_CUDA_CHECK(cudaMemcpyAsync(c->device_layers_, owned.data(), owned.size() * sizeof(KvLayer),
                                   cudaMemcpyHostToDevice, d.stream()));
  for (size_t l = 0; l < m.layer.size(); ++l)
    if (m.layer[l].query_only) c->layers_[l] = c->layers_[size_t(m.layer[l].kv_source)];
  return c;
}

void CudaKvCache::fill_random() { cuda::fill_random_rows(device_.stream(), memory_, bytes_, 7); }

CudaKvCache::~CudaKvCache() {
  device_.make_current();
  for (void* p : std::initializer_list<void*>{memory_, saved_, device_layers_}) device_.release(p);
}

// Every layer moves the same rows: the first one's list serves all.
void CudaKvCache::move_row(int layer, SlotId, int from, int to) {
  if (layer != owners_.front()) return;
  CHECK(moves_.n < cuda::kMaxMoves, "a path of more than {} rows", cuda::kMaxMoves);
  moves_.from[moves_.n] = from, moves_.to[moves_.n] = to;
  ++moves_.n;
}
void CudaKvCache::moves_done(SlotId s) {
  if (moves_.n > 0) cuda::kv_move(device_.stream(), device_layers_, int(owners_.size()), s, moves_);
  moves_.n = 0;
}

void CudaKvCache::copy_rings(SlotId s, int checkpoint, bool save) {
  std::byte* at = saved_ + (int64_t(s) * plan_.checkpoints + checkpoint) * saved_slot_;
  auto copy = [&](std::byte* ring, int64_t bytes) {
    FACET_CUDA_CHECK(
        cudaMemcpyAsync(save ? at : ring, save ? ring : at, size_t(bytes), cudaMemcpyDeviceToDevice, device_.stream()));
    at += bytes;
  };
  for (int l : owners_) {
    const KvLayer& k = layers_[size_t(l)];
    if (k.window == 0) continue;
    copy(k.k + s * k.k_slot, k.cap * k.k_row);
    copy(k.v + s * k.v_slot, k.cap * k.v_row);
  }
}

}  // namespace facet
