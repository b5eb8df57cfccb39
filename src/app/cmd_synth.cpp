#include <fmt/format.h>

#include <algorithm>
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
  std::string preset, mmproj, quant, out;
  uint64_t seed = 1;
  double skew = 0;
  bool pure = false, vocab = false;
};

int run(const Options& o) {
  auto plan = o.mmproj.empty() ? synth_plan(o.preset, o.quant, o.pure) : synth_mmproj_plan(o.mmproj, o.quant);
  if (!plan) return report(plan.error());
  if (auto ok = synth_skew_router(*plan, o.skew); !ok) return report(ok.error());
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

std::vector<std::string> all_types() {
  std::vector<std::string> names = strings(synth_quants());
  for (const std::string_view t : synth_mmproj_types())
    if (std::find(names.begin(), names.end(), t) == names.end()) names.emplace_back(t);
  return names;
}

}  // namespace

void add_synth(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();  // lives as long as the callback
  CLI::App* cmd = app.add_subcommand("synth", "Write a full-size model file with random weights");
  CLI::Option* preset =
      cmd->add_option("--preset", o->preset, "Model shape")->check(CLI::IsMember(strings(synth_presets())));
  CLI::Option* mmproj = cmd->add_option("--mmproj", o->mmproj,
                                        "Instead of a model, the encoders of pictures and sound of one (e: of E4B; "
                                        "nano: small ones for the shipped model)")
                            ->check(CLI::IsMember(strings(synth_mmproj_presets())));
  cmd->add_option("--quant", o->quant,
                  "Mixture of types, as llama-quantize names them; of an mmproj file BF16, F16, F32 or Q8_0")
      ->required()
      ->check(CLI::IsMember(all_types()));
  cmd->add_flag("--pure", o->pure, "One type for all tensors that are quantised, as of facet quantize --pure");
  cmd->add_flag(
      "--vocab", o->vocab,
      "With the tokenizer of the shipped model, filled up to the preset's number of tokens: for run and serve");
  cmd->add_option(
         "--router-skew", o->skew,
         "Experts are chosen unevenly: the routers' rows have lengths of 1, 2^-S, 3^-S, ..., in an order of each "
         "layer; 0: evenly")
      ->check(CLI::Range(0., 4.))
      ->capture_default_str();
  cmd->add_option("OUT", o->out, "File to write (.gguf)")->required()->check(not_empty());
  cmd->add_option("--seed", o->seed, "The same seed gives the same bytes")
      ->check(whole_number())
      ->capture_default_str();
  preset->excludes(mmproj);
  cmd->callback([o, preset, mmproj, &rc] {
    if (preset->count() + mmproj->count() != 1) throw CLI::RequiredError("--preset or --mmproj");
    rc = run(*o);
  });
}

}  // namespace facet
