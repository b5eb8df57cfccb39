#include "compose/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/step.h"
#include "base/reserve.h"
#include "base/threads.h"
#if FACET_CUDA
#include "backend/cuda/cuda.h"
#endif
#include "compose/cuda_memory.h"
#include "model/shards.h"
#include "model/stages.h"

namespace facet {
namespace {

constexpr int kLeastContext = 1024;  // that is chosen or suggested
// Most that is chosen where weights have to stay in RAM: more of a cache or of memory for prompts that nobody asked for
// would cost answers their speed. Copies to go on from: one for each sequence.
constexpr int kContextBesideRam = 32768, kChunkBesideRam = 2048;

}  // namespace

Result<std::string> resolve_backend(const std::string& asked, int gpu) {
#if FACET_CUDA
  if (asked == "cuda" || (asked == "auto" && Cuda::usable(gpu))) {
    if (auto free = Cuda::free_memory(gpu); !free) return free.error();
    return std::string("cuda");
  }
  if (asked == "auto") return std::string("cpu");
#else
  (void)gpu;
  if (asked == "cuda")
    return Error{"--backend", "cuda: this program was built without it",
                 "build it with the cuda preset, or use --backend cpu"};
  if (asked == "auto") return std::string("cpu");
#endif
  return asked;
}

Status resolve_gpus(EngineConfig& c) {
  if (const size_t n = gpus_of(c).size(); !c.split.empty() && c.split.size() != n)
    return Error{
        "--split",
        fmt::format("expected {} share{}, one for each GPU, found {} ({})", n, n == 1 ? "" : "s", c.split.size(),
                    fmt::join(c.split, ",")),
        n == 1 ? "give several GPUs (--gpus 2)" : "give one for each GPU of --gpus, such as the gigabytes of each"};
  const bool given = !c.gpus.empty();
  if (given && c.backend == "auto") c.backend = "cuda";  // one that is missing is no reason to run elsewhere
  if (given) c.gpu = c.gpus.front();
  auto backend = resolve_backend(c.backend, c.gpu);
  if (!backend) return backend.error();
  c.backend = *backend;
  if (c.backend != "cuda" || c.gpus.size() < 2) c.gpus.clear(), c.split.clear();
  for (const int gpu : c.gpus)
    if (auto ok = resolve_backend(c.backend, gpu); !ok) return ok.error();
  return Ok{};
}

namespace {

std::string even_split(int n) { return fmt::format("{}", fmt::join(std::vector<int>(size_t(n), 1), ",")); }

// A number of GPUs that the heads cannot be divided among.
Status check_number_of_gpus(const ModelCfg& m, const EngineConfig& c) {
  const int n = int(c.gpus.size());
  if (n < 2 || !c.split.empty() || divides(m, n)) return Ok{};
  const std::vector<int> work = shard_counts(m);
  return Error{
      "--gpus",
      fmt::format("expected a number of GPUs that divides the model's {} query heads and the K/V heads of each "
                  "layer, found {}",
                  m.n_q_head, n),
      fmt::format("use 1{}{}, or divide by layers (--split {})", work.empty() ? "" : " or ", fmt::join(work, " or "),
                  even_split(n))};
}

// Layers of each GPU, as --split takes them, with which a model fits on c's GPUs; or nothing. Begins with what each GPU
// has, and moves layers away from the fullest.
std::string split_that_fits(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                            std::span<const DrafterFile> drafters) {
  if (c.gpus.size() > size_t(m.n_layer())) return {};
  c.split.assign(c.gpus.size(), 1);
  for (int moved = 0; moved <= m.n_layer(); ++moved) {
    const MemoryPlan p = plan_memory(file, m, c, drafters);
    if (p.fits()) return fmt::format("{}", fmt::join(c.split, ","));
    if (moved == 0) {
      std::vector<double> room;
      for (const MemoryPlan& part : p.parts) room.push_back(double(std::max<int64_t>(1, part.available)));
      const auto layers = split_layers(m, room);
      if (!layers) return {};
      c.split.assign(layers->begin(), layers->end());
      continue;
    }
    const auto left = [](const MemoryPlan& part) { return part.available - part.total(); };
    const auto [from, to] = std::ranges::minmax_element(p.parts, {}, left);
    double& gives = c.split[size_t(from - p.parts.begin())];
    if (left(*to) <= 0 || gives <= 1) return {};
    --gives, ++c.split[size_t(to - p.parts.begin())];
  }
  return {};
}

// What would make a plan fit: the context that -c 0 would come to (the trained one, halved until it fits), with the
// same types, else with smaller ones, else a smaller model.
std::string what_would_fit(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                           std::span<const DrafterFile> drafters, bool lockstep) {
  if (!c.gpus.empty()) {
    if (const std::string split = split_that_fits(file, m, c, drafters); !split.empty())
      return fmt::format("--split {} would fit", split);
    EngineConfig divided = c;
    divided.split.clear();
    if (!c.split.empty() && divides(m, int(c.gpus.size())) && plan_memory(file, m, divided, drafters).fits())
      return "it would fit without --split";
  }
  const int asked = c.n_ctx;
  const KvType k = *c.kv_k, v = *c.kv_v;
  for (const KvType t : {k, KvType::kQ8_0, KvType::kQ4_0}) {
    c.kv_k = t, c.kv_v = t == k ? v : t;
    for (c.n_ctx = m.n_ctx_train;; c.n_ctx = std::max(kLeastContext, c.n_ctx / 2)) {
      const MemoryPlan p = plan_memory(file, m, c, drafters, lockstep);
      if (c.n_ctx <= asked && p.fits())
        return fmt::format("-c {}{} would fit", c.n_ctx,
                           t == k ? "" : fmt::format(" --kv-k {0} --kv-v {0}", kv_type_name(t)));
      if (c.n_ctx <= kLeastContext) break;
    }
  }
  if (!drafters.empty()) return "leave the drafter out (--draft none), or use a smaller model or quantisation";
  return "use a smaller model or quantisation, or make room";
}

}  // namespace

namespace {

// Entries of --kv-layers that this model has no use for.
Status check_kv_layers(const ModelCfg& m, const EngineConfig& c) {
  const KvPlan plan = kv_plan(c);
  for (const KvOfLayers& own : c.kv_layers) {
    if (own.last >= m.n_layer())
      return Error{"--kv-layers", fmt::format("expected layers from 0 to {}, found {}", m.n_layer() - 1, own.last),
                   "this model has no more"};
    bool any = false;
    for (int l = own.first; l <= own.last; ++l) {
      const LayerCfg& layer = m.layer[size_t(l)];
      any |= !layer.query_only;
      if (!layer.query_only && kv_shared(layer, plan) && own.kv.k != own.kv.v)
        return Error{"--kv-layers",
                     fmt::format("layer {}: expected one type, for K and V lie in one row, found {}", l, own.kv.name()),
                     "--kv-layout split keeps them apart"};
    }
    if (!any)
      return Error{"--kv-layers",
                   fmt::format("expected layers with rows of their own, found {}, which reads those of layer {}",
                               own.first, m.layer[size_t(own.first)].kv_source),
                   "give that layer its type"};
  }
  return Ok{};
}

}  // namespace

std::string layout_note(const ModelCfg& m, const EngineConfig& c) {
  if (*c.kv_k == *c.kv_v || !kv_shared(m, kv_plan(c))) return {};
  return fmt::format(
      "full layers keep K and V in one row of {0} values, the type of K: --kv-v {1} is for the other layers "
      "(--kv-layout split keeps them apart)",
      kv_type_name(*c.kv_k), kv_type_name(*c.kv_v));
}

namespace {

// Everything but the choice among types.
Result<EngineConfig> decide(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                            std::span<const DrafterFile> drafters, bool lockstep) {
  if (auto ok = resolve_gpus(c); !ok) return ok.error();
  if (auto ok = check_number_of_gpus(m, c); !ok) return ok.error();
  if (!c.split.empty())
    if (const auto layers = split_layers(m, c.split); !layers) return layers.error();
  if (!c.gpus.empty() && lockstep)
    return Error{"--gpus", "expected one GPU beside the reference (--lockstep), found several", "use --gpu"};
#if FACET_CUDA
  if (c.backend == "cuda")
    for (const int gpu : gpus_of(c)) {
      if (auto ok = cuda_accepts(gpu, file.path(), file.tensors(), m.n_expert_used); !ok) return ok.error();
      for (const DrafterFile& f : drafters)
        if (auto ok = cuda_accepts(gpu, f.path(), f.tensors(), 0); !ok) return ok.error();
    }
#endif
  return fit_memory(file, m, std::move(c), drafters, lockstep);
}

// The first of the types that has room for the context that is wanted, else the one with room for most.
Result<EngineConfig> choose_types(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                  std::span<const DrafterFile> drafters, bool lockstep) {
  const std::vector<KvChoice> choices = std::move(c.kv_choices);
  c.kv_choices.clear();
  const int wanted = c.n_ctx > 0 ? c.n_ctx : m.n_ctx_train;
  std::optional<EngineConfig> best;
  std::optional<Error> why;
  std::string rooms, quality;
  for (const KvChoice& choice : choices) {
    const std::string name = choice.kv.name();
    c.kv_k = choice.kv.k, c.kv_v = choice.kv.v;
    auto decided = decide(file, m, c, drafters, lockstep);
    rooms += rooms.empty() ? "" : ", ";
    if (!decided) {
      why = decided.error();
      const bool no_room = !why->detail.empty();  // the plan's table
      rooms += no_room ? fmt::format("{} does not fit", name) : fmt::format("{} is refused: {}", name, why->what);
      continue;
    }
    rooms += fmt::format("{} has room for {} tokens", name, decided->n_ctx);
    if (!best || decided->n_ctx > best->n_ctx) best = std::move(*decided), quality = choice.quality;
    if (best->n_ctx >= wanted) break;
  }
  if (!best) return *why;
  const std::string quoted = quality.empty() ? "" : fmt::format(": {}", quality),
                    before = c.kv_reason.empty() ? "" : fmt::format("; {}", c.kv_reason);
  best->kv_reason =
      fmt::format("--kv auto takes {}{}; {}{}", KvPair{*best->kv_k, *best->kv_v}.name(), quoted, rooms, before);
  return std::move(*best);
}

}  // namespace

namespace {

// fit_memory with the weights where c has them. beside_ram: some are in RAM because there is no room for them.
Result<EngineConfig> fit_placed(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                std::span<const DrafterFile> drafters, bool lockstep, bool beside_ram) {
  if (c.n_threads <= 0) c.n_threads = physical_cores();
  const KvType usual = c.backend == "ref" ? KvType::kF32 : KvType::kF16;
  c.kv_k = c.kv_k.value_or(usual), c.kv_v = c.kv_v.value_or(usual);
  if (auto ok = check_kv_layers(m, c); !ok) return ok.error();
#if FACET_CUDA
  if (c.backend == "cuda") {
    if (auto ok = cuda_accepts_kv(m, *c.kv_k, *c.kv_v); !ok) return ok.error();
    for (const KvOfLayers& own : c.kv_layers)
      if (auto ok = cuda_accepts_kv(m, own.kv.k, own.kv.v); !ok) return ok.error();
  }
#endif
  // What repeats may be long. On a GPU steps of more than 16 rows round differently.
  if (c.draft.suffix && c.draft.suffix_rows == 0 && c.draft.max == 0 && c.draft.tree == 0 && c.backend != "cuda")
    c.draft.suffix_rows = std::clamp(kMaxTreeNodes / c.max_seq - 1, c.draft.rows(), kMaxTreeNodes - 1);
  if (c.max_out <= 0) c.max_out = c.max_seq * (c.draft.any() ? 1 + c.draft.rows() : 1);
  const bool choose = c.n_ctx <= 0, choose_chunk = c.chunk <= 0;
  if (choose) c.n_ctx = beside_ram ? std::min(m.n_ctx_train, kContextBesideRam) : m.n_ctx_train;
  if (c.cache_ram < 0) c.cache_ram = std::min<int64_t>(int64_t(8) << 30, int64_t(available_memory() / 4));
  const bool choose_snapshots = c.snapshots < 0;
  if (choose_snapshots) c.snapshots = (beside_ram ? 1 : 3) * c.max_seq;
  if (choose_chunk)
    c.chunk = std::max(
        {beside_ram ? std::min(kChunkBesideRam, usual_chunk(c.backend, c.n_ctx)) : usual_chunk(c.backend, c.n_ctx),
         c.max_seq, c.mmproj.empty() ? 0 : c.image_tokens + 1 + c.max_seq});
  MemoryPlan p = plan_memory(file, m, c, drafters, lockstep);
  while (!p.fits()) {
    if (choose_snapshots && c.snapshots > 1)
      c.snapshots = std::max(1, c.snapshots * 2 / 3);
    else if (const int least =
                 std::max({kLeastChunk, c.max_seq, c.mmproj.empty() ? 0 : c.image_tokens + 1 + c.max_seq});
             choose_chunk && c.chunk > least)
      c.chunk = std::max(least, c.chunk / 2);
    else if (choose && c.n_ctx > kLeastContext)
      c.n_ctx = std::max(kLeastContext, c.n_ctx / 2);
    else
      break;
    p = plan_memory(file, m, c, drafters, lockstep);
  }
  if (p.fits()) return c;
  // What is left for rows is less than all sequences could need, but enough for the longest: they share it.
  if (const int64_t left = c.kv_memory == 0 ? left_for_rows(file, m, c, drafters, p) : 0; left > 0) {
    c.kv_memory = left;
    return c;
  }

  const MemoryPlan& least = p.fullest();
  return Error{c.model,
               fmt::format("a context of {} needs {}{}, {} available", c.n_ctx, human_bytes(least.total()),
                           least.name.empty() ? "" : fmt::format(" on {}", least.name), human_bytes(least.available)),
               what_would_fit(file, m, c, drafters, lockstep), p.table()};
}

}  // namespace

Result<EngineConfig> fit_memory(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                std::span<const DrafterFile> drafters, bool lockstep) {
  const bool one_gpu = c.backend == "cuda" && c.gpus.empty(), dense = m.n_expert == 0;
  int& here = dense ? c.ffn_on_cpu : c.experts_on_cpu;
  int& elsewhere = dense ? c.experts_on_cpu : c.ffn_on_cpu;
  const char* const option = dense ? "--experts-on-cpu" : "--ffn-on-cpu";
  if (c.backend == "cuda" && elsewhere > 0)
    return Error{option, dense ? "expected a model with experts, found a dense one" : "expected a dense model",
                 dense ? "use --ffn-on-cpu" : "use --experts-on-cpu"};
  if (c.backend == "cuda" && here > 0 && !one_gpu)
    return Error{dense ? "--ffn-on-cpu" : "--experts-on-cpu", "expected one GPU, found several (--gpus)",
                 "leave it out"};
  const bool choose = one_gpu && here < 0;
  elsewhere = 0, here = one_gpu ? std::clamp(here, 0, m.n_layer()) : 0;
  auto on_gpu = fit_placed(file, m, c, drafters, lockstep, false);
  if (on_gpu || !choose || on_gpu.error().detail.empty()) return on_gpu;
  // The cache comes first, then as many layers' weights as there is room for.
  here = m.n_layer();
  auto placed = fit_placed(file, m, c, drafters, lockstep, true);
  if (!placed) return placed;
  EngineConfig best = std::move(*placed);
  for (int few = 0, enough = m.n_layer(); enough - few > 1;) {
    EngineConfig tried = best;
    const int n = (dense ? tried.ffn_on_cpu : tried.experts_on_cpu) = (few + enough) / 2;
    const bool fits = plan_memory(file, m, tried, drafters, lockstep).fits();
    (fits ? enough : few) = n;
    if (fits) best = std::move(tried);
  }
  return best;
}

Result<EngineConfig> resolve_config(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                    std::span<const DrafterFile> drafters, bool lockstep) {
  if (c.kv_choices.empty()) return decide(file, m, std::move(c), drafters, lockstep);
  return choose_types(file, m, std::move(c), drafters, lockstep);
}

}  // namespace facet
