// gemm_codes -- matrix products of many rows straight from codes, on sm_90a
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     any n_out, n_in and T; W in tiles of codes, W0 and W1 of one type
// Bytes      from memory weights once for 2,048 rows and rows once for some 2,000 outputs; from L2 weights once for 256
//            rows, rows once for 128 outputs
// Flops      2 T n_out n_in, in m64 n256 k16 or narrower
// Launch     one persistent block per multiprocessor. A lane of the last warpgroup brings rows in by a tensor map, 64
//            columns a stage. A block has 128 rows of weights, or 64 of either matrix; a warp of the other two
//            warpgroups a strip of them (codes_loop.cuh). A warp's results go out by way of shared memory, whole lines
//            of 64 outputs
// Order      columns in order, 16 at a time. A row's bits do not depend on other rows, nor on how many there are
// Reference  CpuRef::matmul, gate_up
// Test       tests/kernels/cuda_gemm_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include "backend/cuda/kernels/matmul/gemm.h"

#include <algorithm>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/matmul/tiles/all.cuh"
#include "backend/cuda/tensor_map.h"

namespace facet::cuda {
namespace {

// Rows of a block with which all turns of the blocks take the least time: tensor cores four clocks a row, but codes
// of 64 columns take what 120 rows do; and some for the way in and out.
void share_rows(GemmCodesArgs& a) {
  constexpr int kCodes = 120, kBeside = 8;
  int64_t least = 0;
  for (const int tok : {256, 192, 128, 64}) {
    const int high = (a.n_tok + tok - 1) / tok;
    const int64_t turns = (int64_t(high) * a.n_wide + device().n_sm - 1) / device().n_sm;
    const int64_t time = turns * (std::max(tok, kCodes) + kBeside);
    if (least == 0 || time < least) least = time, a.tok = tok, a.n_high = high;
  }
}

}  // namespace

void gemm_codes(cudaStream_t stream, const GemmWork& g, const TiledMatrix& w, const TiledMatrix* up) {
  CHECK(!is_float(w.tile) && (!up || up->tile == w.tile) && g.n_in == w.n_in && g.n_in % 8 == 0 && g.n_tok > 0,
        "{} rows of {} columns, a matrix of {}", g.n_tok, g.n_in, w.n_in);
  GemmCodesArgs a{};
  a.w[0] = w.strip(0, 0), a.w[1] = up ? up->strip(0, 0) : a.w[0], a.strip_bytes = w.strip_bytes();
  a.n_strip = w.n_strip(), a.n_block = (w.n_in + 63) / 64, a.n_tok = g.n_tok, a.n_out = w.n_out;
  a.n_wide = (w.n_out + (up ? 63 : 127)) / (up ? 64 : 128);
  a.act = g.act, a.times = g.times;
  a.y = g.y, a.y_also = g.y_also, a.y_bf = g.y_bf, a.y_stride = g.y_stride, a.y_bf_stride = g.y_bf_stride;
  auto aligned = [](const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  a.wide =
      g.y_stride % 4 == 0 && g.y_bf_stride % 4 == 0 && aligned(g.y, 16) && aligned(g.y_also, 16) && aligned(g.y_bf, 8);
  share_rows(a);
  a.x = tensor_map_bf16(g.x, g.n_tok, g.n_in, g.x_stride, a.tok);
  with_code_tile(w.tile, [&](auto kind) { launch_gemm_codes<decltype(kind)::value>(stream, a, up != nullptr); });
}

}  // namespace facet::cuda
