#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/environment.h"
#include "hub/hub.h"

namespace facet {

// What a command line says of downloads; the program has one. The environment says the rest: FACET_CACHE, HF_ENDPOINT,
// HF_TOKEN and the like (docs/operations.md).
struct HubSettings {
  bool offline = false, quiet = false;
  int retries = HubConfig().retries;
};
HubSettings& hub_settings();

// The folder of the repository in it that a file lies in; "": it lies elsewhere.
std::string hub_folder_of(const std::string& path);

// --hf-repo, --hf-file and --offline. `take` gets "hf:USER/REPO[:QUANT]"; with a file it gets "hf:USER/REPO/FILE"
// after that, which stands for it (again).
void add_hub_options(CLI::App* cmd, std::function<void(const std::string& name, bool again)> take);

// A path that begins with "hf:" becomes that of the file or folder that it names, downloaded if need be; others stay.
Status fetch_named(std::string& path, HubUse use);

}  // namespace facet
