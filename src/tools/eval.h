#pragma once
#include <functional>
#include <string>
#include <vector>

#include "api/engine.h"
#include "base/result.h"

namespace facet {

// One question with the text that greedy decoding must reproduce.
struct EvalDoc {
  std::string kind;  // "retrieval-4096", "json", ...
  std::string context, answer;
};
// JSON lines {kind, length, context, answer}.
Result<std::vector<EvalDoc>> read_eval_set(const std::string& path);

struct EvalScore {
  std::string kind;
  int right = 0, of = 0;
  int majority = 0;  // right answers of someone who always gives the kind's most frequent answer
};
// Greedy decoding reproduces an answer exactly when the largest logit at every position, given the answer so far, is
// the answer's next token: one pass grades a whole answer. progress(done, of).
Result<std::vector<EvalScore>> grade(Engine& e, const std::vector<EvalDoc>& docs,
                                     const std::function<void(int, int)>& progress);

struct Perplexity {
  double nll = 0;  // nats per token
  int64_t tokens = 0;
  double value() const;
};
// Of ids, in windows of `window` tokens that each begin anew with <bos>; the first half of a window is context.
Result<Perplexity> perplexity(Engine& e, std::span<const int32_t> ids, int window);

// How far the next-token distributions of `e` are from those of `reference`, over windows of ids.
struct Divergence {
  double mean_kl = 0, p99_kl = 0, max_kl = 0;  // nats, KL(reference || e)
  int64_t tokens = 0, same_top = 0;
};
Result<Divergence> divergence(Engine& reference, Engine& e, std::span<const int32_t> ids, int window);

}  // namespace facet
