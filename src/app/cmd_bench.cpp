#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/commands.h"
#include "app/console.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/core_use.h"
#include "base/files.h"
#include "base/print.h"
#include "facet_commit.h"
#include "tools/bench.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  BenchOptions bench;
  std::string json;
};

nlohmann::ordered_json to_json(const BenchLine& l, const BenchMachine& machine, const Options& o,
                               const std::string& backend, double other_cores) {
  nlohmann::ordered_json j{{"phase", l.phase},
                           {"n", l.n},
                           {"depth", l.depth},
                           {"kv_k", kv_type_name(l.kv_k)},
                           {"kv_v", kv_type_name(l.kv_v)},
                           {"tok_s", l.tok_s},
                           {"ms_median", l.ms_median},
                           {"ms_longest", l.ms_longest},
                           {"ms_sum", l.ms_sum},
                           {"runs", l.runs},
                           {"bytes", l.bytes},
                           {"gbps", l.gbps},
                           {"gbps_ceiling", machine.gbps_ceiling},
                           {"gflops", l.gflops},
                           {"model", o.engine.model},
                           {"backend", backend},
                           {"isa", machine.isa},
                           {"machine", {{"cpu", machine.cpu}, {"threads", machine.threads}}},
                           {"other_programs_cores", other_cores},
                           {"version", FACET_VERSION},
                           {"commit", FACET_COMMIT}};
  if (l.phase == "sparse") j["keep"] = o.bench.keep, j["kept"] = l.kept;
  for (const KvOfLayers& own : o.engine.kv_layers)
    j["kv_layers"].push_back({{"first", own.first}, {"last", own.last}, {"kv", own.kv.name()}});
  return j;
}

// Where rows go: a table on a terminal, JSON lines to a file or to whoever reads standard output. With JSON lines on
// standard output the table is for whoever watches.
class Report {
 public:
  explicit Report(const Options& o) : o_(o), lines_on_stdout_(o.json.empty() && ::isatty(STDOUT_FILENO) == 0) {}
  Status open() {
    if (o_.json.empty()) return Ok{};
    auto file = OutputFile::create(o_.json);
    if (!file) return file.error();
    file_ = std::move(*file);
    return Ok{};
  }
  void begin(const BenchMachine& m, const EngineConfig& c) {
    progress_.reset();
    machine_ = m, backend_ = c.backend;
    cores_.restart();
    table("{}, {} threads, {}; reads {:.1f} GB/s\n", m.cpu, m.threads, m.isa, m.gbps_ceiling);
    table("{:<8} {:>6} {:>6} {:>11} {:>10} {:>9} {:>8} {:>6} {:>9}\n", "phase", "n", "depth", "kv", "ms", "tok/s",
          "GB/s", "% read", "GFLOP/s");
  }
  void row(const BenchLine& l) {
    progress_.reset();
    const std::string json = to_json(l, machine_, o_, backend_, cores_.since().others).dump();
    if (file_.is_open()) (void)file_.write(json + "\n");  // finish() tells
    if (lines_on_stdout_) print_out("{}\n", json);
    const std::string kv =
        l.kv_k == l.kv_v ? kv_type_name(l.kv_k) : fmt::format("{}/{}", kv_type_name(l.kv_k), kv_type_name(l.kv_v));
    table("{:<8} {:>6} {:>6} {:>11} {:>10.2f} {:>9.1f} {:>8.1f} {:>6.0f} {:>9.1f}\n", l.phase, l.n, l.depth, kv,
          l.ms_median, l.tok_s, l.gbps, 100 * l.gbps / machine_.gbps_ceiling, l.gflops);
    if (o_.bench.explain) explain(l);
    flush_out();
  }
  void progress(const std::string& what, uint64_t done, uint64_t total) {
    if (what != doing_ || !progress_)
      progress_.emplace(what, what == "loading" ? Progress::Unit::kBytes : Progress::Unit::kRuns), doing_ = what;
    progress_->update(done, total);
  }
  Status close() {
    progress_.reset();
    if (const std::string others = other_programs(cores_.since()); !others.empty())
      print_err("note: {}; measure again without them\n", others);
    if (!file_.is_open()) return Ok{};
    return file_.finish();
  }

 private:
  template <class... Args>
  void table(fmt::format_string<Args...> f, Args&&... args) const {
    const std::string text = fmt::format(f, std::forward<Args>(args)...);
    lines_on_stdout_ ? put_err(text) : put_out(text);
  }
  void explain(const BenchLine& l) const {
    double sum = 0;
    for (const BenchVerb& v : l.verbs) {
      table("    {:<16} {:>9.3f} ms {:>7.1f} GB/s {:>8.1f} GFLOP/s {:>5.1f} %\n", v.name, v.ms, v.gbps, v.gflops,
            100 * v.share);
      sum += v.ms;
    }
    table("    {:<16} {:>9.3f} ms, mean; the steps' median is {:.3f} ms\n", "all verbs", sum, l.ms_median);
  }

  const Options& o_;
  bool lines_on_stdout_;
  OutputFile file_;
  BenchMachine machine_;
  std::string backend_, doing_;
  CoreUse cores_;  // while it measures
  std::optional<Progress> progress_;
};

int run(Options& o) {
  if (auto ok = find_model(o.engine.model); !ok) return report(ok.error());
  Report to(o);
  if (auto ok = to.open(); !ok) return report(ok.error());
  o.bench.progress = [&](const std::string& what, uint64_t done, uint64_t total) { to.progress(what, done, total); };
  const Status done = run_bench(
      o.engine, o.bench, [&](const BenchMachine& m, const EngineConfig& c) { to.begin(m, c); },
      [&](const BenchLine& l) { to.row(l); });
  const Status closed = to.close();
  if (!done) return report(done.error());
  return closed ? int(kExitOk) : report(closed.error());
}

}  // namespace

void add_bench(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand(
      "bench", "Measure prefill, decoding and verification; a table, and JSON lines where stdout is no terminal");
  add_engine_options(cmd, o->engine);
  cmd->remove_option(cmd->get_option("--kv"));  // its auto is no measurement
  cmd->add_option("--prefill", o->bench.prefill, "Tokens of prompts, read in chunks (--chunk); 0: none")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--depths", o->bench.depths, "Rows in the cache before a step is measured")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--widths", o->bench.widths, "Tokens of a step whose rows all get logits")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  cmd->add_option("--batches", o->bench.batches,
                  "Sequences that decode together (cuda), with the cache type that fits: f16, else q8_0, else q4_0")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  cmd->add_option("--keep", o->bench.keep,
                  "Also prefill that reads this share of the blocks of full layers, whatever they hold; 0: none")
      ->check(CLI::Range(0., 1.))
      ->capture_default_str();
  cmd->add_option("--runs", o->bench.runs, "Measurements, after a warm-up; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  cmd->add_flag("--explain", o->bench.explain, "Also what every verb costs, one after the other");
  cmd->add_option("--json", o->json, "JSON lines to this file, and the table to stdout");
  add_bench_spec(*cmd, rc);
  add_bench_matrix(*cmd, rc);
  cmd->callback([o, cmd, &rc] {
    if (cmd->get_subcommands().empty()) rc = run(*o);
  });
}

}  // namespace facet
