#pragma once
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/engine.h"
#include "backend/sampling.h"
#include "base/core_use.h"
#include "base/result.h"

namespace facet {

class GgufFile;

// What --draft says: paths of drafters and suffix (or ngram), or one of none, dflash, mtp, auto.
struct DraftOptions {
  std::vector<std::string> sources{"auto"};
  std::string trace = {};  // file for a line of JSON for each draft
};

// Options that several subcommands share, spelled as llama.cpp spells them.
// -m, --hf-repo, --hf-file, --offline; omitted: the model that comes with the program.
void add_model_option(CLI::App* cmd, std::string& path);
void add_engine_options(CLI::App* cmd, EngineConfig& c);  // -c, -t, --kv, --backend, --chunk, --memory
void add_draft_options(CLI::App* cmd, DraftOptions& o,
                       EngineConfig& c);  // --draft, --draft-max, --draft-min, --draft-tree, --draft-memory
void add_sampling_options(CLI::App* cmd, Sampling& s, bool& seed_given);  // --temp, --top-k, ...

void add_sparse_option(CLI::App* cmd, EngineConfig& c);  // --sparse-prefill
void add_loop_option(CLI::App* cmd, int& max_loops);     // --max-loops

// A seed from the system when none was given. It is printed with the statistics, so that a run can be repeated.
void draw_seed(Sampling& s, bool seed_given);

// What -m says, downloaded if it is a name on a hub (hf:...), or the shipped model.
Status find_model(std::string& path, bool with_encoders = false);
// The same of c.model, with its encoders where --mmproj is auto.
inline Status find_model(EngineConfig& c) { return find_model(c.model, c.mmproj == "auto"); }
// For --kv auto: what the quality report beside the model leaves to choose among.
Status read_kv_choices(EngineConfig& c, const GgufFile& file);

// How much a command says on stderr beside errors.
struct Voice {
  bool verbose = false, quiet = false;
  bool brief = false;  // which files and how much memory are told with -v alone
};
void add_voice_options(CLI::App* cmd, Voice& v);  // -v, --quiet

// Opens what -m names, or the shipped model, with the drafters that `draft` names; prints what there is to know about
// the files.
Result<std::unique_ptr<Engine>> open_engine(EngineConfig c, const DraftOptions& draft = {{"none"}}, Voice voice = {},
                                            const EngineDebug& debug = {});
// --lockstep.
void add_lockstep_option(CLI::App* cmd, EngineDebug& debug);
void add_forced_option(CLI::App* cmd, EngineDebug& debug);
// With --lockstep: how far every verb was from the reference, to stderr; an error when one was beyond its bound.
Status lockstep_verdict(const Engine& e, const EngineDebug& debug);
// The drafters' paths, and what a user should know of how they were chosen.
struct DraftFiles {
  std::vector<std::string> paths = {}, notes = {};
  bool suffix = false;
  bool optional = false;  // nobody asked for them: a broken one does not keep the model from starting
};
Result<DraftFiles> draft_files(const std::string& model, const DraftOptions& o);

// What EngineConfig::drafted calls to write them to a file, which is complete when the last copy of it is gone.
Result<std::function<void(const DraftRound&)>> trace_drafts(const std::string& path,
                                                            const std::vector<std::string>& not_these);

// Token ids from a file of int32, little endian, checked against the vocabulary.
Result<std::vector<int32_t>> read_token_file(const std::string& path, int n_vocab);
Status write_token_file(const std::string& path, std::span<const int32_t> ids);

// "48 tokens in 0.4 s, 120 tok/s; prompt 31 tokens (12 cached); drafts accepted 80 of 120"
std::string usage_line(const Usage& u, Stop why);
std::string seed_part(const Sampling& s);  // "; seed 1", empty when greedy
// "prompt 31 tokens (12 cached), 812.4 tok/s; answer 48 tokens, 120.1 tok/s; stop: eos; seed 1"
std::string long_usage_line(const Usage& u, Stop why, const Sampling& s);
// "; other programs use these cores: 1.3 of 2, 1 of 2 threads work", since `cores` was restarted; empty where they do
// not.
std::string cores_part(const CoreUse& cores);

// Its part about drafting: ", 3.10 a step with mtp; drafts 80 of 120 right, by place 0.92 0.80 0.71"
std::string draft_line(const Usage& u);

// What to know about a drafter that was of no use; empty: nothing.
std::string draft_warning(const Usage& u);

// The files behind a model, and others: what an output must not be.
std::vector<std::string> files_of(const std::string& model, std::vector<std::string> others);

// The names of --kv-k.
const std::map<std::string, KvType>& kv_types_by_name();

// Set by Ctrl-C while an Interrupts object lives.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  static bool pending();
  static void clear();
  // Until there is something to read; false: Ctrl-C came first, whenever it did, and is cleared.
  static bool wait_for_input(int fd);

 private:
  struct sigaction before_;
};

}  // namespace facet
