#include <algorithm>
#include <chrono>
#include <list>
#include <map>
#include <utility>

#include "tools/bench_spec.h"

namespace facet {
namespace {

struct Answer {
  int64_t n_token = 0;
  bool is_done = false;
  Usage usage = {};
  std::string error = {};
};

struct Rate {
  double tok_s = 0, tokens_per_step = 0;
};

// One answer for every sequence of the engine.
Result<Rate> answer_together(Engine& e, const PromptSet& set, const SpecBenchOptions& o, int sequences) {
  using Clock = std::chrono::steady_clock;
  std::list<Answer> answers;
  for (int i = 0; i < sequences; ++i) {
    Answer& a = answers.emplace_back();
    auto id = e.submit({.prompt = set.prompts[size_t(i) % set.prompts.size()],
                        .max_tokens = o.n_predict,
                        .sampling = {.temperature = 0, .seed = uint64_t(i)},
                        .ignore_eos = o.ignore_eos,
                        .grammar = o.grammar},
                       {.tokens = [&a](RequestId, std::span<const int32_t> t) { a.n_token += int64_t(t.size()); },
                        .done =
                            [&a](RequestId, Stop why, const Usage& u, const std::string& what) {
                              a.is_done = true, a.usage = u;
                              if (why == Stop::kError) a.error = what;
                            }});
    if (!id) return id.error();
  }
  auto all_tokens = [&] {
    int64_t n = 0;
    for (const Answer& a : answers) n += a.n_token;
    return n;
  };
  auto begun = [&] { return std::all_of(answers.begin(), answers.end(), [&](auto& a) { return a.n_token > o.skip; }); };
  auto ended = [&] { return std::any_of(answers.begin(), answers.end(), [](auto& a) { return a.is_done; }); };
  while (!begun() && !ended() && e.tick()) {
  }
  if (ended()) {
    for (const Answer& a : answers)
      if (!a.error.empty()) return Error{"bench", a.error, ""};
    return Error{"--sequences", "expected answers that decode together, found one complete before all had begun",
                 "ask for more tokens (-n), or for shorter prompts"};
  }
  const auto start = Clock::now();
  const int64_t before = all_tokens();
  while (!ended() && e.tick()) {
  }
  const double s = std::chrono::duration<double>(Clock::now() - start).count();
  const int64_t n = all_tokens() - before;
  while (e.tick()) {
  }
  int64_t decoded = 0, steps = 0;
  for (const Answer& a : answers) {
    if (!a.error.empty()) return Error{"bench", a.error, ""};
    decoded += a.usage.decoded, steps += a.usage.decode_steps;
  }
  return Rate{s > 0 ? double(n) / s : 0, steps > 0 ? double(decoded) / double(steps) : 0};
}

Result<Rate> median_rate(Engine& e, const PromptSet& set, const SpecBenchOptions& o, int sequences) {
  std::vector<Rate> rates;
  for (int run = 0; run <= o.runs; ++run) {
    auto r = answer_together(e, set, o, sequences);
    if (!r) return r.error();
    if (run > 0) rates.push_back(*r);
  }
  std::sort(rates.begin(), rates.end(), [](const Rate& a, const Rate& b) { return a.tok_s < b.tok_s; });
  return rates[rates.size() / 2];
}

}  // namespace

Status bench_spec_batch(const EngineConfig& given, const SpecBenchOptions& o, const std::vector<int>& sequences,
                        const std::function<void(const BatchLine&)>& line) {
  std::vector<SpecMethod> methods{{"none", {}}};
  methods.insert(methods.end(), o.methods.begin(), o.methods.end());
  for (const KvType kv : o.kv)
    for (const int n : sequences) {
      std::map<std::string, double> plain;  // tok/s by set
      for (const SpecMethod& m : methods)
        for (const int length : m.plain() ? std::vector<int>{0} : o.lengths) {
          EngineConfig c = given;
          c.kv_k = c.kv_v = kv;
          c.max_seq = n;
          c.draft.files = m.files, c.draft.ngram = m.ngram;
          if (length > 0) c.draft.max = c.draft.min = length;
          auto e = Engine::open(c, o.debug);
          if (!e) return e.error();
          for (const PromptSet& set : o.sets) {
            auto r = median_rate(**e, set, o, n);
            if (!r) return r.error();
            if (m.plain()) plain[set.name] = r->tok_s;
            line({.set = set.name,
                  .method = m.name,
                  .length = length,
                  .sequences = n,
                  .kv = kv,
                  .tokens_per_step = r->tokens_per_step,
                  .tok_s = r->tok_s,
                  .speedup = plain[set.name] > 0 ? r->tok_s / plain[set.name] : 0});
          }
        }
    }
  return Ok{};
}

}  // namespace facet
