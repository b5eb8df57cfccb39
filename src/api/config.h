#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/events.h"
#include "backend/cpu/isa.h"
#include "backend/expert_usage.h"
#include "formats/kv_codec.h"

// Options of an engine.
namespace facet {

// Speculative decoding: a drafter proposes tokens, the model verifies them in one step. It changes no text.
struct DraftConfig {
  std::vector<std::string> files = {};  // drafters
  bool suffix = false;                  // a drafter without a file, which repeats what followed the same tokens before
  int max = 0;                          // tokens of a draft at most; 0: 15, or as many as the drafter can
  int min = 0;                          // at least so many in every step; 0: plain steps where they are faster
  int tree = 0;                         // nodes of a tree, at most 63; 0: a drafter's drafts are chains
  int suffix_rows = 0;                  // nodes of what repeats, a tree of its own; 0: as many as other drafts have
  int memory = 0;                       // token ids of earlier answers to repeat from, in all; 0: none are kept
  double embed_scale = 0;               // of a block drafter's tokens, whatever its file says; 0: what that says
  bool optional = false;                // a drafter that cannot be used is left out, and a note says why
  bool any() const { return suffix || !files.empty(); }  // false: plain decoding
  // Beside the newest token in a step.
  int rows() const { return std::max(tree > 0 ? tree : max > 0 ? max : 15, suffix ? suffix_rows : 0); }
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
  // Layers, from the first, whose routed experts, or in dense models whose feed-forward weights, stay in RAM and are
  // computed by the CPU beside a GPU; -1: none, or as many as have to where the model does not fit otherwise. More than
  // there are: all.
  int experts_on_cpu = -1, ffn_on_cpu = -1;
  // Which experts are on the GPU where others stay in RAM: those that were chosen most; null: those of whole layers.
  std::shared_ptr<const ExpertUsage> expert_usage = {};
  std::string expert_usage_file = {};  // whoever opens the engine fills expert_usage
  // Filled with what is chosen, when the engine ends: on the CPU, or one GPU.
  std::shared_ptr<ExpertUsage> count_experts = {};
  bool weights_in_ram() const { return experts_on_cpu > 0 || ffn_on_cpu > 0; }
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
  std::string mmproj = {};     // encoders of pictures and sound for this model; empty: none
  int image_tokens = 280;      // most soft tokens of a picture, one of kImageTokenBudgets
  bool mmproj_offload = true;  // encoders run where the model does; false: on the CPU
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
  // Tokens of the answer to the only request, whatever the model says: how drafting does on a text that was recorded.
  // It stays where it is, and changes only while there is no request.
  const std::vector<int32_t>* replay = nullptr;
  std::chrono::microseconds slow_copies{0};  // of states, in host memory: what a piece of a copy takes at least
  uint64_t grammar_units = 0;                // of a request in a step (GrammarSteps), 0: as usual
  std::function<void()> admitted = {};       // on the engine's thread, after requests were looked at, before a step
};

}  // namespace facet
