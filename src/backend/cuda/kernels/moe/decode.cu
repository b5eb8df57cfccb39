// moe_decode -- the chosen experts of one token: moe_small_batch (small_batch.cu) without what several tokens need
//
// Shapes     e [D] bf16; gate, up [N, F, D], down [N, D, F] tiled; hidden [n_used, F] bf16, out [n_used, D] f32
// Bytes      the weights of the chosen experts, once
// Launch     one block per multiprocessor, as many blocks for each expert; a block has some of its expert's strips, and
//            each warp an equal share of their slices
// Order      that of moe_small_batch: slices of a strip in order, a slice's tiles from the left. The same bits
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include <algorithm>
#include <initializer_list>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/experts.cuh"

namespace facet::cuda {
namespace {

struct DecodeArgs {
  ExpertTiles tiles[2];
  const int32_t* active;                         // Routing's
  int n_strip, blocks;                           // of an expert
  int at_parts, at_rings, stage_bytes, n_stage;  // in shared memory; of a warp's ring
  bool routed;                                   // moe_small_batch's: e has arrived, the routing may still run
  bool by_up;                                    // the kernel before this one has read the experts' numbers
  Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;       // from an expert's input to the next one's
  __nv_bfloat16* hidden;  // up's output
  float* out;             // down's
  int n_in, n_out;
};

// The pieces of a run of units, in order, on their way into a warp's ring. A unit is a slice of a strip.
template <int kSlices>
struct UnitCursor {
  static constexpr int kUnits = sub_matrices(kSlices) * kSlices;  // of a job, a strip of each matrix
  const DecodeArgs& a;
  int expert, strip0, unit, end, piece = 0, piece_end = 0, bytes = 0, rest = 0;  // rest: to the strip's end
  const uint8_t* p = nullptr;

  // The tiles are those of expert 0 until of() is called.
  __device__ UnitCursor(const DecodeArgs& args, int first_strip, int unit0, int unit1)
      : a(args), expert(0), strip0(first_strip), unit(unit0), end(unit1) {
    open();
  }
  __device__ void of(int e) {
    expert = e;
    if (unit < end) p += e * a.tiles[unit % kUnits / kSlices].matrix_bytes;
  }
  __device__ const uint8_t* first(int u) const {
    const int in_job = u % kUnits;
    const ExpertTiles& w = a.tiles[in_job / kSlices];
    return w.p + expert * w.matrix_bytes + int64_t(w.strip0 + strip0 + u / kUnits) * w.strip_bytes +
           slice_begin(w.n_piece, in_job % kSlices, kSlices) * w.piece_bytes;
  }
  __device__ void open() {
    for (; unit < end; ++unit) {
      const int slice = unit % kUnits % kSlices;
      const ExpertTiles& w = a.tiles[unit % kUnits / kSlices];
      piece = slice_begin(w.n_piece, slice, kSlices), piece_end = slice_begin(w.n_piece, slice + 1, kSlices);
      if (piece == piece_end) continue;
      bytes = w.piece_bytes, rest = w.strip_bytes - piece * bytes, p = first(unit);
      return;
    }
  }
  __device__ __forceinline__ void fetch(WarpRing& ring) {
    if (unit >= end) return;
    ring.push(p, min(bytes, rest));
    p += bytes, rest -= bytes;
    if (++piece == piece_end) ++unit, open();
  }
};

// Long: what is found before the wait on the kernel ahead stays in registers until the product behind it.
template <int kSlices, Input in>
__global__ void __launch_bounds__(kExpertWarps * 32, 2) moe_decode_kernel(const __grid_constant__ DecodeArgs a) {
  using Acts = ActsOf<1, in>;
  using Cursor = UnitCursor<kSlices>;
  constexpr bool kUp = kSlices == kUpSlices;
  constexpr int kUnits = Cursor::kUnits;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t bars[kExpertWarps][WarpRing::kMaxStages];
  // The shuffle tells the compiler that a warp's lanes agree: it counts in uniform registers.
  const int lane = int(threadIdx.x) % 32, warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0),
            n_warp = int(blockDim.x) / 32;
  float* const parts = reinterpret_cast<float*>(shared + a.at_parts);  // [unit][16]
  WarpRing ring(shared + a.at_rings + warp * a.n_stage * a.stage_bytes, bars[warp], a.n_stage, a.stage_bytes, lane,
                true);
  if (!a.routed && !a.by_up) {
    pdl_wait();
    pdl_trigger();
  }
  const int rank = fast_div(int(blockIdx.x), a.blocks), block = int(blockIdx.x) - rank * a.blocks;
  const int strip0 = fast_div(a.n_strip * block, a.blocks), jobs = fast_div(a.n_strip * (block + 1), a.blocks) - strip0;
  const int units = jobs * kUnits, unit0 = fast_div(units * warp, n_warp), unit1 = fast_div(units * (warp + 1), n_warp);
  Cursor next(a, strip0, unit0, unit1);

  // The input is on its way before the expert is known if it is there.
  const __nv_bfloat16* const x = a.x + rank * a.x_stride;
  const int n_block = (a.n_in + kActBlock - 1) / kActBlock;
  using Early = std::conditional_t<in != Input::kBf16, RowStage<in == Input::kTwoBytes>, NoStage>;
  Early early(x, a.n_in, 0, n_block * kActBlock, warp, n_warp, lane);
  auto load = [&] {
    if constexpr (in != Input::kBf16) early.load();
  };
  if (!a.by_up) load();

  // The routing may still be choosing.
  const volatile int32_t* const chosen = a.active + rank;
  int expert = *chosen;
  while (expert < 0) expert = *chosen;
  next.of(__shfl_sync(~0u, expert, 0));
#pragma unroll 1
  for (int i = 0; i + 1 < a.n_stage; ++i) next.fetch(ring);
  if (a.by_up) pdl_wait();
  if (a.routed || a.by_up) pdl_trigger();
  if (a.by_up) load();
  if constexpr (in == Input::kBf16)
    stage(
        Acts{shared}, [&](int) { return x; }, 1, a.n_in, 0, n_block * kActBlock, warp, n_warp, lane);
  else
    early.write(shared);
  __syncthreads();

  const Acts acts{hold_shared(shared)};
#pragma unroll 1
  for (int unit = unit0; unit < unit1; ++unit) {
    const int slice = unit % kUnits % kSlices;
    const ExpertTiles& w = a.tiles[unit % kUnits / kSlices];
    const int i0 = slice_begin(w.n_piece, slice, kSlices), i1 = slice_begin(w.n_piece, slice + 1, kSlices);
    float acc[1][4] = {};
    uint32_t from = uint32_t(reinterpret_cast<uintptr_t>(next.first(unit)));
    multiply_pieces(w, acts, lane, i0, i1, acc, [&] {
      const uint8_t* tile = ring.pop(from);
      from += uint32_t(w.piece_bytes);
      next.fetch(ring);
      return tile;
    });
    if (lane % 4 == 0) {
      float* to = parts + unit * kTileRows + lane / 4;
      to[0] = acc[0][0], to[8] = acc[0][2];
    }
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < jobs * kTileRows; i += int(blockDim.x)) {
    const float* of = parts + i / kTileRows * kUnits * kTileRows + i % kTileRows;
    float v[2];
#pragma unroll
    for (int sub = 0; sub < sub_matrices(kSlices); ++sub) {
      v[sub] = of[sub * kSlices * kTileRows];
#pragma unroll
      for (int s = 1; s < kSlices; ++s) v[sub] += of[(sub * kSlices + s) * kTileRows];
    }
    const int row = strip0 * kTileRows + i;
    if (row >= a.n_out) continue;
    if (kUp)
      a.hidden[rank * a.n_out + row] = __float2bfloat16_rn(activate(v[0], a.act) * v[1]);
    else
      a.out[rank * a.n_out + row] = v[0];
  }
  if (a.routed) pdl_wait();  // a kernel that waits for this one then waits for the routing, too
}

template <int kSlices, Input in>
void run(cudaStream_t stream, DecodeArgs a, int n_used) {
  const int n_warp = device().shared >= kMuchShared ? kExpertWarps : kExpertWarps / 3;
  const int units = (a.n_strip + a.blocks - 1) / a.blocks * UnitCursor<kSlices>::kUnits;  // of a block at most
  a.at_parts = ActsOf<1, in>::bytes(a.n_in);
  a.at_rings = WarpRing::lines(a.at_parts + units * kTileRows * 4);
  // Up and down lie beside each other on a multiprocessor.
  a.n_stage = std::min(ring_stages(a.at_rings, n_warp * a.stage_bytes, 2), kSlices == kUpSlices ? 4 : 3);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.n_in);
  CHECK(int64_t(a.n_strip) * a.blocks < kFastDivMost && units * n_warp < kFastDivMost, "{} strips in {} blocks",
        a.n_strip, a.blocks);
  allow_shared(moe_decode_kernel<kSlices, in>, size_t(device().shared - kOwnShared));
  int bytes = a.at_rings + n_warp * a.n_stage * a.stage_bytes;
  if (kSlices == kUpSlices)
    bytes = std::max(bytes, device().shared_sm / 2 - 1024 + WarpRing::kLine);  // a multiprocessor has room for one
  launch(moe_decode_kernel<kSlices, in>, dim3(unsigned(a.blocks * n_used)), dim3(unsigned(n_warp * 32)), size_t(bytes),
         stream, a);
}
template <int kSlices>
void run_for(cudaStream_t stream, DecodeArgs a, std::initializer_list<TiledMatrix> w, int up_strip, int n_used) {
  a.blocks = std::max(1, std::min(device().n_sm / n_used, a.n_strip));
  a.n_in = w.begin()->n_in;
  const Input in = take_tiles(a.tiles, a.stage_bytes, w, up_strip);
  switch (in) {
    case Input::kByte:
      return run<kSlices, Input::kByte>(stream, a, n_used);
    case Input::kTwoBytes:
      return run<kSlices, Input::kTwoBytes>(stream, a, n_used);
    case Input::kBf16:
      return run<kSlices, Input::kBf16>(stream, a, n_used);
  }
}

}  // namespace

void moe_decode(cudaStream_t stream, const MoeExperts& m, Mat e, const MoeBuffers& b, bool routed) {
  DecodeArgs up{};
  up.active = b.routing.active;
  up.act = m.act;
  up.hidden = b.hidden;
  up.n_strip = m.d_expert / kTileRows, up.n_out = m.d_expert;
  up.x = e.bf, up.x_stride = 0;
  up.routed = routed;
  run_for<kUpSlices>(stream, up, {m.gate, m.up}, m.up_strip, m.n_used);

  DecodeArgs down{};
  down.active = b.routing.active;
  down.out = b.out;
  down.n_strip = m.down.n_strip(), down.n_out = m.down.n_out;
  down.x = b.hidden, down.x_stride = m.d_expert;
  down.by_up = true;
  run_for<kDownSlices>(stream, down, {m.down}, 0, m.n_used);
}

}  // namespace facet::cuda
