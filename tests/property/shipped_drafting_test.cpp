// The shipped models with the drafters beside them: every way to draft gives plain text, and drafts are worth
// something.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "grammar/grammar.h"
#include "model/find_drafter.h"
#include "support/sanitized.h"
#include "support/scripted_drafter.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"
#include "tools/paths.h"

namespace facet::test {
namespace {

constexpr double kLeastRight = .8;              // of four drafts in JSON
constexpr size_t kPart = kSanitized ? 80 : 20;  // one case of so many
bool full() { return std::getenv("FACET_TEST_FULL") != nullptr; }
std::string model_path(const std::string& name) { return fmt::format("{}/models/{}", FACET_SOURCE_DIR, name); }

EngineConfig config(const std::string& model, KvType kv, int n_seq) {
  EngineConfig c;
  c.model = model;
  c.backend = "cpu";
  c.n_ctx = 2048;
  c.max_seq = n_seq;
  c.chunk = 256;
  if (kSanitized) c.n_threads = 1;  // threads that wait for each other are slow beside other programs
  c.kv_k = c.kv_v = kv;
  return c;
}

struct ShippedWay {
  DraftConfig draft;
  KvType kv;
  int n_seq;
  float temperature;
};

class ShippedDrafting : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(ShippedDrafting, GivesPlainText) {
  const auto& [name, kind] = GetParam();
  const std::string model = model_path(name), drafter = find_drafter_beside(model, kind).path;
  ASSERT_FALSE(drafter.empty()) << "no " << drafter_pattern(model, kind) << " in models/";
  const auto docs = must(read_eval_set(model_path("facet-nano-eval.jsonl")));
  const DraftConfig gamma[] = {{.max = 1, .min = 1},
                               {.max = 2, .min = 2},
                               {.max = 3, .min = 3},
                               {.max = 4, .min = 4},
                               {.max = 5, .min = 5},
                               {.max = 6, .min = 6},
                               {.max = 7, .min = 7},
                               {.max = 8, .min = 8},
                               {},
                               {.max = 7, .min = 1, .tree = 15},
                               {.max = 7, .min = 1, .tree = 63}};
  const KvType types[] = {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0, KvType::kF32};
  // Each model and drafter has cases of its own: five or six with every type, and every gamma among those of all.
  const size_t part = 3 + (name.find("moe") != name.npos ? 10 : 0) + (kind == "mtp" ? 5 : 0);
  std::vector<ShippedWay> ways;
  for (size_t i = 0; i < std::size(gamma); ++i)
    for (size_t k = 0; k < std::size(types); ++k)
      for (const int n_seq : {1, 4})
        if (full() || (7 * i + 3 * k + size_t(n_seq)) % kPart == part)
          ways.push_back({gamma[i], types[k], n_seq, (i + k) % 3 == 2 ? 1.f : 0.f});
  int answers_given = 0, counted = 0;
  for (const ShippedWay& w : ways) {
    const EngineConfig c = config(model, w.kv, w.n_seq);
    auto plain = must(Engine::open(c));
    EngineConfig d = c;
    d.draft = w.draft;
    d.draft.files = {drafter};
    auto drafting = must(Engine::open(d));
    std::vector<Request> requests;  // a short prompt, and one longer than the window of 256 and its ring
    for (const char* of : {"json", "retrieval", "thinking", "code"}) {
      const auto doc = std::find_if(docs.begin(), docs.end(), [&](const EvalDoc& x) { return x.kind.starts_with(of); });
      Request r{.prompt = plain->tokenizer()->encode(doc->context, false, true), .max_tokens = 60, .ignore_eos = true};
      r.sampling = {.temperature = w.temperature, .seed = uint64_t(answers_given)};
      if (r.prompt.size() < 1500) requests.push_back(std::move(r));
    }
    const auto want = answers(*plain, requests), got = answers(*drafting, requests);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << kv_type_name(w.kv) << " max " << w.draft.max << " tree "
                                               << w.draft.tree << ", " << w.n_seq << " at once, prompt " << i;
      const std::set<int32_t> distinct(got[i].tokens.begin(), got[i].tokens.end());
      const Usage& u = got[i].usage;
      ++answers_given;
      counted += distinct.size() >= 16 && u.accepted > 0 && u.accepted < u.drafted;
    }
  }
  std::printf("%zu cases, %d answers, %d of them with 16 distinct tokens and drafts both right and wrong\n",
              ways.size(), answers_given, counted);
  EXPECT_GT(3 * counted, answers_given);
}

// Acceptance does not depend on whether the prompt was kept or computed.
TEST_P(ShippedDrafting, KeptRowsDraftAsWell) {
  const auto& [name, kind] = GetParam();
  const std::string model = model_path(name), drafter = find_drafter_beside(model, kind).path;
  ASSERT_FALSE(drafter.empty()) << "no " << drafter_pattern(model, kind) << " in models/";
  EngineConfig c = config(model, KvType::kF16, 1);
  c.draft = {.files = {drafter}, .max = 4, .min = 4};
  auto kept = must(Engine::open(c)), fresh = must(Engine::open(c));
  Request r{
      .prompt = kept->tokenizer()->encode("<bos><|turn>user\nWrite name and age as JSON. Anna is 23 years old. Theo is "
                                          "31 years old.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
                                          false, true),
      .max_tokens = 80,
      .sampling = {.temperature = 0}};
  const Answer first = answers(*kept, {r})[0];
  r.prompt.insert(r.prompt.end(), first.tokens.begin(), first.tokens.end());
  const auto more = kept->tokenizer()->encode(
      "<turn|>\n<|turn>user\nThe teacher Maria is 40 years old and lives in Jekburg. Write job, age, name and city as "
      "JSON.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
      false, true);
  r.prompt.insert(r.prompt.end(), more.begin(), more.end());
  const Answer a = answers(*kept, {r})[0], b = answers(*fresh, {r})[0];
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_GT(a.usage.cached, 40);
  EXPECT_EQ(b.usage.cached, 0);
  EXPECT_EQ(a.usage.accepted, b.usage.accepted);
  EXPECT_EQ(a.usage.rounds, b.usage.rounds);
  // JSON is what they draft best (docs/benchmarks.md); a drafter that reads the wrong rows has next to none right.
  const double share = double(a.usage.accepted) / double(std::max<int64_t>(1, a.usage.drafted));
  std::printf("%s %s: %.2f of the drafts are right\n", name.c_str(), kind.c_str(), share);
  EXPECT_GT(share, kLeastRight);
}

// Under a schema drafts are worth more than without: its names and punctuation come as they were drafted.
TEST(SchemaDrafting, TakesHalfTheSteps) {
  const std::string model = model_path("facet-nano-Q8_0.gguf");
  const EngineConfig c = config(model, KvType::kF16, 1);
  auto plain = must(Engine::open(c));
  Request r{
      .prompt = plain->tokenizer()->encode("<bos><|turn>user\nThe teacher Maria is 40 years old and lives in Jekburg. "
                                           "Write job, age, name and city as JSON.<turn|>\n<|turn>model\n"
                                           "<|channel>thought\n<channel|>",
                                           false, true),
      .max_tokens = 80,
      .sampling = {.temperature = 0},
      .grammar = must(compile_json_schema(std::string_view(R"({"type":"object","properties":{"job":{"type":"string"},
          "age":{"type":"integer"},"name":{"type":"string"},"city":{"type":"string"}},
          "required":["job","age","name","city"],"additionalProperties":false})")))};
  const Answer want = answers(*plain, {r})[0];
  EXPECT_EQ(want.why, Stop::kEos) << want.error;
  const GrammarVocab vocab(*plain->tokenizer());
  EXPECT_EQ(GrammarState(r.grammar).accepts(vocab, want.tokens), want.tokens.size());
  for (const char* kind : {"dflash", "mtp"}) {
    EngineConfig d = c;
    d.draft = {.files = {find_drafter_beside(model, kind).path}, .max = 4, .min = 4};
    const Answer got = answers(*must(Engine::open(d)), {r})[0];
    EXPECT_EQ(got.tokens, want.tokens) << kind;
    std::printf("%s: %d steps instead of %d\n", kind, got.usage.decode_steps, want.usage.decode_steps);
    EXPECT_LT(2 * got.usage.decode_steps, want.usage.decode_steps) << kind;
  }
}

// An MTP head reads the target's rows, so its queries are made for their layout: its drafts are as good in both.
TEST(SharedRows, DraftsAreAsGood) {
  const std::string model = model_path("facet-nano-Q8_0.gguf"), drafter = find_drafter_beside(model, "mtp").path;
  const auto docs = must(read_eval_set(model_path("facet-nano-eval.jsonl")));
  auto accepted = [&](KvLayout layout) {
    EngineConfig c = config(model, KvType::kF16, 1);
    c.kv_layout = layout, c.draft = {.max = 2, .min = 2};
    c.draft.files = {drafter};
    auto e = must(Engine::open(c));
    std::vector<Request> requests;
    for (const char* of : {"json", "code"}) {
      const auto doc = std::find_if(docs.begin(), docs.end(), [&](const EvalDoc& x) { return x.kind.starts_with(of); });
      requests.push_back({.prompt = e->tokenizer()->encode(doc->context, false, true),
                          .max_tokens = 60,
                          .sampling = {.temperature = 0},
                          .ignore_eos = true});
      requests.back().prompt.resize(std::min<size_t>(requests.back().prompt.size(), 300));
    }
    int n = 0;
    for (const auto& a : answers(*e, requests)) n += a.usage.accepted;
    return n;
  };
  const int split = accepted(KvLayout::kSplit), shared = accepted(KvLayout::kShared);
  std::printf("%d drafts right with rows apart, %d with shared ones\n", split, shared);
  EXPECT_GT(split, 30);
  EXPECT_NEAR(shared, split, .1 * split);
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedDrafting,
                         testing::Combine(testing::Values("facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"),
                                          testing::Values("dflash", "mtp")),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param).find("moe") == std::string::npos ? "Dense" : "Moe") +
                                  "_" + std::get<1>(p.param);
                         });

}  // namespace
}  // namespace facet::test
