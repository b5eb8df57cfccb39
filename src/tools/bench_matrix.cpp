#include "tools/bench_matrix.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "model/gemma4_bind.h"
#include "model/gemma4_config.h"

namespace facet {
namespace {

// Adds what one answer took.
Status answer(Engine& e, const std::vector<int32_t>& prompt, const MatrixOptions& o, MatrixRun& run) {
  Usage usage;
  std::string error;
  Request r{.prompt = prompt, .max_tokens = o.n_predict, .ignore_eos = o.ignore_eos || o.random, .cache = false};
  r.sampling.temperature = 0;
  auto id = e.submit(std::move(r), {.tokens = [](RequestId, std::span<const int32_t>) {},
                                    .done =
                                        [&](RequestId, Stop why, const Usage& u, const std::string& what) {
                                          if (why == Stop::kError) error = what;
                                          usage = u;
                                        }});
  if (!id) return id.error();
  while (e.tick()) {
  }
  if (!error.empty()) return Error{e.config().model, error, ""};
  CHECK(usage.cached == 0, "{} rows of another answer", usage.cached);
  ++run.prompts, run.prompt_tokens += usage.prompt;
  run.decoded += usage.decoded, run.steps += usage.decode_steps;
  run.drafted += usage.drafted, run.accepted += usage.accepted;
  run.prefill_s += usage.prefill_s, run.decode_s += usage.decode_s;
  return Ok{};
}

}  // namespace

std::string MatrixConfig::kv() const {
  return k == v ? kv_type_name(k) : fmt::format("{}/{}", kv_type_name(k), kv_type_name(v));
}

std::vector<MatrixStep> matrix_steps(const MatrixOptions& o) {
  std::vector<MatrixStep> steps;
  for (int run = 0; run < o.runs; ++run)
    for (size_t i = 0; i < o.configs.size(); ++i)
      for (size_t context = 0; context < o.contexts.size(); ++context)
        for (size_t set = 0; set < o.sets.size(); ++set)
          steps.push_back(
              {.config = run % 2 == 0 ? i : o.configs.size() - 1 - i, .context = context, .set = set, .run = run});
  return steps;
}

MatrixKey matrix_key(const MatrixOptions& o, const MatrixStep& s) {
  const MatrixConfig& c = o.configs[s.config];
  return {.model = c.model,
          .drafter = c.drafter,
          .kv = c.kv(),
          .set = o.sets[s.set].name,
          .context = o.contexts[s.context],
          .run = s.run};
}

Result<std::vector<MatrixRunner::Prompts>> MatrixRunner::prompts_of(const MatrixConfig& c) const {
  auto file = open_gemma4(c.model);
  if (!file) return file.error();
  auto m = gemma4_config(*file);
  if (!m) return m.error();
  std::vector<Prompts> all;
  if (o_.random) {
    for (const int context : o_.contexts)
      for (size_t set = 0; set < o_.sets.size(); ++set) all.push_back(random_prompts(m->n_vocab, context, o_.count));
    return all;
  }
  auto vocab = vocab_from_gguf(*file);
  if (!vocab) return vocab.error();
  if (vocab->empty())
    return Error{c.model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                 "--random measures with random tokens"};
  const Variant variant = chat_variant(vocab->chat_template, m->d_ple > 0);
  auto tokenizer = Tokenizer::create(std::move(*vocab));
  if (!tokenizer) return tokenizer.error();
  for (const int context : o_.contexts)
    for (const MatrixSet& set : o_.sets) {
      auto prompts = matrix_prompts(*tokenizer, variant, set, context, o_.count);
      if (!prompts) return prompts.error();
      all.push_back(std::move(*prompts));
    }
  return all;
}

Result<MatrixRunner::Open*> MatrixRunner::open(size_t config) {
  const auto at = std::find_if(open_.begin(), open_.end(), [&](const Open& e) { return e.config == config; });
  if (at != open_.end()) {
    std::rotate(at, at + 1, open_.end());
    return &open_.back();
  }
  const MatrixConfig& m = o_.configs[config];
  auto prompts = prompts_of(m);
  if (!prompts) return prompts.error();
  size_t longest = 0;
  for (const Prompts& p : *prompts)
    for (const auto& ids : p) longest = std::max(longest, ids.size());
  EngineConfig c = o_.engine;
  c.model = m.model, c.kv_k = m.k, c.kv_v = m.v;
  c.draft.files = m.files, c.draft.suffix = m.suffix, c.draft.optional = false;
  c.n_ctx = int(longest) + o_.n_predict;
  c.max_seq = 1, c.snapshots = 0, c.cache_ram = 0;
  auto engine = Engine::open(c);
  while (!engine && !open_.empty()) {  // if memory is short, others may have it
    open_.erase(open_.begin());
    engine = Engine::open(c);
  }
  if (!engine) return engine.error();
  const EngineConfig& decided = (*engine)->config();
  auto meter = std::make_unique<EnergyMeter>(decided.backend, decided.gpu);
  open_.push_back({config, std::move(*engine), std::move(meter), std::move(*prompts)});
  MatrixRun warm;
  for (const Prompts& p : open_.back().prompts)
    if (auto ok = answer(*open_.back().engine, p.front(), o_, warm); !ok) return ok.error();
  return &open_.back();
}

Result<MatrixRun> MatrixRunner::measure(const MatrixStep& s, const std::function<bool()>& stop) {
  auto e = open(s.config);
  if (!e) return e.error();
  MatrixRun run{.key = matrix_key(o_, s)};
  const auto before = (*e)->meter->joules();
  for (const auto& prompt : of(**e, s)) {
    if (stop()) return run;
    if (auto ok = answer(*(*e)->engine, prompt, o_, run); !ok) return ok.error();
  }
  if (const auto after = (*e)->meter->joules(); before && after) run.joules = *after - *before;
  if (run.decoded == 0)
    return Error{run.key.model, fmt::format("the answers to the prompts of {} are empty", run.key.set),
                 "--ignore-eos goes on to the end (-n)"};
  return run;
}

Status run_matrix(const MatrixOptions& o, const std::set<MatrixKey>& done,
                  const std::function<Result<MatrixRun>(const MatrixStep&)>& measure,
                  const std::function<Status(const MatrixRun&)>& finished, const std::function<bool()>& stop) {
  for (const MatrixStep& s : matrix_steps(o)) {
    if (done.contains(matrix_key(o, s))) continue;
    if (stop()) return Ok{};
    auto run = measure(s);
    if (!run) return run.error();
    if (stop()) return Ok{};  // it may lack answers
    if (auto ok = finished(*run); !ok) return ok;
  }
  return Ok{};
}

}  // namespace facet
