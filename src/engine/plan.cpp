#include "engine/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_fast.h"
#include "base/reserve.h"
#include "base/threads.h"
#if FACET_CUDA
#include "backend/cuda/cuda.h"
#endif
#include "engine/engine_cuda.h"
#include "model/gemma4_bind.h"
#include "model/shards.h"
#include "spec/dflash.h"
#include "spec/mtp.h"

namespace facet {

KvPlan kv_plan(const EngineConfig& c) {
  // Drafts come on top of a chunk, so that they never keep a prompt waiting, and on top
  // of the margin, so that a conversation can go back as far as without them.
  const int draft = c.draft.any() ? c.draft.rows() : 0;
  return {.k = *c.kv_k,
          .v = *c.kv_v,
          .layers = c.kv_layers,
          .share = c.kv_layout != KvLayout::kShared ? 0
                   : c.backend == "cuda"            ? kCudaSharedHead
                                                    : 1,
          .max_seq = c.max_seq,
          .max_ctx = c.n_ctx,
          .max_step = std::max(c.chunk, c.max_seq) + c.max_seq * draft,
          .margin = c.margin + draft,
          .snapshots = std::max(0, c.snapshots)};
}

namespace {

constexpr int kLeastChunk = 512, kMostChunk = 4096;
constexpr int kLeastContext = 1024;  // that is chosen or suggested

BackendMemory host_memory(const GgufFile&, const ModelCfg& m, const EngineConfig& c) {
  return {.weights = "mapped from the file",
          .weight_bytes = {},
          .rows_bytes = CpuRef::rows_bytes,
          .scratch = fmt::format("{} threads", c.n_threads),
          .scratch_bytes =
              [ref = c.backend == "ref", n = c.n_threads](const BackendLimits& limits) {
                return ref ? CpuRef::reserve_bytes(limits, n) : CpuFast::reserve_bytes(limits, n);
              },
          .most_unpacked = {},
          .page_bytes = host_page_bytes(m, kv_plan(c)),
          .available = c.memory > 0 ? c.memory : int64_t(available_memory())};
}
BackendMemory memory_of(const GgufFile& file, const ModelCfg& m, const EngineConfig& c) {
#if FACET_CUDA
  if (c.backend == "cuda") return cuda_memory(file, m, c);
#endif
  return host_memory(file, m, c);
}

// "f16/f16"; where layers have types of their own "8 of f16/f16, 2 of q8_0/q8_0". full: of full layers, else of sliding
// ones.
std::string types_text(const ModelCfg& m, const KvPlan& kv, bool full) {
  std::vector<std::pair<std::string, int>> n;
  bool one_row = false;
  for (size_t l = 0; l < m.layer.size(); ++l) {
    if (m.layer[l].query_only || (m.layer[l].window == 0) != full) continue;
    const KvPair t = kv.of_layer(l);
    const bool shared = kv_shared(m.layer[l], kv);
    one_row |= shared;
    std::string name = kv_type_name(t.k);
    if (!shared) name += fmt::format("/{}", kv_type_name(t.v));
    const auto at = std::find_if(n.begin(), n.end(), [&](const auto& have) { return have.first == name; });
    if (at == n.end())
      n.emplace_back(name, 1);
    else
      ++at->second;
  }
  std::string s;
  for (const auto& [name, count] : n)
    s += n.size() == 1 ? name : fmt::format("{}{} of {}", s.empty() ? "" : ", ", count, name);
  return one_row ? s + ", K and V in one row" : s;
}

// The target's lines. Scratch of `limits`, which are those of the target and its drafters.
MemoryPlan plan_target(const GgufFile& file, const ModelCfg& m, const EngineConfig& c, const BackendMemory& backend,
                       const BackendLimits& limits) {
  const KvPlan kv = kv_plan(c);
  const ModelCfg own = on_a_gpu(m, c);
  const KvBytes b = kv_bytes(own, kv);
  int full = 0, sliding = 0, shared = 0;
  int64_t rows = 0;
  for (const LayerCfg& l : m.layer) {
    ++(l.query_only ? shared : l.window ? sliding : full);
    if (l.window && !l.query_only) rows = ring_rows(l, kv);
  }
  MemoryPlan p;
  auto line = [&](const char* name, std::string detail, int64_t bytes) {
    p.lines.push_back({name, std::move(detail), bytes});
  };
  line("weights", fmt::format("{} tensors, {}", file.tensors().size(), backend.weights),
       backend.weight_bytes ? backend.weight_bytes(file.tensors()) : int64_t(file.file_bytes()));
  line("kv full",
       fmt::format("{} layers, {}, {} rows x {} slots, committed as they fill", full, types_text(m, kv, true), c.n_ctx,
                   c.max_seq),
       b.full);
  line("kv rings",
       fmt::format("{} sliding layers, {}, {} rows x {} slots", sliding, types_text(m, kv, false), rows, c.max_seq),
       b.rings);
  if (shared > 0) p.lines.back().detail += fmt::format("; {} layers share", shared);
  line("kv staging", fmt::format("a chunk of {} tokens of one sliding layer", kv.max_step), b.staging);
  line("kv snapshots", fmt::format("rings of {} sequences to go on from", kv.snapshots), b.snapshots);
  line("kv pages", fmt::format("what whole pages of {} take beyond that", human_bytes(backend.page_bytes)),
       std::max<int64_t>(0, pool_bytes(own, kv, backend.page_bytes, backend.read_beyond) - b.total()));
  line("activations", fmt::format("{} tokens a step", kv.max_step),
       backend.rows_bytes(1, work_elements(m, kv.max_step, 0)));
  // Several GPUs have their own part, and where tokens are chosen all of it.
  const int64_t copies = c.gpus.empty() ? 1 : 2;
  line("logits", fmt::format("{} rows of {}", c.max_out, m.n_vocab),
       backend.rows_bytes(c.max_out, m.d_model + copies * int64_t(m.n_vocab)));
  line("scratch", backend.scratch, backend.scratch_bytes(limits));
  p.available = backend.available;
  return p;
}

// A drafter's own memory, and in `limits` what it asks of the backend. One that does not fit the target has no more
// than its file here; opening it says why.
void add_drafter(MemoryPlan& p, BackendLimits& limits, const DrafterFile& f, const ModelCfg& m, const EngineConfig& c,
                 const BackendMemory& backend) {
  const std::string name = drafter_kind_name(f.kind());
  p.lines.push_back({name, fmt::format("{} tensors", f.tensors().size()),
                     backend.weight_bytes ? backend.weight_bytes(f.tensors()) : int64_t(f.file_bytes())});
  const KvPlan target = kv_plan(c);
  const int S = c.max_seq;
  if (f.kind() == DrafterKind::kDflash) {
    const auto cfg = dflash_config(f, m);
    if (!cfg) return;
    const KvPlan kv = dflash_plan(target, *cfg);
    limits = limits.with(dflash_limits(*cfg, m.d_model, kv.max_step, kv.max_ctx));
    p.lines.push_back({name + " kv", fmt::format("{} layers, {} rows x {} slots", cfg->body.n_layer(), c.n_ctx, S),
                       pool_bytes(on_a_gpu(cfg->body, c), kv, backend.page_bytes, backend.read_beyond)});
    const int64_t cols = int64_t(cfg->taps.size()) * m.d_model;
    p.lines.push_back(
        {name + " activations",
         fmt::format("{} tokens a step, with features of {} layers", kv.max_step, cfg->taps.size()),
         backend.rows_bytes(1, work_elements(cfg->body, kv.max_step, S * cfg->block)) +
             backend.rows_bytes(2 * target.max_step + std::min(waiting_features(int(cols)), target.max_step) * S,
                                cols)});
  } else {
    const auto cfg = mtp_config(f, m);
    if (!cfg) return;
    limits = limits.with(mtp_limits(*cfg, S, target.max_ctx));
    p.lines.push_back({name + " activations", fmt::format("{} chains, hidden states of {} tokens", S, target.max_step),
                       backend.rows_bytes(1, work_elements(cfg->body, S, S)) +
                           backend.rows_bytes(target.max_step + 5 * S, m.d_model)});
  }
}

bool is_pooled(const MemoryLine& l) { return l.name.starts_with("kv ") || l.name.ends_with(" kv"); }

// Of the drafters with rows of their own.
int64_t drafter_pool_bytes(const ModelCfg& m, const EngineConfig& c, std::span<const DrafterFile> drafters,
                           int64_t page_bytes, int64_t read_beyond) {
  int64_t n = 0;
  for (const DrafterFile& f : drafters) {
    if (f.kind() != DrafterKind::kDflash) continue;
    if (const auto cfg = dflash_config(f, m))
      n += pool_bytes(on_a_gpu(cfg->body, c), dflash_plan(kv_plan(c), *cfg), page_bytes, read_beyond);
  }
  return n;
}

// The least that the pool must hold: one sequence as long as it may be, and what a step stages.
int64_t least_pool(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                   std::span<const DrafterFile> drafters) {
  EngineConfig one = c;
  one.max_seq = 1, one.snapshots = 0;
  const BackendMemory b = memory_of(file, m, one);
  return pool_bytes(on_a_gpu(m, c), kv_plan(one), b.page_bytes, b.read_beyond) +
         drafter_pool_bytes(m, one, drafters, b.page_bytes, b.read_beyond);
}

}  // namespace

int64_t drafter_pool_bytes(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                           std::span<const DrafterFile> drafters) {
  const BackendMemory b = memory_of(file, m, c);
  return drafter_pool_bytes(m, c, drafters, b.page_bytes, b.read_beyond);
}

ModelCfg on_a_gpu(const ModelCfg& m, const EngineConfig& c) {
  return c.gpus.empty() ? m : shard_config(m, int(c.gpus.size()));
}

int usual_chunk(const std::string& backend, int n_ctx) {
  return backend == "cuda" ? std::clamp(n_ctx, kLeastChunk, kMostChunk) : kLeastChunk;
}

MemoryPlan plan_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                       std::span<const DrafterFile> drafters, bool lockstep) {
  BackendLimits limits = backend_limits(m, kv_plan(c).max_step, c.n_ctx);
  if (c.sparse_prefill > 0) limits.n_select = kv_plan(c).resident();
  limits.shared_codes = kv_shared_codes(m, kv_plan(c));
  MemoryPlan drafting;
  const BackendMemory backend = memory_of(file, m, c);
  for (const DrafterFile& f : drafters) add_drafter(drafting, limits, f, m, c, backend);
  if (backend.most_unpacked) {
    int64_t most = backend.most_unpacked(file.tensors());
    for (const DrafterFile& f : drafters) most = std::max(most, backend.most_unpacked(f.tensors()));
    limits.max_matrix = std::min(limits.max_matrix, most);
  }
  MemoryPlan p = plan_target(file, m, c, backend, limits);
  p.lines.insert(p.lines.end(), drafting.lines.begin(), drafting.lines.end());
  if (c.kv_memory > 0) {
    std::erase_if(p.lines, is_pooled);
    p.lines.insert(p.lines.begin() + 1,
                   {"kv pool",
                    fmt::format("rows of up to {} sequences and {} to go on from, of up to {} tokens each", c.max_seq,
                                std::max(0, c.snapshots), c.n_ctx),
                    c.kv_memory / std::max<int64_t>(1, int64_t(c.gpus.size()))});
  }
  if (lockstep && c.backend != "cuda") {  // beside a GPU the reference's memory is the host's
    EngineConfig ref = c;
    ref.backend = "ref";
    const MemoryPlan all = plan_memory(file, m, ref, drafters);
    p.lines.push_back({"reference", "the same beside it, without weights", all.total() - all.lines.front().bytes});
  }
  return p;
}

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
  const bool given = !c.gpus.empty();
  if (given && c.backend == "auto") c.backend = "cuda";  // one that is missing is no reason to run elsewhere
  if (given) c.gpu = c.gpus.front();
  auto backend = resolve_backend(c.backend, c.gpu);
  if (!backend) return backend.error();
  c.backend = *backend;
  if (c.backend != "cuda" || c.gpus.size() < 2) c.gpus.clear();
  for (const int gpu : c.gpus)
    if (auto ok = resolve_backend(c.backend, gpu); !ok) return ok.error();
  return Ok{};
}

namespace {

// A number of GPUs that the heads cannot be divided among.
Status check_number_of_gpus(const ModelCfg& m, const EngineConfig& c) {
  const int n = int(c.gpus.size());
  if (n < 2 || divides(m, n)) return Ok{};
  const std::vector<int> work = shard_counts(m);
  return Error{
      "--gpus",
      fmt::format("expected a number of GPUs that divides the model's {} query heads and the K/V heads of each "
                  "layer, found {}",
                  m.n_q_head, n),
      work.empty() ? "this model runs on one" : fmt::format("use 1 or {}", fmt::join(work, " or "))};
}

// What would make a plan fit: the context that -c 0 would come to (the trained one, halved until it fits), with the
// same types, else with smaller ones, else a smaller model.
std::string what_would_fit(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                           std::span<const DrafterFile> drafters, bool lockstep) {
  const int asked = c.n_ctx;
  const KvType k = *c.kv_k, v = *c.kv_v;
  for (const KvType t : {k, KvType::kQ8_0, KvType::kQ4_0}) {
    c.kv_k = t, c.kv_v = t == k ? v : t;
    for (c.n_ctx = m.n_ctx_train;; c.n_ctx = std::max(kLeastContext, c.n_ctx / 2)) {
      const MemoryPlan p = plan_memory(file, m, c, drafters, lockstep);
      if (c.n_ctx <= asked && p.total() <= p.available)
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
  if (!c.gpus.empty() && m.d_ple > 0)
    return Error{"--gpus", "expected one GPU for a model with per-layer embeddings, found several", "use --gpu"};
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
  if (c.n_threads <= 0) c.n_threads = physical_cores();
  const KvType usual = c.backend == "ref" ? KvType::kF32 : KvType::kF16;
  c.kv_k = c.kv_k.value_or(usual), c.kv_v = c.kv_v.value_or(usual);
  if (c.kv_layout == KvLayout::kAuto) {
    c.kv_layout = KvLayout::kShared;
#if FACET_CUDA
    if (c.backend == "cuda")
      for (const int gpu : gpus_of(c))
        if (!cuda_shares_rows(gpu)) c.kv_layout = KvLayout::kSplit;
#endif
  }
  if (auto ok = check_kv_layers(m, c); !ok) return ok.error();
#if FACET_CUDA
  if (c.backend == "cuda") {
    if (auto ok = cuda_accepts_kv(m, *c.kv_k, *c.kv_v); !ok) return ok.error();
    for (const KvOfLayers& own : c.kv_layers)
      if (auto ok = cuda_accepts_kv(m, own.kv.k, own.kv.v); !ok) return ok.error();
  }
#endif
  if (c.max_out <= 0) c.max_out = c.max_seq * (c.draft.any() ? 1 + c.draft.rows() : 1);
  const bool choose = c.n_ctx <= 0, choose_chunk = c.chunk <= 0;
  if (choose) c.n_ctx = m.n_ctx_train;
  if (c.cache_ram < 0) c.cache_ram = std::min<int64_t>(int64_t(8) << 30, int64_t(available_memory() / 4));
  const bool choose_snapshots = c.snapshots < 0;
  if (choose_snapshots) c.snapshots = 3 * c.max_seq;
  if (choose_chunk) c.chunk = std::max(usual_chunk(c.backend, c.n_ctx), c.max_seq);
  MemoryPlan p = plan_memory(file, m, c, drafters, lockstep);
  while (p.available > 0 && p.total() > p.available) {
    if (choose_snapshots && c.snapshots > 1)
      c.snapshots = std::max(1, c.snapshots * 2 / 3);
    else if (const int least = std::max(kLeastChunk, c.max_seq); choose_chunk && c.chunk > least)
      c.chunk = std::max(least, c.chunk / 2);
    else if (choose && c.n_ctx > kLeastContext)
      c.n_ctx = std::max(kLeastContext, c.n_ctx / 2);
    else
      break;
    p = plan_memory(file, m, c, drafters, lockstep);
  }
  if (p.available == 0 || p.total() <= p.available) return c;
  // What is left for rows is less than all sequences could need, but enough for the longest: they share it.
  int64_t rest = 0;
  for (const MemoryLine& l : p.lines)
    if (!is_pooled(l)) rest += l.bytes;
  if (const int64_t left = p.available - rest; c.kv_memory == 0 && left >= least_pool(file, m, c, drafters)) {
    c.kv_memory = left * std::max<int64_t>(1, int64_t(c.gpus.size()));
    return c;
  }

  return Error{
      c.model,
      fmt::format("a context of {} needs {}, {} available", c.n_ctx, human_bytes(p.total()), human_bytes(p.available)),
      what_would_fit(file, m, c, drafters, lockstep), p.table()};
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
      rooms += fmt::format("{} does not fit", name);
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

Result<EngineConfig> resolve_config(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                    std::span<const DrafterFile> drafters, bool lockstep) {
  if (c.kv_choices.empty()) return decide(file, m, std::move(c), drafters, lockstep);
  return choose_types(file, m, std::move(c), drafters, lockstep);
}

}  // namespace facet
