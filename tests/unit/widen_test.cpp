#include "formats/widen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "formats/quantize.h"

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
  for (DType t : {DType::kQ3_K, DType::kIQ4_NL}) EXPECT_EQ(error_of(t), 0) << dtype_name(t);
  EXPECT_LE(error_of(DType::kIQ4_XS), 0x1p-11);
  EXPECT_GT(error_of(DType::kIQ4_XS), 0);
  for (DType t : {DType::kF32, DType::kQ2_K, DType::kQ4_1, DType::kQ5_1})
    EXPECT_LE(error_of(t), 0x1p-8) << dtype_name(t);
}

TEST(Widen, TakesNoMoreThanItMust) {
  for (DType t : {DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS})
    EXPECT_LT(row_bytes(wider_type(t), kN), row_bytes(DType::kBF16, kN));
}

}  // namespace
}  // namespace facet
