#include "app/options.h"
#include "app/media_options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>

#include "app/compute_options.h"
#include "app/expert_usage.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "app/progress.h"
#include "base/files.h"
#include "base/mmap.h"
#include "base/print.h"
#include "formats/gguf.h"
#include "model/gemma4_config.h"
#include "spec/answer_memory.h"
#include "tokenizer/tokenizer.h"
#include "tools/paths.h"

namespace facet {
namespace {

constexpr int kMaxDraft = 63;  // nodes that a step's ancestor sets have room for, beside the newest token

// What a signal handler may touch: a counter, and a pipe that wakes whoever waits for input.
volatile std::sig_atomic_t g_interrupts = 0;
int g_wake[2] = {-1, -1};
extern "C" void on_interrupt(int) {
  const int kept = errno;
  g_interrupts = g_interrupts + 1;
  [[maybe_unused]] const ssize_t n = ::write(g_wake[1], "", 1);  // full: it wakes anyway
  errno = kept;
}

const std::map<std::string, CpuIsa> kIsas{{"auto", CpuIsa::kAuto},
                                          {"scalar", CpuIsa::kScalar},
                                          {"avx2", CpuIsa::kAvx2},
                                          {"avx512", CpuIsa::kAvx512},
                                          {"amx", CpuIsa::kAmx}};

}  // namespace

const std::map<std::string, KvType>& kv_types_by_name() {
  static const auto types = [] {
    std::map<std::string, KvType> by_name;
    for (const KvType t : kv_types()) by_name.emplace(kv_type_name(t), t);
    return by_name;
  }();
  return types;
}

void add_model_option(CLI::App* cmd, std::string& path) {
  cmd->add_option("-m,--model", path, "Model file (GGUF); omitted: the model that comes with the program")
      ->check(not_empty());
  add_hub_options(cmd, [&path](const std::string& name, bool) { path = name; });
}

namespace {
void add_layers_on_cpu(CLI::App* cmd, const char* name, int& layers, const char* text) {
  cmd->add_option_function<std::string>(
         name, [&layers](const std::string& s) { layers = s == "auto"  ? -1
                                                          : s == "all" ? 1 << 20
                                                                       : std::stoi(s); },
         text)
      ->check([](const std::string& s) {
        const bool whole = !s.empty() && s.size() < 6 && s.find_first_not_of("0123456789") == std::string::npos;
        return s == "auto" || s == "all" || whole ? "" : "expected a number of layers, all or auto, found " + s;
      })
      ->option_text("N|auto|all [auto]");
}
}  // namespace

void add_engine_options(CLI::App* cmd, EngineConfig& c) {
  add_model_option(cmd, c.model);
  add_compute_options(cmd, c);
}

void add_compute_options(CLI::App* cmd, EngineConfig& c) {
  cmd->add_option("-c,--ctx-size", c.n_ctx, "Context in tokens; 0: as trained, halved until it fits in memory")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("-t,--threads", c.n_threads, "Threads; 0: one per physical core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  cmd->add_option(
         "--backend", c.backend,
         "Where the model runs: auto (a GPU if there is one), cuda, cpu, or ref, the slow definition of what is right")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "ref"}))
      ->capture_default_str();
  cmd->add_option("--gpu", c.gpu, "Which GPU, as nvidia-smi numbers them")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  cmd->add_option_function<std::string>(
         "--gpus", [&c](const std::string& s) { c.gpus = *gpus_from(s); },
         "Several GPUs that the model is divided among: their number, or which ones (0,2)")
      ->check(gpu_list())
      ->excludes("--gpu")
      ->option_text("N|LIST");
  cmd->add_option_function<std::string>(
         "--split", [&c](const std::string& s) { c.split = *shares_from(s); },
         "Whole layers for each of --gpus, in this proportion (3,2): for cards that are unlike or without a fast link. "
         "Omitted: a part of every layer for each")
      ->check(share_list())
      ->needs("--gpus")
      ->option_text("LIST");
  add_layers_on_cpu(
      cmd, "--experts-on-cpu", c.experts_on_cpu,
      "Layers, from the first, whose routed experts stay in RAM and are computed by the CPU beside a GPU: a "
      "number, all, or auto: as many as have to where the model does not fit otherwise");
  add_layers_on_cpu(cmd, "--ffn-on-cpu", c.ffn_on_cpu, "The same of dense models: the feed-forward weights of layers");
  add_expert_usage_option(cmd, c);
  add_named(cmd, "--cpu-isa", c.cpu_isa, kIsas,
            "Instruction set of the cpu backend: auto, scalar, avx2, avx512 or amx");
  add_kv_options(cmd, c);
  cmd->add_option("--chunk", c.chunk,
                  "Tokens of a prompt computed in one step; 0: 512, on a GPU up to 4096 as context and memory allow")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  cmd->add_option("--memory", c.memory,
                  "Bytes that may be used, with a suffix if you like (8GB); omitted: what is available")
      ->transform(byte_count(1));
}

void add_draft_options(CLI::App* cmd, DraftOptions& o, EngineConfig& c) {
  cmd->add_option("--draft", o.sources,
                  "Drafter that proposes tokens to verify: a path, or hf:USER/REPO[:QUANT] (repeatable); dflash or "
                  "mtp, the one beside the "
                  "model; suffix, what followed the same tokens before, also beside others; auto, suffix and whatever "
                  "files are there; or none. It changes no text, only the speed")
      ->check(not_empty())
      ->option_text("PATH|auto|dflash|mtp|suffix|none [auto]");
  cmd->add_option("--spec-trace", o.trace, "A line of JSON for every draft to this file: tokens, verdict, times")
      ->check(not_empty());
  cmd->add_option("--draft-max", c.draft.max, "Tokens of a draft at most; 0: 15, or what the drafter can")
      ->check(CLI::Range(0, kMaxDraft))
      ->capture_default_str();
  cmd->add_option("--draft-min", c.draft.min, "Tokens of a draft at least; 0: none where plain steps are faster")
      ->check(CLI::Range(0, kMaxDraft))
      ->capture_default_str();
  cmd->add_option(
         "--draft-embedding-scale", c.draft.embed_scale,
         "Factor of a DFlash drafter's embeddings, 1 for rows as they are, instead of what its file or trainer "
         "says (facet inspect); facet doctor --draft FILE tries both")
      ->check(number_in(1e-3, 1e4))
      ->option_text("FACTOR");
  cmd->add_option("--draft-tree", c.draft.tree,
                  "Verify a tree of this many tokens instead of a chain; the text is plain decoding's bit for bit, on "
                  "a GPU up to 15 tokens; 0: chains")
      ->check(CLI::Range(0, kMaxDraft))
      ->capture_default_str();
  cmd->add_option(
         "--draft-memory", c.draft.memory,
         "Token ids of earlier answers that suffix drafts from beside the sequence itself: the newest ones, of "
         "each API key and salt its own, in memory alone and until the model is unloaded; 0: none are kept")
      ->check(CLI::Range(0, int(AnswerStore::kMostTokens)))
      ->capture_default_str();
}

void add_sampling_options(CLI::App* cmd, Sampling& s, bool& seed_given) {
  cmd->add_option("--temp", s.temperature, "Temperature; 0 is greedy")->check(number_in(0, 100))->capture_default_str();
  cmd->add_option("--top-k", s.top_k, "Keep the k likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--top-p", s.top_p, "Keep the likeliest tokens that make up this probability; 1: all")
      ->check(number_in(0, 1))
      ->capture_default_str();
  cmd->add_option("--min-p", s.min_p, "Keep tokens at least this likely, relative to the likeliest; 0: all")
      ->check(number_in(0, 1))
      ->capture_default_str();
  cmd->add_option("--repeat-penalty", s.repeat_penalty, "Divides the logits of recent tokens; 1: off")
      ->check(number_in(.01, 100))
      ->capture_default_str();
  cmd->add_option("--repeat-last-n", s.repeat_last_n, "Recent tokens that penalties look at; -1: all")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--presence-penalty", s.presence_penalty, "Subtracted from the logits of recent tokens")
      ->check(number_in(-100, 100))
      ->capture_default_str();
  cmd->add_option("--frequency-penalty", s.frequency_penalty, "Subtracted once per occurrence")
      ->check(number_in(-100, 100))
      ->capture_default_str();
  cmd->add_option_function<uint64_t>(
         "--seed", [&s, &seed_given](const uint64_t& v) { s.seed = v, seed_given = true; },
         "The same seed gives the same text; omitted: drawn anew")
      ->check(whole_number());
}

void add_sparse_option(CLI::App* cmd, EngineConfig& c) {
  cmd->add_option_function<std::string>(
         "--sparse-prefill",
         [&c](const std::string& v) {
           c.sparse_prefill = 0;
           if (v == "off") return;
           char* end = nullptr;
           const float gamma = std::strtof(v.c_str(), &end);
           if (v.empty() || *end != 0 || !(gamma > 0 && gamma <= 1))
             throw CLI::ValidationError("--sparse-prefill",
                                        fmt::format("expected off or a number over 0 and up to 1, found {}", v));
           c.sparse_prefill = gamma;
         },
         "Read long prompts approximately: in full layers only blocks of earlier tokens that make up this share of "
         "every "
         "token's attention, by estimate; the last 256 tokens read everything; off: exact")
      ->option_text("off|GAMMA [off]");
}

void add_loop_option(CLI::App* cmd, int& max_loops) {
  cmd->add_option("--max-loops", max_loops,
                  "End an answer when its last tokens are one sequence so many times in a row (128 tokens of it at "
                  "least); 0: never")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
}

void draw_seed(Sampling& s, bool seed_given) {
  if (!seed_given) s.seed = std::random_device{}();
}

Status find_model(std::string& path, bool with_encoders) {
  if (path.empty()) path = default_model_path();
  if (path.empty())
    return Error{"-m", "expected a model, found none given and none beside the program",
                 "give the path of a GGUF file, or set FACET_MODELS to the folder of the models that come with it"};
  return fetch_named(path, with_encoders ? HubUse::kModelWithEncoders : HubUse::kModel);
}

void add_voice_options(CLI::App* cmd, Voice& v) {
  auto* verbose = cmd->add_flag("-v,--verbose", v.verbose, "Say more: memory by purpose, speeds, drafts by place");
  cmd->add_flag("--quiet", v.quiet, "Say nothing but the answer and errors")
      ->excludes(verbose)
      ->each([](const std::string&) { hub_settings().quiet = true; });
}

std::vector<std::string> files_of(const std::string& model, std::vector<std::string> others) {
  for (std::string& part : gguf_parts(model)) others.push_back(std::move(part));
  return others;
}

Result<std::unique_ptr<Engine>> open_engine(EngineConfig c, const DraftOptions& draft, Voice voice,
                                            const EngineDebug& debug) {
  if (auto ok = find_model(c); !ok) return ok.error();
  if (c.kv_auto || !c.expert_usage_file.empty()) {
    const auto file = open_gemma4(c.model);
    if (!file) return file.error();
    if (auto ok = read_kv_choices(c, *file); !ok) return ok.error();
    if (auto ok = find_expert_usage(c, *file); !ok) return ok.error();
  }
  std::vector<std::string> notes;
  if (auto ok = find_encoders(c, &notes); !ok) return ok.error();
  if (voice.verbose)  // of files that nobody named
    for (const std::string& note : notes) print_err("note: {}\n", note);
  auto files = draft_files(c.model, draft);
  if (!files) return files.error();
  for (const std::string& note : files->notes) print_err("note: {}\n", note);
  c.draft.files = std::move(files->paths);
  c.draft.suffix = files->suffix, c.draft.optional = files->optional;
  if (!draft.trace.empty()) {
    auto trace = trace_drafts(draft.trace, files_of(c.model, c.draft.files));
    if (!trace) return trace.error();
    c.drafted = std::move(*trace);
  }
  if (c.draft.memory > 0 && !c.draft.suffix)
    return Error{"--draft-memory",
                 fmt::format("expected suffix among --draft, found {}", fmt::join(draft.sources, ", ")),
                 "add --draft suffix, or leave --draft out"};
  if (c.draft.min > c.draft.rows())
    return Error{"--draft-min", fmt::format("expected at most --draft-max ({}), found {}", c.draft.rows(), c.draft.min),
                 "raise --draft-max"};
  if (!voice.quiet) {
    const bool all = voice.verbose || !voice.brief;
    if (all)
      for (const std::string& path : c.draft.files) print_err("drafter: {}\n", path);
    c.noted = [](const std::string& note) { print_err("note: {}\n", note); };
    c.planned = [voice, all, also = c.planned](const std::string& sum, const std::string& table) {
      if (also) also(sum, table);
      if (all) print_err("memory: {}\n{}", sum, voice.verbose ? table : "");
    };
  }
  // The engine keeps its configuration; the bar goes when the weights are there.
  const auto bar = std::make_shared<std::unique_ptr<Progress>>();
  if (!voice.quiet) *bar = std::make_unique<Progress>("loading");
  c.loading = [bar, also = c.loading](uint64_t done, uint64_t total) {
    if (also) also(done, total);
    if (*bar) (*bar)->update(done, total);
    if (done == total) bar->reset();
  };
  auto engine = Engine::open(c, debug);
  bar->reset();
  if (engine && (*engine)->tokenizer() && !voice.quiet)
    for (const std::string& note : (*engine)->tokenizer()->vocab().notes) print_err("note: {}: {}\n", c.model, note);
  return engine;
}

void add_lockstep_option(CLI::App* cmd, EngineDebug& debug) {
  cmd->add_flag("--lockstep", debug.lockstep,
                "Run the reference beside the backend, compare every verb on equal inputs and print the worst error of "
                "each; exit code 1 when one is over its bound. Slow");
}

void add_forced_option(CLI::App* cmd, EngineDebug& debug) {
  cmd->add_option("--forced", debug.forced_drafts,
                  "Take draft k for right with the k-th of these probabilities: speeds of random models at "
                  "an acceptance one would like to have")
      ->delimiter(',')
      ->check(number_in(0, 1));
}

Status lockstep_verdict(const Engine& e, const EngineDebug& debug) {
  if (!debug.lockstep) return Ok{};
  const LockstepReport r = e.lockstep_report();
  print_err("{:<24} {:>9} {:>6} {:>11} {:>11} {:>9}\n", "verb", "compared", "over", "worst error", "bound", "of bound");
  for (const LockstepReport::Verb& v : r.verbs) {
    if (v.compared > 0)
      print_err("{:<24} {:>9} {:>6} {:>11.3g} {:>11.3g} {:>8.1f}%\n", v.name, v.compared, v.over, v.error, v.bound,
                100 * v.error / v.bound);
    else
      print_err("{:<24} judged by the verbs that read what it leaves\n", v.name);
  }
  if (r.first_over.empty()) return Ok{};
  return Error{"--lockstep", r.first_over, "the first verb over its bound; those after it were judged on its result"};
}

Result<std::vector<int32_t>> read_token_file(const std::string& path, int n_vocab) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  const auto bytes = file->bytes();
  if (bytes.empty() || bytes.size() % 4 != 0)
    return Error{path, fmt::format("expected int32 token ids, little endian, found {} bytes", bytes.size()),
                 "write 4 bytes per token"};
  std::vector<int32_t> ids(bytes.size() / 4);
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= n_vocab)
      return Error{path, fmt::format("token {}: expected an id in [0, {}), found {}", i, n_vocab, ids[i]),
                   "the file belongs to another vocabulary"};
  return ids;
}

Status write_token_file(const std::string& path, std::span<const int32_t> ids) {
  auto file = OutputFile::create(path);
  if (!file) return file.error();
  if (auto ok = file->write(std::as_bytes(ids)); !ok) return ok;
  return file->finish();
}

Interrupts::Interrupts() {
  if (g_wake[0] < 0) [[maybe_unused]]
    const int made = ::pipe2(g_wake, O_CLOEXEC | O_NONBLOCK);
  struct sigaction a {};
  a.sa_handler = on_interrupt;
  a.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &a, &before_);
}
Interrupts::~Interrupts() { ::sigaction(SIGINT, &before_, nullptr); }
bool Interrupts::pending() { return g_interrupts > 0; }
void Interrupts::clear() {
  g_interrupts = 0;
  for (char bytes[64]; ::read(g_wake[0], bytes, sizeof bytes) > 0;) {
  }
}
bool Interrupts::wait_for_input(int fd) {
  pollfd p[2] = {{fd, POLLIN, 0}, {g_wake[0], POLLIN, 0}};
  while (!pending())
    if (::poll(p, 2, -1) > 0 && p[0].revents != 0) return true;
  clear();
  return false;
}

}  // namespace facet
