// Products of many rows by warpgroups, of weights unpacked to bf16 (gemm.cu): every tile type against products in f64
// of the same numbers, gate times up, copies and bf16. A row's bits depend neither on other rows nor on how many rows or
// outputs a block has. Outputs are poisoned with NaN.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/kernels/matmul/gemm.h"
#include "support/gpu_products.h"

namespace facet::test {
namespace {

bool has_gemm() {
  const bool was = gpu().info().gemm;
  gpu().use_gemm(true);
  const bool has = gpu().info().gemm;
  gpu().use_gemm(was);
  return has;
}
#define NEEDS_GEMM() \
  NEEDS_GPU();       \
  if (!has_gemm()) GTEST_SKIP() << "needs warpgroup products: a GPU and machine code of sm_90a"

// Row r of W, rounded to bf16, times x in f64. Products of bf16 are exact in f32. A tensor core adds 16 of them to the
// sum at a time, each of the 17 cut below 2^-24 of the largest; none is larger than what all terms sum to.
struct Sum : Exact {
  Sum(const Weights& w, int r, const float* x, int n_in) {
    double all = 0;
    for (int c = 0; c < n_in; ++c) {
      const double term = double(bf16(w.value[size_t(r) * size_t(n_in) + size_t(c)])) * double(x[c]);
      value += term, all += std::fabs(term);
    }
    bound = (double(n_in) / 16 + 1) * 17 * 0x1p-24 * all;
  }
};

struct Panel {
  __nv_bfloat16* p;
  Panel(Arena& a, const Weights& w) : p(a.poisoned<__nv_bfloat16>(size_t(w.m.n_out) * size_t(w.m.n_in))) {
    cuda::unpack_bf16(nullptr, p, w.m, 0, 0, w.m.n_out);
  }
  Panel(Arena& a, const Weights& gate, const Weights& up)
      : p(a.poisoned<__nv_bfloat16>(size_t(cuda::interleaved_rows(gate.m.n_out)) * size_t(gate.m.n_in))) {
    cuda::unpack_bf16(nullptr, p, gate.m, 0, 0, gate.m.n_out, 0);
    cuda::unpack_bf16(nullptr, p, up.m, 0, 0, up.m.n_out, 1);
  }
};

// Tokens whose products are compared: at the borders of warps, warpgroups, blocks and clusters, and the last one.
std::vector<int> looked_at(int n) {
  std::vector<int> all = {0, 15, 16, 63, 64, 127, 128, 255, 256, n - 1};
  std::erase_if(all, [n](int k) { return k >= n; });
  return all;
}

// multiply(work) for several numbers of rows: every result against Want, and the same bits whatever the number is.
template <class Want, class Multiply>
void check_rows(Arena& a, const Type& t, const Weights& w, std::mt19937& rng, Multiply&& multiply) {
  constexpr int kMost = 2100;
  const int n_out = w.m.n_out, n_in = w.m.n_in;
  const Rows x(a, kMost, n_in, rng);
  std::vector<std::vector<float>> all;
  for (const int n : {1, 65, 129, 190, 300, kMost}) {
    float* y = a.poisoned<float>(size_t(n + 1) * size_t(n_out));
    multiply({.x = x.p, .x_stride = n_in, .n_tok = n, .n_out = n_out, .n_in = n_in, .y = y, .y_stride = n_out});
    all.push_back(a.get(y, size_t(n + 1) * size_t(n_out)));
    for (int r = 0; r < n_out; ++r)
      ASSERT_TRUE(std::isnan(all.back()[size_t(n * n_out + r)])) << "row " << r << " behind the last token";
    all.back().resize(size_t(n) * size_t(n_out));
  }
  const std::vector<float>& most = all.back();
  for (const float v : most) ASSERT_FALSE(std::isnan(v)) << t.name << " " << n_out << " x " << n_in;
  for (const int k : looked_at(kMost))
    for (int r = 0; r < n_out; ++r) {
      const Want want(w, r, x.value.data() + size_t(k) * size_t(n_in), n_in);
      ASSERT_NEAR(most[size_t(k * n_out + r)], want.value, want.bound)
          << t.name << " " << n_out << " x " << n_in << " row " << r << " of token " << k;
    }
  for (const std::vector<float>& y : all)
    ASSERT_EQ(std::memcmp(y.data(), most.data(), y.size() * 4), 0)
        << t.name << " " << n_out << " x " << n_in << ": " << y.size() / size_t(n_out) << " rows";
}

// One pair of blocks, several, and so many that blocks have fewer outputs, or 64 to 256 rows.
TEST(CudaGemm, MultipliesEveryType) {
  NEEDS_GEMM();
  std::mt19937 rng(31);
  for (const Type& t : kTypes)
    for (auto [n_out, n_in] : {std::pair{48, 256}, {50, 512}, {784, 1536}, {336, 5376}, {208, 320}, {1160, 1152}}) {
      if (n_in % cuda::tile_cols(t.tile) != 0) continue;
      Arena a;
      const Weights w(a, t, n_out, n_in, rng);
      const Panel panel(a, w);
      check_rows<Sum>(a, t, w, rng, [&](cuda::GemmWork g) {
        g.w = panel.p;
        cuda::gemm(nullptr, g);
      });
    }
}

// Rows of strides of their own, into both copies and bf16; nothing beside them is written.
TEST(CudaGemm, CopiesAndStrides) {
  NEEDS_GEMM();
  std::mt19937 rng(32);
  for (const int stride : {520, 515}) {  // four at once, one by one
    Arena a;
    constexpr int kIn = 1024, kTok = 131, kOut = 500;
    Weights w(a, kTypes[2], kOut, kIn, rng);
    const Panel panel(a, w);
    const Rows x(a, kTok, 2 * kIn, rng);  // of which every second half
    const size_t n = size_t(kTok * stride);
    float *y = a.poisoned<float>(n), *also = a.poisoned<float>(n);
    auto* bf = a.poisoned<__nv_bfloat16>(n);
    cuda::gemm(nullptr, {.x = x.p + kIn,
                         .x_stride = 2 * kIn,
                         .n_tok = kTok,
                         .w = panel.p,
                         .n_out = kOut,
                         .n_in = kIn,
                         .y = y,
                         .y_also = also,
                         .y_bf = bf,
                         .y_stride = stride,
                         .y_bf_stride = stride});
    const auto first = a.get(y, n), second = a.get(also, n);
    const auto rounded = a.get(bf, n);
    for (int k = 0; k < kTok; ++k)
      for (int r = 0; r < stride; ++r) {
        const size_t at = size_t(k * stride + r);
        if (r >= kOut) {
          ASSERT_TRUE(std::isnan(first[at]) && std::isnan(second[at]) && std::isnan(__bfloat162float(rounded[at])));
          continue;
        }
        ASSERT_EQ(second[at], first[at]);
        ASSERT_EQ(__bfloat162float(rounded[at]), bf16(first[at]));
        if (k % 16 != 0) continue;
        const Sum want(w, r, x.value.data() + size_t(k) * 2 * kIn + kIn, kIn);
        ASSERT_NEAR(first[at], want.value, want.bound) << "row " << r << " of token " << k;
      }
  }
}

// Planted: gate and up the other way round are found.
TEST(CudaGemm, GateTimesUp) {
  NEEDS_GEMM();
  std::mt19937 rng(33);
  for (auto [of_gate, of_up] : {std::pair{0, 0}, {0, 2}, {6, 6}})
    for (auto [n_out, n_in] : {std::pair{112, 768}, {2112, 512}, {100, 256}}) {
      Arena a;
      constexpr int kTok = 300;
      Weights gate(a, kTypes[of_gate], n_out, n_in, rng, .25f), up(a, kTypes[of_up], n_out, n_in, rng);
      const Rows x(a, kTok, n_in, rng);
      auto run = [&](const Panel& panel) {
        float* y = a.poisoned<float>(size_t(kTok) * size_t(n_out));
        auto* bf = a.poisoned<__nv_bfloat16>(size_t(kTok) * size_t(n_out));
        cuda::GemmWork work{.x = x.p,
                            .x_stride = n_in,
                            .n_tok = kTok,
                            .w = panel.p,
                            .n_out = n_out,
                            .n_in = n_in,
                            .gated = true,
                            .act = Act::kGelu,
                            .y = y,
                            .y_bf = bf,
                            .y_stride = n_out,
                            .y_bf_stride = n_out};
        cuda::gemm(nullptr, work);
        const auto got = a.get(y, size_t(kTok) * size_t(n_out));
        const auto rounded = a.get(bf, got.size());
        for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(__bfloat162float(rounded[i]), bf16(got[i]));
        // In bf16 alone the activation's quotient is a quicker one.
        auto* alone = a.poisoned<__nv_bfloat16>(got.size());
        work.y = nullptr, work.y_bf = alone;
        cuda::gemm(nullptr, work);
        const auto quick = a.get(alone, got.size());
        int wrong = 0;
        for (const int k : looked_at(kTok))
          for (int r = 0; r < n_out; ++r) {
            const float* const row = x.value.data() + size_t(k) * size_t(n_in);
            const Gated want(Sum(gate, r, row, n_in), Sum(up, r, row, n_in));
            const size_t at = size_t(k * n_out + r);
            wrong += !(std::fabs(got[at] - want.value) <= want.bound) ||
                     !(std::fabs(__bfloat162float(quick[at]) - want.value) <=
                       want.bound + 0x1p-8 * (std::fabs(want.value) + want.bound));
          }
        return wrong;
      };
      const Panel right(a, gate, up), turned(a, up, gate);
      EXPECT_EQ(run(right), 0) << n_out << " x " << n_in;
      EXPECT_GT(run(turned), n_out) << n_out << " x " << n_in;
    }
}

}  // namespace
}  // namespace facet::test
