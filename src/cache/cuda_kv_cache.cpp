#include "cache/cuda_kv_cache.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "backend/cuda/kernels/probe.h"
#include "base/check.h"

namespace facet {
namespace {
void ok(cudaError_t e) { CHECK(e == cudaSuccess, "{}", cudaGetErrorString(e)); }

Result<std::byte*> device_memory(int64_t bytes, const char* what) {
  void* p = nullptr;
  if (const cudaError_t e = cudaMalloc(&p, size_t(std::max<int64_t>(bytes, 16))); e == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return Cuda::out_of_memory(what, size_t(bytes));
  } else {
    ok(e);
  }
  ok(cudaMemset(p, 0, size_t(std::max<int64_t>(bytes, 16))));
  return static_cast<std::byte*>(p);
}
}  // namespace

Result<std::unique_ptr<CudaKvCache>> CudaKvCache::create(const ModelCfg& m, const KvPlan& p) {
  std::unique_ptr<CudaKvCache> c(new CudaKvCache(m, p));
  int64_t rows = 0, saved = 0, k_stage = 0, v_stage = 0;
  for (int l : c->owners_) {
    const KvLayer& k = c->layers_[size_t(l)];
    rows += (k.k_slot + k.v_slot) * p.max_seq;
    if (k.window == 0) continue;
    saved += k.cap * (k.k_row + k.v_row);
    k_stage = std::max(k_stage, k.k_row), v_stage = std::max(v_stage, k.v_row);
  }
  const bool stages = p.max_step > p.margin;
  auto memory = device_memory(rows + (stages ? (k_stage + v_stage) * p.max_step : 0), "K/V rows");
  if (!memory) return memory.error();
  c->memory_ = *memory, c->bytes_ = rows;
  auto copies = device_memory(saved * p.max_seq * p.checkpoints, "checkpoints");
  if (!copies) return copies.error();
  c->saved_ = *copies, c->saved_slot_ = saved;

  std::byte *at = c->memory_, *stage = c->memory_ + rows;
  std::vector<KvLayer> owned;
  for (int l : c->owners_) {
    KvLayer& k = c->layers_[size_t(l)];
    k.k = at, at += k.k_slot * p.max_seq;
    k.v = at, at += k.v_slot * p.max_seq;
    if (k.window && stages) k.k_stage = stage, k.v_stage = stage + k_stage * p.max_step;
    owned.push_back(k);
  }
  auto layers = device_memory(int64_t(owned.size() * sizeof(KvLayer)), "the list of layers");
  if (!layers) return layers.error();
  c->device_layers_ = reinterpret_cast<KvLayer*>(*layers);
  ok(cudaMemcpy(c->device_layers_, owned.data(), owned.size() * sizeof(KvLayer), cudaMemcpyHostToDevice));
  for (size_t l = 0; l < m.layer.size(); ++l)
    if (m.layer[l].query_only) c->layers_[l] = c->layers_[size_t(m.layer[l].kv_source)];
  return c;
}

void CudaKvCache::fill_random() { cuda::fill_random_rows(memory_, bytes_, 7); }

CudaKvCache::~CudaKvCache() {
  cudaFree(memory_);
  cudaFree(saved_);
  cudaFree(device_layers_);
}

// Every layer moves the same rows: the first one's list serves all.
void CudaKvCache::move_row(int layer, SlotId, int from, int to) {
  if (layer != owners_.front()) return;
  CHECK(moves_.n < cuda::kMaxMoves, "a path of more than {} rows", cuda::kMaxMoves);
  moves_.from[moves_.n] = from, moves_.to[moves_.n] = to;
  ++moves_.n;
}
void CudaKvCache::moves_done(SlotId s) {
  if (moves_.n > 0) cuda::kv_move(device_layers_, int(owners_.size()), s, moves_);
  moves_.n = 0;
}

void CudaKvCache::copy_rings(SlotId s, int checkpoint, bool save) {
  std::byte* at = saved_ + (int64_t(s) * plan_.checkpoints + checkpoint) * saved_slot_;
  auto copy = [&](std::byte* ring, int64_t bytes) {
    ok(cudaMemcpyAsync(save ? at : ring, save ? ring : at, size_t(bytes), cudaMemcpyDeviceToDevice));
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
