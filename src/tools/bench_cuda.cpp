#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <type_traits>

#include "backend/cuda/cuda_link.h"
#include "backend/cuda/kernels/probe.h"
#include "backend/cuda/p2p_copy.h"
#include "backend/traced.h"
#include "cache/cache_of_shards.h"
#include "cache/cache_of_stages.h"
#include "cache/cuda_kv_cache.h"
#include "compose/cuda_memory.h"
#include "compose/plan.h"
#include "engine/runner.h"
#include "tools/bench.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;

int32_t random_id(uint32_t& state, int n_vocab) {
  state = state * 1664525u + 1013904223u;
  return int32_t((uint64_t(state) * uint64_t(n_vocab)) >> 32);
}

// Bytes of weights that a step of n tokens must read at least once, and of cached rows.
double step_bytes(const GgufFile& file, const ModelCfg& m, const KvCache& cache, int n, int n_seq, int depth) {
  double bytes = 0;
  for (const TensorView& t : file.tensors()) {
    if (t.name.find("rope_freqs") != std::string::npos || t.name == "per_layer_token_embd.weight") continue;
    const bool expert = t.name.find("_exps.weight") != std::string::npos;
    const double share = expert ? std::min(1.0, double(n) * m.n_expert_used / m.n_expert) : 1.0;
    if (t.name == "token_embd.weight" && file.find("output.weight")) continue;
    bytes += share * double(t.data.size());
  }
  for (size_t l = 0; l < m.layer.size(); ++l) {
    const int64_t window = m.layer[l].window, all = depth + n / n_seq;
    const int64_t rows = window ? std::min<int64_t>(all, window - 1 + n / n_seq) : all;
    for (const KvCache* own = &cache; own; own = own->mirrored())
      bytes += double(n_seq) * double(rows) * double(own->layers()[l].row_bytes());
  }
  return bytes;
}

using Shards = TensorParallel<Cuda, CudaLink>;
using Stages = PipelineParallel<Cuda, P2pCopy>;
Cuda& first_gpu(Cuda& b) { return b; }
Cuda& first_gpu(Shards& b) { return b.shard(0); }
Cuda& first_gpu(Stages& b) { return b.stage(0); }

template <class B>
constexpr bool is_traced = requires(B b) {
  b.inner();
};

// Phases at the depths that were asked for, on an open model.
template <Backend B>
struct CudaBench {
  const GgufFile& file;
  const ModelCfg& m;
  const EngineConfig& c;
  const BenchOptions& o;
  const std::function<void(const BenchLine&)>& line;
  Runner<B>& r;
  std::vector<int32_t> ids;
  const Sampling usual{};  // the default sampling, as a user gets it
  std::vector<SampleRow> rows = std::vector<SampleRow>(size_t(c.max_out), SampleRow{.sampling = &usual});
  bool sparse = false;

  KvCache& cache() { return *r.cache; }
  auto& device() {
    if constexpr (is_traced<B>)
      return r.b.inner();
    else
      return r.b;
  }
  // n tokens of each of n_seq sequences, all at once. A step is not committed, so every run starts from the same cache().
  Status step(int n, int n_seq, Out out, bool draw) {
    r.steps.begin();
    for (int s = 0; s < n_seq; ++s) {
      if (auto ok = cache().prepare(s, n); !ok) return ok;
      r.add({.slot = s,
             .token = std::span(ids).subspan(size_t(n == 1 ? s : 0), size_t(n)),
             .out = out,
             .n_select = sparse ? n : 0});
    }
    const auto logits = r.forward();
    if (draw) {
      r.b.sample(r.ids, logits, std::span(rows).first(size_t(logits.rows)));
      (void)r.ids[0];  // the host waits for it, as an engine does
    } else {
      device().finish();
    }
    return Ok{};
  }
  Status launch(int n, Out out) {
    if (auto ok = cache().prepare(0, n); !ok) return ok;
    r.steps.begin();
    r.add({.slot = 0, .token = std::span(ids).first(size_t(n)), .out = out, .n_select = sparse ? n : 0});
    r.forward();
    return Ok{};
  }
  Status grow_to(int s, int depth) {  // rows are random already: only the lengths grow
    while (cache().len(s) < depth) {
      const int n = std::min(cache().plan().max_step, depth - cache().len(s));
      if (auto ok = cache().prepare(s, n); !ok) return ok;
      cache().commit(s, n);
    }
    return Ok{};
  }
  // One token more of each of n_seq sequences, as an engine decodes.
  Status decode(int n_seq) {
    if (auto ok = step(1, n_seq, Out::kLast, true); !ok) return ok;
    for (int s = 0; s < n_seq; ++s) {
      ids[size_t(s)] = std::max(r.ids[size_t(s)], 0);
      cache().commit(s, 1);
    }
    return Ok{};
  }
  // A prompt in chunks that are committed, as an engine reads it; the host waits at the end.
  Status read(int n, Out out) {
    for (int at = 0; at < n;) {
      const int piece = std::min(c.chunk, n - at);
      at += piece;
      if (auto ok = at < n ? launch(piece, Out::kNone) : step(piece, 1, out, false); !ok) return ok;
      cache().commit(0, piece);
    }
    return Ok{};
  }
  Status go_back(int n_seq, int depth) {
    for (int s = 0; s < n_seq; ++s)
      if (cache().len(s) > depth) {
        cache().clear(s);
        if (auto ok = grow_to(s, depth); !ok) return ok;
      }
    return Ok{};
  }
  // Prices of verbs; of a prompt in chunks, of its first one.
  Status trace(BenchLine& l, int n, int n_seq, Out out, bool draw, int warm) {
    r.b.trace(true);
    for (int i = 0; i < warm + o.runs; ++i) {
      if (i == warm) r.b.reset();
      if (auto ok = step(n, n_seq, out, draw); !ok) return ok;
      r.b.take_laps();
    }
    r.b.trace(false);
    l.verbs = bench_verbs(r.b.costs(), o.runs);
    return Ok{};
  }
  Status measure(const char* phase, int n, int n_seq, int depth, Out out, bool draw) {
    std::vector<double> ms;
    const bool in_chunks = n > c.chunk;
    const std::string what = bench_what(phase, n, n_seq, depth);
    const int runs = n * n_seq <= 64 ? std::max(o.runs, 30) : o.runs, warm = n * n_seq <= 64 ? 5 : 1;
    const bool chained = n == 1 && out == Out::kLast && depth + warm + runs < cache().plan().max_ctx;
    for (int i = 0; i < warm + runs; ++i) {
      if (o.progress) o.progress(what, uint64_t(i), uint64_t(warm + runs));
      const auto start = Clock::now();
      if (auto ok = chained ? decode(n_seq) : in_chunks ? read(n, out) : step(n, n_seq, out, draw); !ok) return ok;
      if (i >= warm) ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
      if (in_chunks)
        if (auto ok = go_back(n_seq, depth); !ok) return ok;
    }
    if (auto ok = go_back(n_seq, depth); !ok) return ok;
    std::sort(ms.begin(), ms.end());
    BenchLine l;
    l.phase = phase, l.n = n * n_seq, l.depth = depth, l.runs = runs, l.ms_median = ms[ms.size() / 2];
    l.ms_longest = ms.back(), l.ms_sum = std::accumulate(ms.begin(), ms.end(), 0.);
    l.kv_k = *c.kv_k, l.kv_v = *c.kv_v;
    for (int at = 0; at < n; at += c.chunk)
      l.bytes += step_bytes(file, m, cache(), std::min(c.chunk, n - at) * n_seq, n_seq, depth + at);
    l.tok_s = n * n_seq / l.ms_median * 1e3;
    l.gbps = l.bytes / l.ms_median / 1e6;
    if (sparse) l.kept = device().take_selected(0).share();
    if constexpr (is_traced<B>)
      if (auto ok = trace(l, in_chunks ? c.chunk : n, n_seq, out, draw, warm); !ok) return ok;
    line(l);
    return Ok{};
  }
  Status run() {
    std::vector<int> depths = o.depths;
    std::sort(depths.begin(), depths.end());
    int widest_batch = 1;
    for (int n : o.batches) widest_batch = std::max(widest_batch, n);
    for (int depth : depths) {
      for (int s = 0; s < widest_batch; ++s)
        if (auto ok = grow_to(s, depth); !ok) return ok;
      if (o.alone)
        if (auto ok = measure("decode", 1, 1, depth, Out::kLast, true); !ok) return ok;
      for (int n : o.widths)
        if (auto ok = measure("step", n, 1, depth, Out::kAll, true); !ok) return ok;
      for (int n : o.batches)
        if (auto ok = measure("batch", 1, n, depth, Out::kLast, true); !ok) return ok;
      for (const int n : o.prefill) {
        if (n == 0) continue;
        if (auto ok = measure("prefill", n, 1, depth, Out::kLast, false); !ok) return ok;
        if (o.keep == 0) continue;
        sparse = true;
        if (auto ok = measure("sparse", n, 1, depth, Out::kLast, false); !ok) return ok;
        sparse = false;
      }
    }
    const Cuda::Counters k = first_gpu(device()).counters();
    fmt::print(stderr, "{} graph launches, {} captures, {} allocations\n", k.graph_launches, k.captures, k.allocations);
    return Ok{};
  }
};

// where: the GPU, or all of them; before these the layers of each, where they are stages.
template <Backend B, class... Where>
Status bench_on(const GgufFile& file, const ModelCfg& m, const EngineConfig& c, const BenchOptions& o,
                const std::function<void(const BenchLine&)>& line, const Where&... where) {
  auto opened = Runner<B>::open(file, m,
                                {.kv = kv_plan(c),
                                 .max_out = c.max_out,
                                 .select = o.keep > 0 ? std::optional(bench_select(o.keep)) : std::nullopt,
                                 .loading = bench_loading(o)},
                                where...);
  if (!opened) return opened.error();
  Runner<B>& r = **opened;
  std::vector<int32_t> ids(size_t(std::max(c.chunk, c.max_out)));
  uint32_t state = 1;
  for (int32_t& id : ids) id = random_id(state, m.n_vocab);
  KvCache& cache = *r.cache;
  for (KvCache* k = &cache; k; k = k->mirrored()) static_cast<CudaKvCache*>(k)->fill_random();
  return CudaBench<B>{file, m, c, o, line, r, std::move(ids)}.run();
}

}  // namespace

Status bench_cuda(const GgufFile& file, const ModelCfg& m, const std::vector<BenchGroup>& groups,
                  const std::function<void(const BenchMachine&, const EngineConfig&)>& machine,
                  const std::function<void(const BenchLine&)>& line) {
  const EngineConfig& c = groups.front().config;
  const std::vector<int> gpus = gpus_of(c), layers = stage_layers(m, c);
  // Of all GPUs: their sum, or where each has its layers and waits for the others, what all need together.
  double ceiling = 0, tflops = 0;
  std::string name;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const cuda::Device d(gpus[i]);
    const double gbps = cuda::read_gbps(), rate = cuda::bf16_tflops();
    const double share = layers.empty() ? 1 : double(layers[i]) / m.n_layer();
    ceiling += layers.empty() ? gbps : share / gbps, tflops += layers.empty() ? rate : share / std::max(rate, 1e-9);
    name += name.find(d.info().name) == std::string::npos ? (name.empty() ? "" : " and ") + d.info().name : "";
  }
  if (!layers.empty()) ceiling = 1 / ceiling, tflops = tflops < 1e6 ? 1 / tflops : 0;
  if (!c.gpus.empty())
    name = fmt::format("{} x {}{}", gpus.size(), name,
                       layers.empty() ? "" : fmt::format(", layers {}", fmt::join(layers, "+")));
  if (c.weights_in_ram())
    name += fmt::format(", and RAM at {:.0f} GB/s by {} threads", bench_ram_gbps(c.n_threads, c.cpu_isa), c.n_threads);
  machine({.cpu = name,
           .isa = tflops > 0 ? fmt::format("bf16 {:.0f} TFLOP/s", tflops) : "bf16 rate not measured",
           .threads = c.n_threads,
           .gbps_ceiling = ceiling},
          c);
  for (const BenchGroup& g : groups) {
    const auto on = [&]<class B>(std::type_identity<B>, const auto&... where) {
      return g.options.explain ? bench_on<Traced<B>>(file, m, g.config, g.options, line, where...)
                               : bench_on<B>(file, m, g.config, g.options, line, where...);
    };
    if (!layers.empty() && g.options.explain)
      return Error{"--explain", "expected one GPU, or a part of every layer on each, found --split",
                   "leave one of them out"};
    const Status ok = !layers.empty() ? bench_on<Stages>(file, m, g.config, g.options, line, layers, g.config.gpus)
                      : g.config.gpus.empty() ? on(std::type_identity<Cuda>{}, g.config.gpu, weights_in_ram(g.config))
                                              : on(std::type_identity<Shards>{}, g.config.gpus);
    if (!ok) return ok;
  }
  return Ok{};
}

}  // namespace facet
