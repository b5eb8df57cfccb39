// What masks cost. Usage: facet_mask_bench [MODEL.gguf]
// The vocabulary has 262,144 tokens: those of the model, and words made from its letters until it is full, with the
// lengths and the share of non-Latin scripts and punctuation that large vocabularies have.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <set>

#include "formats/gguf.h"
#include "grammar/masks.h"
#include "grammar/tool_calls.h"
#include "tokenizer/json.h"
#include "tokenizer/vocab.h"

using namespace facet;

namespace {

// Processor time of this thread: what others do on the machine does not count.
struct Clock {
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) * 1e6 + double(t.tv_nsec) / 1e3;
  }
};
double micros(double from) { return Clock::now() - from; }

std::string made_up(std::mt19937& rng) {
  static const std::string letters = "eeeettaaooiinnsshhrrdlucmfwypvbgkqjxzEATSCRM";
  static const std::vector<std::string> other = {"\xD0\xB0",     "\xD0\xB5",     "\xD0\xBD",     "\xE4\xB8\x80",
                                                 "\xE7\x9A\x84", "\xE5\xA4\xA7", "\xE3\x81\xAE", "\xD9\x84",
                                                 "\xE0\xA4\x95", "\xED\x95\x9C", "\xC3\xA9",     "\xC3\xBC"};
  static const std::string signs = "\"{}[]():;,.<>|\\/=+-*&^%$#@!?_`~'\n\t 0123456789";
  std::string s;
  const uint32_t kind = rng() % 100;
  const size_t n = 1 + rng() % 5 + rng() % 5;
  if (kind < 55) {
    if (rng() % 2) s += ' ';
    for (size_t i = 0; i < n + 1; ++i) s += letters[rng() % letters.size()];
  } else if (kind < 92) {
    for (size_t i = 0; i < n; ++i) {
      std::string c = other[rng() % other.size()];
      c.back() = char(0x80 | rng() % 64);
      s += c;
    }
  } else {
    for (size_t i = 0; i < 1 + n / 2; ++i) s += signs[rng() % signs.size()];
    if (rng() % 2) s += letters[rng() % letters.size()];
  }
  return s;
}

std::shared_ptr<const GrammarVocab> make_vocab(const std::string& path) {
  std::vector<std::string> texts;
  std::array<int32_t, grammar::kSpecialTokens> specials{-1, -1, -1, -1, -1};
  std::vector<int32_t> eog;
  std::set<std::string> known;
  if (auto file = GgufFile::open(path)) {
    if (auto vocab = vocab_from_gguf(*file)) {
      if (auto t = Tokenizer::create(std::move(*vocab))) {
        const GrammarVocab model(*t);
        for (int32_t id = 0; id < model.size(); ++id) texts.emplace_back(model.text(id));
        for (int s = 0; s < grammar::kSpecialTokens; ++s) specials[size_t(s)] = model.special(grammar::SpecialToken(s));
        eog = model.eog();
      }
    }
  }
  known.insert(texts.begin(), texts.end());
  std::mt19937 rng(1);
  while (texts.size() < 262'144) {
    std::string s = made_up(rng);
    if (known.insert(s).second) texts.push_back(s);
  }
  return std::make_shared<GrammarVocab>(std::move(texts), specials, std::move(eog));
}

void run(const char* name, const Result<GrammarPtr>& made, double compile_us,
         const std::shared_ptr<const GrammarVocab>& vocab) {
  if (!made) {
    fmt::print("| {} | {} |\n", name, made.error().message());
    return;
  }
  GrammarMasks masks(vocab);
  std::vector<uint32_t> mask(vocab->mask_words());
  std::vector<double> fresh, cached, steps;
  std::mt19937 rng(5);
  for (int walk = 0; walk < 8; ++walk) {
    GrammarState state(*made);
    for (int i = 0; i < 150; ++i) {
      const uint64_t misses = masks.stats().state_misses;
      auto t = Clock::now();
      masks.mask(state, mask);
      if (masks.stats().state_misses > misses) fresh.push_back(micros(t));
      t = Clock::now();
      masks.mask(state, mask);
      cached.push_back(micros(t));
      int32_t pick = -1;
      for (int tries = 0; tries < 100'000 && pick < 0; ++tries) {
        const int32_t c = int32_t(rng() % uint32_t(vocab->size()));
        if ((mask[size_t(c) / 32] >> (c % 32) & 1) && !vocab->is_eog(c)) pick = c;
      }
      for (size_t w = 0; w < mask.size() && pick < 0; ++w)
        if (mask[w] && !vocab->is_eog(int32_t(w * 32) + __builtin_ctz(mask[w])))
          pick = int32_t(w * 32) + __builtin_ctz(mask[w]);
      if (pick < 0) break;
      t = Clock::now();
      state.advance(*vocab, pick);
      steps.push_back(micros(t));
    }
  }
  const auto at = [](std::vector<double>& v, double q) {
    if (v.empty()) return 0.;
    std::sort(v.begin(), v.end());
    return v[size_t(q * double(v.size() - 1))];
  };
  fmt::print("| {} | {:.0f} | {} | {:.0f} | {:.0f} | {:.0f} | {:.1f} | {:.1f} | {:.1f} |\n", name, compile_us,
             fresh.size(), at(fresh, .5), at(fresh, .9), at(fresh, 1), at(cached, .5), at(cached, .99), at(steps, .5));
}

}  // namespace

int main(int argc, char** argv) {
  auto t = Clock::now();
  const auto vocab = make_vocab(argc > 1 ? argv[1] : "models/facet-nano-Q8_0.gguf");
  fmt::print("vocabulary: {} tokens, {} trie nodes, {:.0f} ms\n\n", vocab->size(), vocab->trie().byte.size(),
             micros(t) / 1000);
  fmt::print(
      "| grammar | compile us | new states | new p50 us | p90 | max | cached p50 us | p99 | advance us "
      "|\n|---|---|---|---|---|---|---|---|---|\n");
  const auto with = [&](const char* name, auto make) {
    const auto from = Clock::now();
    const Result<GrammarPtr> made = make();
    const double us = micros(from);
    run(name, made, us, vocab);
  };
  with("json_object", [] { return compile_json_object(); });
  with("person schema", [] {
    return compile_json_schema(std::string_view(
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
      "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5},
      "kind":{"enum":["a","b","c"]},"score":{"type":"number"}},"required":["name","age"],"additionalProperties":false})"));
  });
  with("recursive tree", [] {
    return compile_json_schema(
        std::string_view(R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"string"},
      "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]},"kids":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["v","next"],"additionalProperties":false}}})"));
  });
  with("maxLength 200", [] { return compile_json_schema(std::string_view(R"({"type":"string","maxLength":200})")); });
  with("maxLength 4000", [] { return compile_json_schema(std::string_view(R"({"type":"string","maxLength":4000})")); });
  with("maxLength 100000",
       [] { return compile_json_schema(std::string_view(R"({"type":"string","maxLength":100000})")); });
  with("uri, maxLength 2083", [] {
    return compile_json_schema(std::string_view(R"({"type":"string","format":"uri","minLength":1,"maxLength":2083})"));
  });
  with("pattern", [] {
    return compile_json_schema(std::string_view(R"({"type":"string","pattern":"^[a-z]{2,10}( [A-Z][a-z]*)*$"})"));
  });
  with("regex .*", [] { return compile_regex(".*"); });
  with("regex (a|b)*x{50}", [] { return compile_regex("([a-z]|[0-9])*[a-z]{50}"); });
  with("gbnf string", [] { return compile_gbnf("root ::= \"\\\"\" text \"\\\"\"\ntext ::= [^\"]*\n"); });
  with("gbnf ambiguous", [] {
    return compile_gbnf("root ::= e\ne ::= t \"+\" e | t \"+\" e \"*\" | t\nt ::= [a-z]+ | \"(\" e \")\"\n");
  });
  with("tool calls", [] {
    const Json tools = Json::parse(
        R"([{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["C","F"]}},"required":["city"]}},
      {"name":"search","parameters":{"type":"object","properties":{"q":{"type":"string"},"n":{"type":"integer"},"filters":{"type":"object"}}}}])");
    const std::vector<Json> list(tools.begin(), tools.end());
    return compile_tool_calls(list, {});
  });
  return 0;
}
