// facet quality: what a report says, which report is quoted, and what of a file is believed.
#include "tools/quality.h"
#include "tokenizer/json.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

QualityReport report() {
  QualityReport r{.model = "m.gguf", .fingerprint = "abc", .version = "1", .backend = "cpu", .longest = 4096};
  r.places = 1000;
  r.types.resize(2);
  r.types[0].kv = {KvType::kF16, KvType::kF16};
  r.types[0].scores = {{"retrieval-1024", 10, 10, 1}, {"retrieval-4096", 10, 10, 1}, {"thinking", 8, 10, 2}};
  r.types[0].perplexity = 10, r.types[0].kl.same_top = 1;
  r.types[1].kv = {KvType::kQ8_0, KvType::kQ4_0};
  r.types[1].scores = {{"retrieval-1024", 10, 10, 1}, {"retrieval-4096", 5, 10, 1}, {"thinking", 7, 10, 2}};
  r.types[1].perplexity = 10.5;
  r.types[1].kl = {.01, .001, .2, 3, .99};
  return r;
}
KvPair mixed() { return {KvType::kQ8_0, KvType::kQ4_0}; }

TEST(Quality, TypesByName) {
  for (const char* name : {"f16", "q8_0", "q8_0/q4_0", "tq3_0"}) EXPECT_EQ(kv_pair_from_name(name)->name(), name);
  EXPECT_EQ(kv_pair_from_name("q4_0/q4_0")->name(), "q4_0");
  for (const char* name : {"", "/", "q8_0/", "/q8_0", "q8_0/q4_0/f16", "q9"})
    EXPECT_FALSE(kv_pair_from_name(name)) << name;
}

TEST(Quality, AllQuestionsOfAKindCount) {
  const QualityReport r = report();
  EXPECT_DOUBLE_EQ(QualityReport::share(r.types[1], "retrieval"), .75);
  EXPECT_DOUBLE_EQ(QualityReport::share(r.types[1], "thinking"), .7);
  EXPECT_LT(QualityReport::share(r.types[1], "json"), 0);
}

TEST(Quality, APlanQuotesTheRightReport) {
  const QualityReport r = report();
  const std::string s = quality_line(r, "m.gguf.quality.json", "abc", mixed(), 4096);
  EXPECT_EQ(s,
            "quality of q8_0/q4_0: 75.0 % of needles, 70.0 % of two-step questions, perplexity +5.00 % and KL p99 0.2 "
            "nats against f16 (m.gguf.quality.json)");
  EXPECT_NE(quality_line(r, "p", "abc", mixed(), 4097).find("nothing beyond 4096 tokens"), std::string::npos);
  EXPECT_EQ(quality_line(r, "p", "abd", mixed(), 10).rfind("note: p is of another model", 0), 0u);
  EXPECT_EQ(quality_line(r, "p", "abc", {KvType::kQ4_0, KvType::kQ4_0}, 10), "note: p has nothing of q4_0");
}

// What --kv auto may take: needles, two-step questions, perplexity and divergence each can keep a type out.
TEST(Quality, TypesThatCostAlmostNothingAreChosenAmong) {
  QualityReport r = report();
  KvQuality fine = r.types[0];
  fine.kv = {KvType::kQ8_0, KvType::kQ8_0}, fine.perplexity = 10.05, fine.kl = {.001, .001, .05, .2, .98};
  EXPECT_EQ(too_lossy(r, fine), "");
  EXPECT_EQ(too_lossy(r, r.types[1]), "75.0 % of needles against 100.0 %");
  KvQuality q = fine;
  q.scores[2].right = 7;
  EXPECT_EQ(too_lossy(r, q), "70.0 % of two-step questions against 80.0 %");
  q = fine, q.perplexity = 10.2;
  EXPECT_EQ(too_lossy(r, q), "perplexity +2.00 %");
  q = fine, q.kl.p99 = .11;
  EXPECT_EQ(too_lossy(r, q), "KL p99 0.11 nats");
  r.types.push_back(fine);
  EngineConfig c;
  choose_by_quality(r, "p", "abc", c);
  ASSERT_EQ(c.kv_choices.size(), 2u);
  EXPECT_EQ(c.kv_choices[0].kv.name(), "f16");
  EXPECT_EQ(c.kv_choices[1].kv.name(), "q8_0");
  EXPECT_EQ(c.kv_choices[1].quality.rfind("100.0 % of needles, 80.0 % of two-step questions, perplexity +0.50 %", 0),
            0u);
  EXPECT_EQ(c.kv_reason, "left out: q8_0/q4_0 (75.0 % of needles against 100.0 %) (p)");
  EngineConfig other;
  choose_by_quality(r, "p", "abd", other);
  EXPECT_TRUE(other.kv_choices.empty());
  EXPECT_NE(other.kv_reason.find("p is of another model file, so the usual type"), std::string::npos);
}

TEST(Quality, AFileComesBack) {
  const Json j = to_json(report());
  const auto r = quality_from_json(j, "p");
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(to_json(*r), j);
  EXPECT_NE(to_markdown(*r).find("| q8_0/q4_0 | 10/10 | 5/10 | 7/10 | 10.5000 | 0.001 | 0.2 | 3 | 99.0 % |"),
            std::string::npos)
      << to_markdown(*r);
}

// Every value replaced by every kind of nonsense: an error that names the key, or a report.
TEST(Quality, NonsenseIsToldOrHarmless) {
  const Json good = to_json(report());
  const Json nonsense[] = {nullptr, -1, 1e300, "x", std::string(5000, 'x'), Json::array(), Json::object(), true};
  int refused = 0;
  const auto flat = good.flatten();
  for (const auto& [path, value] : flat.items())
    for (const Json& n : nonsense) {
      Json bad = good;
      bad[Json::json_pointer(path)] = n;
      const auto r = quality_from_json(bad, "p");
      if (r) {
        quality_line(*r, "p", r->fingerprint, mixed(), 100), to_markdown(*r);
        continue;
      }
      ++refused;
      EXPECT_NE(r.error().message().find("facet quality"), std::string::npos);
    }
  EXPECT_GT(refused, int(flat.size()) * 4);
  for (const char* text : {"[]", "1", "{}", R"({"format":"facet-quality-1"})"})
    EXPECT_FALSE(quality_from_json(Json::parse(text), "p")) << text;
}

}  // namespace
}  // namespace facet
