// prompt -- matrix products of quantised weights with many rows of activations, where int8 mma.sync is the fastest
// product there is: no bf16 copy of the weights is made
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     any n_out and n_in, any T
// Bytes      weights once for 64 rows, rows once for 384 outputs, mostly from L2: blocks that run side by side have 16
//            images of rows at as few places in the weights as there can be
// Launch     rows are rounded to images of 64 (acts.cuh). A block has 12 pairs of strips, or of strips of gate and up,
//            and an image, which comes through stages of shared memory by cp.async, 256 columns at a time. A warp has a
//            pair: its weights come from memory into registers as they lie there, a group of 64 columns ahead, and each
//            operand of a tensor core is used for 64 rows. 64 sums a lane in f32
// Order      columns in order, 64 at a time; minima after 256. A row's bits do not depend on other rows, but are not
//            those of skinny.cu
// Reference  CpuRef::matmul, qkv, gate_up
// Test       tests/kernels/cuda_prompt_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include "backend/cuda/kernels/matmul/prompt.h"

#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"

namespace facet::cuda {
namespace {

constexpr int kQuantizeWarps = 4;

template <bool kTwo>
__global__ void __launch_bounds__(kQuantizeWarps * 32)
    quantize_images_kernel(uint8_t* images, const __nv_bfloat16* x, int64_t x_stride, int n_tok, int n_in) {
  pdl_wait();
  pdl_trigger();
  const int n_block = (n_in + kActBlock - 1) / kActBlock;
  const int i = int(blockIdx.x) * kQuantizeWarps + int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int row = i / n_block, block = i - row * n_block, col = block * kActBlock + lane * 8;
  if (row >= n_tok) return;
  const uint4 v = col < n_in ? *reinterpret_cast<const uint4*>(x + row * x_stride + col) : uint4{};
  uint8_t* const to =
      images + (int64_t(row / kPromptRows) * n_block + block) * (kPromptRows * ActsInt<1, kTwo>::kStride);
  quantize_block_of<kTwo>(kPromptRows, to, v, row % kPromptRows, lane, true);
}

int act_blocks(int64_t n_in) { return int((n_in + kActBlock - 1) / kActBlock); }
int64_t image_bytes(int64_t n_in, Input in) {  // of kPromptRows rows
  const int stride = in == Input::kTwoBytes ? ActsInt<1, true>::kStride : ActsInt<1, false>::kStride;
  return int64_t(act_blocks(n_in)) * kPromptRows * stride;
}

// A matrix, or gate and up, times the rows of `images`.
void multiply(cudaStream_t stream, const SkinnyMatrix& m, const SkinnyMatrix* up, bool times, facet::Act act, Input in,
              const uint8_t* images, int n_tok) {
  const TiledMatrix& w = m.w;
  PromptArgs a{};
  a.w[0] = w.strip(m.stack, 0), a.w[1] = up ? up->w.strip(up->stack, 0) : a.w[0];
  a.strip_bytes = int(w.strip_bytes()), a.n_strip = w.n_strip(), a.n_out = w.n_out;
  a.n_block = act_blocks(w.n_in), a.n_group = (w.n_in + 63) / 64;
  a.gated = up != nullptr, a.times = times, a.act = act;
  a.n_pair = up ? a.n_strip : (a.n_strip + 1) / 2;
  a.image = images, a.n_tok = n_tok;
  a.y = m.y, a.y_also = m.y_also, a.y_bf = m.y_bf, a.y_stride = m.y_stride, a.y_bf_stride = m.y_bf_stride;
  auto aligned = [](const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  a.wide =
      m.y_stride % 4 == 0 && m.y_bf_stride % 4 == 0 && aligned(m.y, 16) && aligned(m.y_also, 16) && aligned(m.y_bf, 8);
  in == Input::kTwoBytes ? launch_prompt<true>(stream, w.tile, a) : launch_prompt<false>(stream, w.tile, a);
}

}  // namespace

int64_t prompt_image_bytes(int64_t n_tok, int64_t n_in) {
  return (n_tok + kPromptRows - 1) / kPromptRows * image_bytes(n_in, Input::kByte);
}

void prompt(cudaStream_t stream, const SkinnyMatrix* m, int n_matrix, bool glu, facet::Act act, const __nv_bfloat16* x,
            int64_t x_stride, int n_tok, uint8_t* images, int64_t images_bytes) {
  const int n_in = m[0].w.n_in;
  Input widest = Input::kByte;
  for (int i = 0; i < n_matrix; ++i) {
    CHECK(m[i].w.n_in == n_in && !is_float(m[i].w.tile), "{} and {} columns, or no codes", m[i].w.n_in, n_in);
    widest = std::max(widest, input_of(m[i].w));
  }
  const int64_t fit = images_bytes / image_bytes(n_in, widest);
  CHECK(fit >= 1, "{} bytes for {} columns of {} rows", images_bytes, n_in, kPromptRows);
  const int most = int(std::min<int64_t>(fit * kPromptRows, n_tok));
  for (int row = 0, n = 0; row < n_tok; row += n) {
    n = std::min(most, n_tok - row);
    bool there = false;
    Input have = widest;
    for (int i = 0; i < n_matrix; ++i) {
      const Input in = glu ? widest : input_of(m[i].w);
      if (!there || in != have) {
        const dim3 grid(unsigned((int64_t(act_blocks(n_in)) * n + kQuantizeWarps - 1) / kQuantizeWarps));
        launch(in == Input::kTwoBytes ? quantize_images_kernel<true> : quantize_images_kernel<false>, grid,
               dim3(kQuantizeWarps * 32), 0, stream, images, x + row * x_stride, x_stride, n, n_in);
        there = true, have = in;
      }
      auto part = [&](const SkinnyMatrix& of, const SkinnyMatrix& to) {  // of's product goes where to's does
        SkinnyMatrix p = to;
        p.w = of.w, p.stack = of.stack;
        if (p.y) p.y += row * p.y_stride;
        if (p.y_also) p.y_also += row * p.y_stride;
        if (p.y_bf) p.y_bf += row * p.y_bf_stride;
        return p;
      };
      if (!glu) {
        multiply(stream, part(m[i], m[i]), nullptr, false, act, in, images, n);
      } else if (m[0].w.tile == m[1].w.tile) {
        multiply(stream, part(m[0], m[0]), m + 1, false, act, in, images, n);
        break;
      } else {
        CHECK(m[0].y, "gate and up of different types into f32");
        multiply(stream, part(m[i], m[0]), nullptr, i == 1, act, in, images, n);
      }
    }
  }
}

}  // namespace facet::cuda
