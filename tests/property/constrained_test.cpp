// An answer that follows a grammar is the same with drafts and without: every row of a verification is drawn under the
// mask of its own state. The drafters are scripts that know the answer and err on purpose.
#include <fmt/format.h>

#include <functional>

#include "backend/cpu/cpu_fast.h"
#include "grammar/grammar.h"
#include "grammar/tool_calls.h"
#include "session/thought.h"
#include "support/scripted_drafter.h"
#include "tokenizer/json.h"

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

EngineConfig config() {
  EngineConfig c;
  c.model = fmt::format("{}/models/facet-nano-Q8_0.gguf", FACET_SOURCE_DIR);
  c.n_ctx = 512, c.max_seq = 3, c.n_threads = 1, c.margin = 16;
  c.kv_k = c.kv_v = KvType::kF16;
  return c;
}

// Requests, served together; how many answers differ from the plain ones.
struct Outcome {
  int different = 0, ended = 0, accepted = 0, rejected = 0;
  std::vector<Answer> plain = {};
};
template <class B>
Outcome compare_requests(const DraftConfig& draft, const std::function<std::vector<Request>(const Tokenizer&)>& make) {
  EngineConfig c = config();
  Script<CpuFast> script(c.model, *c.kv_k);
  const auto plain = open_engine_with<CpuFast>(c, nullptr);
  const std::vector<Request> requests = make(*plain->tokenizer());
  Outcome o;
  for (const Request& r : requests) {
    o.plain.push_back(answers(*plain, {r})[0]);
    std::vector<int32_t> all = r.prompt;
    all.insert(all.end(), o.plain.back().tokens.begin(), o.plain.back().tokens.end());
    script.add(all);
  }
  ScriptReport report;
  c.draft = draft;
  const int n_vocab = plain->tokenizer()->size();
  const auto drafted =
      open_engine_with<B>(c, scripted<B, CpuFast>(script, {{.wrong = .3, .n_vocab = n_vocab}}, report));
  const std::vector<Answer> got = answers(*drafted, requests);
  for (size_t i = 0; i < got.size(); ++i) {
    const Answer& want = o.plain[i];
    o.different += got[i].tokens != want.tokens || got[i].why != want.why;
    o.ended += want.why == Stop::kEos;
    o.accepted += got[i].usage.accepted, o.rejected += got[i].usage.drafted - got[i].usage.accepted;
    if (!requests[i].grammar) continue;
    const GrammarVocab vocab(*plain->tokenizer());
    EXPECT_EQ(GrammarState(requests[i].grammar).accepts(vocab, want.tokens), want.tokens.size()) << want.error;
  }
  return o;
}

std::vector<int32_t> hello(const Tokenizer& t, int nth, std::string_view end = "") {
  std::vector<int32_t> ids = t.encode(fmt::format("<|turn>user\nHello<turn|>\n<|turn>model\n{}", end), true, true);
  if (end.empty()) ids.push_back(300 + nth);
  return ids;
}

// One request a grammar.
template <class B>
Outcome compare(const DraftConfig& draft, float temperature) {
  return compare_requests<B>(draft, [&](const Tokenizer& t) {
    std::vector<Request> requests;
    for (const GrammarPtr& g : grammars()) {
      Request r{.prompt = hello(t, int(requests.size())), .max_tokens = 96, .grammar = g};
      r.sampling = {.temperature = temperature, .seed = 3 + requests.size()};
      requests.push_back(std::move(r));
    }
    return requests;
  });
}

constexpr auto chain = [](int n) { return DraftConfig{.max = n, .min = n}; };
// At least 6, so that the grammar's own text, which is mostly shorter, does not take the trees' place.
constexpr auto tree = [](int n) { return DraftConfig{.max = 6, .min = 6, .tree = n}; };

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

// --- grammars that sleep until a call begins

// Calls begin here and there, also within a draft: rows before that have no mask, those behind have one.
template <class B>
Outcome compare_lazy(const DraftConfig& draft, float temperature, int* woken = nullptr) {
  const std::vector<Json> tools = {must(parse_json(R"({"name":"weather","parameters":{"type":"object"}})", "tool"))};
  const GrammarPtr lazy = must(compile_tool_calls(tools, [] {
    ToolGrammarOptions o;
    o.choice = ToolChoice::kLazy, o.strict_all = false;
    return o;
  }()));
  int32_t open = -1;
  const Outcome o = compare_requests<B>(draft, [&](const Tokenizer& t) {
    open = t.special().tool_call_open;
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 6; ++i) {
      Request r{.prompt = hello(t, int(i)), .max_tokens = 96, .grammar = lazy};
      r.sampling = {.temperature = temperature, .seed = 11 + i};
      r.sampling.logit_bias = {{open, 4.f + 3.f * float(i)}};
      requests.push_back(std::move(r));
    }
    return requests;
  });
  for (const Answer& a : o.plain)
    if (woken) *woken += std::find(a.tokens.begin(), a.tokens.end(), open) != a.tokens.end();
  return o;
}

TEST(Constrained, LazyGrammarsWakeAndDraftsChangeNoText) {
  for (const DraftConfig& draft : {chain(2), chain(5), tree(7)})
    for (const float temperature : {0.f, 1.f}) {
      int woken = 0;
      const Outcome o = compare_lazy<CpuFast>(draft, temperature, &woken);
      EXPECT_EQ(o.different, 0) << "max " << draft.max << ", tree " << draft.tree << ", temperature " << temperature;
      EXPECT_GT(woken, 0);
      EXPECT_GT(o.accepted, 20);
    }
}
TEST(Constrained, LazyGrammarsBiteOnAPlantedBug) {
  EXPECT_GT(compare_lazy<OneMaskPerSequence<CpuFast>>(chain(5), 1).different, 0);
}

// --- the grammar's own text, and acceptance that is forced

// Drafters that are always wrong leave it to the grammar, whose names and punctuation mostly come as they were drafted.
TEST(Constrained, TheGrammarsOwnTextIsDrafted) {
  EngineConfig c = config();
  const auto plain = open_engine_with<CpuFast>(c, nullptr);
  std::vector<Request> requests;
  for (const GrammarPtr& g : grammars())
    requests.push_back(
        {.prompt = hello(*plain->tokenizer(), 0), .max_tokens = 96, .sampling = {.temperature = 0}, .grammar = g});
  const std::vector<Answer> want = answers(*plain, requests);
  Script<CpuFast> script(c.model, *c.kv_k);
  ScriptReport report;
  int offered = 0, right = 0, other = 0;
  c.draft = chain(6), c.draft.min = 1;
  c.drafted = [&](const DraftRound& r) {
    if (std::string_view(r.method) != "grammar") return void(++other);
    offered += int(r.token.size()) - 1, right += r.accepted;
  };
  const auto drafted = open_engine_with<CpuFast>(
      c, scripted<CpuFast>(script, {{.wrong = 1, .n_vocab = plain->tokenizer()->size()}}, report));
  const std::vector<Answer> got = answers(*drafted, requests);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
  EXPECT_GT(other, 0);
  EXPECT_GE(offered, 20);
  EXPECT_GT(right, 10);  // the model was not taught these forms, and writes some of it in other tokens
}

TEST(Constrained, ForcedDraftsFollowTheGrammar) {
  EngineConfig c = config();
  c.draft = {.files = {std::string(FACET_SOURCE_DIR) + "/models/facet-nano-dflash-Q8_0.gguf"}, .max = 4, .min = 4};
  const auto engine = must(Engine::open(c, {.forced_drafts = {.8f}}));
  const GrammarVocab vocab(*engine->tokenizer());
  for (const GrammarPtr& g : grammars()) {
    const Answer a = answers(*engine, {{.prompt = hello(*engine->tokenizer(), 0), .max_tokens = 96, .grammar = g}})[0];
    EXPECT_NE(a.why, Stop::kError) << a.error;
    EXPECT_EQ(GrammarState(g).accepts(vocab, a.tokens), a.tokens.size());
    ASSERT_FALSE(a.usage.offered_at.empty());
    EXPECT_GT(a.usage.accepted_at[0] * 10, a.usage.offered_at[0] * 5);
    EXPECT_LT(a.usage.accepted, a.usage.drafted);
  }
}

// --- thoughts with a budget

constexpr int kBudget = 12;

// Two prompts that have opened a thought, and one whose answer opens it.
template <class B>
Outcome compare_thoughts(const DraftConfig& draft, float temperature) {
  return compare_requests<B>(draft, [&](const Tokenizer& t) {
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      const bool open = i < 2;
      Request r{.prompt = hello(t, i, open ? "<|channel>thought\n" : ""),
                .max_tokens = 48,
                .ignore_eos = true,
                .thought_budget = kBudget + i,
                .in_thought = open};
      r.sampling = {.temperature = temperature, .seed = 9 + uint64_t(i)};
      if (!open) r.sampling.logit_bias = {{t.special().channel_open, 100.f}};
      if (open) r.sampling.logit_bias = {{t.special().channel_close, -100.f}, {t.special().channel_open, -100.f}};
      requests.push_back(std::move(r));
    }
    return requests;
  });
}
TEST(ThoughtBudget, EndsThoughtsAndDraftsChangeNoText) {
  const auto engine = open_engine_with<CpuFast>(config(), nullptr);
  const int32_t close = engine->tokenizer()->special().channel_close;
  for (const DraftConfig& draft : {chain(2), chain(5), tree(7)})
    for (const float temperature : {0.f, 1.f}) {
      const Outcome o = compare_thoughts<CpuFast>(draft, temperature);
      EXPECT_EQ(o.different, 0) << "max " << draft.max << ", tree " << draft.tree << ", temperature " << temperature;
      EXPECT_GT(o.accepted, 10);
      for (int i = 0; i < 2; ++i) {  // the budget, and a newline
        const std::vector<int32_t>& ids = o.plain[size_t(i)].tokens;
        const auto at = std::find(ids.begin(), ids.end(), close);
        ASSERT_NE(at, ids.end());
        EXPECT_LE(at - ids.begin(), kBudget + i + 1);
        EXPECT_GE(at - ids.begin(), kBudget + i - (kBudget + i) / 8);
      }
    }
}
TEST(ThoughtBudget, BitesOnAPlantedBug) {
  EXPECT_GT(compare_thoughts<OneMaskPerSequence<CpuFast>>(chain(5), 0).different, 0);
}
TEST(ThoughtBudget, IsAFunctionOfTheTokens) {
  const auto engine = open_engine_with<CpuFast>(config(), nullptr);
  const Tokenizer& t = *engine->tokenizer();
  const int32_t word = t.encode("a", false, false)[0], line = t.encode("\n", false, false)[0];
  const Tokenizer::Special& s = t.special();
  const auto after = [&](ThoughtBudget b, std::vector<int32_t> ids) {
    for (const int32_t id : ids) b.advance(id);
    return b.forced();
  };
  EXPECT_EQ(after({t, 0, true}, {}), line);
  EXPECT_EQ(after({t, 0, true}, {line}), s.channel_close);
  EXPECT_EQ(after({t, 0, true}, {line, s.channel_close}), std::nullopt);
  EXPECT_EQ(after({t, 3, true}, {word, word}), std::nullopt);
  EXPECT_EQ(after({t, 3, true}, {word, word, word}), line);
  EXPECT_EQ(after({t, 3, true}, {word, s.channel_close, word, word}), std::nullopt);  // it has ended by itself
  EXPECT_EQ(after({t, 3, false}, {word, word, word, word}), std::nullopt);
  EXPECT_EQ(after({t, 2, false}, {s.channel_open, word, word}), line);
  EXPECT_EQ(after({t, 2, false}, {s.channel_open, word, s.channel_close, s.channel_open, word}), line);  // together
  EXPECT_EQ(after({t, 8, true}, {word, line}), std::nullopt);
  EXPECT_EQ(after({t, 8, true}, {word, word, word, word, word, word, line}), s.channel_close);  // a line ends in time
}

// --- samplers that look back

template <class B>
Outcome compare_samplers(const DraftConfig& draft) {
  return compare_requests<B>(draft, [&](const Tokenizer& t) {
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      Request r{.prompt = hello(t, i), .max_tokens = 64, .ignore_eos = true};
      r.sampling = {.temperature = i == 0 ? 0.f : 1.f, .seed = 21 + uint64_t(i)};
      if (i < 2) r.sampling.dry_multiplier = 2.f, r.sampling.dry_allowed_length = 1;
      if (i == 2) r.sampling.xtc_probability = .5f, r.sampling.xtc_threshold = .05f;
      requests.push_back(std::move(r));
    }
    return requests;
  });
}
TEST(Samplers, DraftsChangeNoText) {
  for (const DraftConfig& draft : {chain(2), chain(5), tree(7)}) {
    const Outcome o = compare_samplers<CpuFast>(draft);
    EXPECT_EQ(o.different, 0) << "max " << draft.max << ", tree " << draft.tree;
    EXPECT_GT(o.accepted, 10);
  }
}

template <class Base>
struct WithoutDraftTokens : Base {  // rows of a verification look back on what was there before the draft
  using Base::Base;
  using typename Base::Rows, typename Base::Ids;
  void sample(Ids ids, Rows x, std::span<const SampleRow> rows) {
    std::vector<SampleRow> same(rows.begin(), rows.end());
    for (SampleRow& r : same) r.draft = {};
    Base::sample(ids, x, same);
  }
};
TEST(Samplers, BitesOnAPlantedBug) { EXPECT_GT(compare_samplers<WithoutDraftTokens<CpuFast>>(chain(5)).different, 0); }

}  // namespace
}  // namespace facet::test
