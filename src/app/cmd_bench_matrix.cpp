#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/compute_options.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/print.h"
#include "base/threads.h"
#include "compose/plan.h"
#include "facet_commit.h"
#include "formats/gguf.h"
#include "session/fingerprint.h"
#include "tools/bench.h"
#include "tools/matrix_file.h"
#include "tools/matrix_report.h"

namespace facet {
namespace {

struct Options {
  MatrixOptions matrix;
  std::vector<std::string> models, drafters{"none"}, kv{"f16"}, sets;
  std::string prompts, out = "facet-matrix";
};

Result<KvPair> kv_pair(const std::string& name) {
  if (const auto kv = kv_pair_from_name(name)) return *kv;
  return Error{"--kv",
               fmt::format("expected {}, or two of them as K/V; found '{}'", kv_type_names(), on_one_line(name)),
               "for example --kv f16,q8_0,q8_0/q4_0"};
}

template <class T>
Status check_unlike(const char* option, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    if (std::find(values.begin(), values.begin() + ptrdiff_t(i), values[i]) != values.begin() + ptrdiff_t(i))
      return Error{option, fmt::format("expected each once, found {} twice", values[i]), "remove one of them"};
  return Ok{};
}

// All configurations, the first of each list first.
Status fill_configs(Options& o) {
  if (o.models.empty()) o.models.emplace_back();
  for (std::string& m : o.models)
    if (auto ok = find_model(m); !ok) return ok;
  if (auto ok = check_unlike("-m", o.models); !ok) return ok;
  if (auto ok = check_unlike("--draft", o.drafters); !ok) return ok;
  if (auto ok = check_unlike("--contexts", o.matrix.contexts); !ok) return ok;
  for (const std::string& model : o.models)
    for (const std::string& drafter : o.drafters) {
      auto files = draft_files(model, {{drafter}});
      if (!files) return files.error();
      for (const std::string& note : files->notes) print_err("note: {}\n", note);
      if (drafter == "auto" && files->paths.empty())
        return Error{"--draft auto", fmt::format("expected a drafter beside {}, found none", model),
                     "give its path, or leave auto out"};
      for (const std::string& kv : o.kv) {
        auto types = kv_pair(kv);
        if (!types) return types.error();
        MatrixConfig c{.model = model, .drafter = drafter, .files = files->paths, .suffix = files->suffix};
        c.k = types->k, c.v = types->v;
        const bool twice = std::any_of(o.matrix.configs.begin(), o.matrix.configs.end(), [&](const MatrixConfig& x) {
          return x.model == c.model && x.drafter == c.drafter && x.kv() == c.kv();
        });
        if (twice)
          return Error{"--kv", fmt::format("expected each once, found {} twice", c.kv()), "remove one of them"};
        o.matrix.configs.push_back(std::move(c));
      }
    }
  return Ok{};
}

Status fill_sets(Options& o) {
  auto sets = o.prompts.empty() ? Result<std::vector<MatrixSet>>(builtin_sets()) : read_prompt_sets(o.prompts);
  if (!sets) return sets.error();
  if (o.matrix.random) sets = std::vector<MatrixSet>{{.name = "random", .prompts = {}, .raw = false}};
  std::vector<std::string> names;
  for (const MatrixSet& s : *sets) names.push_back(s.name);
  if (o.sets.empty()) o.sets = names;
  if (auto ok = check_unlike("--sets", o.sets); !ok) return ok;
  for (const std::string& name : o.sets) {
    const auto at = std::find_if(sets->begin(), sets->end(), [&](const MatrixSet& s) { return s.name == name; });
    if (at == sets->end())
      return Error{"--sets", fmt::format("expected some of {}, found '{}'", fmt::join(names, ", "), on_one_line(name)),
                   "leave it out for all of them"};
    o.matrix.sets.push_back(*at);
  }
  return Ok{};
}

Status add_file(Json& files, const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) return file.error();
  files[path] = file_fingerprint(*file);
  return Ok{};
}

// What has to be the same for measurements to be compared.
Result<Json> settings_of(const Options& o) {
  const EngineConfig& e = o.matrix.engine;
  auto backend = resolve_backend(e.backend, e.gpu);
  if (!backend) return backend.error();
  Json s = {{"n_predict", o.matrix.n_predict},
            {"ignore_eos", o.matrix.ignore_eos},
            {"random", o.matrix.random},
            {"count", o.matrix.count},
            {"backend", *backend},
            {"device", bench_device(*backend, e.gpu, e.cpu_isa)},
            {"threads", e.n_threads > 0 ? e.n_threads : physical_cores()},
            {"chunk", e.chunk},
            {"memory", e.memory},
            {"draft_max", e.draft.max},
            {"draft_min", e.draft.min},
            {"draft_tree", e.draft.tree},
            {"version", FACET_VERSION},
            {"commit", FACET_COMMIT},
            {"files", Json::object()},
            {"sets", Json::object()}};
  if (e.draft.embed_scale > 0) s["draft_embedding_scale"] = e.draft.embed_scale;
  for (const MatrixConfig& c : o.matrix.configs) {
    if (auto ok = add_file(s["files"], c.model); !ok) return ok.error();
    for (const std::string& f : c.files) {  // drafters may be safetensors, in a folder
      auto drafter = DrafterFile::open(f);
      if (!drafter) return drafter.error();
      s["files"][f] = drafter_fingerprint(*drafter);
    }
  }
  for (const MatrixSet& set : o.matrix.sets) {
    Hash128 h;
    h.add(int64_t(set.raw));
    for (const std::string& p : set.prompts) h.add(p);
    s["sets"][set.name] = hex(h.digest());
  }
  return s;
}

Status write_text(const std::string& path, const std::string& text) {
  auto file = OutputFile::create(path);
  if (!file) return file.error();
  if (auto ok = file->write(text); !ok) return ok;
  return file->finish();
}

int run(Options& o) {
  if (auto ok = fill_configs(o); !ok) return report(ok.error());
  if (auto ok = fill_sets(o); !ok) return report(ok.error());
  const MatrixOptions& m = o.matrix;
  if (m.engine.draft.min > m.engine.draft.rows())
    return report(
        {"--draft-min",
         fmt::format("expected at most --draft-max ({}), found {}", m.engine.draft.rows(), m.engine.draft.min),
         "raise --draft-max"});
  for (const char* suffix : {".md", ".svg"})
    if (auto ok = check_output(o.out + suffix); !ok) return report(ok.error());
  auto settings = settings_of(o);
  if (!settings) return report(settings.error());
  auto file = MatrixFile::open(o.out + ".jsonl", *settings);
  if (!file) return report(file.error());

  std::set<MatrixKey> done;
  for (const MatrixRun& r : file->runs()) done.insert(r.key);
  const auto steps = matrix_steps(m);
  const auto missing = [&] {
    return size_t(std::count_if(steps.begin(), steps.end(),
                                [&](const MatrixStep& s) { return !done.contains(matrix_key(m, s)); }));
  };
  if (const size_t n = missing(); n < steps.size())
    print_err("{}: {} of {} measurements are there\n", o.out + ".jsonl", steps.size() - n, steps.size());
  {
    const Interrupts interrupts;
    Progress progress("measurements", Progress::Unit::kRuns, steps.size() - missing());
    MatrixRunner runner(m);
    const auto stop = [] { return Interrupts::pending(); };
    const Status ok = run_matrix(
        m, done, [&](const MatrixStep& s) { return runner.measure(s, stop); },
        [&](const MatrixRun& r) {
          done.insert(r.key);
          progress.update(steps.size() - missing(), steps.size());
          return file->add(r);
        },
        stop);
    if (!ok) return report(ok.error());
  }
  if (missing() > 0) {
    print_err("{} of {} measurements are in {}; the same command goes on\n", steps.size() - missing(), steps.size(),
              o.out + ".jsonl");
    return kExitInterrupted;
  }
  const MatrixReport r = matrix_report(m, file->runs());
  const std::string title = fmt::format("facet {} on {}, {} runs of {} prompts, answers of {} tokens", FACET_VERSION,
                                        (*settings)["device"].get<std::string>(), m.runs, m.count, m.n_predict);
  const std::string table = matrix_markdown(r, title);
  print_out("{}", table);
  if (auto ok = write_text(o.out + ".md", table); !ok) return report(ok.error());
  if (auto ok = write_text(o.out + ".svg", matrix_svg(r, title)); !ok) return report(ok.error());
  return kExitOk;
}

}  // namespace

void add_bench_matrix(CLI::App& bench, int& rc) {
  auto o = std::make_shared<Options>();
  MatrixOptions& m = o->matrix;
  CLI::App* cmd = bench.add_subcommand(
      "matrix", "Measure models x drafters x cache types x contexts x prompts in turn: a table, a picture, JSON lines");
  cmd->add_option("-m,--model", o->models,
                  "Model files (repeatable), or hf:USER/REPO[:QUANT]; omitted: the shipped one")
      ->check(not_empty());
  add_compute_options(cmd, m.engine);
  for (const char* given_otherwise : {"--ctx-size", "--kv", "--kv-k", "--kv-v", "--kv-layers"})
    cmd->remove_option(cmd->get_option(given_otherwise));
  cmd->add_option("--draft", o->drafters, "Drafters, each on its own")
      ->delimiter(',')
      ->check(not_empty())
      ->option_text("PATH|none|auto|dflash|mtp|suffix,... [none]");
  cmd->add_option("--draft-max", m.engine.draft.max, "Tokens of a draft at most; 0: 15, or what the drafter can")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  cmd->add_option("--draft-min", m.engine.draft.min, "Tokens of a draft at least; 0: none where plain steps are faster")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  cmd->add_option("--kv", o->kv, "Cache types, or pairs of them as K/V")
      ->delimiter(',')
      ->check(not_empty())
      ->option_text("TYPE[/TYPE],... [f16]");
  cmd->add_option("--contexts", m.contexts, "Tokens of a prompt, filled up with prose; 0: the prompt alone")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--prompts", o->prompts,
                  "JSON lines {kind, prompt}, or {kind, context} for whole prompts; omitted: chat, code and json")
      ->check(not_empty());
  cmd->add_option("--sets", o->sets, "Kinds of prompts; omitted: all")->delimiter(',')->check(not_empty());
  cmd->add_option("--count", m.count, "Prompts of a set at most")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  cmd->add_flag("--random", m.random, "Prompts of random tokens instead, as for a model without a vocabulary");
  cmd->add_option("-n,--n-predict", m.n_predict, "Tokens of an answer at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  cmd->add_flag("--ignore-eos", m.ignore_eos, "Answers go on to -n tokens");
  cmd->add_option("--runs", m.runs, "Measurements of each")->check(CLI::Range(2, 1000))->capture_default_str();
  cmd->add_option("-o,--out", o->out,
                  "Writes NAME.jsonl, NAME.md and NAME.svg; what NAME.jsonl has is not measured again")
      ->check(not_empty())
      ->option_text("NAME [facet-matrix]");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
