// The message of a failed CHECK in CUDA sources, which have no fmt.
#include "base/check.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

TEST(CheckMessage, FillsInValues) {
  EXPECT_EQ(check_message("{}: {}", "cudaLaunchKernelEx(&config)", "invalid argument"),
            "cudaLaunchKernelEx(&config): invalid argument");
  EXPECT_EQ(check_message("[{} x {}] of {:.1f} MiB", 3, 4, 2.5), "[3 x 4] of 2.5 MiB");
  EXPECT_EQ(check_message("no values"), "no values");
}
TEST(CheckMessage, ValuesWithoutAPlaceFollow) {
  EXPECT_EQ(check_message("a head width of 64 or 128, not", 100), "a head width of 64 or 128, not 100");
  EXPECT_EQ(check_message("{} then", 1, 2), "1 then 2");
}
TEST(CheckMessage, OddTexts) {
  EXPECT_EQ(check_message("{{}} {} }}", 1), "{} 1 }");
  EXPECT_EQ(check_message("{} and {}", 1), "1 and ");
  EXPECT_EQ(check_message("open {", 1), "open 1");
  EXPECT_EQ(check_message(""), "");
}

}  // namespace
}  // namespace facet
