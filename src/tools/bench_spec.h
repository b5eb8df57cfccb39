#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "api/engine.h"
#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace facet {

struct PromptSet {
  std::string name;
  std::vector<std::vector<int32_t>> prompts;
};
struct SpecMethod {
  std::string name;                // of the row
  std::vector<std::string> files;  // drafters
  bool suffix = false;             // prompt lookup, with them or alone
  bool plain() const { return files.empty() && !suffix; }
};
struct SpecBenchOptions {
  std::vector<PromptSet> sets;
  std::vector<SpecMethod> methods;    // plain decoding is measured first in any case
  std::vector<int> lengths{0, 4, 8};  // tokens of a draft; 0: chosen as it goes
  std::vector<KvType> kv{KvType::kF16};
  int runs = 3;        // after one that does not count
  int n_predict = 96;  // of each answer
  int skip = 0;        // tokens of each answer before its clock starts
  bool ignore_eos = false;
  GrammarPtr grammar = {};  // that answers follow; null: none
  EngineDebug debug = {};
  bool in_turn =
      false;  // each run in turn with plain decoding, some tokens each, for machines that do other things too
};

// One way of drafting on one set.
struct SpecLine {
  std::string set, method;
  int length = 0, tree = 0, runs = 0;  // length 0: chosen as it goes
  KvType kv = KvType::kF16;
  double tokens_per_step = 0;      // tokens of decoding steps, over those steps
  double tok_s = 0, tok_s_sd = 0;  // tokens of a run over its seconds of decoding; over runs
  double speedup = 1;              // against plain decoding with the same cache; in turn: the median of the runs
  int64_t drafted = 0, accepted = 0;
  std::vector<double> right_at;  // of the rounds that came to the k-th draft, the share where it was right
  double draft_ms = 0, verify_ms = 0, accept_ms = 0;  // of a step
  // Tokens per second if every step of this length brought so many tokens, from those times.
  double tok_s_at(double tokens_per_step) const;
};

// Greedy answers to the prompts, one after the other.
Status bench_spec(const EngineConfig& c, const SpecBenchOptions& o, const std::function<void(const SpecLine&)>& line);

// A recorded turn: what was said before an answer, and the answer.
struct RecordedTurn {
  std::string kind;
  std::vector<int32_t> prompt, answer;
};
// Lines {"kind", "prompt", "answer"}: texts with the model's control tokens in them.
Result<std::vector<RecordedTurn>> read_recorded_turns(const std::string& path, const Tokenizer& tokenizer);
// The answers are what was recorded, whatever the model says; a draft is right where it equals the recorded token. A
// line for each kind, way and length, as bench_spec has them; o.sets is not read.
Status bench_spec_replay(const EngineConfig& c, const SpecBenchOptions& o, std::span<const RecordedTurn> turns,
                         const std::function<void(const SpecLine&)>& line);

// Drafting of so many sequences that decode together: what all of them bring in a second, greedy.
struct BatchLine {
  std::string set, method;
  int length = 0, sequences = 0;  // length 0: chosen as it goes
  KvType kv = KvType::kF16;
  double tokens_per_step = 0;  // of a sequence
  double tok_s = 0;            // of all, from when each has its first token (and `skip` more) until one is complete
  double speedup = 1;          // against plain decoding of as many
};
// The prompts of a set in turn, until every sequence has one; each number of sequences in an engine of its own, so that
// the cache is as large as it needs.
Status bench_spec_batch(const EngineConfig& c, const SpecBenchOptions& o, const std::vector<int>& sequences,
                        const std::function<void(const BatchLine&)>& line);

struct ContextBenchOptions {
  std::vector<std::vector<int32_t>> texts;  // long first questions of conversations, cut to the context's length
  std::vector<int32_t> next_turn;           // between an answer and the next question
  std::vector<PromptSet> sets;              // second questions
  std::vector<SpecMethod> methods;
  std::vector<int> contexts{256, 512, 1024, 2048, 4096, 8192};
  int length = 7;  // tokens of a draft
  int n_predict = 96;
};
// Second answers of conversations of about `context` tokens.
struct ContextLine {
  std::string set, method;
  int context = 0, prompts = 0;
  int tokens = 0;              // of the answers
  double kept = 0, fresh = 0;  // tokens a step: rows kept from the first answer; all of them computed
  double error = 0;            // standard error of `fresh` by prompt
  int different = 0;           // answers that are not the same with kept rows
  // Of answers whose text is that of the first context: how many, and how many more tokens a step than there, by
  // prompt. What else changes with the context is the target's.
  int same = 0;
  double same_change = 0, same_error = 0;
};
Status bench_context(const EngineConfig& c, const ContextBenchOptions& o,
                     const std::function<void(const ContextLine&)>& line);

}  // namespace facet
