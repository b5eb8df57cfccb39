// Products of many rows by warpgroups, of weights unpacked to bf16 (gemm.cu) and of codes (gemm_codes.cu): every tile
// type against products in f64 of the same numbers, gate times up, copies and bf16. A row's bits depend neither on other
// rows nor on how many rows or outputs a block has. Outputs are poisoned with NaN.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/gemm_codes.h"
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

// The same from codes, in f16: weights are rounded once, after scales and minima of blocks; the codes that those are
// multiplied by are below 129. What is small in a row of activations misses 2^-38 of the largest. Products of f16 are
// exact in f32 as well; a row's shares of columns are at most four.
struct CodesSum : Exact {
  CodesSum(const Weights& w, int r, const float* x, int n_in) {
    double all = 0, miss = 0, most = 0;
    for (int c = 0; c < n_in; ++c) most = std::max(most, std::fabs(double(x[c])));
    for (int c = 0; c < n_in; ++c) {
      const size_t at = size_t(r) * size_t(n_in) + size_t(c);
      const double v = double(w.value[at]), least = w.minimum.empty() ? 0. : double(w.minimum[at]);
      const double rounded = 0x1.01p-11 * (std::fabs(v) + std::fabs(v + least) + std::fabs(least)) + 0x1p-25 * 130;
      value += v * double(x[c]), all += std::fabs(v * double(x[c]));
      miss += rounded * std::fabs(double(x[c])) + 0x1p-38 * most * std::fabs(v);
    }
    bound = miss + (double(n_in) / 16 + 5) * 17 * 0x1p-24 * (all + miss);
  }
};
// gemm_codes() with memory of its own.
void from_codes(Arena& a, std::vector<cuda::CodesProduct> all) {
  const cuda::GemmWork& g = all[0].to;
  const int64_t bytes = cuda::gemm_codes_room(cuda::device().n_sm, g.n_tok, g.n_in);
  cuda::gemm_codes(nullptr, all, a.poisoned<uint8_t>(size_t(bytes)));
}

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
  for (const int n : {1, 65, 100, 129, 190, 300, 1000, kMost}) {
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
    for (auto [n_out, n_in] :
         {std::pair{48, 256}, {50, 512}, {784, 1536}, {336, 5376}, {208, 320}, {1160, 1152}, {500, 2112}}) {
      if (n_in % cuda::tile_cols(t.tile) != 0) continue;
      Arena a;
      const Weights w(a, t, n_out, n_in, rng);
      const Panel panel(a, w);
      check_rows<Sum>(a, t, w, rng, [&](cuda::GemmWork g) {
        g.w = panel.p;
        cuda::gemm(nullptr, g);
      });
      if (cuda::is_float(t.tile)) continue;
      check_rows<CodesSum>(a, t, w, rng, [&](const cuda::GemmWork& g) {
        Arena room;
        from_codes(room, {{.to = g, .w = w.m}});
        ok(cudaDeviceSynchronize());
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

// How many of the rows looked at are not act(gate x) * (up x): got in f32, quick in bf16 alone, whose activation has a
// quicker quotient. TheSum: of the operands that the product has.
template <class TheSum>
int wrong_products(const Weights& gate, const Weights& up, const Rows& x, const std::vector<float>& got,
                   const std::vector<__nv_bfloat16>& quick) {
  const int n_out = gate.m.n_out, n_in = gate.m.n_in;
  int wrong = 0;
  for (const int k : looked_at(int(got.size()) / n_out))
    for (int r = 0; r < n_out; ++r) {
      const float* const row = x.value.data() + size_t(k) * size_t(n_in);
      const Gated want(TheSum(gate, r, row, n_in), TheSum(up, r, row, n_in));
      const size_t at = size_t(k * n_out + r);
      wrong += !(std::fabs(got[at] - want.value) <= want.bound) ||
               !(std::fabs(__bfloat162float(quick[at]) - want.value) <=
                 want.bound + 0x1p-8 * (std::fabs(want.value) + want.bound));
    }
  return wrong;
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
        auto* alone = a.poisoned<__nv_bfloat16>(got.size());
        work.y = nullptr, work.y_bf = alone;
        cuda::gemm(nullptr, work);
        const auto quick = a.get(alone, got.size());
        return wrong_products<Sum>(gate, up, x, got, quick);
      };
      const Panel right(a, gate, up), turned(a, up, gate);
      EXPECT_EQ(run(right), 0) << n_out << " x " << n_in;
      EXPECT_GT(run(turned), n_out) << n_out << " x " << n_in;
    }
}

// Planted: gate and up the other way round are found.
TEST(CudaGemm, GateTimesUpFromCodes) {
  NEEDS_GEMM();
  std::mt19937 rng(34);
  for (const Type& t : kTypes)
    for (auto [n_out, n_in] : {std::pair{112, 768}, {1000, 512}, {100, 3072}}) {
      if (cuda::is_float(t.tile)) continue;
      Arena a;
      constexpr int kTok = 300;
      const Weights gate(a, t, n_out, n_in, rng, .25f), up(a, t, n_out, n_in, rng);
      const Rows x(a, kTok, n_in, rng);
      auto run = [&](const Weights& first, const Weights& second) {
        const size_t n = size_t(kTok) * size_t(n_out);
        float* y = a.poisoned<float>(n);
        auto *bf = a.poisoned<__nv_bfloat16>(n), *alone = a.poisoned<__nv_bfloat16>(n);
        cuda::GemmWork work{.x = x.p,
                            .x_stride = n_in,
                            .n_tok = kTok,
                            .n_out = n_out,
                            .n_in = n_in,
                            .act = Act::kGelu,
                            .y = y,
                            .y_bf = bf,
                            .y_stride = n_out,
                            .y_bf_stride = n_out};
        from_codes(a, {{.to = work, .w = first.m, .up = &second.m}});
        const auto got = a.get(y, n);
        const auto rounded = a.get(bf, n);
        work.y = nullptr, work.y_bf = alone;
        from_codes(a, {{.to = work, .w = first.m, .up = &second.m}});
        const auto quick = a.get(alone, n);
        for (size_t i = 0; i < n; ++i) EXPECT_EQ(__bfloat162float(rounded[i]), bf16(got[i]));
        return wrong_products<CodesSum>(gate, up, x, got, quick);
      };
      EXPECT_EQ(run(gate, up), 0) << t.name << " " << n_out << " x " << n_in;
      EXPECT_GT(run(up, gate), n_out) << t.name << " " << n_out << " x " << n_in;
    }
}

// Three matrices of one x, whose columns one block has or three; rows of strides of their own, a second copy and bf16.
TEST(CudaGemm, FromCodesSideBySide) {
  NEEDS_GEMM();
  std::mt19937 rng(35);
  constexpr int kTok = 300, kOut[] = {1024, 500, 328};
  for (const int n_in : {768, 3072})
    for (const int more : {8, 3}) {  // four outputs at once, one by one
      Arena a;
      const Rows x(a, kTok, 2 * n_in, rng);  // of which every second half
      std::vector<Weights> w;
      std::vector<cuda::CodesProduct> all;
      for (int i = 0; i < 3; ++i) {
        const int64_t stride = kOut[i] + more;
        const size_t n = size_t(kTok) * size_t(stride);
        w.emplace_back(a, kTypes[i == 2 ? 2 : 0], kOut[i], n_in, rng);
        all.push_back({.to = {.x = x.p + n_in,
                              .x_stride = 2 * n_in,
                              .n_tok = kTok,
                              .n_out = kOut[i],
                              .n_in = n_in,
                              .y = a.poisoned<float>(n),
                              .y_also = i == 1 ? a.poisoned<float>(n) : nullptr,
                              .y_bf = i == 2 ? a.poisoned<__nv_bfloat16>(n) : nullptr,
                              .y_stride = stride,
                              .y_bf_stride = stride},
                       .w = w.back().m});
      }
      from_codes(a, all);
      for (size_t i = 0; i < 3; ++i) {
        const cuda::GemmWork& g = all[i].to;
        const size_t n = size_t(kTok) * size_t(g.y_stride);
        const auto y = a.get(g.y, n), also = i == 1 ? a.get(g.y_also, n) : y;
        const auto bf = i == 2 ? a.get(g.y_bf, n) : std::vector<__nv_bfloat16>{};
        for (int k = 0; k < kTok; ++k)
          for (int r = 0; r < g.y_stride; ++r) {
            const size_t at = size_t(k) * size_t(g.y_stride) + size_t(r);
            if (r >= g.n_out) {
              ASSERT_TRUE(std::isnan(y[at]) && std::isnan(also[at]) &&
                          (i != 2 || std::isnan(__bfloat162float(bf[at]))));
              continue;
            }
            ASSERT_EQ(also[at], y[at]);
            ASSERT_TRUE(i != 2 || __bfloat162float(bf[at]) == bf16(y[at]));
            if (k % 37 != 0) continue;
            const CodesSum want(w[i], r, x.value.data() + size_t(2 * k + 1) * size_t(n_in), n_in);
            ASSERT_NEAR(y[at], want.value, want.bound) << "matrix " << i << " row " << r << " of token " << k;
          }
      }
    }
}

// Rows whose numbers are tiny and huge side by side, of zeros, with an infinity and a NaN: to the precision of each.
TEST(CudaGemm, FromCodesRowsOfAnySize) {
  NEEDS_GEMM();
  std::mt19937 rng(36);
  Arena a;
  constexpr int kTok = 70, kOut = 200, kIn = 512, kZeros = 10, kInfinite = 20, kNan = 30;
  const Weights w(a, kTypes[0], kOut, kIn, rng);
  Rows x(a, kTok, kIn, rng);
  std::vector<__nv_bfloat16> b;
  for (int k = 0; k < kTok; ++k)
    for (int c = 0; c < kIn; ++c) {
      float& v = x.value[size_t(k * kIn + c)];
      v = bf16(v * (k == kZeros ? 0 : k % 4 == 0 ? 1e-6f : k % 4 == 1 ? 1e6f : k % 4 == 2 ? 1e-30f : 1e30f));
      if (k == kInfinite && c == 3) v = INFINITY;
      if (k == kNan && c == 100) v = NAN;
      b.push_back(__float2bfloat16(v));
    }
  float* y = a.poisoned<float>(size_t(kTok) * kOut);
  from_codes(
      a, {{.to = {.x = a.of(b), .x_stride = kIn, .n_tok = kTok, .n_out = kOut, .n_in = kIn, .y = y, .y_stride = kOut},
           .w = w.m}});
  const auto got = a.get(y, size_t(kTok) * kOut);
  for (int k = 0; k < kTok; ++k)
    for (int r = 0; r < kOut; ++r) {
      const float v = got[size_t(k * kOut + r)];
      if (k == kInfinite || k == kNan) {
        ASSERT_FALSE(std::isfinite(v)) << "row " << r << " of token " << k;
        continue;
      }
      const CodesSum want(w, r, x.value.data() + size_t(k) * kIn, kIn);
      ASSERT_NEAR(v, want.value, want.bound) << "row " << r << " of token " << k;
    }
}

}  // namespace
}  // namespace facet::test
