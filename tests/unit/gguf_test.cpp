#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "support/bytes.h"

namespace facet {
namespace {

using test::Bytes;
using test::TempDir;

constexpr uint32_t kF32Id = 0, kQ4KId = 12;

// A GGUF file in pieces that a test can replace.
struct Raw {
  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t n_tensors = -1, n_kv = -1;  // -1: as many as were added
  Bytes kv, infos;
  int64_t kvs = 0, tensors = 0;
  size_t alignment = 32, data_bytes = 0;

  Raw& key(std::string_view k, uint32_t type, const std::function<void(Bytes&)>& value) {
    kv.str(k).u32(type);
    value(kv);
    ++kvs;
    return *this;
  }
  Raw& u32(std::string_view k, uint32_t v) {
    return key(k, gguf_type::kU32, [&](Bytes& b) { b.u32(v); });
  }
  Raw& tensor(std::string_view name, const std::vector<int64_t>& ne, uint32_t type, uint64_t offset) {
    infos.str(name).u32(uint32_t(ne.size()));
    for (int64_t d : ne) infos.put(d);
    infos.u32(type).u64(offset);
    ++tensors;
    return *this;
  }
  Raw& data(size_t n) {
    data_bytes = n;
    return *this;
  }
  std::vector<std::byte> bytes() const {
    Bytes b;
    b.text(magic).u32(version).put(n_tensors < 0 ? tensors : n_tensors).put(n_kv < 0 ? kvs : n_kv);
    b.b.insert(b.b.end(), kv.b.begin(), kv.b.end());
    b.b.insert(b.b.end(), infos.b.begin(), infos.b.end());
    b.align(alignment).fill(data_bytes, 0x3C);
    return b.b;
  }
};

// Every kind of value, two tensors; 128 and 144 bytes of data.
Raw good() {
  Raw r;
  r.u32("a.u32", 7);
  r.key("a.u8", 0, [](Bytes& b) { b.put(uint8_t(200)); });
  r.key("a.i8", 1, [](Bytes& b) { b.put(int8_t(-3)); });
  r.key("a.u16", 2, [](Bytes& b) { b.put(uint16_t(65535)); });
  r.key("a.i16", 3, [](Bytes& b) { b.put(int16_t(-5)); });
  r.key("a.i32", 5, [](Bytes& b) { b.put(int32_t(-6)); });
  r.key("a.f32", 6, [](Bytes& b) { b.put(1.5f); });
  r.key("a.bool", 7, [](Bytes& b) { b.put(uint8_t(1)); });
  r.key("a.string", 8, [](Bytes& b) { b.str("text"); });
  r.key("a.u64", 10, [](Bytes& b) { b.u64(uint64_t(1) << 40); });
  r.key("a.i64", 11, [](Bytes& b) { b.put(int64_t(-9)); });
  r.key("a.f64", 12, [](Bytes& b) { b.put(0.25); });
  r.key("a.ints", 9, [](Bytes& b) { b.u32(5).u64(3).put(int32_t(1)).put(int32_t(-2)).put(int32_t(3)); });
  r.key("a.floats", 9, [](Bytes& b) { b.u32(6).u64(2).put(0.5f).put(2.0f); });
  r.key("a.bools", 9, [](Bytes& b) { b.u32(7).u64(3).put(uint8_t(1)).put(uint8_t(0)).put(uint8_t(1)); });
  r.key("a.strings", 9, [](Bytes& b) { b.u32(8).u64(2).str("x").str("yz"); });
  r.tensor("norm.weight", {32}, kF32Id, 0).tensor("w.weight", {256, 1}, kQ4KId, 128).data(128 + 144);
  return r;
}

// Exactly sized copy, so that the address sanitiser sees one byte too many.
Result<GgufContents> parse(const std::vector<std::byte>& bytes, bool allow_truncated = false) {
  const std::vector<std::byte> exact(bytes);
  auto r = parse_gguf(exact, "model.gguf", allow_truncated);
  unsigned sum = 0;
  if (r) {
    for (const TensorView& t : r->tensors)
      for (std::byte b : t.data) sum += unsigned(b);
    for (const auto& [k, v] : r->meta) {
      if (const auto* s = std::get_if<std::string_view>(&v.v))
        for (char c : *s) sum += unsigned(c);
      if (const auto* a = std::get_if<std::vector<std::string_view>>(&v.v))
        for (std::string_view s : *a)
          for (char c : s) sum += unsigned(c);
    }
  }
  EXPECT_NE(sum, 0xFFFFFFFFu);  // keeps the loops
  return r;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  TempDir dir;
  auto f = GgufFile::open(dir.write("m.gguf", good().bytes()));
  ASSERT_TRUE(f) << f.error().message();
  EXPECT_EQ(*f->get_int("a.u8"), 200);
  EXPECT_EQ(*f->get_int("a.i8"), -3);
  EXPECT_EQ(*f->get_int("a.u16"), 65535);
  EXPECT_EQ(*f->get_int("a.i16"), -5);
  EXPECT_EQ(*f->get_int("a.u32"), 7);
  EXPECT_EQ(*f->get_int("a.i32"), -6);
  EXPECT_EQ(*f->get_int("a.u64"), int64_t(1) << 40);
  EXPECT_EQ(*f->get_int("a.i64"), -9);
  EXPECT_EQ(*f->get_float("a.f32"), 1.5);
  EXPECT_EQ(*f->get_float("a.f64"), 0.25);
  EXPECT_EQ(*f->get_float("a.u32"), 7.0);
  EXPECT_EQ(*f->get_bool("a.bool"), true);
  EXPECT_EQ(*f->get_string("a.string"), "text");
  EXPECT_EQ(*f->get_ints("a.ints", 3), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(*f->get_ints("a.ints", 0), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(*f->get_ints("a.u32", 2), (std::vector<int64_t>{7, 7}));
  EXPECT_EQ(*f->get_bools("a.bools", 3), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(*f->get_bools("a.bool", 2), (std::vector<bool>{true, true}));
  EXPECT_EQ(*f->get_strings("a.strings"), (std::vector<std::string_view>{"x", "yz"}));
  ASSERT_EQ(f->tensors().size(), 2u);
  const TensorView* w = f->find("w.weight");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->type, DType::kQ4_K);
  EXPECT_EQ(w->ne, (std::array<int64_t, 4>{256, 1, 1, 1}));
  EXPECT_EQ(w->data.size(), 144u);
  EXPECT_EQ(f->find("absent"), nullptr);
  EXPECT_EQ(f->file_bytes(), good().bytes().size());
}

TEST(Gguf, LookupErrorsNameKeyAndKinds) {
  TempDir dir;
  auto f = GgufFile::open(dir.write("m.gguf", good().bytes()));
  ASSERT_TRUE(f);
  EXPECT_NE(f->get_int("no.key").error().message().find("key 'no.key'; expected integer, found no such key"),
            std::string::npos);
  EXPECT_NE(f->get_int("a.string").error().what.find("key 'a.string'; expected integer, found string"),
            std::string::npos);
  EXPECT_NE(f->get_string("a.u32").error().what.find("expected string, found integer"), std::string::npos);
  EXPECT_NE(f->get_float("a.bools").error().what.find("expected float, found array of bool"), std::string::npos);
  EXPECT_NE(f->get_bool("a.u32").error().what.find("expected bool, or 0 or 1, found 7"), std::string::npos);
  EXPECT_NE(f->get_ints("a.ints", 4).error().what.find("key 'a.ints'; expected 4 elements, found 3"),
            std::string::npos);
  EXPECT_NE(f->get_bools("a.ints", 3).error().what.find("found array of integer"), std::string::npos);
  EXPECT_NE(f->get_strings("a.f32").error().what.find("expected array of string, found float"), std::string::npos);
  EXPECT_EQ(f->get_int("no.key").error().where, f->path());
}

struct Bad {
  const char* name;
  std::vector<std::byte> bytes;
  std::vector<std::string> parts;  // the message has all of them
};

std::vector<Bad> bad_headers() {
  Raw magic = good(), v1 = good(), big = good(), v9 = good(), kvs = good(), tensors = good();
  magic.magic = "GGML";
  v1.version = 1;
  big.version = 0x03000000;
  v9.version = 9;
  kvs.n_kv = int64_t(1) << 60;
  tensors.n_tensors = int64_t(1) << 60;
  return {{"magic", magic.bytes(), {"magic; expected \"GGUF\"", "found 47 47 4d 4c", "not a GGUF"}},
          {"empty", {}, {"magic; expected 4 bytes at offset 0", "found 0 left in a file of 0 bytes"}},
          {"version 1", v1.bytes(), {"version; expected 2 or 3, found 1", "obsolete"}},
          {"big endian", big.bytes(), {"version; expected 2 or 3, little endian", "0x03000000, big endian"}},
          {"version 9", v9.bytes(), {"version; expected 2 or 3, found 9", "update"}},
          {"many keys", kvs.bytes(), {"metadata count; expected at most", "found 1152921504606846976"}},
          {"many tensors", tensors.bytes(), {"tensor count; expected at most", "found 1152921504606846976"}}};
}

std::vector<Bad> bad_metadata() {
  const auto with = [](uint32_t type, const std::function<void(Bytes&)>& v) { return Raw().key("k", type, v).bytes(); };
  return {
      {"duplicate key",
       Raw().u32("k", 1).u32("k", 2).bytes(),
       {"key 'k'; expected one value per key, found the key twice"}},
      {"value type", with(13, [](Bytes& b) { b.u64(0); }), {"key 'k'; expected a value type of 0..12, found 13"}},
      {"nested array",
       with(9, [](Bytes& b) { b.u32(9).u64(1).u32(4).u64(0); }),
       {"key 'k'", "found an array of arrays"}},
      {"element type", with(9, [](Bytes& b) { b.u32(77).u64(1); }), {"expected an element type of 0..12, found 77"}},
      {"long array",
       with(9, [](Bytes& b) { b.u32(4).u64(1 << 30).u32(0); }),
       {"key 'k'; expected an array of at most", "found 1073741824 of u32"}},
      {"long string",
       with(8, [](Bytes& b) { b.u64(uint64_t(1) << 62).text("abc"); }),
       {"key 'k'; expected a string of at most", "found length 4611686018427387904"}},
      {"long string array",
       with(9, [](Bytes& b) { b.u32(8).u64(uint64_t(1) << 40).str("a"); }),
       {"expected an array of at most", "1099511627776 of string"}},
      {"u64",
       with(10, [](Bytes& b) { b.u64(uint64_t(1) << 63); }),
       {"expected an integer below 2^63, found 9223372036854775808"}},
      {"bool", with(7, [](Bytes& b) { b.put(uint8_t(2)); }), {"key 'k'; expected a bool of 0 or 1, found 2"}},
      {"alignment",
       Raw().u32("general.alignment", 48).bytes(),
       {"'general.alignment'; expected a power of two", "found 48"}},
      {"alignment zero", Raw().u32("general.alignment", 0).bytes(), {"'general.alignment'", "found 0"}},
      {"alignment type", Raw().key("general.alignment", 8, [](Bytes& b) { b.str("32"); }).bytes(), {"found string"}},
  };
}

std::vector<Bad> bad_tensors() {
  const auto with = [](const std::vector<int64_t>& ne, uint32_t type, uint64_t offset, size_t data) {
    return Raw().tensor("t.weight", ne, type, offset).data(data).bytes();
  };
  const int64_t big = int64_t(1) << 40;
  Raw twice, overlap, cut;
  twice.tensor("t", {8}, kF32Id, 0).tensor("t", {8}, kF32Id, 32).data(64);
  overlap.tensor("a", {32}, kF32Id, 0).tensor("b", {8}, kF32Id, 64).data(128);
  return {
      {"duplicate tensor", twice.bytes(), {"tensor 't'; expected one tensor per name, found the name twice"}},
      {"overlap",
       overlap.bytes(),
       {"tensor 'b'; expected data at or after offset 128, the end of 'a', found offset 64"}},
      {"no dims", with({}, kF32Id, 0, 32), {"tensor 't.weight'; expected 1 to 4 dimensions, found 0"}},
      {"five dims", with({1, 1, 1, 1, 1}, kF32Id, 0, 32), {"expected 1 to 4 dimensions, found 5"}},
      {"zero", with({8, 0}, kF32Id, 0, 32), {"tensor 't.weight'; expected ne[1] > 0, found 0"}},
      {"negative", with({-8}, kF32Id, 0, 32), {"expected ne[0] > 0, found -8"}},
      {"overflow",
       with({big, big}, kF32Id, 0, 32),
       {"expected fewer than 2^59 elements, found [1099511627776 x 1099511627776]"}},
      {"block", with({100}, kQ4KId, 0, 144), {"expected ne[0] to be a multiple of 256, the Q4_K block, found 100"}},
      {"unsupported",
       with({256}, 34, 0, 54),
       {"tensor 't.weight'; expected a supported block type, found type id 34 (TQ1_0)", "NVFP4"}},
      {"of a fork", with({256}, 139, 0, 144), {"found type id 139 (IQ4_K)", "use a file quantised to"}},
      {"unknown", with({256}, 42, 0, 66), {"tensor 't.weight'", "found type id 42 (unknown)"}},
      {"alignment", with({8}, kF32Id, 16, 64), {"expected an offset that is a multiple of the alignment 32, found 16"}},
      {"beyond",
       with({32}, kF32Id, 0, 100),
       {"tensor 't.weight'; expected 128 bytes of data, up to offset", "found a file of", "download"}},
      {"far offset", with({8}, kF32Id, ~uint64_t(31), 64), {"tensor 't.weight'; expected an offset inside the file"}},
      {"long name",
       Raw().tensor(std::string(64, 'n'), {8}, kF32Id, 0).data(32).bytes(),
       {"a name of at most 63 bytes, found 64"}},
  };
}

void expect_messages(const std::vector<Bad>& cases) {
  for (const Bad& c : cases) {
    const auto r = parse(c.bytes);
    ASSERT_FALSE(r) << c.name;
    const std::string m = r.error().message();
    EXPECT_EQ(m.rfind("model.gguf: ", 0), 0u) << m;
    EXPECT_FALSE(r.error().hint.empty()) << c.name;
    for (const std::string& p : c.parts) EXPECT_NE(m.find(p), std::string::npos) << c.name << ": " << m;
  }
}

TEST(Gguf, HeaderErrors) { expect_messages(bad_headers()); }
TEST(Gguf, MetadataErrors) { expect_messages(bad_metadata()); }
TEST(Gguf, TensorErrors) { expect_messages(bad_tensors()); }

TEST(Gguf, EveryTruncationIsAnError) {
  const auto whole = good().bytes();
  ASSERT_TRUE(parse(whole));
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto r = parse({whole.begin(), whole.begin() + std::ptrdiff_t(n)});
    ASSERT_FALSE(r) << n << " of " << whole.size();
    EXPECT_FALSE(r.error().hint.empty());
  }
}

TEST(Gguf, TruncatedDataIsToleratedOnRequest) {
  auto bytes = good().bytes();
  const size_t whole = bytes.size();
  bytes.resize(whole - 10);
  const auto r = parse(bytes, true);
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(r->data_end, whole);
  EXPECT_EQ(r->tensors[0].data.size(), 128u);
  EXPECT_TRUE(r->tensors[1].data.empty());
}

TEST(Gguf, RandomDamageNeverCrashes) {
  const auto whole = good().bytes();
  std::mt19937 rng(7);
  for (int i = 0; i < 5000; ++i) {
    auto bytes = whole;
    const int flips = 1 + int(rng() % 4);
    for (int f = 0; f < flips; ++f) bytes[rng() % bytes.size()] = std::byte(rng());
    if (rng() % 4 == 0) bytes.resize(rng() % bytes.size());
    const auto r = parse(bytes, rng() % 2 == 0);
    EXPECT_TRUE(r || !r.error().what.empty());
  }
}

TEST(Gguf, LargerAlignmentIsHonoured) {
  Raw r = good();
  r.u32("general.alignment", 64);
  r.alignment = 64;
  const auto c = parse(r.bytes());
  ASSERT_TRUE(c) << c.error().message();
  EXPECT_EQ(c->data_offset % 64, 0u);
  EXPECT_EQ(c->alignment, 64u);
}

// --- writer

TEST(GgufWriter, RoundTripsThroughTheReader) {
  TempDir dir;
  const auto bytes = good().bytes();
  const auto contents = parse_gguf(bytes, "good");
  ASSERT_TRUE(contents);
  GgufWriter w;
  for (const auto& [k, v] : contents->meta) w.add_raw(k, v);
  w.add("b.ints", std::vector<int64_t>{4, 5});
  w.add("b.strings", std::vector<std::string>{"one", "two"});
  w.add("b.int", 3);
  w.add("b.text", "hello");
  w.add_tensor("odd", DType::kF32, {3});
  w.add_tensor("q", DType::kQ8_0, {32, 2, 2});
  const std::string path = dir.file("out.gguf");
  ASSERT_TRUE(w.begin(path));
  std::vector<std::byte> odd(12, std::byte{1}), q(34 * 4, std::byte{2});
  ASSERT_TRUE(w.write({odd.data(), 5}));  // in pieces of any size
  ASSERT_TRUE(w.write({odd.data() + 5, 7}));
  ASSERT_TRUE(w.write(q));
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(w.finish());
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  EXPECT_EQ(std::filesystem::file_size(path), w.total_bytes());

  auto f = GgufFile::open(path);
  ASSERT_TRUE(f) << f.error().message();
  for (const auto& [k, v] : contents->meta) {
    const GgufValue* got = f->find_meta(k);
    ASSERT_NE(got, nullptr) << k;
    EXPECT_EQ(got->gguf_type, v.gguf_type) << k;
    EXPECT_TRUE(got->v == v.v) << k;
  }
  EXPECT_EQ(*f->get_int("b.int"), 3);
  EXPECT_EQ(*f->get_string("b.text"), "hello");
  EXPECT_EQ(f->get_strings("b.strings")->at(1), "two");
  EXPECT_EQ(f->find("q")->ne, (std::array<int64_t, 4>{32, 2, 2, 1}));
  EXPECT_EQ(f->find("q")->data[0], std::byte{2});
  EXPECT_EQ(f->find("odd")->data[11], std::byte{1});
}

TEST(GgufWriter, AnUnfinishedFileLeavesNothing) {
  TempDir dir;
  {
    GgufWriter w;
    w.add_tensor("t", DType::kF32, {8});
    ASSERT_TRUE(w.begin(dir.file("m.gguf")));
    EXPECT_TRUE(std::filesystem::exists(dir.file("m.gguf.part")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(GgufWriter, AFolderThatIsNotThereIsAnError) {
  GgufWriter w;
  const Status s = w.begin("/nonexistent/m.gguf");
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message().find("/nonexistent/m.gguf.part: cannot create"), std::string::npos);
}

// --- split files

std::string part_name(int no, int of) {
  char s[64];
  std::snprintf(s, sizeof s, "m-%05d-of-%05d.gguf", no, of);
  return s;
}

std::vector<std::byte> part(int no, int of, int tensors, std::string_view tensor) {
  Raw r;
  r.key("split.no", gguf_type::kU16, [&](Bytes& b) { b.put(uint16_t(no - 1)); });
  r.key("split.count", gguf_type::kU16, [&](Bytes& b) { b.put(uint16_t(of)); });
  r.key("split.tensors.count", gguf_type::kI32, [&](Bytes& b) { b.put(int32_t(tensors)); });
  if (no == 1) r.u32("only.in.first", 1);
  return r.tensor(tensor, {8}, kF32Id, 0).data(32).bytes();
}

TEST(GgufSplit, AnyPartOpensTheWhole) {
  TempDir dir;
  for (int no = 1; no <= 3; ++no) dir.write(part_name(no, 3), part(no, 3, 3, "t" + std::to_string(no)));
  for (int no = 1; no <= 3; ++no) {
    auto f = GgufFile::open(dir.file(part_name(no, 3)));
    ASSERT_TRUE(f) << f.error().message();
    EXPECT_EQ(f->tensors().size(), 3u);
    EXPECT_EQ(*f->get_int("only.in.first"), 1);
    EXPECT_NE(f->find("t2"), nullptr);
  }
  EXPECT_EQ(gguf_parts(dir.file(part_name(2, 3))).size(), 3u);
  EXPECT_EQ(gguf_parts("m.gguf"), std::vector<std::string>{"m.gguf"});
  EXPECT_EQ(gguf_parts("m-00004-of-00003.gguf").size(), 1u);
}

TEST(GgufSplit, Errors) {
  const auto error_of = [](const std::function<void(const TempDir&)>& prepare, const std::string& open) {
    TempDir dir;
    prepare(dir);
    auto f = GgufFile::open(dir.file(open));
    EXPECT_FALSE(f);
    return f ? std::string() : f.error().message();
  };
  const auto has = [](const std::string& m, std::string_view s) { return m.find(s) != m.npos; };
  std::string m = error_of([](const TempDir& d) { d.write(part_name(1, 2), part(1, 2, 2, "a")); }, part_name(1, 2));
  EXPECT_TRUE(has(m, "m-00002-of-00002.gguf: part 2 of 2 is missing")) << m;
  m = error_of(
      [](const TempDir& d) {
        d.write(part_name(1, 2), part(1, 2, 3, "a"));
        d.write(part_name(2, 2), part(2, 2, 3, "b"));
      },
      part_name(1, 2));
  EXPECT_TRUE(has(m, "key 'split.tensors.count'; expected 3 tensors in all parts, found 2")) << m;
  m = error_of(
      [](const TempDir& d) {
        d.write(part_name(1, 2), part(1, 2, 2, "a"));
        d.write(part_name(2, 2), part(1, 2, 2, "b"));
      },
      part_name(1, 2));
  EXPECT_TRUE(has(m, "key 'split.no'; expected 1, as the file name says, found 0")) << m;
  m = error_of([](const TempDir& d) { d.write(part_name(1, 2), part(1, 4, 2, "a")); }, part_name(1, 2));
  EXPECT_TRUE(has(m, "key 'split.count'; expected 2, as the file name says, found 4")) << m;
  m = error_of(
      [](const TempDir& d) {
        d.write(part_name(1, 2), part(1, 2, 2, "a"));
        d.write(part_name(2, 2), part(2, 2, 2, "a"));
      },
      part_name(1, 2));
  EXPECT_TRUE(has(m, "tensor 'a'; expected one tensor per name, found it in two parts")) << m;
  m = error_of([](const TempDir& d) { d.write("renamed.gguf", part(1, 2, 2, "a")); }, "renamed.gguf");
  EXPECT_TRUE(has(m, "file name; expected <base>-%05d-of-00002.gguf")) << m;
}

TEST(Gguf, MissingFileIsAnError) {
  const auto f = GgufFile::open("/nonexistent.gguf");
  ASSERT_FALSE(f);
  EXPECT_NE(f.error().message().find("/nonexistent.gguf: cannot open"), std::string::npos);
}

}  // namespace
}  // namespace facet
