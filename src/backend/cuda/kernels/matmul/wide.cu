// wide -- matrix products of quantised weights with 17 to 128 rows of activations: batches, short prompts
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     as skinny.cu, T <= 128 at a time (64 in two bytes)
// Bytes      the weights, once; the image of the activations (acts.cuh) once a block and round, from L2
// Launch     the blocks, sets and jobs of skinny.cu. A warp multiplies two strips and 32 rows (16, 8 where a block has
//            few strips), so that each operand is used several times once it is in registers; the warps of a block go
//            through the columns together, 256 at a time, and what they need of weights and activations comes through
//            stages of shared memory, on sm_90 by the copy engine and a warp of its own. A block with more strips than
//            its warps take has several rounds
// Order      that of skinny.cu: a warp's sum is cut where a run begins there, and added up in the same order. So a row
//            has the same bits for every T
// Reference  CpuRef::matmul, qkv, gate_up
// Test       tests/kernels/cuda_matmul_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include "backend/cuda/kernels/matmul/wide.h"

#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/ring.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"
#include "backend/cuda/kernels/matmul/stream.cuh"

namespace facet::cuda {
namespace {

constexpr int kQuantizeWarps = 4;

template <bool kTwo>
__global__ void __launch_bounds__(kQuantizeWarps * 32)
    quantize_rows_kernel(uint8_t* image, int rows, const __nv_bfloat16* x, int64_t x_stride, int n_tok, int n_in) {
  pdl_wait();
  pdl_trigger();
  const int i = int(blockIdx.x) * kQuantizeWarps + int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int block = fast_div(i, n_tok), n = i - block * n_tok, col = block * kActBlock + lane * 8;
  if (block >= (n_in + kActBlock - 1) / kActBlock) return;
  const uint4 v = col < n_in ? *reinterpret_cast<const uint4*>(x + n * x_stride + col) : uint4{};
  quantize_block_of<kTwo>(rows, image + int64_t(block) * rows * ActsInt<1, kTwo>::kStride, v, n, lane, true);
}

int stride_of(bool two_bytes) { return two_bytes ? ActsInt<1, true>::kStride : ActsInt<1, false>::kStride; }

// Pairs of strips of the block that has most.
int most_pairs(const SkinnyArgs& a) {
  int most = 0;
  for (int b = 0; b < a.blocks; ++b) {
    int n = 0;
    for (int i = 0; i < a.n_matrix; ++i) {
      const int jobs = std::min(a.block_job[b + 1], a.first_job[i + 1]) - std::max(a.block_job[b], a.first_job[i]);
      n += jobs <= 0 ? 0 : a.n_sub == 2 ? jobs : (jobs + 1) / 2;
    }
    most = std::max(most, n);
  }
  return most;
}

}  // namespace

bool wide(cudaStream_t stream, const SkinnyArgs& args, Input in, int run_warps, const SkinnyWork& work,
          Partials& left) {
  const DeviceInfo& d = device();
  const bool two = in == Input::kTwoBytes;
  if (in == Input::kBf16 || args.n_tok > kWideRows) return false;
  WideArgs w{.a = args};
  SkinnyArgs& a = w.a;
  if (a.n_sub == 2 && (!a.even || a.tiles[0].grouped != a.tiles[1].grouped)) return false;
  w.rows = (a.n_tok + kWideGroup - 1) / kWideGroup * kWideGroup;
  w.act_bytes = w.rows * stride_of(two), w.run_warps = run_warps;
  if (a.n_set > 1 && int64_t(a.n_set) * a.n_job * a.n_sub * 16 * w.rows > work.partial_floats) return false;

  int slot = 0;
  for (int i = 0; i < (a.n_sub == 2 ? 2 : a.n_matrix); ++i) {
    // A step of several tiles begins where any of them does: its bytes may be whole lines that begin within one.
    const int tile = a.tiles[i].tile_bytes, bytes = a.tiles[i].per_block * tile;
    slot = std::max(slot, tile % WarpRing::kLine == 0 ? bytes : bytes + WarpRing::kLine - 16);
  }
  a.slot = WarpRing::lines(slot);
  const int n_warp = d.shared >= kMuchShared ? kWideWarps : kWideWarps / 2, all = most_pairs(a);
  a.at_rings = n_warp * kWideTotal * int(sizeof(float));
  const int room = d.shared - kOwnShared - a.at_rings;
  // As many pairs at a time as leave two stages, three if that takes no more rounds. Where pairs are few, more warps
  // have fewer rows each: a warp alone is bound by latency.
  auto stage_of = [&](int pairs) { return w.act_bytes + 2 * pairs * a.slot; };
  // `alone`: warps' worth of time that a step takes with none.
  float least = 0;
  struct Form {
    int group;
    float each, alone;
  };
  for (const auto& [group, each, alone] : {Form{kWideGroup, 2.3f, 9}, {16, 1.5f, 5.5f}, {8, 1, 5}}) {
    if (group == 8 && a.n_tok > kWideGroup) continue;  // stages of activations are what counts then
    const int n_group = (a.n_tok + group - 1) / group;
    int most = n_warp / n_group;
    while (most > 0 && room / stage_of(most) < 2) --most;
    if (most == 0) continue;
    const int rounds = (all + most - 1) / most, pairs = (all + rounds - 1) / rounds;
    const float time = float(rounds) * each * (alone + float(pairs * n_group));
    if (least > 0 && time >= least) continue;
    least = time, w.group = group, w.n_group = n_group, w.pairs = pairs;
  }
  if (least == 0) return false;
  w.stage = stage_of(w.pairs);
  a.n_stage = std::min(room / w.stage, kWideStages);

  a.image = work.image;
  if (!work.image_ready) {
    const dim3 grid(unsigned((int64_t(a.n_block) * a.n_tok + kQuantizeWarps - 1) / kQuantizeWarps));
    CHECK(int64_t(a.n_block) * a.n_tok < kFastDivMost, "{} rows of {} columns", a.n_tok, a.n_in);
    launch(two ? quantize_rows_kernel<true> : quantize_rows_kernel<false>, grid, dim3(kQuantizeWarps * 32), 0, stream,
           work.image, w.rows, a.x, a.x_stride, a.n_tok, a.n_in);
  }
  two ? launch_wide<true>(stream, w, n_warp) : launch_wide<false>(stream, w, n_warp);
  left = a.leave ? Partials{.p = a.partial, .n_set = a.n_set, .n_job = a.n_job, .width = w.rows} : Partials{};
  return true;
}

}  // namespace facet::cuda
