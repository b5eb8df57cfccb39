// Blocks against gguf-py's numpy code (tools/make_dequant_golden.py): every value and every byte must be
// equal.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/half.h"
#include "formats/dtype.h"
#include "formats/quantize.h"
#include "formats/safetensors.h"

namespace facet {
namespace {

class BlockGolden : public testing::TestWithParam<DType> {
 protected:
  static const SafetensorsFile& golden() {
    static const auto f = SafetensorsFile::open(FACET_TEST_DATA "/formats/blocks.safetensors");
    EXPECT_TRUE(f) << f.error().message();
    return *f;
  }
  static const SafetensorsFile& books() {
    static const auto f = SafetensorsFile::open(FACET_TEST_DATA "/formats/books.safetensors");
    EXPECT_TRUE(f) << f.error().message();
    return *f;
  }
  static const TensorView& tensor(const std::string& name) {
    const TensorView* t = golden().find(name);
    if (!t) t = books().find(name);
    EXPECT_NE(t, nullptr) << name;
    return *t;
  }
  static std::vector<float> floats(const std::string& name) {
    const TensorView& t = tensor(name);
    std::vector<float> v(size_t(t.n_elements()));
    std::memcpy(v.data(), t.data.data(), t.data.size());
    return v;
  }
};

class Dequantise : public BlockGolden {};
class Quantise : public BlockGolden {};

TEST_P(Dequantise, EveryValueEqualsTheReference) {
  const std::string name = dtype_name(GetParam());
  const auto want = floats(name + ".values");
  const auto& blocks = tensor(name + ".blocks");
  ASSERT_EQ(blocks.data.size(), row_bytes(GetParam(), int64_t(want.size())));
  // From an odd address: files align tensors, not rows.
  std::vector<std::byte> shifted(blocks.data.size() + 1);
  std::memcpy(shifted.data() + 1, blocks.data.data(), blocks.data.size());
  std::vector<float> got(want.size());
  dequantize_row(GetParam(), shifted.data() + 1, got.data(), int64_t(got.size()));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << name << " element " << i;
}

INSTANTIATE_TEST_SUITE_P(Types, Dequantise,
                         testing::Values(DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                         DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                         DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS,
                                         DType::kIQ2_XS, DType::kIQ2_S, DType::kIQ3_XXS, DType::kIQ3_S, DType::kMXFP4,
                                         DType::kNVFP4),
                         [](const auto& p) { return std::string(dtype_name(p.param)); });

TEST_P(Quantise, EveryByteEqualsTheReference) {
  const std::string name = dtype_name(GetParam());
  const auto x = floats("encode.input");
  const auto& want = tensor("encode." + name);
  std::vector<std::byte> got(row_bytes(GetParam(), int64_t(x.size())));
  ASSERT_EQ(got.size(), want.data.size());
  quantize_row(GetParam(), x.data(), got.data(), int64_t(x.size()));
  const int per_block = dtype_info(GetParam()).block_bytes;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], want.data[i]) << name << " block " << i / size_t(per_block) << " byte " << i % size_t(per_block);
}

TEST_P(Quantise, NonFiniteInputIsHarmless) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(32, 1.0f);
    x[5] = bad;
    std::vector<std::byte> got(row_bytes(GetParam(), 32));
    quantize_row(GetParam(), x.data(), got.data(), 32);
    std::fill(x.begin(), x.end(), bad);
    quantize_row(GetParam(), x.data(), got.data(), 32);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Quantise,
                         testing::Values(DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                         DType::kQ5_1, DType::kQ8_0),
                         [](const auto& p) { return std::string(dtype_name(p.param)); });

TEST(DType, PlainTypesRoundTrip) {
  const float x[4] = {0.0f, -1.5f, 1024.0f, 6.1035156e-5f};
  for (DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::byte bytes[16];
    float y[4];
    quantize_row(t, x, bytes, 4);
    dequantize_row(t, bytes, y, 4);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(y[i], x[i]) << dtype_name(t);
  }
}

TEST(DType, NamesAndNumbersFindEachType) {
  for (int i = 0; i < int(DType::kCount); ++i) {
    const DTypeInfo& info = dtype_info(DType(i));
    EXPECT_EQ(dtype_from_ggml(info.ggml_id), DType(i));
    EXPECT_EQ(dtype_from_name(info.name), DType(i));
  }
  EXPECT_EQ(dtype_from_name("q4_k"), DType::kQ4_K);
  EXPECT_EQ(dtype_from_name("q4"), std::nullopt);
  EXPECT_EQ(dtype_from_ggml(42), std::nullopt);
}

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = f16_to_f32(uint16_t(h));
    if (f != f) continue;
    ASSERT_EQ(f32_to_f16(f), h);
  }
}

TEST(Shape, PrintsInNeOrder) {
  TensorView t;
  t.n_dims = 2;
  t.ne = {5376, 4096, 1, 1};
  EXPECT_EQ(shape_string(t), "[5376 x 4096]");
}

}  // namespace
}  // namespace facet
