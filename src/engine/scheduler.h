#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace facet {

// What a sequence wants from the next step. Pure data: the scheduler knows no device, clock or cache.
struct SeqDemand {
  int id = 0;
  int pending = 0;        // tokens not yet in the cache: the rest of the prompt, or the one just drawn
  bool decoding = false;  // its prompt is done
  uint64_t arrival = 0;   // requests that came earlier have smaller ones; no two sequences have the same
  int priority = 0;       // smaller goes first
  bool unmapped = false;  // runs in a fork whose pages are not all mapped yet
};
// Beside answers, a sequence that is not mapped yet waits until it is: its pages are mapped between steps. Steps with
// more of a prompt are as long as that takes.
void skip_unmapped(std::vector<SeqDemand>& demands);

struct SeqGrant {
  int id = 0;
  int n = 0;  // of its pending tokens, from the first
};

// How long steps with prompt tokens take: a line through what was measured, newest first.
class PromptTimes {
 public:
  void observe(int n_prompt, double seconds);
  // Prompt tokens of a step that takes at most so long; at most twice as many as were last measured, because the line
  // says little about what lies beyond. 0: nothing is known.
  int fit(double seconds) const;

 private:
  double w_ = 0, n_ = 0, nn_ = 0, t_ = 0, nt_ = 0;
  int newest_ = 0;
};

// Divides a step among the sequences (chunked prefill).
//
// Decoding sequences come first, with one token each. What is left of the step goes to prompts: the one with the fewest
// tokens left first, so that a short question does not wait behind long prompts, and several in one step if they fit.
// A prompt that is passed over ages: the tokens that later requests were given before it count as if it had fewer left.
// When none are left by that count it is due, and those that are due go before all others, in the order in which they
// came. So a prompt of n tokens waits for no more than n tokens of later prompts and the step in which it becomes due,
// and for what came before it. All this is among prompts of one priority; those of a smaller number go before, however
// long they are.
//
// A step is at most `chunk` tokens. Beside decoding sequences it is also at most as long as max_stall allows by the
// times of the last such steps, and at least kLeastPrompt prompt tokens: chunks shrink beside readers and grow when
// alone.
class Scheduler {
 public:
  static constexpr int kLeastPrompt = 16;  // tokens, so that prompts go on whatever a step takes
  static constexpr int kFirstPrompt = 64;  // before anything is known
  // max_stall: seconds; 0: no bound. block: of a prompt that has at least so many tokens left until it must be cut, whole
  // blocks are granted, one of them whatever max_stall allows; what is left behind them is a grant of its own. So whether
  // a token is in a block depends on the prompt alone. 0: prompts are cut anywhere.
  Scheduler(int chunk, double max_stall, int block = 0) : chunk_(chunk), max_stall_(max_stall), block_(block) {}

  // The sequences of the next step, those of few tokens first (StepShape::n_small), those of whole blocks last
  // (StepShape::n_blocks).
  std::vector<SeqGrant> schedule(std::span<const SeqDemand> demands);
  // A step with so many prompt tokens took so long, from its start to the drawn tokens.
  void observe(int n_prompt, double seconds) { times_.observe(n_prompt, seconds); }

 private:
  int prompt_budget(int n_decoding) const;
  int64_t passed(uint64_t arrival) const;
  int grant(int pending, int budget, int room, int all_room) const;

  int chunk_;
  double max_stall_;
  int block_;
  PromptTimes times_;
  std::map<uint64_t, int64_t> passed_;  // of waiting prompts: tokens given to later ones
};

}  // namespace facet
