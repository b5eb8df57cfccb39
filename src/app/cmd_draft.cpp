#include <fmt/format.h>

#include <map>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "base/files.h"
#include "base/print.h"
#include "tools/draft_logits.h"

namespace facet {
namespace {

struct Options {
  DraftLogitsConfig draft;
  std::string tokens, out;
};

int run(Options& o) {
  if (auto ok = find_model(o.draft.model); !ok) return report(ok.error());
  if (auto ok = fetch_named(o.draft.draft, HubUse::kDrafter); !ok) return report(ok.error());
  const std::vector<std::string> inputs = files_of(o.draft.model, {o.draft.draft, o.tokens});
  if (auto ok = check_output(o.out, inputs); !ok) return report(ok.error());
  auto ids = read_token_file(o.tokens, 1 << 24);
  if (!ids) return report(ids.error());
  o.draft.ids = std::move(*ids);
  auto d = draft_logits(o.draft);
  if (!d) return report(d.error());
  for (const std::string& note : d->notes) print_err("{}: {}\n", o.draft.draft, note);
  auto f = OutputFile::create(o.out, inputs);
  if (!f) return report(f.error());
  if (auto ok = f->write(std::as_bytes(std::span(d->logits))); !ok) return report(ok.error());
  if (auto ok = f->finish(); !ok) return report(ok.error());
  print_err("{}: {}, [{}, {}] float32\n", o.out, d->dialect, d->rows, d->n_vocab);
  return kExitOk;
}

const std::map<std::string, BlockMask> kMasks{
    {"file", BlockMask::kFile}, {"causal", BlockMask::kCausal}, {"bidir", BlockMask::kBidirectional}};

}  // namespace

void add_draft(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("draft", "Write the logits of a drafter after a token sequence");
  DraftLogitsConfig& c = o->draft;
  add_model_option(cmd, c.model);
  cmd->add_option("--draft", c.draft, "Drafter: a .gguf, a .safetensors with config.json beside it, or a folder")
      ->required()
      ->check(not_empty());
  cmd->add_option("--tokens", o->tokens, "Token ids (int32, little endian)")->required()->check(not_empty());
  cmd->add_option("--at", c.at, "The newest token, without K/V; those before it are committed")->required();
  cmd->add_option("--out", o->out,
                  "File for the logits: float32, little endian; DFlash [block, vocabulary], MTP [steps, vocabulary]")
      ->required()
      ->check(not_empty());
  cmd->add_option("--steps", c.steps, "MTP: passes of the chain")->check(CLI::Range(1, 64))->capture_default_str();
  add_named(cmd, "--block-mask", c.block_mask, kMasks,
            "DFlash: what sliding layers see of the block: file (what the drafter says), causal or bidir");
  cmd->add_option("--mtp-window-extra", c.window_extra,
                  "MTP: keys seen beyond the window of sliding layers (transformers' eager masks: 2)")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  cmd->add_option("--backend", c.backend, "Where both run: cpu, or ref, the slow definition of what is right")
      ->check(CLI::IsMember({"cpu", "ref"}))
      ->capture_default_str();
  cmd->add_option("-t,--threads", c.n_threads, "Threads; 0: one per physical core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
