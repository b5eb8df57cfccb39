// Matrix products of many rows straight from quantised weights: every tile type against products in f64 of the same
// codes, rows in parts, several matrices, gate times up. A row's bits do not depend on the others. Outputs are poisoned
// with NaN.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "support/gpu_products.h"

namespace facet::test {
namespace {

struct Room {
  Arena& a;
  uint8_t* image;
  int64_t bytes;
  Room(Arena& arena, int64_t n_tok, int64_t n_in) : a(arena), bytes(cuda::prompt_image_bytes(n_tok, n_in)) {
    image = a.poisoned<uint8_t>(size_t(bytes));
  }
};

// What kMagic adds to a bound (prompt.cuh): with one byte a value, 64 columns take 2 n - 1 roundings of numbers below
// 2^24 times the sum of the n scales of codes as the tensor core has them, each off by at most that sum of scales.
double magic_bound(const Weights& w, int r, const float* x, int n_in) {
  if (w.m.fine) return 0;
  const bool by_16 = w.m.tile == Tile::kQ6_K;
  const double unit = w.m.tile == Tile::kQ4_0 ? 16 : w.m.tile == Tile::kQ5_0 ? 8 : by_16 ? 4 : 1;
  double bound = 0;
  for (int c0 = 0; c0 < n_in; c0 += 64) {
    double scales = 0, most = 0;
    for (int c = c0; c < std::min(c0 + 64, n_in); ++c) {
      if (c % (by_16 ? 16 : 32) == 0)
        scales += std::fabs(double(w.code_scale[size_t(r) * size_t(n_in / 16) + size_t(c / 16)])) / unit;
      most = std::max(most, std::fabs(double(x[c])));
    }
    bound += (by_16 ? 7 : 3) * scales * most / 127;
  }
  return bound;
}
Product prompt_product(const Weights& w, int r, const float* x, int n_in) {
  Product p(w, r, x, n_in);
  p.bound += magic_bound(w, r, x, n_in);
  return p;
}

// Tokens whose products are compared: at the borders of images of 64, and the last one.
std::vector<int> looked_at(int n) {
  std::vector<int> all = {0, 5, 63, 64, 127, 128, n - 1};
  std::erase_if(all, [n](int k) { return k >= n; });
  return all;
}

TEST(CudaPrompt, MultipliesEveryType) {
  NEEDS_GPU();
  std::mt19937 rng(21);
  for (const Type& t : kTypes)
    for (auto [n_out, n_in] : {std::pair{48, 256}, {50, 512}, {784, 1536}, {336, 5376}, {32, 21504}, {208, 320}})
      for (const bool fine : fineness(t.tile)) {
        if (n_in % cuda::tile_cols(t.tile) != 0 || cuda::is_float(t.tile)) continue;
        Arena a;
        Weights w(a, t, n_out, n_in, rng);
        w.m.fine = fine;
        const Rows x(a, 300, n_in, rng);
        const std::vector<float> xr = rounded(x.value, n_in, input_of(w.m));
        std::vector<std::vector<float>> all;
        for (const int n : {65, 129, 300}) {
          // With less room rows come in parts.
          const Room room(a, n == 300 ? 128 : n, n_in);
          float* y = a.poisoned<float>(size_t(n + 1) * size_t(n_out));
          const cuda::SkinnyMatrix m{.w = w.m, .y = y, .y_stride = n_out};
          cuda::prompt(nullptr, &m, 1, false, Act::kGelu, x.p, n_in, n, room.image, room.bytes);
          all.push_back(a.get(y, size_t(n + 1) * size_t(n_out)));
          for (int r = 0; r < n_out; ++r)
            ASSERT_TRUE(std::isnan(all.back()[size_t(n * n_out + r)])) << "row " << r << " behind the last token";
          all.back().resize(size_t(n) * size_t(n_out));
        }
        const std::vector<float>& most = all.back();
        for (const float v : most) ASSERT_FALSE(std::isnan(v)) << t.name << " " << n_out << " x " << n_in;
        for (const int k : looked_at(300))
          for (int r = 0; r < n_out; ++r) {
            const Product want = prompt_product(w, r, xr.data() + size_t(k) * size_t(n_in), n_in);
            ASSERT_NEAR(most[size_t(k * n_out + r)], want.value, want.bound)
                << t.name << (fine ? " fine " : " ") << n_out << " x " << n_in << " row " << r << " of token " << k;
          }
        for (const std::vector<float>& y : all)
          ASSERT_EQ(std::memcmp(y.data(), most.data(), y.size() * 4), 0)
              << t.name << " " << n_out << " x " << n_in << ": " << y.size() / size_t(n_out) << " rows";
      }
}

// Matrices of one input, of several types and of both ways to read it: what each has alone, in all copies.
TEST(CudaPrompt, OfSeveralMatrices) {
  NEEDS_GPU();
  std::mt19937 rng(22);
  Arena a;
  constexpr int kIn = 1024, kTok = 129, kStride = 512;
  const Rows x(a, kTok, kIn, rng);
  const Room room(a, kTok, kIn);
  for (const auto& kinds : {std::vector<int>{0, 0, 2}, {5, 2, 1}, {3, 4, 0}}) {
    std::vector<Weights> w;
    for (size_t i = 0; i < 3; ++i) w.emplace_back(a, kTypes[kinds[i]], i == 0 ? 512 : 208, kIn, rng);
    w[0].m.fine = kinds[0] != 0;  // the others in one byte
    cuda::SkinnyMatrix m[3];
    for (size_t i = 0; i < 3; ++i) {
      m[i].w = w[i].m;
      m[i].y = a.poisoned<float>(kTok * kStride), m[i].y_stride = kStride;
    }
    m[1].y_also = a.poisoned<float>(kTok * kStride);
    m[0].y_bf = a.poisoned<__nv_bfloat16>(kTok * kStride), m[0].y_bf_stride = kStride;
    cuda::prompt(nullptr, m, 3, false, Act::kGelu, x.p, kIn, kTok, room.image, room.bytes);
    const auto also = a.get(m[1].y_also, kTok * kStride);
    const auto bf = a.get(m[0].y_bf, kTok * kStride);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<float> got = a.get(m[i].y, kTok * kStride), xr = rounded(x.value, kIn, input_of(w[i].m));
      for (const int k : looked_at(kTok))
        for (int r = 0; r < w[i].m.n_out; ++r) {
          const Product want = prompt_product(w[i], r, xr.data() + size_t(k) * kIn, kIn);
          const size_t at = size_t(k * kStride + r);
          ASSERT_NEAR(got[at], want.value, want.bound) << "matrix " << i << " row " << r << " token " << k;
          if (i == 1) {
            ASSERT_EQ(also[at], got[at]);
          } else if (i == 0) {
            ASSERT_EQ(__bfloat162float(bf[at]), bf16(got[at]));
          }
        }
    }
  }
}

// Gate and up in one launch where their types are one, else one after the other.
TEST(CudaPrompt, GateTimesUp) {
  NEEDS_GPU();
  std::mt19937 rng(23);
  for (auto [of_gate, of_up] : {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {0, 2}})
    for (auto [n_out, n_in] : {std::pair{112, 768}, {2112, 512}})
      for (const bool fine : {false, true}) {
        Arena a;
        constexpr int kTok = 130;
        Weights gate(a, kTypes[of_gate], n_out, n_in, rng), up(a, kTypes[of_up], n_out, n_in, rng);
        gate.m.fine = fine, up.m.fine = fine;
        const Rows x(a, kTok, n_in, rng);
        const Room room(a, kTok, n_in);
        cuda::SkinnyMatrix m[2] = {{.w = gate.m}, {.w = up.m}};
        m[0].y = a.poisoned<float>(size_t(kTok) * size_t(n_out)), m[0].y_stride = n_out;
        m[0].y_bf = a.poisoned<__nv_bfloat16>(size_t(kTok) * size_t(n_out)), m[0].y_bf_stride = n_out;
        cuda::prompt(nullptr, m, 2, true, Act::kGelu, x.p, n_in, kTok, room.image, room.bytes);
        const auto got = a.get(m[0].y, size_t(kTok) * size_t(n_out));
        const auto bf = a.get(m[0].y_bf, size_t(kTok) * size_t(n_out));
        const std::vector<float> xr = rounded(x.value, n_in, input_of(gate.m));
        for (const int k : looked_at(kTok))
          for (int r = 0; r < n_out; ++r) {
            const float* row = xr.data() + size_t(k) * size_t(n_in);
            const Product gp = prompt_product(gate, r, row, n_in), up_p = prompt_product(up, r, row, n_in);
            const Gated want(gp, up_p);
            const size_t at = size_t(k * n_out + r);
            ASSERT_NEAR(got[at], want.value, want.bound)
                << kTypes[of_gate].name << (fine ? " fine" : "") << " row " << r << " token " << k;
            ASSERT_EQ(__bfloat162float(bf[at]), bf16(got[at]));
          }
      }
}

}  // namespace
}  // namespace facet::test
