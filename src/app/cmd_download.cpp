#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/console.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "base/print.h"

namespace facet {
namespace {

struct Options {
  std::vector<std::string> names;
  bool drafter = false, encoders = true;
};

// The paths on stdout, all else on stderr.
int run(const Options& o) {
  for (const std::string& name : o.names) {
    std::string path = name.starts_with("hf:") ? name : "hf:" + name;
    const HubUse use = o.drafter ? HubUse::kDrafter : o.encoders ? HubUse::kModelWithEncoders : HubUse::kModel;
    if (auto ok = fetch_named(path, use); !ok) return report(ok.error());
    print_out("{}\n", path);
    flush_out();
  }
  return kExitOk;
}

}  // namespace

void add_download(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand(
      "download", "Fetch model files from the Hugging Face hub into the cache folder, and print their paths");
  cmd->add_option("NAME", o->names, "USER/REPO, USER/REPO:QUANT or USER/REPO/FILE.gguf; -hf and --draft take the same")
      ->required()
      ->check(not_empty());
  cmd->add_flag("--drafter", o->drafter, "They are drafters, as --draft takes them");
  cmd->add_flag_callback(
      "--no-mmproj", [o] { o->encoders = false; }, "Leave the encoders of pictures and sound (mmproj) on the hub");
  cmd->add_flag("--offline", hub_settings().offline, "Take what the cache folder has; connect to no hub");
  cmd->add_option("--retries", hub_settings().retries, "Attempts in a row that bring nothing new, before it fails")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  cmd->add_flag("--quiet", hub_settings().quiet, "Say nothing but paths and errors");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
