#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/progress.h"
#include "formats/synth.h"

namespace facet {
namespace {

struct Options {
  std::string preset, quant, out;
  uint64_t seed = 1;
  bool pure = false, vocab = false;
};

int run(const Options& o) {
  auto plan = synth_plan(o.preset, o.quant, o.pure);
  if (!plan) return report(plan.error());
  if (o.vocab) {
    std::string model;
    if (auto ok = find_model(model); !ok) return report(ok.error());
    auto from = GgufFile::open(model);
    if (!from) return report(from.error());
    if (auto ok = synth_add_vocab(*plan, *from); !ok) return report(ok.error());
  }
  const auto start = std::chrono::steady_clock::now();
  Status done = Ok{};
  {
    Progress progress("writing " + o.out);
    done = synth_write(*plan, o.out, o.seed, [&](uint64_t n, uint64_t total) { progress.update(n, total); });
  }
  if (!done) return report(done.error());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double gb = double(synth_bytes(*plan)) / 1e9;
  fmt::print("{}: {} tensors, {:.2f} GB in {:.1f} s ({:.2f} GB/s)\n", o.out, plan->tensors.size(), gb, seconds,
             gb / seconds);
  return kExitOk;
}

std::vector<std::string> strings(std::span<const std::string_view> names) { return {names.begin(), names.end()}; }

}  // namespace

void add_synth(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();  // lives as long as the callback
  CLI::App* cmd = app.add_subcommand("synth", "Write a full-size model file with random weights");
  cmd->add_option("--preset", o->preset, "Model shape")->required()->check(CLI::IsMember(strings(synth_presets())));
  cmd->add_option("--quant", o->quant, "Mixture of types, as llama-quantize names them")
      ->required()
      ->check(CLI::IsMember(strings(synth_quants())));
  cmd->add_flag("--pure", o->pure, "One type for all tensors that are quantised, as of facet quantize --pure");
  cmd->add_flag(
      "--vocab", o->vocab,
      "With the tokenizer of the shipped model, filled up to the preset's number of tokens: for run and serve");
  cmd->add_option("OUT", o->out, "File to write (.gguf)")->required()->check(not_empty());
  cmd->add_option("--seed", o->seed, "The same seed gives the same bytes")
      ->check(whole_number())
      ->capture_default_str();
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
