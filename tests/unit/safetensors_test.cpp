#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <random>

#include "support/bytes.h"

namespace facet {
namespace {

using test::Bytes;
using test::TempDir;

std::vector<std::byte> file(std::string_view header, size_t data_bytes) {
  return Bytes().u64(header.size()).text(header).fill(data_bytes, 0x3C).b;
}

constexpr std::string_view kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("a":{"dtype":"F32","shape":[4],"data_offsets":[12,28]},"s":{"dtype":"I64","shape":[],"data_offsets":[28,36]}})";

Result<SafetensorsContents> parse(const std::vector<std::byte>& bytes, bool allow_truncated = false) {
  const std::vector<std::byte> exact(bytes);  // so that the address sanitiser sees one byte too many
  auto r = parse_safetensors(exact, "m.safetensors", allow_truncated);
  unsigned sum = 0;
  if (r)
    for (const TensorView& t : r->tensors)
      for (std::byte b : t.data) sum += unsigned(b);
  EXPECT_NE(sum, 0xFFFFFFFFu);
  return r;
}

TEST(Safetensors, ReadsShapesInNeOrder) {
  const auto r = parse(file(kGood, 36));
  ASSERT_TRUE(r) << r.error().message();
  ASSERT_EQ(r->tensors.size(), 3u);
  EXPECT_EQ(r->tensors[0].name, "a");
  EXPECT_EQ(r->tensors[1].ne, (std::array<int64_t, 4>{3, 2, 1, 1}));
  EXPECT_EQ(r->tensors[1].type, DType::kBF16);
  EXPECT_EQ(r->tensors[2].n_dims, 0);
  EXPECT_EQ(r->tensors[2].n_elements(), 1);
  EXPECT_EQ(r->metadata[0].second, "pt");
  EXPECT_EQ(r->data_end, 8 + kGood.size() + 36);
}

TEST(Safetensors, Errors) {
  const auto one = [](std::string_view tensor, size_t data) {
    return file("{\"t\":" + std::string(tensor) + "}", data);
  };
  const struct {
    std::vector<std::byte> bytes;
    std::string text;
  } cases[] = {
      {{}, "header length; expected 8 bytes, found a file of 0 bytes"},
      {Bytes().u64(1000).text("{}").b, "header length; expected at most 2 bytes, found 1000"},
      {Bytes().u64(~uint64_t(0)).text("{}").b, "header length; expected at most 2 bytes, found 18446744073709551615"},
      {file("{\"t\":", 0), "header; expected a JSON object without duplicate keys, found text that is not JSON"},
      {file("[1]", 0), "found JSON that is not an object"},
      {file(
           R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       "found the key 't' twice"},
      {file(std::string(20000, '['), 0), "header; expected a JSON object without duplicate keys, found deeper nesting"},
      {file(R"({"__metadata__":{"n":1}})", 0), "__metadata__ key 'n'; expected string, found number"},
      {one("3", 0), "tensor 't'; expected an object, found number"},
      {one(R"({"shape":[1],"data_offsets":[0,4]})", 4), "tensor 't'; expected 'dtype', a string, found none"},
      {one(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})", 4),
       "expected dtype F32, F16, BF16, F64, I64, I32, I16 or I8, found 'F8_E4M3'"},
      {one(R"({"dtype":"F32","data_offsets":[0,4]})", 4), "expected 'shape', an array, found none"},
      {one(R"({"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4]})", 4), "expected at most 4 dimensions, found 5"},
      {one(R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})", 0),
       "expected dimensions that are positive integers, found 0 at index 0"},
      {one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4), "found -1 at index 0"},
      {one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4), "found 1.5 at index 0"},
      {one(R"({"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,4]})", 4),
       "expected fewer than 2^59 elements"},
      {one(R"({"dtype":"F32","shape":[1]})", 4), "expected 'data_offsets' of two integers, found none"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", 4),
       "expected 'data_offsets' of two integers, found [0]"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
       "expected 8 bytes of data for F32 [2], found data_offsets 0..4"},
      {one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4), "found data_offsets 4..0"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4), "tensor 't'; expected data up to offset"},
      {file(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           8),
       "tensor 'b'; expected data at or after offset 8, the end of 'a', found offset 4"},
  };
  for (const auto& c : cases) {
    const auto r = parse(c.bytes);
    ASSERT_FALSE(r) << c.text;
    EXPECT_NE(r.error().message().find(c.text), std::string::npos) << r.error().message();
    EXPECT_EQ(r.error().where, "m.safetensors");
    EXPECT_FALSE(r.error().hint.empty());
  }
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const auto whole = file(kGood, 36);
  for (size_t n = 0; n < whole.size(); ++n)
    ASSERT_FALSE(parse({whole.begin(), whole.begin() + std::ptrdiff_t(n)})) << n;
  auto cut = whole;
  cut.resize(whole.size() - 1);
  const auto r = parse(cut, true);
  ASSERT_TRUE(r);
  EXPECT_EQ(r->data_end, whole.size());
  EXPECT_TRUE(r->tensors[2].data.empty());
}

TEST(Safetensors, RandomDamageNeverCrashes) {
  const auto whole = file(kGood, 36);
  std::mt19937 rng(11);
  for (int i = 0; i < 3000; ++i) {
    auto bytes = whole;
    for (int f = 0, n = 1 + int(rng() % 3); f < n; ++f) bytes[rng() % bytes.size()] = std::byte(rng());
    if (rng() % 4 == 0) bytes.resize(rng() % bytes.size());
    const auto r = parse(bytes, rng() % 2 == 0);
    EXPECT_TRUE(r || !r.error().what.empty());
  }
}

std::vector<std::byte> shard(const std::string& tensor) {
  return file("{\"" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
}

TEST(Safetensors, ShardsOpenFromFolderAndIndex) {
  TempDir dir;
  dir.write("one.safetensors", shard("a"));
  dir.write("two.safetensors", shard("b"));
  const std::string index =
      dir.write("model.safetensors.index.json",
                Bytes().text(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})").b);
  for (const std::string& path : {dir.path(), index}) {
    auto f = SafetensorsFile::open(path);
    ASSERT_TRUE(f) << f.error().message();
    EXPECT_EQ(f->tensors().size(), 2u);
    EXPECT_NE(f->find("a"), nullptr);
    EXPECT_NE(f->find("b"), nullptr);
    EXPECT_EQ(f->find("c"), nullptr);
  }
  EXPECT_TRUE(SafetensorsFile::open(dir.file("two.safetensors")));
}

TEST(Safetensors, ShardErrors) {
  const auto error_of = [](std::string_view index, bool shards = true) {
    TempDir dir;
    if (shards) {
      dir.write("one.safetensors", shard("a"));
      dir.write("two.safetensors", shard("a"));
    }
    if (!index.empty()) dir.write("model.safetensors.index.json", Bytes().text(index).b);
    auto f = SafetensorsFile::open(dir.path());
    EXPECT_FALSE(f);
    return f ? std::string() : f.error().message();
  };
  const auto has = [](const std::string& m, std::string_view s) { return m.find(s) != m.npos; };
  std::string m = error_of("");
  EXPECT_TRUE(has(m, "expected model.safetensors.index.json or model.safetensors in the folder")) << m;
  m = error_of("{}");
  EXPECT_TRUE(has(m, "key 'weight_map'; expected an object, found none")) << m;
  m = error_of(R"({"weight_map":{"a":"../../etc/passwd"}})");
  EXPECT_TRUE(has(m, "weight_map of 'a'; expected a plain file name, found '../../etc/passwd'")) << m;
  m = error_of(R"({"weight_map":{"a":"three.safetensors"}})");
  EXPECT_TRUE(has(m, "three.safetensors: cannot open")) << m;
  m = error_of(R"({"weight_map":{"x":"one.safetensors"}})");
  EXPECT_TRUE(has(m, "weight_map of 'x'; expected it in one.safetensors, found it in no file")) << m;
  m = error_of(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_TRUE(has(m, "tensor 'a'; expected one tensor per name, found it in two files")) << m;
}

}  // namespace
}  // namespace facet
