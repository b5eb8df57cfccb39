// How a program ends that cannot go on: a failed CHECK of CUDA sources, which have no fmt, and a mapping that was lost.
#include "base/check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/mmap.h"

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

TEST(LostMapping, AFileThatIsCutShortIsNamed) {
  const std::string path = testing::TempDir() + "cut-short-" + std::to_string(::getpid());
  std::ofstream(path) << std::string(size_t(1) << 20, 'x');
  auto file = MappedFile::open(path);
  ASSERT_TRUE(bool(file));
  const auto cut_and_read = [&] {
    tell_of_lost_mappings();
    std::filesystem::resize_file(path, 1);
    volatile std::byte last = file->bytes().back();
    (void)last;
  };
  EXPECT_EXIT(cut_and_read(), testing::ExitedWithCode(1), "facet: .*cut-short-[0-9]*: expected the file .* cut short");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace facet
