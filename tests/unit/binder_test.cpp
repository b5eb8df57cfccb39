#include "formats/binder.h"

#include <gtest/gtest.h>

#include "support/bytes.h"

namespace facet {
namespace {

TEST(Binder, FindsOrSaysEverything) {
  test::TempDir dir;
  const std::string path = dir.file("m.gguf");
  {
    GgufWriter w;
    w.add_tensor("w", DType::kQ8_0, {64, 3});
    ASSERT_TRUE(w.begin(path));
    ASSERT_TRUE(w.write(std::vector<std::byte>(row_bytes(DType::kQ8_0, 64 * 3))));
    ASSERT_TRUE(w.finish());
  }
  auto f = GgufFile::open(path);
  ASSERT_TRUE(f);
  auto w = bind(*f, "w", {64, 3}, matmul_dtypes());
  ASSERT_TRUE(w) << w.error().message();
  EXPECT_EQ(w->data.size(), 34u * 6);
  EXPECT_TRUE(bind(*f, "w", {64, 3, 1}, {DType::kF32, DType::kQ8_0}));

  const auto missing = bind(*f, "v", {64}, {DType::kF32}).error();
  EXPECT_EQ(missing.where, path);
  EXPECT_EQ(missing.what, "tensor 'v'; expected [64] of type F32, found no such tensor");
  EXPECT_NE(missing.hint.find("download the model again, or convert it again"), std::string::npos);
  EXPECT_EQ(bind(*f, "w", {3, 64}, matmul_dtypes()).error().what,
            "tensor 'w'; expected shape [3 x 64], found [64 x 3]");
  EXPECT_EQ(bind(*f, "w", {64, 3}, {DType::kF32, DType::kBF16}).error().what,
            "tensor 'w'; expected type one of F32, BF16, found Q8_0");
}

}  // namespace
}  // namespace facet
