#include "compose/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_fast.h"
#include "backend/stage_of.h"
#include "base/check.h"
#include "base/reserve.h"
#include "compose/cuda_memory.h"
#include "media/sound.h"
#include "model/encoder_bind.h"
#include "model/gemma4_bind.h"
#include "model/mmproj.h"
#include "model/shards.h"
#include "model/stages.h"
#include "spec/answer_memory.h"
#include "spec/dflash.h"
#include "spec/eagle3.h"
#include "spec/mtp.h"
#include "spec/suffix_index.h"

namespace facet {

namespace {

constexpr int kMostChunk = 4096;

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

// What one device holds of a model, and whether it holds the drafters.
struct Held {
  std::vector<TensorView> own = {};        // of a stage
  std::span<const TensorView> whole = {};  // else: those of the file
  std::span<const TensorView> tensors() const { return own.empty() ? whole : own; }
  int64_t file_bytes = 0;  // of these
  ModelCfg rows = {};      // with the K/V rows that are there
  int first = 0, n = 0;    // layers
  bool drafters = true;
};
Held all_of(const GgufFile& file, const ModelCfg& m, const EngineConfig& c) {
  return {.whole = file.tensors(), .file_bytes = int64_t(file.file_bytes()), .rows = on_a_gpu(m, c), .n = m.n_layer()};
}
// Of a pipeline's stage; drafters are on the last one.
Held of_stage(const GgufFile& file, const ModelCfg& m, std::span<const int> layers, size_t i) {
  Held h{.rows = rows_of_stage(m, [&](int l) { return stage_of(layers, l) == i; }),
         .n = layers[i],
         .drafters = i + 1 == layers.size()};
  for (size_t j = 0; j < i; ++j) h.first += layers[j];
  for (const TensorView& t : file.tensors())
    if (stage_of(layers, t.name) == i) h.own.push_back(t), h.file_bytes += int64_t(t.data.size());
  return h;
}

// The target's lines. Scratch of `limits`, which are those of the target and its drafters.
MemoryPlan plan_target(const Held& held, const ModelCfg& m, const EngineConfig& c, const BackendMemory& backend,
                       const BackendLimits& limits) {
  const KvPlan kv = kv_plan(c);
  const KvBytes b = kv_bytes(held.rows, kv);
  int full = 0, sliding = 0, shared = 0;
  int64_t rows = 0;
  for (const LayerCfg& l : std::span(m.layer).subspan(size_t(held.first), size_t(held.n))) {
    ++(l.query_only ? shared : l.window ? sliding : full);
    if (l.window && !l.query_only) rows = ring_rows(l, kv);
  }
  MemoryPlan p;
  auto line = [&](const char* name, std::string detail, int64_t bytes) {
    p.lines.push_back({name, std::move(detail), bytes});
  };
  line("weights", fmt::format("{} tensors, {}", held.tensors().size(), backend.weights),
       backend.weight_bytes ? backend.weight_bytes(held.tensors()) : held.file_bytes);
  line("kv full",
       full == 0 ? "no layers"
                 : fmt::format("{} layers, {}, {} rows x {} slots, committed as they fill", full,
                               types_text(held.rows, kv, true), c.n_ctx, c.max_seq),
       b.full);
  line("kv rings",
       sliding == 0 ? "no layers"
                    : fmt::format("{} sliding layers, {}, {} rows x {} slots", sliding,
                                  types_text(held.rows, kv, false), rows, c.max_seq),
       b.rings);
  if (shared > 0) p.lines.back().detail += fmt::format("; {} layers share", shared);
  line("kv staging", fmt::format("a chunk of {} tokens of one sliding layer", kv.max_step), b.staging);
  line("kv snapshots", fmt::format("rings of {} sequences to go on from", kv.snapshots), b.snapshots);
  line("kv pages", fmt::format("what whole pages of {} take beyond that", human_bytes(backend.page_bytes)),
       std::max<int64_t>(0, pool_bytes(held.rows, kv, backend.page_bytes, backend.read_beyond) - b.total()));
  line("activations", fmt::format("{} tokens a step", kv.max_step),
       backend.rows_bytes(1, work_elements(m, kv.max_step, 0)));
  // Several GPUs have their own part, and where tokens are chosen all of it.
  const int64_t copies = c.gpus.empty() ? 1 : 2;  // a stage's plan names no GPUs
  line("logits", fmt::format("{} rows of {}", c.max_out, m.n_vocab),
       backend.rows_bytes(c.max_out, m.d_model + copies * int64_t(m.n_vocab)));
  line("scratch", backend.scratch, backend.scratch_bytes(limits));
  p.available = backend.available;
  return p;
}

// A drafter's own memory, and in `limits` what it asks of the backend. One that does not fit the target has no more
// than its file here; opening it says why. holds: whether it is there; else its activations are, which all have.
void add_drafter(MemoryPlan& p, BackendLimits& limits, const DrafterFile& f, const ModelCfg& m, const EngineConfig& c,
                 const BackendMemory& backend, bool holds) {
  const std::string name = drafter_kind_name(f.kind());
  if (holds)
    p.lines.push_back({name, fmt::format("{} tensors", f.tensors().size()),
                       backend.weight_bytes ? backend.weight_bytes(f.tensors()) : int64_t(f.file_bytes())});
  const KvPlan target = kv_plan(c);
  const int S = c.max_seq;
  if (f.kind() == DrafterKind::kDflash) {
    const auto cfg = dflash_config(f, m);
    if (!cfg) return;
    const KvPlan kv = dflash_plan(target, *cfg);
    limits = limits.with(dflash_limits(*cfg, m.d_model, kv.max_step, kv.max_ctx));
    if (holds)
      p.lines.push_back({name + " kv", fmt::format("{} layers, {} rows x {} slots", cfg->body.n_layer(), c.n_ctx, S),
                         pool_bytes(on_a_gpu(cfg->body, c), kv, backend.page_bytes, backend.read_beyond)});
    const int64_t cols = int64_t(cfg->taps.size()) * m.d_model;
    p.lines.push_back(
        {name + " activations",
         fmt::format("{} tokens a step, with features of {} layers", kv.max_step, cfg->taps.size()),
         backend.rows_bytes(1, work_elements(cfg->body, kv.max_step, S * cfg->block)) +
             (cfg->conv_taps > 0 ? backend.rows_bytes(kv.max_step, m.d_model + conv_cols(*cfg)) : 0) +
             backend.rows_bytes(S * cfg->block, cfg->selector.rank) +
             (cfg->markov.rank > 0 ? backend.rows_bytes(S, cfg->markov.rank + 2 * int64_t(cfg->body.n_vocab)) : 0) +
             backend.rows_bytes(2 * target.max_step + std::min(waiting_features(int(cols)), target.max_step) * S,
                                cols)});
  } else if (f.kind() == DrafterKind::kEagle3) {
    const auto cfg = eagle3_config(f, m);
    if (!cfg) return;
    const KvPlan kv = eagle3_plan(target, *cfg);
    limits = limits.with(eagle3_limits(*cfg, kv.max_step, kv.max_ctx));
    if (holds)
      p.lines.push_back({name + " kv", fmt::format("a layer, {} rows x {} slots", c.n_ctx, S),
                         pool_bytes(on_a_gpu(cfg->body, c), kv, backend.page_bytes, backend.read_beyond)});
    const int64_t cols = int64_t(cfg->taps.size()) * m.d_model;
    p.lines.push_back(
        {name + " activations",
         fmt::format("{} tokens a step, with features of {} layers", kv.max_step, cfg->taps.size()),
         backend.rows_bytes(1, work_elements(cfg->body, kv.max_step, S)) +
             backend.rows_bytes(4 * kv.max_step + S + target.resident(), m.d_model) +
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
    if (f.kind() == DrafterKind::kEagle3)
      if (const auto cfg = eagle3_config(f, m))
        n += pool_bytes(on_a_gpu(cfg->body, c), eagle3_plan(kv_plan(c), *cfg), page_bytes, read_beyond);
    if (f.kind() != DrafterKind::kDflash) continue;
    if (const auto cfg = dflash_config(f, m))
      n += pool_bytes(on_a_gpu(cfg->body, c), dflash_plan(kv_plan(c), *cfg), page_bytes, read_beyond);
  }
  return n;
}

// The least that the pool must hold: one sequence as long as it may be, and what a step stages.
int64_t least_pool(const GgufFile& file, const Held& held, const ModelCfg& m, const EngineConfig& c,
                   std::span<const DrafterFile> drafters) {
  EngineConfig one = c;
  one.max_seq = 1, one.snapshots = 0;
  const BackendMemory b = memory_of(file, held.rows, one);
  return pool_bytes(held.rows, kv_plan(one), b.page_bytes, b.read_beyond) +
         (held.drafters ? drafter_pool_bytes(m, one, drafters, b.page_bytes, b.read_beyond) : 0);
}

MemoryPlan plan_held(const GgufFile& file, const Held& held, const ModelCfg& m, const EngineConfig& c,
                     std::span<const DrafterFile> drafters) {
  BackendLimits limits = backend_limits(m, kv_plan(c).max_step, c.n_ctx);
  if (c.sparse_prefill > 0) limits.n_select = kv_plan(c).resident();
  limits.shared_codes = kv_shared_codes(m, kv_plan(c));
  limits.weights_in_ram = c.weights_in_ram();
  MemoryPlan drafting;
  const BackendMemory backend = memory_of(file, c.gpus.empty() ? held.rows : m, c);
  for (const DrafterFile& f : drafters) add_drafter(drafting, limits, f, m, c, backend, held.drafters);
  if (backend.most_unpacked) {
    int64_t most = backend.most_unpacked(held.tensors());
    for (const DrafterFile& f : drafters)
      if (held.drafters) most = std::max(most, backend.most_unpacked(f.tensors()));
    limits.max_matrix = std::min(limits.max_matrix, most);
  }
  MemoryPlan p = plan_target(held, m, c, backend, limits);
  p.lines.insert(p.lines.end(), drafting.lines.begin(), drafting.lines.end());
  if (c.kv_memory > 0) {
    std::erase_if(p.lines, is_pooled);
    p.lines.insert(p.lines.begin() + 1,
                   {"kv pool",
                    fmt::format("rows of up to {} sequences and {} to go on from, of up to {} tokens each", c.max_seq,
                                std::max(0, c.snapshots), c.n_ctx),
                    c.kv_memory / std::max<int64_t>(1, int64_t(c.gpus.size()))});
  }
  return p;
}

// What repeats is looked for in the host's memory.
void add_suffix(MemoryPlan& p, const EngineConfig& c) {
  if (!c.draft.suffix || c.backend == "cuda") return;
  for (MemoryLine& l : suffix_lines(c)) p.lines.push_back(std::move(l));
}

// The encoders of an mmproj file, where they are on the model's device. One that does not fit the model has no line:
// opening it says why.
void add_encoders(MemoryPlan& p, const GgufFile& model, const ModelCfg& m, const EngineConfig& c) {
  if (c.mmproj.empty() || (c.backend == "cuda" && !c.mmproj_offload)) return;
  const auto file = MmprojFile::open(c.mmproj);
  if (!file) return;
  EngineConfig encoder = c;
  if (c.backend == "ref") encoder.backend = "cpu";
  const BackendMemory backend = memory_of(model, m, encoder);
  p.lines.push_back({"encoders", fmt::format("{} tensors of {}", file->tensors().size(), file->path()),
                     backend.weight_bytes ? backend.weight_bytes(file->tensors()) : int64_t(file->weight_bytes())});
  int64_t elements = 0, scratch = 0;
  if (const auto& v = file->vision()) {
    const int n = c.image_tokens * (v->is_unified ? 1 : v->pool * v->pool);
    elements += vision_work_elements(*v, n);
    scratch = std::max(scratch, backend.scratch_bytes(vision_limits(*v, n)));
  }
  if (const auto& a = file->audio()) {
    const int n = int(a->is_unified ? raw_frame_tokens(kPieceSamples) : mel_frames(kPieceSamples));
    elements += audio_work_elements(*a, n);
    scratch = std::max(scratch, backend.scratch_bytes(audio_limits(*a, n)));
  }
  p.lines.push_back({"encoders' work", fmt::format("a picture of {} tokens, 30 s of sound", c.image_tokens),
                     backend.rows_bytes(1, elements) + scratch});
}

// What c says of one of its GPUs alone.
EngineConfig of_gpu(const EngineConfig& c, size_t i) {
  EngineConfig own = c;
  own.gpu = c.gpus[i], own.gpus = {}, own.split = {};
  return own;
}
// What stages get of a pool for all of them.
std::vector<int64_t> pools_of_stages(const GgufFile& file, std::span<const Held> held, const ModelCfg& m,
                                     const EngineConfig& c, std::span<const DrafterFile> drafters, int64_t limit) {
  std::vector<ModelCfg> own;
  for (const Held& h : held) own.push_back(h.rows);
  return stage_limits(limit, own, kv_plan(c), drafter_pool_bytes(file, m, of_gpu(c, held.size() - 1), drafters));
}
std::vector<Held> all_stages(const GgufFile& file, const ModelCfg& m, const EngineConfig& c) {
  const std::vector<int> layers = stage_layers(m, c);
  std::vector<Held> v;
  for (size_t i = 0; i < layers.size(); ++i) v.push_back(of_stage(file, m, layers, i));
  return v;
}
MemoryPlan plan_stages(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                       std::span<const DrafterFile> drafters) {
  const std::vector<Held> held = all_stages(file, m, c);
  std::vector<int64_t> pools(held.size());
  if (c.kv_memory > 0) pools = pools_of_stages(file, held, m, c, drafters, c.kv_memory);
  MemoryPlan all;
  for (size_t i = 0; i < held.size(); ++i) {
    EngineConfig own = of_gpu(c, i);
    own.kv_memory = pools[i];
    MemoryPlan p = plan_held(file, held[i], m, own, drafters);
    p.name = fmt::format("GPU {}, layers {} to {}", c.gpus[i], held[i].first, held[i].first + held[i].n - 1);
    all.available += p.available;
    all.parts.push_back(std::move(p));
  }
  return all;
}

}  // namespace

int64_t drafter_pool_bytes(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                           std::span<const DrafterFile> drafters) {
  const BackendMemory b = memory_of(file, m, c);
  return drafter_pool_bytes(m, c, drafters, b.page_bytes, b.read_beyond);
}

ModelCfg on_a_gpu(const ModelCfg& m, const EngineConfig& c) {
  return c.gpus.empty() || !c.split.empty() ? m : shard_config(m, int(c.gpus.size()));
}

std::vector<MemoryLine> suffix_lines(const EngineConfig& c) {
  std::vector<MemoryLine> lines;
  const int64_t rows = int64_t(c.n_ctx) * c.max_seq;
  lines.push_back({"suffix index",
                   fmt::format("{} tokens x {} slots, in the host's memory, as they come", c.n_ctx, c.max_seq),
                   rows * SuffixIndex::kBytesPerToken});
  if (c.draft.memory > 0)
    lines.push_back({"suffix memory", fmt::format("{} tokens of earlier answers, likewise", c.draft.memory),
                     int64_t(c.draft.memory) * AnswerMemory::kBytesPerToken});
  return lines;
}

int usual_chunk(const std::string& backend, int n_ctx) {
  return backend == "cuda" ? std::clamp(n_ctx, kLeastChunk, kMostChunk) : kLeastChunk;
}

MemoryPlan plan_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                       std::span<const DrafterFile> drafters, bool lockstep) {
  if (!c.split.empty()) {
    MemoryPlan p = plan_stages(file, m, c, drafters);
    add_encoders(p.parts[0], file, m, of_gpu(c, 0));
    return p;
  }
  MemoryPlan p = plan_held(file, all_of(file, m, c), m, c, drafters);
  add_encoders(p, file, m, c);
  add_suffix(p, c);
  if (lockstep && c.backend != "cuda") {  // beside a GPU the reference's memory is the host's
    EngineConfig ref = c;
    ref.backend = "ref";
    const MemoryPlan all = plan_memory(file, m, ref, drafters);
    p.lines.push_back({"reference", "the same beside it, without weights", all.total() - all.lines.front().bytes});
  }
  return p;
}

int64_t left_for_rows(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                      std::span<const DrafterFile> drafters, const MemoryPlan& p) {
  const auto left = [](const MemoryPlan& one) {
    int64_t rest = 0;
    for (const MemoryLine& l : one.lines)
      if (!is_pooled(l)) rest += l.bytes;
    return one.available - rest;
  };
  if (p.parts.empty()) {
    if (left(p) < least_pool(file, all_of(file, m, c), m, c, drafters)) return 0;
    return left(p) * std::max<int64_t>(1, int64_t(c.gpus.size()));
  }
  constexpr int64_t kWhole = int64_t(1) << 40;  // of which stages' parts are known
  const std::vector<Held> held = all_stages(file, m, c);
  const std::vector<int64_t> part = pools_of_stages(file, held, m, c, drafters, kWhole);
  double all = std::numeric_limits<double>::max();
  for (size_t i = 0; i < held.size(); ++i)
    all = std::min(all, double(kWhole) * double(left(p.parts[i])) / double(part[i]));
  for (size_t i = 0; i < held.size(); ++i)
    if (all * double(part[i]) / double(kWhole) < double(least_pool(file, held[i], m, of_gpu(c, i), drafters))) return 0;
  return int64_t(all);
}

}  // namespace facet
