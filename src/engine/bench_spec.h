#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace facet {

struct PromptSet {
  std::string name;
  std::vector<std::vector<int32_t>> prompts;
};
struct SpecMethod {
  std::string name;                // of the row
  std::vector<std::string> files;  // drafters; empty: plain decoding
};
struct SpecBenchOptions {
  std::vector<PromptSet> sets;
  std::vector<SpecMethod> methods;              // plain decoding is measured first in any case
  std::vector<int> lengths{0, 4, 8};            // tokens of a draft; 0: chosen as it goes
  std::vector<KvType> kv{KvType::kF16};
  int runs = 3;                                 // after one that does not count
  int n_predict = 96;                           // of each answer
  bool ignore_eos = false;
};

// One way of drafting on one set.
struct SpecLine {
  std::string set, method;
  int length = 0, tree = 0, runs = 0;           // length 0: chosen as it goes
  KvType kv = KvType::kF16;
  double tokens_per_step = 0;                   // tokens of decoding steps, over those steps
  double tok_s = 0, tok_s_sd = 0;               // tokens of a run over its seconds of decoding; over runs
  double speedup = 1;                           // against plain decoding with the same cache
  int64_t drafted = 0, accepted = 0;
  std::vector<double> right_at;                 // of the rounds that came to the k-th draft, the share where it was right
  double draft_ms = 0, verify_ms = 0, accept_ms = 0;  // of a step
};

// Greedy answers to the prompts, one after the other.
Status bench_spec(const EngineConfig& c, const SpecBenchOptions& o, const std::function<void(const SpecLine&)>& line);

}  // namespace facet
