#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/console.h"
#include "app/expert_usage.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/files.h"
#include "base/print.h"
#include "compose/plan.h"
#include "model/gemma4_config.h"
#include "session/fingerprint.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"
#include "tools/expert_usage_file.h"
#include "tools/paths.h"
#include "tools/quality.h"

namespace facet {
namespace {

constexpr uint64_t kMaxText = uint64_t(256) << 20;

struct Options {
  EngineConfig engine;
  std::vector<std::string> kv{"f16", "q8_0", "q4_0", "tq3_0"};
  std::string folder, out, experts;
  int longest = 0, count = 0;
  QualityOptions quality;
};

// Questions (.jsonl) and texts (.txt) of a folder, or the shipped questions, whose contexts are the text then.
Status read_sets(Options& o) {
  std::vector<std::string> files;
  if (o.folder.empty()) {
    if (files.push_back(default_eval_path()); files.front().empty())
      return Error{"--sets", "expected questions, found none given and none beside the program", "give a folder"};
  } else {
    std::error_code error;
    for (const auto& f : std::filesystem::directory_iterator(o.folder, error))
      if (f.path().extension() == ".jsonl" || f.path().extension() == ".txt") files.push_back(f.path());
    if (error || files.empty())
      return Error{o.folder,
                   fmt::format("expected a folder of .jsonl or .txt files, found {}", error ? error.message() : "none"),
                   "questions are JSON lines {kind, context, answer}, texts are text"};
    std::sort(files.begin(), files.end());
  }
  for (const std::string& path : files) {
    if (path.ends_with(".txt")) {
      auto text = read_file(path, kMaxText);
      if (!text) return text.error();
      o.quality.text += *text + "\n";
      continue;
    }
    auto docs = read_eval_set(path);
    if (!docs) return docs.error();
    o.quality.questions.insert(o.quality.questions.end(), docs->begin(), docs->end());
  }
  if (o.quality.text.empty())
    for (const EvalDoc& d : o.quality.questions) o.quality.text += d.context + d.answer + "\n";
  return Ok{};
}

// Leaves the questions out that are longer or more of a kind than asked for, and gives the longest one's tokens.
Result<int> longest_question(const GgufFile& file, Options& o) {
  auto vocab = vocab_from_gguf(file);
  if (!vocab) return vocab.error();
  auto t = Tokenizer::create(std::move(*vocab));
  if (!t) return t.error();
  int longest = o.quality.window;
  std::map<std::string, int> taken;
  std::erase_if(o.quality.questions, [&](const EvalDoc& d) {
    const int n = int(t->encode(d.context, true, true).size() + t->encode(d.answer, false, true).size());
    if ((o.longest > 0 && n > o.longest) || (o.count > 0 && ++taken[d.kind] > o.count)) return true;
    longest = std::max(longest, n);
    return false;
  });
  return longest;
}

int run(Options& o) {
  for (const std::string& name : o.kv) {
    const auto kv = kv_pair_from_name(name);
    if (!kv)
      return report({"--kv", fmt::format("expected K/V types such as q8_0 or q8_0/q4_0, found '{}'", on_one_line(name)),
                     "keys before the slash, values behind it"});
    if (std::find(o.quality.types.begin(), o.quality.types.end(), *kv) != o.quality.types.end())
      return report({"--kv", fmt::format("expected each type once, found {} twice", kv->name()), "leave one out"});
    o.quality.types.push_back(*kv);
  }
  if (auto ok = read_sets(o); !ok) return report(ok.error());
  if (auto ok = find_model(o.engine.model); !ok) return report(ok.error());
  auto file = open_gemma4(o.engine.model);
  if (!file) return report(file.error());
  const bool counts = !o.experts.empty();
  if (counts) o.out = o.experts, o.quality.types.resize(1);
  if (o.out.empty()) o.out = quality_path(o.engine.model);
  if (auto ok = check_output(o.out, std::vector{o.engine.model}); !ok) return report(ok.error());
  auto longest = longest_question(*file, o);
  if (!longest) return report(longest.error());
  EngineConfig c = o.engine;
  if (c.n_ctx == 0) c.n_ctx = *longest;
  c.max_out = 64, c.snapshots = 0, c.cache_ram = 0;
  if (auto ok = find_expert_usage(c, *file); !ok) return report(ok.error());
  if (counts) c.count_experts = std::make_shared<ExpertUsage>();
  std::string backend;
  const auto open = [&](const KvPair& kv) {
    c.kv_k = kv.k, c.kv_v = kv.v;
    auto e = open_engine(c);
    if (e) backend = (*e)->config().backend;
    return e;
  };
  Result<QualityReport> r = QualityReport{};
  {
    Progress progress("questions", Progress::Unit::kTokens);
    const int all = int(o.quality.types.size() * o.quality.questions.size());
    r = measure_quality(o.quality, open, [&](const KvPair& kv, int n, int of) {
      const auto at = std::find(o.quality.types.begin(), o.quality.types.end(), kv) - o.quality.types.begin();
      progress.update(uint64_t(at * of + n), uint64_t(all));
    });
  }
  if (!r) return report(r.error());
  if (counts) {
    if (auto ok = write_expert_usage(*c.count_experts, o.out, *file); !ok) return report(ok.error());
    print_out("{}", usage_lines(*c.count_experts));
    print_err("written to {}\n", o.out);
    return kExitOk;
  }
  r->model = std::filesystem::path(o.engine.model).filename();
  r->fingerprint = file_fingerprint(*file), r->version = FACET_VERSION, r->backend = backend;
  if (auto ok = write_quality(*r, o.out); !ok) return report(ok.error());
  print_out("{}", to_markdown(*r));
  print_err("written to {}\n", o.out);
  return kExitOk;
}

}  // namespace

std::string quality_path(const std::string& model) { return model + ".quality.json"; }

void add_quality(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand(
      "quality", "Measure what K/V types cost in answers and distributions, for facet plan to quote");
  add_engine_options(cmd, o->engine);
  for (const char* measured : {"--kv", "--kv-k", "--kv-v", "--kv-layers"})
    cmd->remove_option(cmd->get_option(measured));
  cmd->add_option("--kv", o->kv, "K/V types; others are compared with the first. q8_0/q4_0: keys, values")
      ->delimiter(',')
      ->capture_default_str();
  cmd->add_option(
         "--sets", o->folder,
         "Folder with questions (.jsonl: kind, context, answer) and texts (.txt); omitted: those of the shipped model")
      ->check(not_empty());
  cmd->add_option("--longest", o->longest, "Leave longer questions out, in tokens; 0: none")
      ->check(CLI::Range(0, 1 << 24));
  cmd->add_option("--count", o->count, "Questions of a kind at most; 0: all")->check(CLI::Range(0, 1 << 24));
  cmd->add_option("--window", o->quality.window, "Tokens of a piece of text; its second half is measured")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  cmd->add_option("--places", o->quality.places,
                  "Places of the text at most; each takes a row of the vocabulary in memory")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--out", o->out, "The report; omitted: MODEL.quality.json, where facet plan looks")
      ->check(not_empty());
  cmd->add_option("--experts", o->experts,
                  "Instead of a report, count how often each expert is chosen while the texts are read, into this file "
                  "(MODEL.experts.json, where --expert-usage auto looks)")
      ->check(not_empty());
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
