#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/console.h"
#include "app/options.h"
#include "engine/bench.h"
#include "facet_commit.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  BenchOptions bench;
};

void explain_line(const BenchLine& l) {
  double sum = 0;
  for (const BenchVerb& v : l.verbs) {
    fmt::print(stderr, "    {:<16} {:>9.3f} ms {:>7.1f} GB/s {:>8.1f} GFLOP/s {:>5.1f} %\n", v.name, v.ms, v.gbps,
               v.gflops, 100 * v.share);
    sum += v.ms;
  }
  fmt::print(stderr, "    {:<16} {:>9.3f} ms, mean; the steps' median is {:.3f} ms\n", "all verbs", sum, l.ms_median);
}

int run(Options& o) {
  if (auto ok = find_model(o.engine.model); !ok) return report(ok.error());
  BenchMachine machine;
  EngineConfig decided;
  const Status done = run_bench(
      o.engine, o.bench,
      [&](const BenchMachine& m, const EngineConfig& c) {
        machine = m, decided = c;
        fmt::print(stderr, "{}, {} threads, {}; reads {:.1f} GB/s\n", m.cpu, m.threads, m.isa, m.gbps_ceiling);
        fmt::print(stderr, "{:<8} {:>5} {:>6} {:>10} {:>9} {:>8} {:>6} {:>9}\n", "phase", "n", "depth", "ms", "tok/s",
                   "GB/s", "% read", "GFLOP/s");
      },
      [&](const BenchLine& l) {
        const nlohmann::ordered_json j{{"phase", l.phase},
                                       {"n", l.n},
                                       {"depth", l.depth},
                                       {"kv_k", kv_type_name(*decided.kv_k)},
                                       {"kv_v", kv_type_name(*decided.kv_v)},
                                       {"tok_s", l.tok_s},
                                       {"ms_median", l.ms_median},
                                       {"runs", l.runs},
                                       {"bytes", l.bytes},
                                       {"gbps", l.gbps},
                                       {"gbps_ceiling", machine.gbps_ceiling},
                                       {"gflops", l.gflops},
                                       {"model", o.engine.model},
                                       {"backend", decided.backend},
                                       {"isa", machine.isa},
                                       {"machine", {{"cpu", machine.cpu}, {"threads", machine.threads}}},
                                       {"version", FACET_VERSION},
                                       {"commit", FACET_COMMIT}};
        fmt::print("{}\n", j.dump());
        std::fflush(stdout);
        fmt::print(stderr, "{:<8} {:>5} {:>6} {:>10.2f} {:>9.1f} {:>8.1f} {:>6.0f} {:>9.1f}\n", l.phase, l.n, l.depth,
                   l.ms_median, l.tok_s, l.gbps, 100 * l.gbps / machine.gbps_ceiling, l.gflops);
        if (o.bench.explain) explain_line(l);
      });
  return done ? int(kExitOk) : report(done.error());
}

}  // namespace

void add_bench(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand(
      "bench", "Measure prefill, decoding and verification; JSON lines to stdout, a table to stderr");
  add_engine_options(cmd, o->engine);
  cmd->add_option("--prefill", o->bench.prefill, "Tokens of the prefill step; 0: none")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  cmd->add_option("--depths", o->bench.depths, "Rows in the cache before a step is measured")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--widths", o->bench.widths, "Tokens of a step whose rows all get logits")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  cmd->add_option("--batches", o->bench.batches, "Sequences that decode together (cuda)")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
  cmd->add_option("--runs", o->bench.runs, "Measurements, after a warm-up; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  cmd->add_flag("--explain", o->bench.explain, "Also what every verb costs, one after the other");
  add_bench_spec(*cmd, rc);
  cmd->callback([o, cmd, &rc] {
    if (cmd->get_subcommands().empty()) rc = run(*o);
  });
}

}  // namespace facet
