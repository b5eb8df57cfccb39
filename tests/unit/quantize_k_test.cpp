// Encoders of the two-level block types: how large the error may be, and what unusual rows do.
#include "formats/quantize_k.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "formats/quantize.h"
#include "formats/quantize_search.h"

namespace facet {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> encode(DType t, const std::vector<float>& x) {
  std::vector<std::byte> b(row_bytes(t, int64_t(x.size())));
  quantize_row(t, x.data(), b.data(), int64_t(x.size()));
  return b;
}

std::vector<float> decode(DType t, const std::vector<std::byte>& b, size_t n) {
  std::vector<float> y(n);
  dequantize_row(t, b.data(), y.data(), int64_t(n));
  return y;
}

std::vector<float> round_trip(DType t, const std::vector<float>& x) { return decode(t, encode(t, x), x.size()); }

double squared_error(const std::vector<float>& x, const std::vector<float>& y) {
  double e = 0.0;
  for (size_t i = 0; i < x.size(); ++i) e += (double(x[i]) - double(y[i])) * (double(x[i]) - double(y[i]));
  return e;
}

// Squared error as a part of the sum of squares.
double relative_error(DType t, const std::vector<float>& x) {
  return squared_error(x, round_trip(t, x)) / squared_error(x, std::vector<float>(x.size()));
}

std::vector<float> gaussian(size_t n, float deviation, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// One value in 128 is twenty times as large.
std::vector<float> with_outliers(size_t n, unsigned seed) {
  std::vector<float> x = gaussian(n, 0.02f, seed);
  std::mt19937 rng(seed + 1);
  for (float& v : x)
    if (rng() % 128 == 0) v *= 20.0f;
  return x;
}

// Bounds 2 % above what the search reaches; the errors of llama-quantize's encoders are above all of the
// Gaussian ones (the fixtures test compares them tensor by tensor).
struct Bound {
  DType type;
  double gaussian, outliers;
};
constexpr Bound kBounds[] = {{DType::kQ2_K, 0.0685, 0.0486},     {DType::kQ3_K, 0.0209, 0.0231},
                             {DType::kQ4_K, 0.00501, 0.00939},   {DType::kQ5_K, 0.001216, 0.00239},
                             {DType::kQ6_K, 0.000293, 0.000997}, {DType::kIQ4_NL, 0.00549, 0.01372},
                             {DType::kIQ4_XS, 0.00557, 0.01409}};

class Searched : public testing::TestWithParam<Bound> {
 protected:
  DType type() const { return GetParam().type; }
  size_t block() const { return size_t(dtype_info(type()).block); }
};

TEST_P(Searched, ErrorOfGaussianData) {
  for (float deviation : {1e-3f, 0.02f, 3.0f}) {
    const double e = relative_error(type(), gaussian(1 << 16, deviation, 1));
    EXPECT_LE(e, GetParam().gaussian) << dtype_name(type()) << " deviation " << deviation;
  }
}

TEST_P(Searched, ErrorOfDataWithOutliers) {
  EXPECT_LE(relative_error(type(), with_outliers(1 << 16, 3)), GetParam().outliers) << dtype_name(type());
}

TEST_P(Searched, ABlockDependsOnItselfAlone) {
  const size_t n = block() * 9;  // more than a set of lanes, and not a multiple
  const auto x = with_outliers(n, 5);
  const auto row = encode(type(), x);
  const size_t bytes = row.size() / 9;
  for (size_t i = 0; i < 9; ++i) {
    const auto one = encode(type(), {x.begin() + ptrdiff_t(i * block()), x.begin() + ptrdiff_t((i + 1) * block())});
    EXPECT_EQ(0, std::memcmp(one.data(), row.data() + i * bytes, bytes)) << dtype_name(type()) << " block " << i;
  }
}

TEST_P(Searched, WritesNothingBeyondTheRow) {
  const auto x = gaussian(block() * 3, 1.0f, 6);
  const size_t bytes = row_bytes(type(), int64_t(x.size()));
  std::vector<std::byte> b(bytes + 3, std::byte(0xA5));  // from an odd address
  quantize_row(type(), x.data(), b.data() + 1, int64_t(x.size()));
  EXPECT_EQ(b[0], std::byte(0xA5));
  EXPECT_EQ(b[bytes + 1], std::byte(0xA5));
  const auto even = encode(type(), x);
  EXPECT_EQ(0, std::memcmp(even.data(), b.data() + 1, bytes));
}

TEST_P(Searched, ZerosAreZero) {
  for (float y : round_trip(type(), std::vector<float>(block()))) EXPECT_EQ(y, 0.0f);
}

TEST_P(Searched, ConstantsAreKept) {
  for (float c : {1.0f, -1.0f, 0.037f, -512.0f})
    for (float y : round_trip(type(), std::vector<float>(block(), c)))
      ASSERT_NEAR(y / c, 1.0f, 2e-3f) << dtype_name(type()) << " of " << c;
}

TEST_P(Searched, OneValueAloneIsKept) {
  for (float c : {1.0f, -1.0f})
    for (size_t at : {size_t(0), size_t(17), block() - 1}) {
      std::vector<float> x(block());
      x[at] = c;
      const auto y = round_trip(type(), x);
      // IQ4 has no level for 0; the nearest is 1 of 113 or 127.
      const float bound = dtype_name(type())[0] == 'I' ? 0.009f : 0.002f;
      for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], x[i], bound) << dtype_name(type()) << " element " << i;
    }
}

// Blocks beside a bad one are what they would be without it.
TEST_P(Searched, NonFiniteValuesAreHarmless) {
  const auto good = gaussian(block() * 3, 1.0f, 7);
  const auto want = encode(type(), good);
  for (float bad : {kInf, -kInf, kNan})
    for (size_t many : {size_t(1), block()}) {
      auto x = good;
      std::fill_n(x.begin() + ptrdiff_t(block()), many, bad);
      const auto got = encode(type(), x);
      const size_t bytes = got.size() / 3;
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), bytes));
      EXPECT_EQ(0, std::memcmp(got.data() + 2 * bytes, want.data() + 2 * bytes, bytes));
    }
}

// What the f16 step can hold is held; beyond it values saturate and stay finite.
TEST_P(Searched, HugeValues) {
  for (float deviation : {1e4f, 1e6f, 1e20f, 1e38f}) {
    const auto x = gaussian(block() * 4, deviation, 8);
    const auto y = round_trip(type(), x);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(std::isfinite(y[i])) << dtype_name(type()) << " " << deviation;
    if (deviation < 1e5f) {
      EXPECT_LE(relative_error(type(), x), 2 * GetParam().gaussian) << dtype_name(type());
    }
  }
  for (float y : round_trip(type(), std::vector<float>(block(), 1e6f))) ASSERT_NEAR(y / 1e6f, 1.0f, 2e-3f);
}

// Below the least f16 step nothing can be kept, but nothing may grow either.
TEST_P(Searched, TinyValues) {
  for (float deviation : {1e-45f, 1e-40f, 1e-20f, 1e-9f, 1e-7f, 1e-6f}) {
    const auto x = gaussian(block() * 4, deviation, 9);
    const auto y = round_trip(type(), x);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_LE(std::fabs(y[i]), 8 * deviation + 0x1p-24f) << dtype_name(type()) << " " << deviation;
    EXPECT_LE(squared_error(x, y), 1.001 * squared_error(x, std::vector<float>(x.size()))) << dtype_name(type());
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Searched, testing::ValuesIn(kBounds),
                         [](const auto& p) { return std::string(dtype_name(p.param.type)); });

// No other nibble is nearer: the codes fit the scales that are stored, not those that were wished for.
TEST(SearchedQ4K, NoOtherCodeIsNearer) {
  const auto x = with_outliers(256 * 8, 10);
  auto b = encode(DType::kQ4_K, x);
  const double best = squared_error(x, decode(DType::kQ4_K, b, x.size()));
  for (size_t at = 0; at < b.size(); ++at) {
    if (at % 144 < 16) continue;  // the head of the block
    for (int shift : {0, 4})
      for (int by : {-1, 1}) {
        const int q = (int(b[at]) >> shift & 15) + by;
        if (q < 0 || q > 15) continue;
        auto changed = b;
        changed[at] = std::byte((int(b[at]) & (shift ? 15 : 240)) | q << shift);
        ASSERT_GE(squared_error(x, decode(DType::kQ4_K, changed, x.size())), best * (1 - 1e-6)) << "byte " << at;
      }
  }
}

// The width of a register is no part of the result.
TEST(SearchedLanes, BothWidthsFindTheSame) {
  constexpr Trials kTrials{2.6f, 0.2f, 12, 2};
  constexpr RangeTrials kRange{12.0f, 0.4f, 11, 0.0f, 1, 2};
  const auto x = with_outliers(256 * 16, 11);
  for (size_t at = 0; at < x.size(); at += 256) {
    const auto a = fit_scales<WholeLevels<-4, 3>, -32>(Grouped<4, 16, 16>(x.data() + at), kTrials);
    const auto b = fit_scales<WholeLevels<-4, 3>, -32>(Grouped<8, 16, 16>(x.data() + at), kTrials);
    EXPECT_EQ(a.d, b.d);
    EXPECT_EQ(0, std::memcmp(a.scale, b.scale, sizeof a.scale));
    const auto c = fit_scales_mins<15, 63>(Grouped<4, 8, 32>(x.data() + at), kRange);
    const auto e = fit_scales_mins<15, 63>(Grouped<8, 8, 32>(x.data() + at), kRange);
    EXPECT_EQ(c.d, e.d);
    EXPECT_EQ(c.dmin, e.dmin);
    EXPECT_EQ(0, std::memcmp(c.scale, e.scale, sizeof c.scale));
    EXPECT_EQ(0, std::memcmp(c.min, e.min, sizeof c.min));
  }
}

}  // namespace
}  // namespace facet
