// SHA-256 and SHA-1 against the published examples and against every way to cut a text.
#include "base/sha.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace facet {
namespace {

std::string digest(std::string_view text, Sha::Kind kind, size_t piece = SIZE_MAX) {
  Sha sha(kind);
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    sha.add(std::as_bytes(std::span(text.substr(0, piece))));
  return sha.hex();
}

TEST(Sha, PublishedExamples) {
  const auto k256 = Sha::Kind::kSha256, k1 = Sha::Kind::kSha1;
  EXPECT_EQ(digest("", k256), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc", k256), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const char* two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  EXPECT_EQ(digest(two_blocks, k256), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a'), k256),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(digest("abc", k1), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(digest(two_blocks, k1), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a'), k1), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

TEST(Sha, CutsDoNotMatter) {
  std::string text;
  for (int n = 0; n < 300; ++n) {
    for (const auto kind : {Sha::Kind::kSha1, Sha::Kind::kSha256})
      for (const size_t piece : {1u, 7u, 63u, 64u, 65u}) EXPECT_EQ(digest(text, kind, piece), digest(text, kind)) << n;
    text += char(n * 31 + 7);
  }
}

}  // namespace
}  // namespace facet
