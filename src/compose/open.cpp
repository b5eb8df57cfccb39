#include "api/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cpu/cpu_fast.h"
#include "compose/cuda_memory.h"
#include "compose/load_model.h"
#include "compose/open_cuda.h"
#include "compose/open_drafters.h"
#include "compose/open_lockstep.h"
#include "compose/open_media.h"
#include "compose/open_traced.h"
#include "compose/plan.h"

namespace facet {

namespace {

// A drafter's vocabulary, where its file has one, against the model's, token by token. Of another one all drafts would
// be wrong; a few that only one knows are told.
Status check_vocabulary(DrafterFile& d, const LoadedModel& model) {
  if (d.vocabulary().empty() || !model.tokenizer) return Ok{};
  const std::vector<std::string>& tokens = model.tokenizer->vocab().tokens;
  size_t unlike = 0, first = 0;
  const size_t n = std::min(tokens.size(), d.vocabulary().size());
  for (size_t i = n; i-- > 0;)
    if (tokens[i] != d.vocabulary()[i]) ++unlike, first = i;
  if (unlike == 0) return Ok{};
  const std::string found =
      fmt::format("token {}: expected '{}', as the target has, found '{}', and so {} of {} tokens", first,
                  tokens[first], d.vocabulary()[first], unlike, n);
  if (unlike * 100 > n)
    return Error{d.path(), "tokenizer.ggml.tokens: " + found, "the drafter was made for another vocabulary"};
  d.notes.push_back(found);
  return Ok{};
}

// The configuration with as many of the drafters that nobody asked for as fit in memory: the largest goes first, what is
// looked for in the text, whose steps have more rows, last.
Result<EngineConfig> without_drafters(LoadedModel& model, const EngineConfig& asked, const EngineDebug& debug) {
  EngineConfig c = asked;
  std::vector<std::string> left_out;
  while (true) {
    auto decided = resolve_config(model.file, model.cfg, c, model.drafters, debug.lockstep);
    if (!decided && model.drafters.empty() && c.draft.suffix) {
      c.draft.suffix = false;
      continue;
    }
    if (decided || model.drafters.empty()) {
      for (const std::string& path : left_out) {
        const std::string why = "it does not fit in memory beside the model";
        if (decided && c.noted) c.noted(fmt::format("{}: the model runs without this drafter: {}", path, why));
        if (decided && c.degraded) c.degraded("drafter", fmt::format("{}: {}", path, why));
      }
      return decided;
    }
    const auto largest = std::max_element(model.drafters.begin(), model.drafters.end(),
                                          [](auto& a, auto& b) { return a.file_bytes() < b.file_bytes(); });
    const auto i = largest - model.drafters.begin();
    left_out.push_back(c.draft.files[size_t(i)]);
    c.draft.files.erase(c.draft.files.begin() + i);
    model.drafters.erase(largest);
  }
}

// Everything on the GPU; else without drafters that nobody asked for: they cost less than weights in RAM.
Result<EngineConfig> decide(LoadedModel& model, const EngineConfig& c, const EngineDebug& debug) {
  const auto with = [&](const EngineConfig& asked) {
    auto decided = resolve_config(model.file, model.cfg, asked, model.drafters, debug.lockstep);
    return decided || !c.draft.optional ? std::move(decided) : without_drafters(model, asked, debug);
  };
  const std::vector<DrafterFile> all = model.drafters;
  EngineConfig whole = c;
  whole.experts_on_cpu = std::max(0, c.experts_on_cpu), whole.ffn_on_cpu = std::max(0, c.ffn_on_cpu);
  auto decided = with(whole);
  if (decided || decided.error().detail.empty()) return decided;
  model.drafters = all;
  return with(c);
}

Result<std::unique_ptr<Engine>> open_with(const EngineConfig& c, const EngineDebug& debug) {
  auto loaded = load_model(c.model);
  if (!loaded) return loaded.error();
  LoadedModel& model = *loaded;
  model.debug = debug;
  for (const std::string& path : c.draft.files) {
    auto drafter = DrafterFile::open(path);
    if (!drafter) return drafter.error();
    if (c.draft.embed_scale > 0) drafter->set_embedding_scale(c.draft.embed_scale);
    model.drafters.push_back(std::move(*drafter));
  }
  for (DrafterFile& d : model.drafters)
    if (auto ok = check_vocabulary(d, model); !ok) return ok.error();
  auto decided = decide(model, c, debug);
  if (!decided) return decided.error();
  if (c.planned) {
    const MemoryPlan plan = plan_memory(model.file, model.cfg, *decided, model.drafters, debug.lockstep);
    c.planned(plan.line(), plan.table());
  }

  if (debug.lockstep && c.sparse_prefill > 0)
    return Error{"--lockstep", "expected no --sparse-prefill beside it: it judges what is exact",
                 "leave one of them out"};
  if (!decided->kv_reason.empty() && c.noted) c.noted(decided->kv_reason);
  if (const std::string note = layout_note(model.cfg, *decided); !note.empty() && c.noted) c.noted(note);
  if (decided->backend == "cuda" && decided->draft.any() && decided->draft.rows() > 15 && c.noted)
    c.noted(
        fmt::format("drafts of {} tokens make steps of more than 16 rows: on a GPU their logits may round differently "
                    "from plain decoding's",
                    decided->draft.rows()));

  if (c.count_experts) {
    if (model.cfg.n_expert == 0)
      return Error{c.model, "expected a model with experts to count, found a dense one", "give another model"};
    if (!decided->gpus.empty() || decided->backend == "ref" || debug.lockstep || debug.explain)
      return Error{"--backend", "expected the CPU or one GPU where experts are counted, found another set-up",
                   "leave --gpus, ref, --lockstep and --explain out"};
  }
  if (!has_isa(c.cpu_isa))
    return Error{"--cpu-isa", fmt::format("this machine has no {}", isa_name(c.cpu_isa)),
                 "leave it out: the best there is will be used"};
#if FACET_CUDA
  if (decided->backend == "cuda" && c.noted) {
    if (const std::string note = library_note(c.gpu); !note.empty()) c.noted(note);
    for (const std::string& n : conversion_notes(model.file.path(), model.file.tensors())) c.noted(n);
    for (const DrafterFile& d : model.drafters)
      for (const std::string& n : conversion_notes(d.path(), d.tensors())) c.noted(n);
    if (const std::string note = ram_note(model.file, *decided); !note.empty()) c.noted(note);
  }
#endif
  if (!decided->gpus.empty() && debug.explain)
    return Error{"--gpus", "expected one GPU where verbs are priced, found several",
                 "use --gpu, or facet bench --explain"};
  if (auto media = open_media(model, *decided); !media)
    return media.error();
  else
    model.media = std::move(*media);
  if (debug.lockstep) return open_lockstep_engine(std::move(model), *decided);
  if (debug.explain) return open_traced_engine(std::move(model), *decided);
#if FACET_CUDA
  if (decided->backend == "cuda") return open_cuda_engine(std::move(model), *decided);
#endif
  if (decided->backend == "cpu")
    return create_engine<CpuFast>(std::move(model), *decided, decided->n_threads, decided->cpu_isa);
  if (decided->backend == "ref") return create_engine<CpuRef>(std::move(model), *decided, decided->n_threads);
  return Error{"--backend", fmt::format("expected cuda, cpu or ref, found {}", decided->backend),
               "this program was built without it"};
}

// The drafter that an error is about, or the end.
auto blamed(std::vector<std::string>& files, const Error& e) {
  return std::find_if(files.begin(), files.end(),
                      [&](const std::string& f) { return e.where == f || e.where.starts_with(f + "/"); });
}

}  // namespace

Result<std::unique_ptr<MediaEncoder>> open_media(const LoadedModel& model, const EngineConfig& c) {
  if (c.mmproj.empty()) return std::unique_ptr<MediaEncoder>();
  auto file = MmprojFile::open(c.mmproj);
  if (!file) return file.error();
  if (auto ok = check_mmproj(*file, c.model, model.cfg); !ok) return ok.error();
#if FACET_CUDA
  if (c.backend == "cuda" && c.mmproj_offload) return open_media_cuda(std::move(*file), c.image_tokens, gpus_of(c)[0]);
#endif
  return open_media_cpu(std::move(*file), c.image_tokens, c.n_threads, c.cpu_isa);
}

Result<std::unique_ptr<Engine>> Engine::open(const EngineConfig& asked, const EngineDebug& debug) {
  EngineConfig c = asked;
  while (true) {
    auto engine = open_with(c, debug);
    if (engine || !c.draft.optional) return engine;
    const auto at = blamed(c.draft.files, engine.error());
    if (at == c.draft.files.end()) return engine;
    if (c.noted) c.noted(fmt::format("the model runs without this drafter: {}", engine.error().message()));
    if (c.degraded) c.degraded("drafter", engine.error().what);
    c.draft.files.erase(at);
  }
}

}  // namespace facet
