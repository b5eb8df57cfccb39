// moe_large_batch -- the chosen experts of many tokens: experts' weights in bf16 once a pass, then products of whole
// tiles
//
//   route, gather | for a group of experts at a time: unpack gate and up, multiply | unpack down, multiply | combine
//
// or, where moe_takes_codes() says so, products of all experts at once from their codes.
//
// Shapes     e, r, y [T, D] for any T, kMoeLargeBatchTokens of them a pass; experts' weights tiled
// Bytes      a layer's experts as they are and twice their bf16; 2 D (4 n_used + 1) per token
// Launch     the launchers of permute.cu, route_large_batch.cu and grouped_gemm.cu in turn; they depend on shapes alone
// Order      that of grouped_gemm.cu and permute.cu; a pass's tokens do not change each other's bits
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

// Offsets of the buffers in one piece of memory.
struct Layout {
  int64_t end = 0;
  int64_t logits, weight, expert, place, before, tile, tile_first, next, rows, hidden, weights;
  int n_resident;
  Layout(const MoeSizes& s, int64_t panel_bytes) {
    const int64_t n_tok = std::min(s.n_tok, kMoeLargeBatchTokens), pairs = n_tok * s.n_used, n = s.n_expert;
    const int64_t tiles = n + std::max(pairs / 128, std::min<int64_t>(pairs, n * kMoeTile / 4) / 64),
                  d = (s.d + 63) / 64 * 64, f = (s.d_expert + 63) / 64 * 64;
    const int64_t most_rows = pairs + 16 * tiles, sort_blocks = (n_tok + kMoeSortTokens - 1) / kMoeSortTokens;
    const int64_t expert_bytes = 2 * 2 * f * ((d + 127) / 128 * 128);  // of gate and up; down has half
    n_resident = int(std::clamp<int64_t>(panel_bytes / expert_bytes, 1, n));
    auto take = [&](int64_t bytes) {
      const int64_t at = end;
      end += (bytes + 1023) / 1024 * 1024;
      return at;
    };
    logits = take(kMoeRouterParts * n_tok * n * 4), weight = take(pairs * 4), expert = take(pairs * 4),
    place = take(pairs * 8);
    before = take(sort_blocks * n * 4), tile = take(tiles * 16), tile_first = take((n + 1) * 4), next = take(2 * n * 4);
    rows = take(most_rows * d * 2), hidden = take(most_rows * f * 2), weights = take(n_resident * expert_bytes);
  }
};

void multiply_panels(cudaStream_t stream, const MoePass& p) {
  int launches = 0;
  for (int i = 0, n; i < p.w.n_expert; i += n) {
    n = std::min(p.b.n_resident, p.w.n_expert - i);
    moe_unpack_up(stream, p, i, n);
    moe_grouped_up(stream, p, i, n, launches++);
  }
  for (int i = 0, n; i < p.w.n_expert; i += n) {
    n = std::min(2 * p.b.n_resident, p.w.n_expert - i);
    moe_unpack_down(stream, p, i, n);
    moe_grouped_down(stream, p, i, n, launches++);
  }
}

}  // namespace

int moe_tile_rows(const MoeExperts& m, int n_tok) {
  const int most = moe_has_warpgroups() ? kMoeTile : kMoeTile / 2;
  if (!moe_takes_codes(m)) return most;
  const int64_t rows = int64_t(n_tok) * m.n_used;
  return rows <= m.n_expert * (kMoeTile / 8) ? kMoeTile / 4 : rows <= m.n_expert * (kMoeTile / 4) ? kMoeTile / 2 : most;
}

int64_t moe_large_batch_bytes(const MoeSizes& s, int64_t panel_bytes) { return Layout(s, panel_bytes).end; }

MoeLargeBatch moe_large_batch_buffers(void* memory, const MoeSizes& s, int64_t panel_bytes) {
  const Layout l(s, panel_bytes);
  char* const p = static_cast<char*>(memory);
  MoeLargeBatch b;
  b.logits = reinterpret_cast<float*>(p + l.logits), b.weight = reinterpret_cast<float*>(p + l.weight),
  b.expert = reinterpret_cast<int32_t*>(p + l.expert);
  b.place = reinterpret_cast<int2*>(p + l.place), b.before = reinterpret_cast<int32_t*>(p + l.before),
  b.tile = reinterpret_cast<int4*>(p + l.tile);
  b.tile_first = reinterpret_cast<int32_t*>(p + l.tile_first), b.next = reinterpret_cast<unsigned*>(p + l.next);
  b.rows = reinterpret_cast<__nv_bfloat16*>(p + l.rows), b.hidden = reinterpret_cast<__nv_bfloat16*>(p + l.hidden);
  b.weights = reinterpret_cast<__nv_bfloat16*>(p + l.weights), b.n_resident = l.n_resident;
  return b;
}

MoePanelRows moe_large_batch(cudaStream_t stream, const MoeExperts& m, Mat y, Mat e, Mat r, const MoeLargeBatch& b,
                             bool leave) {
  CHECK(y.cols == m.down.n_out && e.cols == m.gate.n_in && e.rows == y.rows && r.rows == y.rows,
        "{} rows of {} columns", e.rows, e.cols);
  auto part = [](Mat x, int row, int n) {
    x.p += row * x.stride, x.rows = n;
    if (x.bf) x.bf += row * x.bf_stride;
    return x;
  };
  for (int row = 0; row < y.rows; row += kMoeLargeBatchTokens) {
    const int n_tok = std::min(kMoeLargeBatchTokens, y.rows - row);
    const MoePass p{.w = m, .b = b, .n_tok = n_tok, .tile = moe_tile_rows(m, n_tok)};
    moe_route_large_batch(stream, p, part(r, row, n_tok));
    moe_gather(stream, p, part(e, row, n_tok));
    if (moe_takes_codes(m))
      moe_codes_up(stream, p), moe_codes_down(stream, p);
    else
      multiply_panels(stream, p);
    if (leave && n_tok == y.rows) return p.outputs();
    moe_combine(stream, p.outputs(), part(y, row, n_tok));
  }
  return {};
}

}  // namespace facet::cuda
