#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/lockstep_report.h"
#include "backend/sampling.h"
#include "backend/verb_cost.h"
#include "base/result.h"
#include "engine/cache_stats.h"
#include "engine/media.h"
#include "engine/phases.h"
#include "formats/kv_codec.h"

namespace facet {

class Grammar;
using GrammarPtr = std::shared_ptr<const Grammar>;
class Tokenizer;
struct ModelCfg;

// Speculative decoding: a drafter proposes tokens, the model verifies them in one step. It changes no text.
struct DraftConfig {
  std::vector<std::string> files = {};  // drafters
  bool ngram = false;                   // a drafter without a file, which repeats what followed the same tokens before
  int max = 0;                          // tokens of a draft at most; 0: 15, or as many as the drafter can
  int min = 0;                          // at least so many in every step; 0: plain steps where they are faster
  int tree = 0;                         // nodes of a tree, at most 63; 0: drafts are chains
  bool optional = false;                // a drafter that cannot be used is left out, and a note says why
  bool any() const { return ngram || !files.empty(); }               // false: plain decoding
  int rows() const { return tree > 0 ? tree : max > 0 ? max : 15; }  // beside the newest token in a step
};

// A step that ran, as EngineConfig::stepped is told of it.
struct StepStats {
  int sequences = 0, waiting = 0;     // sequences in the step; requests that wait for one
  int prompt_tokens = 0, tokens = 0;  // tokens of prompts in it, and of answers with drafts
  double seconds = 0;                 // from its drafts to its tokens
  PhaseTimes::Seconds phase_s = {};   // from the tokens of the step before to its own
  int64_t pages = 0;                  // of the cache, mapped meanwhile
  double since_last() const { return std::accumulate(phase_s.begin(), phase_s.end(), 0.); }
};
// "16.2 ms to a step of 8 sequences, 8 tokens of prompts: map 4.3, ...", with the phases that took a hundredth of it.
std::string step_line(const StepStats& s);

using RequestId = uint64_t;

// A draft that was verified, as EngineConfig::drafted is told of it.
struct DraftRound {
  RequestId request = 0;
  int position = 0;                      // of node 0 in the sequence
  const char* method = "";               // "dflash", "mtp", "ngram"
  std::span<const int32_t> token = {};   // node 0, the newest token, then the drafts
  std::span<const int16_t> parent = {};  // of each node in a tree; empty: a chain
  std::span<const int32_t> drawn = {};   // the model's token after each node
  int accepted = 0;                      // drafts that were right
  double draft_s = 0, verify_s = 0;      // for all sequences of the step
};

// Types of the K/V cache, and what is known of their quality: "76 of 76 needles".
struct KvChoice {
  KvPair kv = {};
  std::string quality = {};
};

// The only way options reach the engine.
struct EngineConfig {
  std::string model;             // path of a GGUF, or of any part of a split one
  std::string backend = "auto";  // cuda, cpu, ref; auto: cuda where a usable GPU is present, else cpu
  int gpu = 0;
  std::vector<int> gpus = {};      // those that the model is divided among; empty: gpu alone
  std::vector<double> split = {};  // each one's share of the layers; empty: every layer is divided among all
  CpuIsa cpu_isa = CpuIsa::kAuto;  // instruction set of the cpu backend
  int n_ctx = 0;                   // rows per sequence; 0: the trained context, halved until the plan fits
  int max_seq = 1;                 // sequences served together
  int chunk = 0;                   // tokens of one step; 0: usual_chunk(), less where memory is short
  double max_stall = .05;  // seconds of a step that reads a prompt beside answers, as far as its tokens decide; 0: any
  int margin = 64;         // see KvPlan
  int snapshots = -1;  // sequences kept beside the running ones, to go on from; -1: 3 each, less where memory is short
  int64_t kv_memory = 0;        // bytes for rows of all sequences together; 0: what max_seq of n_ctx rows need, or what
                                // memory allows if that is less and enough for one
  int64_t cache_ram = -1;       // bytes of host memory for the state of sequences that were given up; -1: a quarter of
                                // what is available, at most 8 GiB; 0: none
  std::string cache_disk = {};  // folder for the state of sequences that had to go from host memory; empty: none
  int64_t cache_disk_size = int64_t(16) << 30;  // bytes of files there
  int snapshot_every = 8192;                    // tokens of a long prompt after which one is taken; 0: never
  std::optional<KvType> kv_k, kv_v;             // empty: f32 on the reference backend, f16 elsewhere
  std::vector<KvOfLayers> kv_layers = {};       // layers with types of their own
  bool kv_auto = false;                         // whoever opens the engine fills kv_choices
  // What to choose among, the most precise first: the first that has room for the context that is wanted, else the one
  // that has room for most. Empty: kv_k and kv_v.
  std::vector<KvChoice> kv_choices = {};
  std::string kv_reason = {};  // what led to kv_choices; once it is decided, what was chosen and why
  // Block-sparse prefill (backend/select.h): of every row's attention in full layers so much is read while a long
  // prompt is; 0: all of it.
  float sparse_prefill = 0;
  KvLayout kv_layout = KvLayout::kShared;  // of full layers whose K is V
  int n_threads = 0;                       // 0: one per physical core
  int max_out = 0;                         // rows of logits of one step; 0: one per sequence
  DraftConfig draft = {};
  // Told the memory plan before anything is allocated: its sum, and a line for each purpose.
  std::function<void(const std::string& sum, const std::string& table)> planned = {};
  std::function<void(const std::string&)> noted = {};               // told what a user should know about the files
  std::function<void(uint64_t done, uint64_t total)> loading = {};  // told of bytes of weights as they arrive
  // Told that it goes on without something that was asked for: what ("drafter"), and why.
  std::function<void(const std::string& what, const std::string& why)> degraded = {};
  std::function<void(const StepStats&)> stepped = {};   // on the engine's thread, after each step
  std::function<void(const DraftRound&)> drafted = {};  // likewise, for each draft
  int64_t memory = 0;                                   // bytes that may be used; 0: what the system has available
};

inline std::vector<int> gpus_of(const EngineConfig& c) { return c.gpus.empty() ? std::vector{c.gpu} : c.gpus; }

// For finding what is broken or slow; nobody who wants text has a use for it.
struct EngineDebug {
  bool lockstep = false;  // beside the reference, which judges every verb: slow
  bool explain = false;   // prices every verb: one after the other, without graphs
  // Of random models: draft k of a chain is taken for right with probability forced_drafts[k - 1], and the text is
  // whatever comes out.
  std::vector<float> forced_drafts = {};
  std::chrono::microseconds slow_copies{0};  // of states, in host memory: what a piece of a copy takes at least
  uint64_t grammar_units = 0;                // of a request in a step (GrammarSteps), 0: as usual
  std::function<void()> admitted = {};       // on the engine's thread, after requests were looked at, before a step
};

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
  std::vector<int32_t> prompt = {};    // ids below 0 are soft tokens of `media`
  std::vector<MediaSpan> media = {};   // in the order of the prompt
  int max_tokens = -1;  // -1: until the context is full; 0: only the prompt is computed
  Sampling sampling = {};
  bool ignore_eos = false;       // an end-of-generation token is output like any other
  bool suppress_special = true;  // never draw the placeholders of pictures and sound
  bool draft = true;             // with the engine's drafters, if there are any
  int max_draft = -1;            // tokens of a draft at most; -1: as the engine likes
  bool cache = true;             // goes on from what was computed before, and leaves its rows for others
  std::string cache_salt = {};   // requests with another one share nothing with it
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

// "dflash" or "mtp".
Result<std::string> drafter_kind_of(const std::string& path);

// A loaded model and its scheduler. The server, the daemon, the CLI and the benches see this header
// and nothing below it: no tensor, cache or device type appears here.
class Engine {
 public:
  // Everything is allocated here.
  static Result<std::unique_ptr<Engine>> open(const EngineConfig&, const EngineDebug& = {});
  virtual ~Engine() = default;

  virtual Result<RequestId> submit(Request, Sink) = 0;  // any thread
  virtual void cancel(RequestId) = 0;                   // any thread
  // Any thread: makes what grammars need of the vocabulary, once, or says why there are none. submit() does it too, and
  // then takes as long. first: also the first mask of this one, which may say that it is too ambiguous.
  virtual Status prepare_grammars(const GrammarPtr& first = {}) = 0;
  virtual bool tick() = 0;  // one step; false when there is nothing to do
  virtual void run() = 0;   // tick until stop(), waiting when idle
  virtual void stop() = 0;  // any thread

  // Logits of the positions of ids from `from` on, in pieces of at most config().max_out: f(first row, rows * n_vocab
  // floats). Fails when requests are running.
  virtual Status score(std::span<const int32_t> ids, int from,
                       const std::function<void(int, std::span<const float>)>& f) = 0;

  // What became of the prompts that score() read approximately, all together.
  virtual SparsePrefill scored_sparse() const { return {}; }

  virtual CacheStats cache_stats() const = 0;  // any thread; as of the last step, the disk's as it is
  // Any thread. The sequences in memory, each under its number; told on the engine's thread.
  virtual void list_slots(std::function<void(const std::vector<SlotInfo>&)> told) = 0;
  // Any thread. Writes the state of a sequence to a file; it stays in memory, and may be running.
  virtual void save_slot(int id, const std::string& path, SlotSink done) = 0;
  // Any thread. Reads a state that save_slot wrote, for the same model, drafters and options, into a slot in which
  // nothing runs; requests go on from it. What was kept there is given up.
  virtual void restore_slot(int id, const std::string& path, SlotSink done) = 0;
  virtual void erase_slot(int id, SlotSink done) = 0;  // any thread

  virtual const Tokenizer* tokenizer() const = 0;  // null: the file has no vocabulary
  virtual const ModelCfg& model() const = 0;
  virtual const EngineConfig& config() const = 0;  // with n_ctx, n_threads and the rest decided
  virtual std::string memory_table() const = 0;
  virtual LockstepReport lockstep_report() const { return {}; }  // of EngineDebug::lockstep
  virtual VerbCosts verb_costs() const { return {}; }            // of EngineDebug::explain, since the start
};

}  // namespace facet
