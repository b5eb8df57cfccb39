#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backend/traced.h"
#include "base/result.h"
#include "engine/engine.h"

namespace facet {

struct BenchOptions {
  int prefill = 512;                        // tokens of a prefill measurement; 0: none
  std::vector<int> depths{0, 4096};         // rows in the cache before the measured step
  std::vector<int> widths{1, 2, 4, 8, 16};  // tokens of a step whose rows all get logits: decoding, verification
  std::vector<int> batches{};               // sequences that decode together (cuda)
  bool explain = false;                     // on a GPU, where it takes steps of its own: also what verbs cost
  int runs = 5;                             // of which the median counts, after one that does not
};

// One verb's share of the steps that were measured.
struct BenchVerb {
  std::string name;
  double ms = 0, gbps = 0, gflops = 0, share = 0;  // of one step; share of the step's time
};
// Largest first; the costs of `runs` steps.
std::vector<BenchVerb> bench_verbs(const std::map<std::string, VerbCost>& costs, int runs);

struct BenchLine {
  std::string phase;  // prefill, decode, step
  int n = 0, depth = 0, runs = 0;
  double ms_median = 0, tok_s = 0;
  double bytes = 0, gbps = 0, gflops = 0;  // bytes a step must move at least (backend/traced.h)
  std::vector<BenchVerb> verbs;            // largest first
};
struct BenchMachine {
  std::string cpu, isa;
  int threads = 0;
  double gbps_ceiling = 0;  // reading a buffer that no cache holds, all threads
};

// Measures steps of a model on random tokens. `machine` is called first, `line` after each measurement.
Status run_bench(const EngineConfig& c, const BenchOptions& o,
                 const std::function<void(const BenchMachine&, const EngineConfig&)>& machine,
                 const std::function<void(const BenchLine&)>& line);

}  // namespace facet
