// Masks that take too long for a step are made beside the engine: that changes no text, holds up nobody else, and ends
// where the grammar is too ambiguous.
#include <fmt/format.h>

#include "backend/cpu/cpu_fast.h"
#include "grammar/grammar.h"
#include "support/scripted_drafter.h"

namespace facet::test {
namespace {

EngineConfig config() {
  EngineConfig c;
  c.model = fmt::format("{}/models/facet-nano-Q8_0.gguf", FACET_SOURCE_DIR);
  c.n_ctx = 512, c.max_seq = 4, c.n_threads = 1, c.margin = 16;
  c.kv_k = c.kv_v = KvType::kF16;
  return c;
}
std::vector<int32_t> hello(const Tokenizer& t, int nth) {
  std::vector<int32_t> ids = t.encode("<|turn>user\nHello<turn|>\n<|turn>model\n", true, true);
  ids.push_back(300 + nth);
  return ids;
}
std::vector<Request> requests(const Tokenizer& t, float temperature) {
  std::vector<Request> all;
  for (const GrammarPtr& g :
       {must(compile_json_schema(
            std::string_view(R"({"type":"object","properties":{"name":{"type":"string","maxLength":24},
             "tags":{"type":"array","items":{"enum":["small","large"]},"minItems":2,"maxItems":4}},
             "required":["name","tags"],"additionalProperties":false})"))),
        must(compile_regex("([a-z]{2,9}[ ,]){4,8}[0-9]{3,6}")),
        must(compile_gbnf("root ::= s\ns ::= [a-z ] s s s | [a-z ] s s | [a-z ] s | [a-z ]")), GrammarPtr{}}) {
    Request r{.prompt = hello(t, int(all.size())), .max_tokens = 60, .grammar = g};
    r.sampling = {.temperature = temperature, .seed = 3 + all.size()};
    all.push_back(std::move(r));
  }
  return all;
}

// Answers with so few units of work for a step that nearly every mask, or every one, is made beside it.
int different(uint64_t units, bool suffix, float temperature) {
  EngineConfig c = config();
  const auto plain = must(Engine::open(c));
  const std::vector<Request> all = requests(*plain->tokenizer(), temperature);
  const std::vector<Answer> want = answers(*plain, all);
  if (suffix) c.draft = {.suffix = true, .max = 4};
  const auto slow = must(Engine::open(c, {.grammar_units = units}));
  const std::vector<Answer> got = answers(*slow, all);
  int n = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(got[i].why, Stop::kError) << got[i].error;
    n += got[i].tokens != want[i].tokens || got[i].why != want[i].why;
  }
  return n;
}
TEST(SlowGrammar, MasksBesideTheStepsChangeNoText) {
  for (const float temperature : {0.f, 1.f})
    for (const bool suffix : {false, true})
      for (const uint64_t units : {1u, 300u, 20'000u})
        EXPECT_EQ(different(units, suffix, temperature), 0) << units << " units, temperature " << temperature;
}

// While a mask is made nobody else waits: the others' steps go on, and a grammar that cannot be followed ends alone.
TEST(SlowGrammar, NobodyElseWaits) {
  std::string rules = "root ::= r0\n";
  constexpr int n = 60;
  for (int i = 0; i < n; ++i) {
    const auto r = [&](int a, int b) { return "r" + std::to_string((i * a + b) % n); };
    rules += fmt::format("r{} ::= [a-z ] {} {} {} | [a-z ] {} {} | [a-z ]\n", i, r(7, 1), r(11, 3), r(13, 5), r(17, 2),
                         r(3, 1));
  }
  const GrammarPtr bad = must(compile_gbnf(rules));
  const auto engine = must(Engine::open(config()));
  const Tokenizer& t = *engine->tokenizer();
  const Request plain{.prompt = hello(t, 0), .max_tokens = 200, .ignore_eos = true};
  const std::vector<Answer> alone = answers(*engine, {plain});
  const std::vector<Answer> both =
      answers(*engine, {plain, {.prompt = hello(t, 1), .max_tokens = 200, .sampling = {.seed = 4}, .grammar = bad}});
  EXPECT_EQ(both[0].tokens, alone[0].tokens);
  EXPECT_EQ(both[1].why, Stop::kError);
  EXPECT_NE(both[1].error.find("too ambiguous"), std::string::npos) << both[1].error;
  EXPECT_TRUE(both[1].usage.refused);
  EXPECT_FALSE(both[1].usage.broken);
  EXPECT_EQ(answers(*engine, {plain})[0].tokens, alone[0].tokens);
}

// A client that leaves ends the work for it, and the engine may go while masks are made.
TEST(SlowGrammar, CancelledInTheMiddle) {
  const auto engine = must(Engine::open(config(), {.grammar_units = 1}));
  const Tokenizer& t = *engine->tokenizer();
  for (int ticks = 0; ticks < 12; ++ticks) {
    std::vector<Answer> got(2);
    const std::vector<Request> all = requests(t, 1);
    const RequestId id = must(engine->submit(all[2], into(got[0])));
    must(engine->submit(all[3], into(got[1])));
    for (int i = 0; i < ticks; ++i) engine->tick();
    engine->cancel(id);
    while (engine->tick()) {
    }
    EXPECT_EQ(got[0].why, Stop::kCancelled);
    EXPECT_TRUE(got[1].why == Stop::kLength || got[1].why == Stop::kEos) << got[1].error;
  }
  Answer lost;
  must(engine->submit(requests(t, 1)[2], into(lost)));
  for (int i = 0; i < 3; ++i) engine->tick();
}

}  // namespace
}  // namespace facet::test
