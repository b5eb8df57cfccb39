#pragma once
#include <compare>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/engine.h"
#include "base/result.h"
#include "tools/energy.h"
#include "tools/matrix_prompts.h"

// facet bench matrix: model files x drafters x cache types x contexts x sets of prompts, each measured several times in
// turn. This part measures; matrix_file.h keeps what was measured, matrix_report.h says what it means.
namespace facet {

// What may be chosen; the first one of a matrix is what the others are compared with.
struct MatrixConfig {
  std::string model, drafter = "none";  // as they were named
  std::vector<std::string> files = {};  // of drafters
  bool suffix = false;
  KvType k = KvType::kF16, v = KvType::kF16;
  std::string kv() const;  // "q8_0", "q8_0/q4_0"
};

// Names one measurement.
struct MatrixKey {
  std::string model, drafter, kv, set;
  int context = 0, run = 0;
  auto operator<=>(const MatrixKey&) const = default;
};

// The answers to the prompts of one set, one after the other.
struct MatrixRun {
  MatrixKey key;
  int prompts = 0, prompt_tokens = 0;  // of all prompts together, as is what follows
  int decoded = 0, steps = 0;          // tokens after each answer's first, and the steps that gave them
  int64_t drafted = 0, accepted = 0;
  double prefill_s = 0, decode_s = 0;
  std::optional<double> joules = {};  // of the GPU, from the first prompt to the last token
  double decode_tok_s() const { return decode_s > 0 ? decoded / decode_s : 0; }
  double prefill_tok_s() const { return prefill_s > 0 ? prompt_tokens / prefill_s : 0; }
  double tokens_per_step() const { return steps > 0 ? double(decoded) / steps : 0; }
  std::optional<double> joules_per_token() const {  // of answers; the prompts' energy counts, too
    const int tokens = decoded + prompts;
    return joules && tokens > 0 ? std::optional(*joules / tokens) : std::nullopt;
  }
};

struct MatrixOptions {
  EngineConfig engine = {};  // what all of them share
  std::vector<MatrixConfig> configs = {};
  std::vector<int> contexts{0};
  std::vector<MatrixSet> sets = {};
  bool random = false;  // prompts of random tokens, as for models without a vocabulary
  int count = 4;        // prompts of a set at most
  int runs = 5;
  int n_predict = 64;  // tokens of an answer at most
  bool ignore_eos = false;
};

// The measurements in the order in which they are made: runs one after the other, in each all configurations, every
// second run backward. A machine that slows down steadily so slows all configurations alike.
struct MatrixStep {
  size_t config = 0, context = 0, set = 0;  // places in MatrixOptions
  int run = 0;
};
std::vector<MatrixStep> matrix_steps(const MatrixOptions& o);
MatrixKey matrix_key(const MatrixOptions& o, const MatrixStep& s);

// Measures with real engines. They stay open side by side while memory lasts; the one used least recently goes first.
class MatrixRunner {
 public:
  explicit MatrixRunner(const MatrixOptions& o) : o_(o) {}
  // One measurement; answers that were not cut short by `stop`. Before the first one of an engine, the first prompt of
  // each of its cells is answered without a clock.
  Result<MatrixRun> measure(const MatrixStep& s, const std::function<bool()>& stop);

 private:
  using Prompts = std::vector<std::vector<int32_t>>;
  struct Open {
    size_t config = 0;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<EnergyMeter> meter;
    std::vector<Prompts> prompts;  // of every context and set
  };
  Result<std::vector<Prompts>> prompts_of(const MatrixConfig& c) const;
  Result<Open*> open(size_t config);
  const Prompts& of(const Open& e, const MatrixStep& s) const { return e.prompts[s.context * o_.sets.size() + s.set]; }

  const MatrixOptions& o_;
  std::vector<Open> open_ = {};  // most recently used last
};

// Makes every measurement that is not in `done`; `finished` gets each. Ends early, without an error, when stop().
Status run_matrix(const MatrixOptions& o, const std::set<MatrixKey>& done,
                  const std::function<Result<MatrixRun>(const MatrixStep&)>& measure,
                  const std::function<Status(const MatrixRun&)>& finished, const std::function<bool()>& stop);

}  // namespace facet
