#include "formats/widen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/quantize.h"
#include "formats/random_blocks.h"

namespace facet {
namespace {

constexpr int64_t kN = 4096;

std::vector<float> values(DType t, const std::vector<std::byte>& bytes) {
  std::vector<float> v(kN);
  dequantize_row(t, bytes.data(), v.data(), kN);
  return v;
}

// Largest error of a widened row, relative to the value.
double error_of(DType t) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, .05f);
  std::vector<float> x(kN);
  for (float& v : x) v = normal(rng);
  std::vector<std::byte> bytes(row_bytes(t, kN)), wide(row_bytes(wider_type(t), kN));
  if (t == DType::kF32)
    std::memcpy(bytes.data(), x.data(), bytes.size());
  else if (has_random_blocks(t))
    random_blocks(
        t, .05f, [&] { return uint64_t(rng()) << 32 | rng(); }, bytes);
  else
    quantize_row(t, x.data(), bytes.data(), kN);
  widen_row(t, bytes.data(), wide.data(), kN);
  const auto want = values(t, bytes), got = values(wider_type(t), wide);
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i)
    most = std::max(most, want[i] == got[i] ? 0 : std::abs(double(got[i]) / double(want[i]) - 1));
  return most;
}

TEST(Widen, LosesNoMoreThanItSays) {
  for (DType t :
       {DType::kQ3_K, DType::kIQ4_NL, DType::kIQ3_S, DType::kIQ1_S, DType::kIQ1_M, DType::kMXFP4, DType::kNVFP4})
    EXPECT_EQ(error_of(t), 0) << dtype_name(t);
  for (DType t : {DType::kIQ4_XS, DType::kIQ3_XXS, DType::kIQ2_XXS}) {
    EXPECT_LE(error_of(t), 0x1p-11) << dtype_name(t);
    EXPECT_GT(error_of(t), 0) << dtype_name(t);
  }
  for (DType t : {DType::kF32, DType::kQ2_K, DType::kQ4_1, DType::kQ5_1, DType::kIQ2_XS, DType::kIQ2_S})
    EXPECT_LE(error_of(t), 0x1p-8) << dtype_name(t);
}

// A factor goes into the values, which then are BF16, whatever the type.
TEST(Widen, FactorsAreMultipliedIn) {
  std::mt19937 rng(6);
  for (DType t : {DType::kNVFP4, DType::kIQ3_S}) {
    std::vector<std::byte> bytes(row_bytes(t, kN)), wide(row_bytes(DType::kBF16, kN));
    random_blocks(
        t, .05f, [&] { return uint64_t(rng()) << 32 | rng(); }, bytes);
    scale_row(t, bytes.data(), wide.data(), kN, 3.f);
    const auto want = values(t, bytes), got = values(DType::kBF16, wide);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], 3 * want[i], std::abs(3 * want[i]) * 0x1p-8f);
  }
}

TEST(Widen, TakesNoMoreThanItMust) {
  for (DType t : {DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ3_S, DType::kIQ3_XXS, DType::kIQ2_XXS,
                  DType::kIQ1_S, DType::kIQ1_M, DType::kMXFP4})
    EXPECT_LT(row_bytes(wider_type(t), kN), row_bytes(DType::kBF16, kN));
}

}  // namespace
}  // namespace facet
