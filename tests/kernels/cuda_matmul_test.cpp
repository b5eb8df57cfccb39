// Matrix products with few rows on the GPU: every tile type against products in f64 of the same codes, that
// activations are rounded as acts.cuh says, and that a row's bits do not depend on how many rows there are.
// Outputs are poisoned with NaN.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "support/gpu_products.h"

namespace facet::test {
namespace {

cuda::SkinnyWork work_of(Arena& a) {
  cuda::SkinnyWork w{.partial = a.poisoned<float>(32 << 20),
                     .partial_floats = 32 << 20,
                     .counter = a.poisoned<unsigned>(4096),
                     .image = a.poisoned<uint8_t>(4 << 20)};
  ok(cudaMemset(w.counter, 0, 4096 * sizeof(unsigned)));
  return w;
}

TEST(CudaMatmul, SkinnyMultipliesEveryType) {
  NEEDS_GPU();
  std::mt19937 rng(3);
  for (const Type& t : kTypes)
    for (auto [n_out, n_in] : {std::pair{48, 256}, {100, 512}, {336, 5376}, {32, 21504}, {2816, 768}, {208, 320}})
      for (const bool fine : fineness(t.tile)) {
        if (n_in % cuda::tile_cols(t.tile) != 0) continue;
        Arena a;
        Weights w(a, t, n_out, n_in, rng);
        w.m.fine = fine;
        const cuda::SkinnyWork work = work_of(a);
        std::vector<std::vector<float>> all;
        const Rows x(a, 16, n_in, rng);
        const std::vector<float> xr = rounded(x.value, n_in, input_of(w.m));
        for (int n : {1, 2, 3, 8, 9, 16}) {
          cuda::SkinnyMatrix m{.w = w.m};
          float* y = a.poisoned<float>(size_t(n) * size_t(n_out));
          m.y = y, m.y_stride = n_out;
          cuda::skinny(nullptr, &m, 1, false, Act::kGelu, x.p, n_in, n, work);
          all.push_back(a.get(y, size_t(n) * size_t(n_out)));
        }
        const std::vector<float>& most = all.back();
        for (int k : {0, 6, 15})
          for (int r = 0; r < n_out; ++r) {
            const Product want(w, r, xr.data() + size_t(k) * size_t(n_in), n_in);
            ASSERT_NEAR(most[size_t(k * n_out + r)], want.value, want.bound)
                << t.name << " " << n_out << " x " << n_in << " row " << r << " of token " << k;
          }
        for (const std::vector<float>& y : all)
          ASSERT_EQ(std::memcmp(y.data(), most.data(), y.size() * 4), 0)
              << t.name << " " << n_out << " x " << n_in << ": " << y.size() / size_t(n_out) << " rows";
      }
}

// The batch law: a row has the bits that it has alone, however many rows there are and wherever it is among them. Each
// row's solo run is compared, of every type; in one launch all parts of a strip's columns, several strips, odd numbers
// of them and matrices of different types.
TEST(CudaMatmul, RowsOfABatchAreTheirSoloRuns) {
  NEEDS_GPU();
  std::mt19937 rng(11);
  constexpr int kMost = 256;
  struct Shape {
    std::vector<int> n_out;
    int n_in;
    bool glu;
  };
  const Shape shapes[] = {{{5376}, 2048, false},          {{336}, 5376, false},    {{100}, 768, false},
                          {{512, 208, 224}, 1024, false}, {{48}, 320, false},      {{80}, 21504, false},
                          {{2112, 2112}, 2816, true},     {{112, 112}, 768, true}, {{2816}, 2112, false}};
  for (const Type& t : kTypes)
    for (const Shape& shape : shapes)
      for (const bool fine : fineness(t.tile)) {
        if (shape.n_in % cuda::tile_cols(t.tile) != 0) continue;
        Arena a;
        const cuda::SkinnyWork work = work_of(a);
        std::vector<Weights> w;
        for (size_t i = 0; i < shape.n_out.size(); ++i) {
          const bool other = i == 2 && t.tile < Tile::kBF16;  // v of another type
          w.emplace_back(a, other ? kTypes[(size_t(&t - kTypes) + 2) % 6] : t, shape.n_out[i], shape.n_in, rng);
          w.back().m.fine = fine;
        }
        const Rows x(a, kMost, shape.n_in, rng);
        const size_t n_y = shape.glu ? 1 : w.size();
        const int64_t stride = shape.n_out[0];
        auto run = [&](int first, int n) {
          cuda::SkinnyMatrix m[3] = {};
          std::vector<std::vector<float>> got;
          for (size_t i = 0; i < w.size(); ++i) {
            m[i].w = w[i].m;
            if (i < n_y) m[i].y = a.poisoned<float>(size_t(n) * size_t(stride)), m[i].y_stride = stride;
          }
          cuda::skinny(nullptr, m, int(w.size()), shape.glu, Act::kGelu, x.p + int64_t(first) * shape.n_in, shape.n_in,
                       n, work);
          for (size_t i = 0; i < n_y; ++i) got.push_back(a.get(m[i].y, size_t(n) * size_t(stride)));
          return got;
        };
        std::vector<std::vector<std::vector<float>>> solo;
        for (int k = 0; k < kMost; ++k) solo.push_back(run(k, 1));
        for (const int n : {2, 7, 16, 17, 33, 64, 70, 100, 256})
          for (const int first : {0, kMost - n}) {
            const auto got = run(first, n);
            for (size_t i = 0; i < n_y; ++i)
              for (int k = 0; k < n; ++k)
                ASSERT_EQ(std::memcmp(got[i].data() + size_t(k) * size_t(stride), solo[size_t(first + k)][i].data(),
                                      size_t(shape.n_out[i]) * 4),
                          0)
                    << t.name << (fine ? " fine" : "") << " " << shape.n_out[i] << " x " << shape.n_in << ": row " << k
                    << " of " << n << ", matrix " << i;
            if (n == kMost) break;
          }
      }
}

// Rows times a power of two have products times that, to the bit; rows below the least that counts are zeros. Sums of
// blocks with scales of their own are larger than products, and the largest rows are too large for them.
TEST(CudaMatmul, RowsOfAnySize) {
  NEEDS_GPU();
  std::mt19937 rng(7);
  const int n_out = 112, n_in = 1024;
  for (const Type& t : kTypes) {
    if (t.tile >= Tile::kBF16) continue;
    for (const bool fine : fineness(t.tile)) {
      Arena a;
      Weights w(a, t, n_out, n_in, rng, 0x1p-8f);
      w.m.fine = fine;
      const cuda::SkinnyWork work = work_of(a);
      const Rows x(a, 16, n_in, rng);
      auto product = [&](int exponent, int n) {
        std::vector<__nv_bfloat16> scaled;
        for (const float v : x.value) scaled.push_back(__float2bfloat16(std::ldexp(v, exponent)));
        cuda::SkinnyMatrix m{.w = w.m};
        m.y = a.poisoned<float>(size_t(n) * n_out), m.y_stride = n_out;
        cuda::skinny(nullptr, &m, 1, false, Act::kGelu, a.of(scaled), n_in, n, work);
        return a.get(m.y, size_t(n) * n_out);
      };
      for (const int n : {1, 16}) {
        const std::vector<float> plain = product(0, n);
        for (const int exponent : {-110, -80, 100, 122}) {
          if (exponent > 100 && cuda::tile_cols(t.tile) > 64) continue;
          const std::vector<float> y = product(exponent, n);
          for (size_t i = 0; i < y.size(); ++i)
            ASSERT_EQ(y[i], exponent < -100 ? 0.f : std::ldexp(plain[i], exponent))
                << t.name << (fine ? " fine" : "") << " times 2^" << exponent << ", " << n << " rows: " << i;
        }
      }
    }
  }
}

TEST(CudaMatmul, SeveralMatricesInOneLaunch) {
  NEEDS_GPU();
  std::mt19937 rng(4);
  Arena a;
  const cuda::SkinnyWork work = work_of(a);
  const int n_in = 1024;
  const Rows x(a, 5, n_in, rng);
  // q, k, v of mixed types, one of them in bf16, as launches of their own and together.
  for (const auto& kinds : {std::vector<int>{0, 0, 2}, {0, 5, 2}, {6, 6, 0}, {2, 5, 2}, {2, 0, 1}}) {
    std::vector<Weights> w;
    for (size_t i = 0; i < 3; ++i) w.emplace_back(a, kTypes[kinds[i]], i == 0 ? 512 : 208, n_in, rng);
    for (Weights& each : w) each.m.fine = kinds[0] == 2 && cuda::may_be_fine(each.m.tile);
    for (int n : {1, 5}) {
      cuda::SkinnyMatrix m[3];
      float *y[3], *also[3];
      __nv_bfloat16* bf = a.poisoned<__nv_bfloat16>(5 * 512);
      for (int i = 0; i < 3; ++i) {
        m[i].w = w[size_t(i)].m;
        y[i] = a.poisoned<float>(5 * 512), also[i] = a.poisoned<float>(5 * 512);
        m[i].y = y[i], m[i].y_stride = 512;
      }
      m[1].y_also = also[1];
      m[0].y_bf = bf, m[0].y_bf_stride = 512;
      cuda::skinny(nullptr, m, 3, false, Act::kGelu, x.p, n_in, n, work);
      for (int i = 0; i < 3; ++i) {
        const std::vector<float> got = a.get(y[i], 5 * 512), xr = rounded(x.value, n_in, input_of(w[size_t(i)].m));
        for (int k = 0; k < n; ++k)
          for (int r = 0; r < w[size_t(i)].m.n_out; ++r) {
            const Product want(w[size_t(i)], r, xr.data() + size_t(k) * size_t(n_in), n_in);
            ASSERT_NEAR(got[size_t(k * 512 + r)], want.value, want.bound)
                << "matrix " << i << " row " << r << " token " << k;
          }
        if (i == 1) {
          ASSERT_EQ(std::memcmp(a.get(also[1], size_t(n) * 512).data(), got.data(), (size_t(n - 1) * 512 + 208) * 4),
                    0);
        }
      }
      const auto rounded_y = a.get(bf, 512);
      const auto y0 = a.get(y[0], 512);
      for (size_t r = 0; r < 512; ++r) ASSERT_EQ(__bfloat162float(rounded_y[r]), bf16(y0[r]));
    }
  }
}

// A product beside the one before it, which reads the same rows: each has the bits it has alone.
TEST(CudaMatmul, BesideTheOneBefore) {
  NEEDS_GPU();
  std::mt19937 rng(6);
  Arena a;
  const int n_in = 1024, n_long = 16384, n_brief = 2816;
  const Weights head(a, kTypes[2], n_long, n_in, rng), post(a, kTypes[0], n_brief, n_in, rng);
  const Rows x(a, 16, n_in, rng);
  for (int n : {1, 5, 16}) {
    std::vector<std::vector<float>> bits;
    for (const bool late : {false, true, true}) {
      cuda::SkinnyWork work = work_of(a);
      float* y = a.poisoned<float>(size_t(n) * n_long);
      float* z = a.poisoned<float>(size_t(n) * n_brief);
      cuda::SkinnyMatrix first{.w = head.m}, second{.w = post.m};
      first.y = y, first.y_stride = n_long, second.y = z, second.y_stride = n_brief;
      work.in_turn = late;
      cuda::skinny(nullptr, &first, 1, false, Act::kGelu, x.p, n_in, n, work);
      work.in_turn = false, work.late = late;
      cuda::skinny(nullptr, &second, 1, false, Act::kGelu, x.p, n_in, n, work);
      bits.push_back(a.get(y, size_t(n) * n_long));
      const std::vector<float> zs = a.get(z, size_t(n) * n_brief);
      bits.back().insert(bits.back().end(), zs.begin(), zs.end());
    }
    for (size_t i = 1; i < bits.size(); ++i)
      EXPECT_EQ(std::memcmp(bits[i].data(), bits[0].data(), bits[0].size() * 4), 0) << n << " rows";
  }
}

TEST(CudaMatmul, GateTimesUp) {
  NEEDS_GPU();
  std::mt19937 rng(5);
  for (const Type& t : kTypes)
    for (auto [n_out, n_in] : {std::pair{112, 768}, {2112, 2816}})
      for (const bool fine : fineness(t.tile)) {
        Arena a;
        const cuda::SkinnyWork work = work_of(a);
        Weights gate(a, t, n_out, n_in, rng), up(a, t, n_out, n_in, rng);
        gate.m.fine = up.m.fine = fine;
        const Rows x(a, 16, n_in, rng);
        std::vector<float> last;
        for (int n : {16, 8, 1}) {
          cuda::SkinnyMatrix m[2] = {{.w = gate.m}, {.w = up.m}};
          float* y = a.poisoned<float>(size_t(n) * size_t(n_out));
          m[0].y = y, m[0].y_stride = n_out;
          cuda::skinny(nullptr, m, 2, true, Act::kGelu, x.p, n_in, n, work);
          const std::vector<float> got = a.get(y, size_t(n) * size_t(n_out));
          if (n == 16) {
            const std::vector<float> xr = rounded(x.value, n_in, input_of(gate.m));
            for (int k : {0, 6, 15})
              for (int r = 0; r < n_out; ++r) {
                const float* row = xr.data() + size_t(k) * size_t(n_in);
                const Product gp(gate, r, row, n_in), up_p(up, r, row, n_in);
                const Gated want(gp, up_p);
                ASSERT_NEAR(got[size_t(k * n_out + r)], want.value, want.bound)
                    << t.name << " row " << r << " token " << k;
              }
            last = got;
          } else {
            ASSERT_EQ(std::memcmp(got.data(), last.data(), got.size() * 4), 0) << t.name << ": " << n << " rows";
          }
        }
      }
}

}  // namespace
}  // namespace facet::test
