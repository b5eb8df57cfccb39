// An answer that follows a grammar is the same with drafts and without: every row of a verification is drawn under the
// mask of its own state. The drafters are scripts that know the answer and err on purpose.
#include <fmt/format.h>

#include "backend/cpu/cpu_fast.h"
#include "grammar/grammar.h"
#include "support/scripted_drafter.h"

namespace facet::test {
namespace {

std::vector<GrammarPtr> grammars() {
  constexpr std::string_view schema = R"({"type":"object","properties":{"name":{"type":"string","maxLength":24},
      "age":{"type":"integer","minimum":0,"maximum":120},
      "tags":{"type":"array","items":{"enum":["small","large"]},"minItems":2,"maxItems":4}},
      "required":["name","age","tags"],"additionalProperties":false})";
  const Json tool = must(parse_json(R"({"name":"weather","parameters":{"type":"object","properties":{
      "city":{"type":"string","maxLength":20},"days":{"type":"integer"}},"required":["city","days"]}})",
                                    "tool"));
  return {must(compile_json_schema(schema)), must(compile_regex("([a-z]{2,9}[ ,]){4,8}[0-9]{3,6}")),
          must(compile_tool_calls(std::vector<Json>{tool}, {}))};
}

// One request a grammar, served together; how many answers differ from the plain ones.
struct Outcome {
  int different = 0, ended = 0, accepted = 0, rejected = 0;
};
template <class B>
Outcome compare(const DraftConfig& draft, float temperature) {
  EngineConfig c;
  c.model = fmt::format("{}/models/facet-nano-Q8_0.gguf", FACET_SOURCE_DIR);
  c.n_ctx = 512, c.max_seq = 3, c.n_threads = 1, c.margin = 16;
  c.kv_k = c.kv_v = KvType::kF16;
  Script<CpuFast> script(c.model, *c.kv_k);
  const auto plain = open_engine_with<CpuFast>(c, nullptr);
  std::vector<Request> requests;
  std::vector<Answer> want;
  for (const GrammarPtr& g : grammars()) {
    Request r{.prompt = plain->tokenizer()->encode("<|turn>user\nHello<turn|>\n<|turn>model\n", true, true),
              .max_tokens = 96,
              .grammar = g};
    r.prompt.push_back(int32_t(300 + requests.size()));
    r.sampling = {.temperature = temperature, .seed = 3 + requests.size()};
    requests.push_back(r);
    want.push_back(answers(*plain, {r})[0]);
    std::vector<int32_t> all = r.prompt;
    all.insert(all.end(), want.back().tokens.begin(), want.back().tokens.end());
    script.add(all);
  }
  ScriptReport report;
  c.draft = draft;
  const int n_vocab = plain->tokenizer()->size();
  const auto drafted =
      open_engine_with<B>(c, scripted<B, CpuFast>(script, {{.wrong = .3, .n_vocab = n_vocab}}, report));
  Outcome o;
  const std::vector<Answer> got = answers(*drafted, requests);
  for (size_t i = 0; i < got.size(); ++i) {
    o.different += got[i].tokens != want[i].tokens || got[i].why != want[i].why;
    o.ended += want[i].why == Stop::kEos;
    o.accepted += got[i].usage.accepted, o.rejected += got[i].usage.drafted - got[i].usage.accepted;
    const GrammarVocab vocab(*plain->tokenizer());
    EXPECT_EQ(GrammarState(requests[i].grammar).accepts(vocab, want[i].tokens), want[i].tokens.size()) << want[i].error;
  }
  return o;
}

constexpr auto chain = [](int n) { return DraftConfig{.max = n, .min = n}; };
constexpr auto tree = [](int n) { return DraftConfig{.max = 6, .min = 1, .tree = n}; };

TEST(Constrained, DraftsChangeNoText) {
  for (const DraftConfig& draft : {chain(2), chain(5), tree(7), tree(15)})
    for (const float temperature : {0.f, 1.f}) {
      const Outcome o = compare<CpuFast>(draft, temperature);
      EXPECT_EQ(o.different, 0) << "max " << draft.max << ", tree " << draft.tree << ", temperature " << temperature;
      EXPECT_GT(o.accepted, 20);
      EXPECT_GT(o.ended, 0);
    }
}

template <class Base>
struct OneMaskPerSequence : Base {  // the first row's for all rows of a verification
  using Base::Base;
  using typename Base::Rows, typename Base::Ids;
  void sample(Ids ids, Rows x, std::span<const SampleRow> rows) {
    std::vector<SampleRow> same(rows.begin(), rows.end());
    for (size_t i = 1; i < same.size(); ++i)
      if (!same[i].draft.empty()) same[i].allowed = same[i - 1].allowed;
    Base::sample(ids, x, same);
  }
};
TEST(Constrained, BitesOnAPlantedBug) {
  EXPECT_GT(compare<OneMaskPerSequence<CpuFast>>(chain(5), 0).different, 0);
  EXPECT_GT(compare<OneMaskPerSequence<CpuFast>>(tree(15), 1).different, 0);
}

}  // namespace
}  // namespace facet::test
