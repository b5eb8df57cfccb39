#include "tools/bench_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "base/check.h"

namespace facet {
namespace {

struct Totals {
  int tokens = 0, steps = 0;  // of decoding
  int timed = 0;              // of those tokens, the ones on the clock
  double timed_s = 0, draft_s = 0, verify_s = 0, accept_s = 0;
  int64_t drafted = 0, accepted = 0;
  std::vector<int64_t> offered_at, accepted_at;
};

void add(Totals& t, const Usage& u) {
  t.tokens += u.decoded, t.steps += u.decode_steps;
  t.draft_s += u.draft_s, t.verify_s += u.verify_s, t.accept_s += u.accept_s;
  t.drafted += u.drafted, t.accepted += u.accepted;
  t.offered_at.resize(std::max(t.offered_at.size(), u.offered_at.size()));
  t.accepted_at.resize(t.offered_at.size());
  for (size_t k = 0; k < u.offered_at.size(); ++k)
    t.offered_at[k] += u.offered_at[k], t.accepted_at[k] += u.accepted_at[k];
}

// An answer on its way, step by step, on a clock of its own that starts after the first token and `skip` more.
class Answering {
 public:
  Answering(Engine& e, int skip) : e_(e), skip_(skip) {}
  Answering(const Answering&) = delete;

  Status begin(Request r) {
    auto id = e_.submit(
        std::move(r),
        {.tokens = [this](RequestId, std::span<const int32_t> t) { tokens_.insert(tokens_.end(), t.begin(), t.end()); },
         .done =
             [this](RequestId, Stop why, const Usage& u, const std::string& what) {
               if (why == Stop::kError) error_ = what;
               usage_ = u;
             }});
    if (!id) return id.error();
    return Ok{};
  }
  // Steps until so many tokens are there. False: the answer is complete.
  bool go_on(size_t n_token) {
    while (tokens_.size() < n_token) {
      const bool timed = int(tokens_.size()) > skip_;
      if (timed && untimed_ == 0) untimed_ = int(tokens_.size());
      const auto start = Clock::now();
      const bool more = e_.tick();
      if (timed) timed_s_ += std::chrono::duration<double>(Clock::now() - start).count();
      if (!more) return false;
    }
    return true;
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const Usage& usage() const { return usage_; }
  const std::string& error() const { return error_; }
  int timed() const {
    return untimed_ > 0 ? usage_.decoded + 1 - untimed_ : 0;
  }  // tokens; the first one is not decoded
  double timed_s() const { return timed_s_; }

 private:
  using Clock = std::chrono::steady_clock;
  Engine& e_;
  int skip_, untimed_ = 0;
  std::vector<int32_t> tokens_;
  Usage usage_;
  std::string error_;
  double timed_s_ = 0;
};

// What each engine answers. More than one take turns of some tokens, so that what else the machine does slows all
// alike.
Result<std::vector<Totals>> answer_all(std::span<Engine* const> engines, const PromptSet& set,
                                       const SpecBenchOptions& o) {
  constexpr size_t kTurn = 16;  // tokens
  std::vector<Totals> totals(engines.size());
  for (size_t i = 0; i < set.prompts.size(); ++i) {
    std::list<Answering> answers;
    for (Engine* e : engines) {
      auto ok = answers.emplace_back(*e, o.skip)
                    .begin({.prompt = set.prompts[i],
                            .max_tokens = o.n_predict,
                            .sampling = {.temperature = 0, .seed = i},
                            .ignore_eos = o.ignore_eos,
                            .grammar = o.grammar});
      if (!ok) return ok.error();
    }
    bool more = true;
    for (size_t n = kTurn; std::exchange(more, false); n += kTurn)
      for (Answering& a : answers) more |= a.go_on(n);
    Totals* t = totals.data();
    for (const Answering& a : answers) {
      if (!a.error().empty()) return Error{"bench", a.error(), ""};
      add(*t, a.usage());
      t->timed += a.timed(), t->timed_s += a.timed_s();
      ++t;
    }
  }
  return totals;
}
double rate(const Totals& t) { return t.timed_s > 0 ? t.timed / t.timed_s : 0; }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

// plain: an engine to be measured in turn with this one, or null.
Result<SpecLine> measure(Engine& e, Engine* plain, const PromptSet& set, const SpecBenchOptions& o) {
  SpecLine l;
  Totals all;
  std::vector<double> rates, ratios;
  std::vector<Engine*> engines{&e};
  if (plain) engines.insert(engines.begin(), plain);
  for (int run = 0; run <= o.runs; ++run) {
    auto totals = answer_all(engines, set, o);
    if (!totals) return totals.error();
    if (run == 0) continue;
    const Totals* t = &totals->back();
    rates.push_back(rate(*t));
    if (const double of_plain = rate(totals->front()); plain && of_plain > 0) ratios.push_back(rates.back() / of_plain);
    all.tokens += t->tokens, all.steps += t->steps, all.draft_s += t->draft_s, all.verify_s += t->verify_s,
        all.accept_s += t->accept_s;
    all.drafted = t->drafted, all.accepted = t->accepted, all.offered_at = t->offered_at,
    all.accepted_at = t->accepted_at;
  }
  l.set = set.name, l.runs = o.runs;
  l.speedup = median(ratios);
  l.drafted = all.drafted, l.accepted = all.accepted;
  for (size_t k = 0; k < all.offered_at.size(); ++k)
    l.right_at.push_back(all.offered_at[k] > 0 ? double(all.accepted_at[k]) / double(all.offered_at[k]) : 0);
  if (all.steps > 0) {
    l.tokens_per_step = double(all.tokens) / all.steps;
    l.draft_ms = 1e3 * all.draft_s / all.steps, l.verify_ms = 1e3 * all.verify_s / all.steps,
    l.accept_ms = 1e3 * all.accept_s / all.steps;
  }
  for (const double r : rates) l.tok_s += r / double(rates.size());
  for (const double r : rates) l.tok_s_sd += (r - l.tok_s) * (r - l.tok_s);
  l.tok_s_sd = rates.size() > 1 ? std::sqrt(l.tok_s_sd / double(rates.size() - 1)) : 0;
  return l;
}

}  // namespace

double SpecLine::tok_s_at(double n) const {
  const double ms = draft_ms + verify_ms + accept_ms;
  return ms > 0 ? 1e3 * n / ms : 0;
}

Status bench_spec(const EngineConfig& given, const SpecBenchOptions& o,
                  const std::function<void(const SpecLine&)>& line) {
  for (const KvType kv : o.kv) {
    std::map<std::string, double> plain;  // tok/s by set
    std::unique_ptr<Engine> beside;
    std::vector<SpecMethod> methods{{"none", {}}};
    methods.insert(methods.end(), o.methods.begin(), o.methods.end());
    for (const SpecMethod& m : methods)
      for (const int length : m.plain() ? std::vector<int>{0} : o.lengths) {
        EngineConfig c = given;
        c.kv_k = c.kv_v = kv;
        c.draft.files = m.files, c.draft.suffix = m.suffix;
        if (length > 0) c.draft.max = c.draft.min = length;
        auto e = Engine::open(c, o.debug);
        if (!e) return e.error();
        for (const PromptSet& set : o.sets) {
          auto l = measure(**e, beside.get(), set, o);
          if (!l) return l.error();
          l->method = m.name, l->length = length, l->tree = m.plain() ? 0 : c.draft.tree, l->kv = kv;
          if (m.plain()) plain[set.name] = l->tok_s;
          if (!beside) l->speedup = plain[set.name] > 0 ? l->tok_s / plain[set.name] : 0;
          line(*l);
        }
        if (o.in_turn && m.plain()) beside = std::move(*e);
      }
  }
  return Ok{};
}

namespace {

double per_step(const Usage& u) { return u.decode_steps > 0 ? double(u.decoded) / u.decode_steps : 0; }

// The beginning of a text and as much of its end as there is room for.
std::vector<int32_t> cut(const std::vector<int32_t>& text, int n) {
  constexpr int kHead = 4;  // <bos><|turn>user\n
  if (int(text.size()) <= n) return text;
  std::vector<int32_t> out(text.begin(), text.begin() + kHead);
  out.insert(out.end(), text.end() - (n - kHead), text.end());
  return out;
}

struct Mean {
  int n = 0;
  double sum = 0, squares = 0;
  void add(double x) { ++n, sum += x, squares += x * x; }
  double value() const { return n > 0 ? sum / n : 0; }
  double error() const { return n > 1 ? std::sqrt(std::max(0., squares / n - value() * value()) / (n - 1)) : 0; }
};

struct Answer {
  std::vector<int32_t> tokens;
  Usage usage;
};

// before: the answers at the first context, empty there.
Result<ContextLine> measure_context(Engine& e, const PromptSet& set, const ContextBenchOptions& o, int context,
                                    std::vector<Answer>& before) {
  ContextLine l{.set = set.name, .method = {}, .context = context, .prompts = int(set.prompts.size())};
  auto ask = [&](const std::vector<int32_t>& prompt, int n) -> Result<Answer> {
    Answering a(e, 0);
    if (auto ok = a.begin({.prompt = prompt, .max_tokens = n, .sampling = {.temperature = 0}}); !ok) return ok.error();
    while (a.go_on(size_t(n) + 1)) {
    }
    if (!a.error().empty()) return Error{"bench", a.error(), ""};
    return Answer{a.tokens(), a.usage()};
  };
  int kept_steps = 0, fresh_steps = 0, kept_tokens = 0;
  Mean rates, changes;
  for (size_t i = 0; i < set.prompts.size(); ++i) {
    std::vector<int32_t> prompt =
        cut(o.texts[i % o.texts.size()], std::max(32, context - int(set.prompts[i].size()) - o.n_predict));
    auto first = ask(prompt, o.n_predict);
    if (!first) return first.error();
    for (const std::vector<int32_t>* part : {&std::as_const(first->tokens), &o.next_turn, &set.prompts[i]})
      prompt.insert(prompt.end(), part->begin(), part->end());
    auto kept = ask(prompt, o.n_predict);
    if (!kept) return kept.error();
    if (constexpr int kLeast = 24; kept->usage.cached < kLeast)
      return Error{
          "--contexts",
          fmt::format("expected {} rows or more kept from the first answer of a conversation of {} tokens, found {}",
                      kLeast, prompt.size(), kept->usage.cached),
          "use longer contexts"};
    if (auto other = ask({0}, 1); !other) return other.error();  // the slot forgets
    auto fresh = ask(prompt, o.n_predict);
    if (!fresh) return fresh.error();
    CHECK(fresh->usage.cached == 0, "{} rows of another conversation", fresh->usage.cached);
    l.different += fresh->tokens != kept->tokens;
    l.tokens += fresh->usage.decoded, fresh_steps += fresh->usage.decode_steps;
    kept_tokens += kept->usage.decoded, kept_steps += kept->usage.decode_steps;
    rates.add(per_step(fresh->usage));
    if (before.size() == i) before.push_back(*fresh);
    if (fresh->tokens == before[i].tokens) changes.add(per_step(fresh->usage) - per_step(before[i].usage));
  }
  l.kept = kept_steps > 0 ? double(kept_tokens) / kept_steps : 0;
  l.fresh = fresh_steps > 0 ? double(l.tokens) / fresh_steps : 0;
  l.error = rates.error();
  l.same = changes.n, l.same_change = changes.value(), l.same_error = changes.error();
  return l;
}

}  // namespace

Status bench_context(const EngineConfig& given, const ContextBenchOptions& o,
                     const std::function<void(const ContextLine&)>& line) {
  size_t shortest = o.texts.empty() ? 0 : o.texts[0].size();
  for (const auto& t : o.texts) shortest = std::min(shortest, t.size());
  for (const int context : o.contexts)
    if (size_t(context) * 4 / 5 > shortest)
      return Error{
          "--contexts",
          fmt::format("expected at most {} tokens, what the long texts have; found {}", shortest * 5 / 4, context),
          "use shorter contexts, or --prompts with longer questions of the kind retrieval"};
  for (const SpecMethod& m : o.methods) {
    EngineConfig c = given;
    c.draft.files = m.files, c.draft.suffix = m.suffix;
    c.draft.max = c.draft.min = o.length;
    auto e = Engine::open(c);
    if (!e) return e.error();
    for (const PromptSet& set : o.sets) {
      std::vector<Answer> before;
      for (const int context : o.contexts) {
        auto l = measure_context(**e, set, o, context, before);
        if (!l) return l.error();
        l->method = m.name;
        line(*l);
      }
    }
  }
  return Ok{};
}

}  // namespace facet
