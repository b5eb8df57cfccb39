#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "api/engine.h"
#include "backend/traced.h"
#include "base/result.h"
#include "model/gemma4_bind.h"

namespace facet {

struct BenchOptions {
  std::vector<int> prefill{
      512};  // tokens of prefill measurements, in steps of a chunk as an engine takes them; 0: none
  std::vector<int> depths{0, 4096};         // rows in the cache before the measured step
  std::vector<int> widths{1, 2, 4, 8, 16};  // tokens of a step whose rows all get logits: decoding, verification
  std::vector<int> batches{};               // sequences that decode together (cuda)
  bool alone = true;                        // also one sequence that decodes
  bool explain = false;                     // on a GPU, where it takes steps of its own: also what verbs cost
  double keep = 0;  // also prefill that reads this share of the blocks (backend/select.h); 0: no
  int runs = 5;     // of which the median counts, after one that does not
  // Told of what takes time: "prefill of 4096 after 0", parts done and in all.
  std::function<void(const std::string& what, uint64_t done, uint64_t total)> progress = {};
};

// Of a sparse measurement: so many of the blocks, whatever they hold.
SelectSpec bench_select(double keep);
// How progress names a measurement, and the loading of a model.
std::string bench_what(const char* phase, int n, int n_seq, int depth);
LoadProgress bench_loading(const BenchOptions& o);

// One verb's share of the steps that were measured.
struct BenchVerb {
  std::string name;
  double ms = 0, gbps = 0, gflops = 0, share = 0;  // of one step; share of the step's time
};
// Largest first; the costs of `runs` steps.
std::vector<BenchVerb> bench_verbs(const std::map<std::string, VerbCost>& costs, int runs);

struct BenchLine {
  std::string phase;  // prefill, sparse, decode, step
  int n = 0, depth = 0, runs = 0;
  KvType kv_k = KvType::kF16, kv_v = KvType::kF16;
  double ms_median = 0, tok_s = 0;
  double ms_longest = 0, ms_sum = 0;       // of all runs; they tell of other programs
  double kept = 1;                         // of sparse: share of the blocks that were read
  double bytes = 0, gbps = 0, gflops = 0;  // bytes a step must move at least (backend/traced.h)
  std::vector<BenchVerb> verbs;            // largest first
};
struct BenchMachine {
  std::string cpu, isa;
  int threads = 0;
  double gbps_ceiling = 0;  // reading a buffer that no cache holds, all threads
};

// What measurements of a backend depend on: "Intel(R) Xeon(R) Processor, amx", "NVIDIA H200".
double bench_ram_gbps(int n_threads, CpuIsa isa);  // of a buffer that no cache holds, read by so many threads
std::string bench_device(const std::string& backend, int gpu, CpuIsa isa);

// What is measured with one cache: all but the batches, with those that fit beside it; then batches that need a smaller
// type, on their own.
struct BenchGroup {
  EngineConfig config;
  BenchOptions options;
};
// `fits` decides on a configuration. The cache type is f16, else q8_0, else q4_0, where none was asked for. An error
// where not even the first group, or a batch alone, fits.
Result<std::vector<BenchGroup>> bench_groups(const EngineConfig& c, const BenchOptions& o,
                                             const std::function<Result<EngineConfig>(const EngineConfig&)>& fits);

// Measures steps of a model on random tokens. `machine` is called first, `line` after each measurement.
Status run_bench(const EngineConfig& c, const BenchOptions& o,
                 const std::function<void(const BenchMachine&, const EngineConfig&)>& machine,
                 const std::function<void(const BenchLine&)>& line);

// The same on a GPU: times are of the GPU, sampling included in decoding; caches are filled with random rows.
Status bench_cuda(const GgufFile& file, const ModelCfg& m, const std::vector<BenchGroup>& groups,
                  const std::function<void(const BenchMachine&, const EngineConfig&)>& machine,
                  const std::function<void(const BenchLine&)>& line);

}  // namespace facet
