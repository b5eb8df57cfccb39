// Times matrix products straight from quantised blocks on one GPU at Gemma's shapes, one JSON object per line.
//   facet_cuda_matmul_bench [substring of the names to run]
// Each case is a graph of calls that walk over copies of the weights larger together than the L2; the time is
// the median of its replays over the calls. What they are compared with is measured first: the read bandwidth, and a
// loop of int8 mma.sync with the instructions that the scale of a 32-column block takes.
#include <cstdio>
#include <random>
#include <string>

#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/gemm_codes.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/probe.h"
#include "cuda_bench.h"

using namespace facet;
using cuda::Tile;

namespace {

// Eight independent products of 16 x 8 x 32 a warp and turn, operands in registers; scaled: sums in f32, a factor each.
template <bool kScaled>
__global__ void __launch_bounds__(256, 2) mma_kernel(int n, float* out) {
  float sum[8][4] = {};
  int codes[8][4] = {};
  const uint32_t seed = 0x01010101u * (threadIdx.x & 15);
  const uint32_t a[4] = {seed, seed ^ 1, seed ^ 2, seed ^ 3};
  const float scale = float(threadIdx.x) * 1e-20f;
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      int c[4];
      cuda::mma_s8(c, a, seed ^ uint32_t(i), seed ^ uint32_t(j));
#pragma unroll
      for (int k = 0; k < 4; ++k) kScaled ? void(sum[j][k] += scale * float(c[k])) : void(codes[j][k] ^= c[k]);
    }
  float all = 0;
  for (int j = 0; j < 8; ++j)
    for (int k = 0; k < 4; ++k) all += sum[j][k] + float(codes[j][k]);
  if (all == 0.5f) *out = all;
}
template <bool kScaled>
double mma_tops(cudaStream_t stream, float* out) {
  constexpr int kTurns = 4096;
  const int blocks = 2 * cuda::device().n_sm;
  const double us =
      bench::time_us(stream, 4, [&](int) { mma_kernel<kScaled><<<blocks, 256, 0, stream>>>(kTurns, out); });
  return double(blocks) * 8 * kTurns * 8 * (2. * 16 * 8 * 32) / us / 1e6;
}

struct Case {
  const char* name;
  int n_in;
  std::vector<std::pair<Tile, int>> w;  // types and rows
  bool glu;
};

const std::vector<Case> kCases = {
    {"31b qkv sliding", 5376, {{Tile::kQ4_K, 8192}, {Tile::kQ4_K, 4096}, {Tile::kQ6_K, 4096}}, false},
    {"31b o sliding", 8192, {{Tile::kQ4_K, 5376}}, false},
    {"31b gate_up", 5376, {{Tile::kQ4_K, 21504}, {Tile::kQ4_K, 21504}}, true},
    {"31b down", 21504, {{Tile::kQ4_K, 5376}}, false},
    {"31b down q6_k", 21504, {{Tile::kQ6_K, 5376}}, false},
    {"31b lm_head", 5376, {{Tile::kQ6_K, 262144}}, false},
    {"26b qkv sliding", 2816, {{Tile::kQ4_K, 4096}, {Tile::kQ4_K, 2048}, {Tile::kQ6_K, 2048}}, false},
    {"26b o sliding", 4096, {{Tile::kQ4_K, 2816}}, false},
    {"26b gate_up", 2816, {{Tile::kQ4_K, 2112}, {Tile::kQ4_K, 2112}}, true},
    {"26b down", 2112, {{Tile::kQ8_0, 2816}}, false},
    {"26b lm_head", 2816, {{Tile::kQ6_K, 262144}}, false},
    {"12b q5_k gate_up", 3840, {{Tile::kQ5_K, 15360}, {Tile::kQ5_K, 15360}}, true},
    {"q4_0 gate_up", 5376, {{Tile::kQ4_0, 21504}, {Tile::kQ4_0, 21504}}, true},
    {"q8_0 gate_up", 5376, {{Tile::kQ8_0, 21504}, {Tile::kQ8_0, 21504}}, true},
    {"bf16 gate_up", 2560, {{Tile::kBF16, 10240}, {Tile::kBF16, 10240}}, true},
};

constexpr int kMostRows = 4096;  // of a prompt
constexpr int kRows[] = {1, 4, 8, 16, 32, 64, 128}, kPromptRows[] = {128, 256, 512, 1024, kMostRows};
constexpr int64_t kMostWeights = int64_t(21504) * 5376;  // of a matrix that becomes a panel

// A case's matrices m straight from codes.
void from_codes(cudaStream_t stream, const Case& c, const cuda::SkinnyMatrix* m, int n, const __nv_bfloat16* in,
                __nv_bfloat16* hidden, void* room) {
  cuda::CodesProduct all[3];
  const size_t n_product = c.glu ? 1 : c.w.size();
  for (size_t k = 0; k < n_product; ++k) {
    cuda::GemmWork& to = all[k].to;
    to.x = in, to.x_stride = to.n_in = c.n_in, to.n_tok = n, to.n_out = m[k].w.n_out;
    to.y = c.glu ? nullptr : m[k].y, to.y_stride = m[k].y_stride;
    to.y_bf = c.glu ? hidden : nullptr, to.y_bf_stride = to.n_out;
    all[k].w = m[k].w, all[k].up = c.glu ? &m[1].w : nullptr;
  }
  cuda::gemm_codes(stream, {all, n_product}, room);
}

// Panels of weights: unpacked and multiplied, by either; gemm.cu's product alone; and codes.
// run(name, n, calls, multiply(m)) times a case's matrices m.
template <class Run>
void panels(cuda::Device& device, const Case& c, int most, const __nv_bfloat16* in, const uint8_t* arena, float* y,
            __nv_bfloat16* hidden, void* room, Run&& run) {
  const int n_matrix = int(c.w.size());
  for (const bool ours : {true, false}) {
    device.use_gemm(ours);
    if (ours ? !device.info().gemm : !device.info().cublaslt) continue;
    if (ours && !cuda::is_float(c.w[0].first))
      for (const int n : kPromptRows)
        if (n < kMostRows)
          run("gemm codes", n, 2,
              [&](const cuda::SkinnyMatrix* m) { from_codes(device.stream(), c, m, n, in, hidden, room); });
    cuda::Gemm gemm(device);
    gemm.use_codes(false);
    gemm.reserve(kMostWeights, kMostRows, 21504);
    for (const auto& [tile, rows] : c.w)
      if (!gemm.fits({nullptr, tile, rows, c.n_in, 1})) return;
    for (const int n : kPromptRows)
      run(ours ? "gemm" : "cublaslt", n, 2, [&](const cuda::SkinnyMatrix* m) {
        auto to = [&](const cuda::SkinnyMatrix& k) {
          return cuda::Mat{.p = k.y, .rows = n, .cols = k.w.n_out, .stride = most};
        };
        cuda::Mat gated = to(m[0]);
        gated.bf = hidden, gated.bf_stride = gated.cols;
        if (c.glu) return gemm.multiply_gated(gated, in, c.n_in, m[0].w, m[1].w, Act::kGelu, true);
        cuda::Gemm::Product all[3];
        for (int k = 0; k < n_matrix; ++k) all[k] = {.y = to(m[k]), .w = m[k].w};
        gemm.multiply({all, size_t(n_matrix)}, in, c.n_in);
      });
    for (const int n : kPromptRows)
      if (ours && n_matrix == 1)
        run("gemm alone", n, 2, [&](const cuda::SkinnyMatrix*) {
          cuda::gemm(device.stream(), {.x = in,
                                       .x_stride = c.n_in,
                                       .n_tok = n,
                                       .w = reinterpret_cast<const __nv_bfloat16*>(arena),
                                       .n_out = most,
                                       .n_in = c.n_in,
                                       .y = y,
                                       .y_stride = most});
        });
  }
  device.use_gemm(true);
}

}  // namespace

int main(int argc, char** argv) {
  facet::cuda::Device device(0);
  const std::string only = argc > 1 ? argv[1] : "";
  const cudaStream_t stream = device.stream();
  const size_t arena_bytes = size_t(3) << 30;
  uint8_t* arena = bench::allocate<uint8_t>(arena_bytes);
  {
    std::vector<uint32_t> h(1 << 22);
    std::mt19937 rng(1);
    for (uint32_t& v : h) v = rng() & 0x3FFF3FFF;  // halves below 2: every scale is a number
    for (size_t at = 0; at + h.size() * 4 <= arena_bytes; at += h.size() * 4)
      FACET_CUDA_CHECK(cudaMemcpy(arena + at, h.data(), h.size() * 4, cudaMemcpyHostToDevice));
  }
  const double ceiling = cuda::read_gbps();
  std::vector<__nv_bfloat16> x(size_t(kMostRows) * 21504);
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (auto& v : x) v = __float2bfloat16(normal(rng));
  uint8_t* xd = bench::allocate<uint8_t>(x.size() * 2);
  FACET_CUDA_CHECK(cudaMemcpy(xd, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
  float* y = bench::allocate<float>(size_t(kMostRows) * 43008);
  const double scaled = mma_tops<true>(stream, y), bare = mma_tops<false>(stream, y);
  std::printf("{\"kernel\": \"mma.sync\", \"tops\": %.0f, \"tops_scaled\": %.0f, \"gbps\": %.0f}\n", bare, scaled,
              ceiling);
  constexpr size_t kPartial = size_t(512) << 20;
  cuda::SkinnyWork work{.partial = reinterpret_cast<float*>(bench::allocate<uint8_t>(kPartial)),
                        .partial_floats = kPartial / 4,
                        .counter = reinterpret_cast<unsigned*>(bench::allocate<uint8_t>(65536)),
                        .image = bench::allocate<uint8_t>(size_t(cuda::skinny_image_bytes(21504)))};
  FACET_CUDA_CHECK(cudaMemset(work.counter, 0, 65536));
  const int64_t images_bytes = cuda::prompt_image_bytes(kMostRows, 21504);
  uint8_t* const images = bench::allocate<uint8_t>(size_t(images_bytes));
  auto* const hidden = bench::allocate<__nv_bfloat16>(size_t(kMostRows) * 21504);

  for (const Case& c : kCases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    int most = 0;
    for (auto [tile, rows] : c.w) most += rows;
    size_t bytes = 0;
    for (auto [tile, rows] : c.w)
      bytes += size_t(cuda::TiledMatrix{nullptr, tile, rows, c.n_in, 1}.matrix_bytes() + 127) / 128 * 128;
    const int copies = int(std::max<size_t>(1, std::min(arena_bytes / bytes, (size_t(400) << 20) / bytes + 2)));
    auto run = [&](const char* kernel, int n, int calls, auto&& multiply) {
      if (int64_t(n) * most > int64_t(kMostRows) * 43008) return;
      auto call = [&](int i) {
        cuda::SkinnyMatrix m[3];
        const uint8_t* p = arena + size_t(i % copies) * bytes;
        int64_t at = 0;
        for (size_t k = 0; k < c.w.size(); ++k) {
          m[k].w = {p, c.w[k].first, c.w[k].second, c.n_in, 1};
          p += size_t(m[k].w.matrix_bytes() + 127) / 128 * 128;
          m[k].y = y + at, m[k].y_stride = most;
          at += c.w[k].second;
        }
        multiply(m);
      };
      const double us = bench::time_us(stream, calls, call);
      const double tops = 2. * n * most * c.n_in / us / 1e6;
      std::printf(
          "{\"kernel\": \"%s\", \"case\": \"%s\", \"n\": %d, \"us\": %.2f, \"mb\": %.1f, \"gbps\": %.0f, "
          "\"gbps_ceiling\": %.0f, \"share\": %.3f, \"tops\": %.1f, \"of_mma\": %.3f}\n",
          kernel, c.name, n, us, double(bytes) / 1e6, double(bytes) / us / 1e3, ceiling,
          double(bytes) / us / 1e3 / ceiling, tops, tops / scaled);
      std::fflush(stdout);
    };
    const auto* in = reinterpret_cast<const __nv_bfloat16*>(xd);
    const int n_matrix = int(c.w.size());
    for (const int n : kRows)
      run("skinny", n, std::max(copies, 8), [&](const cuda::SkinnyMatrix* m) {
        cuda::skinny(stream, m, n_matrix, c.glu, Act::kGelu, in, c.n_in, n, work);
      });
    panels(device, c, most, in, arena, y, hidden, work.partial, run);
    if (cuda::is_float(c.w[0].first)) continue;
    for (const int n : kPromptRows)
      run("prompt", n, 2, [&](const cuda::SkinnyMatrix* m) {
        cuda::prompt(stream, m, n_matrix, c.glu, Act::kGelu, in, c.n_in, n, images, images_bytes);
      });
  }
  return 0;
}
