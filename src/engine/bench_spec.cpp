#include "engine/bench_spec.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

namespace facet {
namespace {

struct Totals {
  int tokens = 0, steps = 0;  // of decoding
  double decode_s = 0, draft_s = 0, verify_s = 0, accept_s = 0;
  int64_t drafted = 0, accepted = 0;
  std::vector<int64_t> offered_at, accepted_at;
};

void add(Totals& t, const Usage& u) {
  t.tokens += u.decoded, t.steps += u.decode_steps;
  t.decode_s += u.decode_s, t.draft_s += u.draft_s, t.verify_s += u.verify_s, t.accept_s += u.accept_s;
  t.drafted += u.drafted, t.accepted += u.accepted;
  t.offered_at.resize(std::max(t.offered_at.size(), u.offered_at.size()));
  t.accepted_at.resize(t.offered_at.size());
  for (size_t k = 0; k < u.offered_at.size(); ++k) t.offered_at[k] += u.offered_at[k], t.accepted_at[k] += u.accepted_at[k];
}

Result<Totals> answer_all(Engine& e, const PromptSet& set, const SpecBenchOptions& o) {
  Totals t;
  for (size_t i = 0; i < set.prompts.size(); ++i) {
    std::string error;
    Request r{.prompt = set.prompts[i], .max_tokens = o.n_predict, .sampling = {.temperature = 0, .seed = i}, .ignore_eos = o.ignore_eos};
    auto id = e.submit(std::move(r), {.tokens = {}, .done = [&](RequestId, Stop why, const Usage& u, const std::string& what) {
                                                     if (why == Stop::kError) error = what;
                                                     add(t, u);
                                                   }});
    if (!id) return id.error();
    while (e.tick()) {}
    if (!error.empty()) return Error{"bench", error, ""};
  }
  return t;
}

Result<SpecLine> measure(Engine& e, const PromptSet& set, const SpecBenchOptions& o) {
  SpecLine l;
  Totals all;
  std::vector<double> rates;
  for (int run = 0; run <= o.runs; ++run) {
    auto t = answer_all(e, set, o);
    if (!t) return t.error();
    if (run == 0) continue;
    rates.push_back(t->decode_s > 0 ? t->tokens / t->decode_s : 0);
    all.tokens += t->tokens, all.steps += t->steps, all.draft_s += t->draft_s, all.verify_s += t->verify_s, all.accept_s += t->accept_s;
    all.drafted = t->drafted, all.accepted = t->accepted, all.offered_at = t->offered_at, all.accepted_at = t->accepted_at;
  }
  l.set = set.name, l.runs = o.runs;
  l.drafted = all.drafted, l.accepted = all.accepted;
  for (size_t k = 0; k < all.offered_at.size(); ++k) l.right_at.push_back(all.offered_at[k] > 0 ? double(all.accepted_at[k]) / double(all.offered_at[k]) : 0);
  if (all.steps > 0) {
    l.tokens_per_step = double(all.tokens) / all.steps;
    l.draft_ms = 1e3 * all.draft_s / all.steps, l.verify_ms = 1e3 * all.verify_s / all.steps, l.accept_ms = 1e3 * all.accept_s / all.steps;
  }
  for (const double r : rates) l.tok_s += r / double(rates.size());
  for (const double r : rates) l.tok_s_sd += (r - l.tok_s) * (r - l.tok_s);
  l.tok_s_sd = rates.size() > 1 ? std::sqrt(l.tok_s_sd / double(rates.size() - 1)) : 0;
  return l;
}

}  // namespace

Status bench_spec(const EngineConfig& given, const SpecBenchOptions& o, const std::function<void(const SpecLine&)>& line) {
  for (const KvType kv : o.kv) {
    std::map<std::string, double> plain;  // tok/s by set
    std::vector<SpecMethod> methods{{"none", {}}};
    methods.insert(methods.end(), o.methods.begin(), o.methods.end());
    for (const SpecMethod& m : methods)
      for (const int length : m.files.empty() ? std::vector<int>{0} : o.lengths) {
        EngineConfig c = given;
        c.kv_k = c.kv_v = kv;
        c.draft.files = m.files;
        if (length > 0) c.draft.max = c.draft.min = length;
        auto e = Engine::open(c);
        if (!e) return e.error();
        for (const PromptSet& set : o.sets) {
          auto l = measure(**e, set, o);
          if (!l) return l.error();
          l->method = m.name, l->length = length, l->tree = m.files.empty() ? 0 : c.draft.tree, l->kv = kv;
          if (m.files.empty()) plain[set.name] = l->tok_s;
          l->speedup = plain[set.name] > 0 ? l->tok_s / plain[set.name] : 0;
          line(*l);
        }
      }
  }
  return Ok{};
}

}  // namespace facet
