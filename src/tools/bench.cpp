#include "tools/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>

#include "backend/cpu/cpu_fast.h"
#include "backend/traced.h"
#include "base/reserve.h"
#include "base/threads.h"
#include "compose/cuda_memory.h"
#include "compose/plan.h"
#include "engine/runner.h"
#include "model/gemma4_config.h"
#if FACET_CUDA
#include "backend/cuda/device.h"
#endif

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

std::string cpu_model() {
  std::ifstream f("/proc/cpuinfo");
  for (std::string line; std::getline(f, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}
int64_t largest_cache() {
  int64_t most = 0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream f(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", i));
    int64_t n = 0;
    char unit = 0;
    if (f >> n >> unit) most = std::max(most, n * (unit == 'M' ? 1 << 20 : 1 << 10));
  }
  return most;
}

// The best of five passes, each thread reading pieces of 1 MiB with the vectors that matrix products use.
double read_gbps(int n_threads, const SimdKernels& simd) {
  int64_t bytes = std::max<int64_t>(int64_t(512) << 20, 2 * largest_cache());
  if (const int64_t free = int64_t(available_memory()); free > 0) bytes = std::min(bytes, free / 2);
  const int64_t piece = (1 << 20) / 4, n = bytes / 4 / piece * piece;
  const std::unique_ptr<float[]> data(new float[size_t(n)]);
  parallel_for(n / piece, n_threads, [&](int64_t p) { std::fill_n(data.get() + p * piece, piece, 1.f); });
  std::vector<float> sum(size_t(n / piece));
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = Clock::now();
    parallel_for(n / piece, n_threads,
                 [&](int64_t p) { sum[size_t(p)] = simd.sum_squares(data.get() + p * piece, piece); });
    best = std::max(best, double(n * 4) / seconds_since(start) / 1e9);
  }
  CHECK(std::all_of(sum.begin(), sum.end(), [&](float s) { return s == float(piece); }),
        "the buffer changed while it was read");
  return best;
}

int32_t random_id(uint32_t& state, int n_vocab) {
  state = state * 1664525u + 1013904223u;
  return int32_t((uint64_t(state) * uint64_t(n_vocab)) >> 32);
}

// Phases at the depths that were asked for, on an open model.
template <class Traced>
struct CpuBench {
  Runner<Traced>& r;
  const EngineConfig& c;
  const BenchOptions& o;
  const std::function<void(const BenchLine&)>& line;
  std::vector<int32_t> ids;
  bool sparse = false;

  // A step is not committed, so every run starts from the same cache.
  Status step(int n, Out out) {
    if (auto ok = r.cache->prepare(0, n); !ok) return ok;
    r.steps.begin();
    r.add({.slot = 0, .token = std::span(ids).first(size_t(n)), .out = out, .n_select = sparse ? n : 0});
    r.forward();
    return Ok{};
  }
  // A prompt in chunks, which are committed if there are several.
  Status read(int n, Out out) {
    for (int at = 0; at < n;) {
      const int piece = std::min(c.chunk, n - at);
      at += piece;
      if (auto ok = step(piece, at < n ? Out::kNone : out); !ok) return ok;
      if (n > c.chunk) r.cache->commit(0, piece);
    }
    return Ok{};
  }
  // As before a prompt that was committed. Rows hold what they held, or later ones: lengths decide what a step costs.
  Status go_back(int depth) {
    if (r.cache->len(0) > depth) r.cache->clear(0);
    while (r.cache->len(0) < depth) {
      const int n = std::min(c.chunk, depth - r.cache->len(0));
      if (auto ok = r.cache->prepare(0, n); !ok) return ok;
      r.cache->commit(0, n);
    }
    return Ok{};
  }
  Status measure(const char* phase, int n, int depth, Out out) {
    std::vector<double> ms;
    for (int i = 0; i <= o.runs; ++i) {
      if (i == 1) r.b.reset();
      if (o.progress) o.progress(bench_what(phase, n, 1, depth), uint64_t(i), uint64_t(o.runs) + 1);
      const auto start = Clock::now();
      if (auto ok = read(n, out); !ok) return ok;
      if (i > 0) ms.push_back(1e3 * seconds_since(start));
      if (auto ok = go_back(depth); !ok) return ok;
    }
    std::sort(ms.begin(), ms.end());
    BenchLine l;
    l.phase = phase, l.n = n, l.depth = depth, l.runs = o.runs, l.kv_k = *c.kv_k, l.kv_v = *c.kv_v;
    l.ms_median = ms[ms.size() / 2], l.ms_longest = ms.back();
    for (const double t : ms) l.ms_sum += t;
    double flops = 0;
    for (const auto& [name, v] : r.b.costs()) l.bytes += v.bytes / o.runs, flops += v.flops / o.runs;
    l.verbs = bench_verbs(r.b.costs(), o.runs);
    l.tok_s = n / l.ms_median * 1e3;
    if (sparse) l.kept = r.b.take_selected(0).share();
    l.gbps = l.bytes / l.ms_median / 1e6, l.gflops = flops / l.ms_median / 1e6;
    line(l);
    return Ok{};
  }
  Status run() {
    std::vector<int> depths = o.depths;
    std::sort(depths.begin(), depths.end());
    for (int depth : depths) {
      while (r.cache->len(0) < depth) {
        if (o.progress) o.progress(fmt::format("filling {} rows", depth), uint64_t(r.cache->len(0)), uint64_t(depth));
        const int n = std::min(c.chunk, depth - r.cache->len(0));
        if (auto ok = step(n, Out::kNone); !ok) return ok;
        r.cache->commit(0, n);
      }
      for (const int n : o.prefill) {
        if (n == 0) continue;
        if (auto ok = measure("prefill", n, depth, Out::kLast); !ok) return ok;
        if (o.keep == 0) continue;
        sparse = true;
        if (auto ok = measure("sparse", n, depth, Out::kLast); !ok) return ok;
        sparse = false;
      }
      if (auto ok = measure("decode", 1, depth, Out::kLast); !ok) return ok;
      for (int n : o.widths)
        if (auto ok = measure("step", n, depth, Out::kAll); !ok) return ok;
    }
    return Ok{};
  }
};

template <Backend B, class... Args>
Status bench(const GgufFile& file, const ModelCfg& m, const EngineConfig& c, const BenchOptions& o,
             const std::function<void(const BenchLine&)>& line, Args... args) {
  using Traced = facet::Traced<B>;
  auto opened = Runner<Traced>::open(file, m,
                                     {.kv = kv_plan(c),
                                      .max_out = c.max_out,
                                      .select = o.keep > 0 ? std::optional(bench_select(o.keep)) : std::nullopt,
                                      .loading = bench_loading(o)},
                                     args...);
  if (!opened) return opened.error();
  Runner<Traced>& r = **opened;
  std::vector<int32_t> ids(size_t(std::max(c.chunk, c.max_out)));
  uint32_t state = 1;
  for (int32_t& id : ids) id = random_id(state, m.n_vocab);
  return CpuBench<Traced>{r, c, o, line, std::move(ids)}.run();
}

}  // namespace

std::string bench_device(const std::string& backend, [[maybe_unused]] int gpu, CpuIsa isa) {
#if FACET_CUDA
  if (backend == "cuda") {
    const auto info = cuda::device_info(gpu);
    return info ? info->name : "unknown";
  }
#endif
  return backend == "cpu" ? fmt::format("{}, {}", cpu_model(), simd_kernels(isa).name) : cpu_model();
}

double bench_ram_gbps(int n_threads, CpuIsa isa) { return read_gbps(n_threads, simd_kernels(isa)); }
SelectSpec bench_select(double keep) { return {.gamma = 0, .least = float(keep), .most = float(keep), .check = false}; }
std::string bench_what(const char* phase, int n, int n_seq, int depth) {
  return n_seq > 1 ? fmt::format("{} of {} sequences after {}", phase, n_seq, depth)
                   : fmt::format("{} of {} after {}", phase, n, depth);
}
LoadProgress bench_loading(const BenchOptions& o) {
  if (!o.progress) return {};
  return [&o](uint64_t done, uint64_t total) { o.progress("loading", done, total); };
}

std::vector<BenchVerb> bench_verbs(const std::map<std::string, VerbCost>& costs, int runs) {
  std::vector<BenchVerb> verbs;
  double total = 0;
  for (const auto& [name, v] : costs) {
    const double per_ms = v.ms > 0 ? 1e-6 / v.ms : 0;
    verbs.push_back({name, v.ms / runs, v.bytes * per_ms, v.flops * per_ms, v.ms});
    total += v.ms;
  }
  for (BenchVerb& v : verbs) v.share = total > 0 ? v.share / total : 0;
  std::sort(verbs.begin(), verbs.end(), [](const BenchVerb& a, const BenchVerb& b) { return a.ms > b.ms; });
  return verbs;
}

Status run_bench(const EngineConfig& given, const BenchOptions& o,
                 const std::function<void(const BenchMachine&, const EngineConfig&)>& machine,
                 const std::function<void(const BenchLine&)>& line) {
  EngineConfig c = given;
  auto file = open_gemma4(c.model);
  if (!file) return file.error();
  auto m = gemma4_config(*file);
  if (!m) return m.error();
  if (!has_isa(c.cpu_isa))
    return Error{"--cpu-isa", fmt::format("this machine has no {}", isa_name(c.cpu_isa)),
                 "leave it out: the best there is will be used"};
  if (auto ok = resolve_gpus(c); !ok) return ok.error();
  BenchOptions asked = o;
  if (o.keep > 0) c.sparse_prefill = 1;  // its memory
  if (c.backend != "cuda") asked.batches.clear();
  auto groups = bench_groups(c, asked, [&](const EngineConfig& x) { return resolve_config(*file, *m, x); });
  if (!groups) return groups.error();
#if FACET_CUDA
  if (c.backend == "cuda") return bench_cuda(*file, *m, *groups, machine, line);
#endif
  const EngineConfig* decided = &groups->front().config;
  machine({.cpu = cpu_model(),
           .isa = c.backend == "cpu" ? simd_kernels(c.cpu_isa).name : "none",
           .threads = decided->n_threads,
           .gbps_ceiling = bench_ram_gbps(decided->n_threads, c.cpu_isa)},
          *decided);
  if (c.backend == "cpu") return bench<CpuFast>(*file, *m, *decided, asked, line, decided->n_threads, c.cpu_isa);
  if (c.backend == "ref") return bench<CpuRef>(*file, *m, *decided, asked, line, decided->n_threads);
  return Error{"--backend", fmt::format("expected cuda, cpu or ref, found {}", c.backend),
               "this program was built without it"};
}

}  // namespace facet
