#include <fmt/format.h>

#include <chrono>
#include <map>
#include <sstream>

#include "base/files.h"
#include "tokenizer/json.h"
#include "tools/bench_spec.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;

// Of all turns of a kind.
struct Totals {
  int turns = 0, tokens = 0, steps = 0;
  double s = 0, draft_s = 0, verify_s = 0, accept_s = 0;
  int64_t drafted = 0, accepted = 0;
};

// remembers: the answer may be drafted from later.
Status play(Engine& e, const RecordedTurn& turn, bool remembers, std::vector<int32_t>& replayed, Totals& t) {
  replayed = turn.answer;
  std::string error;
  Usage usage;
  Clock::time_point first = {};
  auto id = e.submit({.prompt = turn.prompt,
                      .max_tokens = int(turn.answer.size()),
                      .sampling = {.temperature = 0},
                      .ignore_eos = true,
                      .suppress_special = false,
                      .cache = remembers},
                     {.tokens =
                          [&](RequestId, std::span<const int32_t>) {
                            if (first == Clock::time_point{}) first = Clock::now();
                          },
                      .done =
                          [&](RequestId, Stop why, const Usage& u, const std::string& what) {
                            if (why == Stop::kError) error = what;
                            usage = u;
                          }});
  if (!id) return id.error();
  while (e.tick()) {
  }
  if (!error.empty()) return Error{"bench", error, ""};
  ++t.turns;
  t.tokens += usage.decoded, t.steps += usage.decode_steps;
  t.s += std::chrono::duration<double>(Clock::now() - first).count();
  t.draft_s += usage.draft_s, t.verify_s += usage.verify_s, t.accept_s += usage.accept_s;
  t.drafted += usage.drafted, t.accepted += usage.accepted;
  return Ok{};
}

}  // namespace

Result<std::vector<RecordedTurn>> read_recorded_turns(const std::string& path, const Tokenizer& tokenizer) {
  constexpr uint64_t kMost = uint64_t(64) << 20;
  auto text = read_file(path, kMost);
  if (!text) return text.error();
  std::istringstream lines(std::move(*text));
  std::vector<RecordedTurn> turns;
  int n = 0;
  for (std::string line; std::getline(lines, line);) {
    ++n;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, n);
    auto j = parse_json(line, where);
    if (!j) return j.error();
    std::string of[3];
    for (size_t i = 0; const char* key : {"kind", "prompt", "answer"}) {
      const auto at = j->is_object() ? j->find(key) : j->end();
      if (at == j->end() || !at->is_string())
        return Error{where, fmt::format("expected a text \"{}\", found none", key),
                     "write {\"kind\": .., \"prompt\": .., \"answer\": ..} to each line"};
      of[i++] = at->get<std::string>();
    }
    RecordedTurn t{of[0], tokenizer.encode(of[1], /*add_bos=*/true, /*parse_special=*/true),
                   tokenizer.encode(of[2], /*add_bos=*/false, /*parse_special=*/true)};
    if (t.answer.size() < 2) return Error{where, "expected an answer of two tokens or more, found a shorter one", ""};
    turns.push_back(std::move(t));
  }
  if (turns.empty()) return Error{path, "expected recorded turns, found none", "write one to each line"};
  return turns;
}

Status bench_spec_replay(const EngineConfig& given, const SpecBenchOptions& o, std::span<const RecordedTurn> turns,
                         const std::function<void(const SpecLine&)>& line) {
  std::map<std::string, double> plain;  // tok/s by kind
  std::vector<SpecMethod> methods{{"none", {}}};
  methods.insert(methods.end(), o.methods.begin(), o.methods.end());
  for (const SpecMethod& m : methods)
    for (const int length : m.plain() ? std::vector<int>{0} : o.lengths) {
      std::vector<int32_t> replayed;
      EngineDebug debug = o.debug;
      debug.replay = &replayed;
      EngineConfig c = given;
      c.kv_k = c.kv_v = o.kv.front();
      c.draft.files = m.files, c.draft.suffix = m.suffix;
      if (length > 0) c.draft.max = c.draft.min = length;
      auto e = Engine::open(c, debug);
      if (!e) return e.error();
      std::map<std::string, Totals> kinds;
      for (const RecordedTurn& t : turns)
        if (auto ok = play(**e, t, c.draft.memory > 0, replayed, kinds[t.kind]); !ok) return ok;
      for (const auto& [kind, t] : kinds) {
        SpecLine l;
        l.set = kind, l.method = m.name, l.length = length, l.tree = m.plain() ? 0 : c.draft.tree, l.runs = 1;
        l.kv = o.kv.front();
        l.tok_s = t.s > 0 ? t.tokens / t.s : 0;
        if (m.plain()) plain[kind] = l.tok_s;
        l.speedup = plain[kind] > 0 ? l.tok_s / plain[kind] : 0;
        l.drafted = t.drafted, l.accepted = t.accepted;
        if (t.steps > 0) {
          l.tokens_per_step = double(t.tokens) / t.steps;
          l.draft_ms = 1e3 * t.draft_s / t.steps, l.verify_ms = 1e3 * t.verify_s / t.steps,
          l.accept_ms = 1e3 * t.accept_s / t.steps;
        }
        line(l);
      }
    }
  return Ok{};
}

}  // namespace facet
