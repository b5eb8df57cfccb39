// grouped_codes -- products of many tokens with their experts' weights, straight from the codes, on sm_90a
//
//   up    hidden = act(gate rows) * (up rows)      M tiles of 64 rows of gate and of up
//   down  out    = down hidden                     M tiles of 128 rows
//
// Shapes     weights in tiles of codes [expert, strip of 16 rows]; in, hidden and out [N tile, block][width, 64]
//            (moe.h), width <= 256; in and hidden in f16, out in bf16
// Bytes      codes once per N tile, rows once per M tile, mostly from L2
// Launch     one block per multiprocessor takes work items (N tile, M tile) from a counter. A lane of the last
//            warpgroup brings in rows, blocks of 64 columns, through stages in shared memory; a warp of the other two
//            has a strip: codes_loop.cuh
// Order      f16 operands (expand_tiles.cuh), f32 sums of 16 columns after another; hidden is rounded to f16, out to
//            bf16
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/matmul/tiles/all.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

void launch_codes(cudaStream_t stream, const MoePass& p, Tile tile, CodesArgs a, bool up) {
  a.tile = p.b.tile, a.tile_first = p.b.tile_first, a.next = p.b.next + (up ? 0 : 1);
  a.n_expert = p.w.n_expert, a.most_rows = p.tile, a.act = p.w.act;
  with_code_tile(
      tile, [&](auto kind) { launch_grouped_codes<decltype(kind)::value>(stream, a, p.tiles_most() * a.n_m, up); });
}

}  // namespace

bool moe_takes_codes(const MoeExperts& w) {
  return device().gemm && w.gate.tile == w.up.tile && !is_float(w.gate.tile) && !is_float(w.down.tile);
}
void moe_codes_up(cudaStream_t stream, const MoePass& p) {
  const TiledMatrix &gate = p.w.gate, &up = p.w.up;
  launch_codes(stream, p, gate.tile,
               {.w = {gate.strip(0, 0), up.strip(0, p.w.up_strip)},
                .matrix_bytes = {gate.matrix_bytes(), up.matrix_bytes()},
                .strip_bytes = gate.strip_bytes(),
                .in = p.b.rows,
                .out = p.b.hidden,
                .n_strip = p.w.d_expert / kTileRows,
                .n_m = p.f_blocks(),
                .n_block = p.d_blocks(),
                .n_out_block = p.f_blocks()},
               true);
}
void moe_codes_down(cudaStream_t stream, const MoePass& p) {
  const TiledMatrix& down = p.w.down;
  launch_codes(stream, p, down.tile,
               {.w = {down.strip(0, 0), down.strip(0, 0)},
                .matrix_bytes = {down.matrix_bytes(), down.matrix_bytes()},
                .strip_bytes = down.strip_bytes(),
                .in = p.b.hidden,
                .out = p.b.rows,
                .n_strip = down.n_strip(),
                .n_m = (p.d_blocks() + 1) / 2,
                .n_block = p.f_blocks(),
                .n_out_block = p.d_blocks()},
               false);
}

}  // namespace facet::cuda
