#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/cache_stats.h"
#include "api/media.h"
#include "backend/sampling.h"

// A request, what it is told while it runs (Sink), and what it took (Usage).
namespace facet {

class Grammar;
using GrammarPtr = std::shared_ptr<const Grammar>;

using RequestId = uint64_t;

enum class Stop : uint8_t { kEos, kLength, kContext, kCancelled, kError, kLoop };
const char* stop_name(Stop s);
// The answer was ended, and not by the model.
inline bool is_cut(Stop s) { return s == Stop::kLength || s == Stop::kContext || s == Stop::kLoop; }

// Block-sparse prefill of a prompt.
struct SparsePrefill {
  bool approximate = false;         // blocks were left out, or may have been when its cached tokens were computed
  double kept = 1, recall = 1;      // share of the blocks that were read; of the attention, by estimate
  int64_t tiles = 0, repaired = 0;  // choices, and those that left out too much and were done again in full
};

struct Usage {
  int prompt = 0, cached = 0, generated = 0;        // tokens; cached: of the prompt, not computed again
  int parked = 0;                                   // times that it had to wait in the middle, for memory
  double queue_s = 0, prefill_s = 0, decode_s = 0;  // until it had a sequence, its first token, its last
  CacheUse cache = {};
  std::optional<SparsePrefill> sparse = {};  // where the engine and the request take it
  int steps = 0, drafted = 0, accepted = 0;  // drafted: nodes verified; accepted: of them, tokens of the answer

  // Drafting; empty without a drafter.
  int decode_steps = 0, rounds = 0;                    // steps after the prompt; of them, with a draft
  int decoded = 0;                                     // tokens of those steps, with the one that ends the answer
  std::vector<int> offered_at = {}, accepted_at = {};  // [k]: rounds that reached draft k + 1 of a path; it was right
  struct Method {                                      // the same, of one method
    std::string name = {};
    std::vector<int> offered_at = {}, accepted_at = {};
  };
  std::vector<Method> by_method = {};  // in the order of their first rounds
  struct Change {
    int at = 0;               // tokens generated before
    std::string method = {};  // "dflash", "mtp", "none"
  };
  std::vector<Change> methods = {};  // the first one at 0
  double draft_s = 0, verify_s = 0, accept_s = 0;
  bool broken = false;                     // it ended because the model or a kernel is broken: others will, too
  bool refused = false;                    // it ended because of what it asks for: a grammar that cannot be followed
  std::string draft_inactive_reason = {};  // why there was, or in the end is, no drafting
  double tokens_per_step() const { return decode_steps > 0 ? double(decoded) / decode_steps : 0; }
};
// The model's own opinion of a token: natural logarithms of its softmax, before anything of Sampling.
struct TokenLogprobs {
  int32_t id = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top = {};  // the likeliest, best first
};
struct Request {
  std::vector<int32_t> prompt = {};   // ids below 0 are soft tokens of `media`
  std::vector<MediaSpan> media = {};  // in the order of the prompt
  int max_tokens = -1;                // -1: until the context is full; 0: only the prompt is computed
  Sampling sampling = {};
  bool ignore_eos = false;       // an end-of-generation token is output like any other
  bool suppress_special = true;  // never draw the placeholders of pictures and sound
  bool draft = true;             // with the engine's drafters, if there are any
  int max_draft = -1;            // tokens of a draft at most; -1: as the engine likes
  bool cache = true;             // goes on from what was computed before, and leaves its rows for others
  std::string cache_salt = {};   // requests with another one share nothing with it
  std::string owner = {};        // whose it is: with the salt, whose answers it may draft from
  bool sparse_prefill = true;    // where the engine has it; its rows serve no request that does not take it
  int priority = 0;              // smaller ones go first: into sequences and steps, and out of memory last
  int min_tokens = 0;            // before so many no token that would end the answer is drawn
  int max_loops = 0;  // times that a sequence of tokens may come in a row (loop_guard.h); 0: as often as it does
  std::vector<int32_t> stop_ids = {};  // end the answer like an end-of-generation token, and are not output either
  int logprobs = -1;                   // -1: not wanted; 0: of the tokens; k: and of the k likeliest at their place
  bool drawn_logprobs = false;         // of the distribution that tokens are drawn from, after everything of Sampling
  bool echo_logprobs = false;          // also of the prompt's tokens, which then is computed anew
  int thought_budget = -1;             // tokens of thoughts before they are ended (thought.h); -1: no limit
  bool in_thought = false;             // the prompt's end is in a thought
  GrammarPtr grammar = {};             // the answer follows it, and ends where nothing else may come; null: anything
};
struct Sink {  // called on the engine's thread; must not block
  std::function<void(RequestId, std::span<const int32_t>)> tokens;
  std::function<void(RequestId, Stop, const Usage&, const std::string& error)> done;
  // Before the first step of a prompt, with what was cached, and after each.
  std::function<void(RequestId, int computed, int prompt)> prefill = {};
  // Request::logprobs: of the tokens from position `at` of prompt and answer on. Those of the answer come before they
  // do, those of the prompt from position 1 on; what the answer does not use of a step may be among them.
  std::function<void(RequestId, int at, std::span<const TokenLogprobs>)> logprobs = {};
};

}  // namespace facet
