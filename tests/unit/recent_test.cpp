#include "base/recent.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

TEST(Recent, ReplacesWhatWasAskedForLeastRecently) {
  Recent<int, int> r(3);
  std::vector<int> gone;
  auto at = [&](int key) -> int& { return r.at(key, [&](int v) { gone.push_back(v); }); };
  for (int k : {1, 2, 3}) at(k) = 10 * k;
  const int* two = &at(2);
  EXPECT_EQ(at(1), 10);
  EXPECT_EQ(at(4), 0) << "in the place of 3";
  EXPECT_EQ(gone, (std::vector<int>{30}));
  EXPECT_EQ(at(2), 20);
  EXPECT_EQ(&at(2), two);
  at(4) = 40;
  EXPECT_EQ(at(5), 0) << "in the place of 1";
  EXPECT_EQ(gone, (std::vector<int>{30, 10}));
  EXPECT_EQ(r.size(), 3u);
  r.clear([&](int v) { gone.push_back(v); });
  EXPECT_EQ(r.size(), 0u);
  EXPECT_EQ(gone.size(), 5u);
}

}  // namespace
}  // namespace facet
