// Names that users give, listings that hubs give, and which files of a repository are meant.
#include <gtest/gtest.h>

#include "hub/download.h"
#include "hub/repo.h"
#include "hub/url.h"

namespace facet {
namespace {

std::vector<RemoteFile> files(std::initializer_list<const char*> paths) {
  std::vector<RemoteFile> all;
  for (const char* p : paths) all.push_back({.path = p, .size = 1});
  return all;
}
std::string chosen(const std::vector<RemoteFile>& all, const char* name, HubUse use = HubUse::kModel) {
  auto parsed = parse_hub_name(name);
  if (!parsed) return parsed.error().message();
  auto c = choose_files(all, *parsed, use);
  if (!c) return c.error().message();
  std::string s;
  for (const RemoteFile& f : c->files) s += (s.empty() ? "" : " ") + f.path;
  return s + (c->note.empty() ? "" : " | " + c->note);
}

TEST(Hub, Names) {
  for (const char* text : {"ggml-org/gemma-4-E4B-it-GGUF", "hf:ggml-org/gemma-4-E4B-it-GGUF"}) {
    auto n = parse_hub_name(text);
    ASSERT_TRUE(n);
    EXPECT_EQ(n->repo, "ggml-org/gemma-4-E4B-it-GGUF");
    EXPECT_EQ(n->quant + n->file, "");
  }
  EXPECT_EQ(parse_hub_name("a/b:UD-Q4_K_XL")->quant, "UD-Q4_K_XL");
  EXPECT_EQ(parse_hub_name("a/b/sub/x.gguf")->file, "sub/x.gguf");
  for (const char* bad :
       {"",       "a",        "a/",         "/b",        "a/b:", "a/b/", "../b",   "a/..",    "a/b/../../x.gguf",
        "a/b//x", "a/b:x/y",  "a b/c",      "a/b\n",     "-a/b", "a/.b", "a/b..c", "a/b?x=1", "a/b#x",
        "a/b%2e", "a/b/lock", "a/b/x.part", "http://a/b"})
    EXPECT_FALSE(parse_hub_name(bad)) << bad;
}

TEST(Hub, QuantOfAName) {
  for (const auto& [path, quant] : std::initializer_list<std::pair<const char*, const char*>>{
           {"gemma-4-31B-it-Q4_K_M.gguf", "Q4_K_M"},
           {"gemma-4-31B-it-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"},
           {"Q8_0/gemma.q8_0.gguf", "q8_0"},
           {"gemma-4-E4B-it-IQ4_XS.gguf", "IQ4_XS"},
           {"BF16/gemma-BF16-00001-of-00003.gguf", "BF16"},
           {"gemma-4-26B-A4B-it-MXFP4_MOE.gguf", "MXFP4_MOE"},
           {"gemma-4-TQ1_0.gguf", "TQ1_0"},
           {"gemma-4-E4B-it-qat.gguf", ""}})
    EXPECT_EQ(quant_of(path), quant) << path;
}

TEST(Hub, ChoosesAModel) {
  const auto all =
      files({"README.md", "mmproj-BF16.gguf", "mtp-g-Q4_K_M.gguf", "g-Q8_0.gguf", "g-Q4_K_M.gguf", "imatrix.gguf",
             "g-UD-Q2_K_XL.gguf", "BF16/g-BF16-00002-of-00002.gguf", "BF16/g-BF16-00001-of-00002.gguf"});
  EXPECT_EQ(chosen(all, "u/r"), "g-Q4_K_M.gguf");
  EXPECT_EQ(chosen(all, "u/r:q8_0"), "g-Q8_0.gguf");
  EXPECT_EQ(chosen(all, "u/r:Q2_K_XL"), "g-UD-Q2_K_XL.gguf");
  EXPECT_EQ(chosen(all, "u/r:BF16"), "BF16/g-BF16-00001-of-00002.gguf BF16/g-BF16-00002-of-00002.gguf");
  EXPECT_EQ(chosen(all, "u/r:Q9"), "u/r: expected one of Q8_0, Q4_K_M, UD-Q2_K_XL, BF16, found Q9 (name one of them)");
  EXPECT_EQ(chosen(all, "u/r/mmproj-BF16.gguf"), "mmproj-BF16.gguf");
  EXPECT_EQ(chosen(all, "u/r", HubUse::kDrafter), "mtp-g-Q4_K_M.gguf");
  EXPECT_NE(chosen(all, "u/r/none.gguf").find("none of that name"), std::string::npos);
}

// One of a repository's mmproj files comes along with its model, and with nothing else.
TEST(Hub, ChoosesTheEncodersOfAModel) {
  constexpr auto kBoth = HubUse::kModelWithEncoders;
  const auto all = files({"g-Q4_K_M.gguf", "mmproj-F32.gguf", "mmproj-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf",
                          "mtp-g-Q8_0.gguf", "mmproj.txt", "mmproj-BF16-00001-of-00002.gguf"});
  EXPECT_EQ(chosen(all, "u/r", kBoth), "g-Q4_K_M.gguf mmproj-BF16.gguf");
  EXPECT_EQ(chosen(all, "u/r"), "g-Q4_K_M.gguf");
  EXPECT_EQ(chosen(all, "u/r/g-Q4_K_M.gguf", kBoth), "g-Q4_K_M.gguf mmproj-BF16.gguf");
  EXPECT_EQ(chosen(all, "u/r/mmproj-F16.gguf", kBoth), "mmproj-F16.gguf");
  EXPECT_EQ(chosen(files({"g-Q4_K_M.gguf", "mmproj-Q8_0.gguf", "mmproj-F16.gguf"}), "u/r", kBoth),
            "g-Q4_K_M.gguf mmproj-F16.gguf");
  EXPECT_EQ(chosen(files({"g-Q4_K_M.gguf", "notes.md"}), "u/r", kBoth), "g-Q4_K_M.gguf");
  // The one that is named like the model, of a repository of several.
  const auto two = files({"gemma-4-E2B-it-Q4_K_M.gguf", "gemma-4-E4B-it-Q8_0.gguf", "mmproj-gemma-4-E2B-it-BF16.gguf",
                          "mmproj-gemma-4-E4B-it-F16.gguf"});
  EXPECT_EQ(chosen(two, "u/r:Q8_0", kBoth), "gemma-4-E4B-it-Q8_0.gguf mmproj-gemma-4-E4B-it-F16.gguf");
  EXPECT_EQ(chosen(two, "u/r", kBoth), "gemma-4-E2B-it-Q4_K_M.gguf mmproj-gemma-4-E2B-it-BF16.gguf");
  // The nearest, in the model's folder or above; never one of another folder, nor one whose name is refused.
  const auto deep = files({"BF16/g-BF16-00001-of-00002.gguf", "BF16/g-BF16-00002-of-00002.gguf", "Q8/mmproj-BF16.gguf",
                           "mmproj-F16.gguf", "-mmproj-BF16.gguf", ".mmproj-BF16.gguf"});
  EXPECT_EQ(chosen(deep, "u/r:BF16", kBoth),
            "BF16/g-BF16-00001-of-00002.gguf BF16/g-BF16-00002-of-00002.gguf mmproj-F16.gguf");
  EXPECT_EQ(chosen(files({"Q8/g-Q8_0.gguf", "Q8/mmproj-F32.gguf", "mmproj-BF16.gguf"}), "u/r:Q8_0", kBoth),
            "Q8/g-Q8_0.gguf Q8/mmproj-F32.gguf");
}

TEST(Hub, SaysWhatIsTakenInsteadOfTheDefault) {
  EXPECT_EQ(chosen(files({"a-Q8_0.gguf", "a-Q5_K_M.gguf"}), "u/r"),
            "a-Q8_0.gguf | u/r has no Q4_K_M; a-Q8_0.gguf is taken, of Q8_0, Q5_K_M");
  EXPECT_EQ(chosen(files({"a.gguf"}), "u/r"), "a.gguf");
  EXPECT_NE(chosen(files({"mmproj.gguf", "x.bin"}), "u/r").find("found none"), std::string::npos);
  EXPECT_NE(chosen(files({"mtp-a.gguf"}), "u/r").find("but drafters"), std::string::npos);
}

TEST(Hub, PartsAreAllThereAndFew) {
  EXPECT_NE(chosen(files({"a-Q8_0-00001-of-00003.gguf", "a-Q8_0-00003-of-00003.gguf"}), "u/r:Q8_0")
                .find("found no a-Q8_0-00002"),
            std::string::npos);
  EXPECT_NE(chosen(files({"a-Q8_0-00001-of-99999.gguf"}), "u/r:Q8_0").find("at most 500 parts"), std::string::npos);
}

TEST(Hub, DraftersInSafetensors) {
  EXPECT_EQ(chosen(files({"README.md", "config.json", "model.safetensors"}), "u/r", HubUse::kDrafter),
            "model.safetensors config.json");
  EXPECT_NE(chosen(files({"model.safetensors"}), "u/r", HubUse::kDrafter).find("found neither"), std::string::npos);
}

TEST(Hub, PathsStayBelow) {
  for (const char* good : {"a.gguf", "UD-Q4_K_XL/a_b+c-1.gguf", "a/b/c/d/e/f/g/h"})
    EXPECT_TRUE(check_remote_path(good)) << good;
  for (const char* bad : {"",
                          "/etc/passwd",
                          "../a.gguf",
                          "a/../b.gguf",
                          "a/./b",
                          "a//b",
                          "a/",
                          ".a",
                          "a/.b",
                          "-a",
                          "a b",
                          "a\nb",
                          "a\\b",
                          "a:b",
                          "\xc3\xa4.gguf",
                          "a/b/c/d/e/f/g/h/i",
                          "x.gguf.part",
                          "x.sha256",
                          "lock",
                          "a/lock",
                          "C:\\x"})
    EXPECT_FALSE(check_remote_path(bad)) << bad;
  EXPECT_FALSE(check_remote_path(std::string(201, 'a')));
  EXPECT_FALSE(choose_files(files({"../../x-Q4_K_M.gguf"}), *parse_hub_name("u/r"), HubUse::kModel));
}

TEST(Hub, Listings) {
  const std::string oid(64, 'a');
  std::vector<RemoteFile> all;
  ASSERT_TRUE(parse_tree(R"([{"type":"directory","path":"d"},{"type":"file","path":"a","size":3,"oid":"0123"},
                             {"type":"file","path":"b","size":4,"oid":"x","lfs":{"oid":")" +
                             oid + R"(","size":4}}])",
                         "u/r", all));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].git + all[0].sha256, "0123");
  EXPECT_EQ(all[1].sha256, oid);
  for (const char* bad :
       {"", "{}", "[1]", R"([{"type":"file"}])", R"([{"type":"file","path":"a","size":-1}])",
        R"([{"type":"file","path":"a","size":1e30}])", R"([{"type":"file","path":"a","size":9223372036854775807}])",
        R"([{"type":"file","path":"a","size":1,"lfs":{"oid":"../x"}}])", R"([{"type":"file","path":7,"size":1}])"}) {
    std::vector<RemoteFile> none;
    EXPECT_FALSE(parse_tree(bad, "u/r", none)) << bad;
  }
}

TEST(Hub, Origins) {
  EXPECT_EQ(*origin_of("HTTPS://Hub.example/a@b"), "https://hub.example:443");
  EXPECT_EQ(*origin_of("http://127.0.0.1:80?x"), *origin_of("http://127.0.0.1"));
  EXPECT_EQ(*origin_of("http://[::1]/"), "http://[::1]:80");
  EXPECT_NE(*origin_of("http://hub.example:8080"), *origin_of("http://hub.example"));
  for (const char* bad :
       {"", "file:///etc/passwd", "ftp://a/b", "http://", "http://u:p@host/", "http://a b/", "//host/a", "https:/a"})
    EXPECT_FALSE(origin_of(bad)) << bad;
}

TEST(Hub, Redirects) {
  EXPECT_TRUE(check_redirect("https://a/x", "https://b/y"));
  EXPECT_TRUE(check_redirect("http://a/x", "http://b/y"));
  EXPECT_TRUE(check_redirect("http://a/x", "https://b/y"));
  for (const char* to : {"http://a/x", "file:///etc/passwd", "ftp://a/x", "gopher://a", "https://u@b/"})
    EXPECT_FALSE(check_redirect("https://a/x", to)) << to;
}

TEST(Hub, PagesOfAListing) {
  EXPECT_EQ(next_link("<https://h/a?cursor=1>; rel=\"next\""), "https://h/a?cursor=1");
  EXPECT_EQ(next_link("<https://h/0>; rel=\"prev\", <https://h/2>; rel=\"next\""), "https://h/2");
  for (const char* none : {"", "<", "<a", "<a>; rel=\"prev\"", ">a<"}) EXPECT_EQ(next_link(none), "") << none;
  EXPECT_EQ(url_path("a b/ä+.gguf"), "a%20b/%C3%A4%2B.gguf");
}

TEST(Hub, WaitsGrow) {
  EXPECT_EQ(retry_wait(1), .5);
  EXPECT_EQ(retry_wait(3), 2);
  EXPECT_EQ(retry_wait(1000), 30);
}

}  // namespace
}  // namespace facet
