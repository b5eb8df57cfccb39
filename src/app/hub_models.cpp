#include "app/hub_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "app/option_checks.h"
#include "app/progress.h"
#include "base/print.h"

namespace facet {

std::string hub_folder_of(const std::string& path) {
  std::string root = hub_cache_folder();
  while (root.size() > 1 && root.ends_with('/')) root.pop_back();
  if (root.empty() || !path.starts_with(root + "/")) return "";
  size_t at = root.size();  // CACHE/USER/REPO/...
  for (int i = 0; i < 2 && at != path.npos; ++i) at = path.find('/', at + 1);
  return at == path.npos ? "" : path.substr(0, at);
}

namespace {

HubConfig hub_config() {
  const HubSettings& s = hub_settings();
  HubConfig c = hub_config_of_environment();
  c.offline |= s.offline;
  c.retries = s.retries;
  if (s.quiet) return c;
  const auto bar = std::make_shared<std::unique_ptr<Progress>>();
  c.note = [bar](const std::string& text) {
    bar->reset();
    print_err("{}\n", on_one_line(text));
  };
  c.progress = [bar](const std::string& file, uint64_t before, uint64_t done, uint64_t total) {
    if (file.empty()) return bar->reset();
    if (!*bar) *bar = std::make_unique<Progress>(file, Progress::Unit::kDownload, std::min(before, done));
    (*bar)->update(done, total);
  };
  return c;
}

}  // namespace

HubSettings& hub_settings() {
  static HubSettings settings;
  return settings;
}

void add_hub_options(CLI::App* cmd, std::function<void(const std::string&, bool)> take) {
  const auto name = std::make_shared<std::string>();
  auto* repo = cmd->add_option_function<std::string>(
                      "--hf-repo",
                      [take, name](const std::string& given) {
                        *name = (given.starts_with("hf:") ? "" : "hf:") + given;
                        take(*name, false);
                      },
                      "Instead of -m: a repository of the Hugging Face hub, downloaded once into the cache folder and "
                      "verified; QUANT is Q4_K_M unless it says another. Short: -hf")
                   ->check(not_empty())
                   ->option_text("USER/REPO[:QUANT]");
  cmd->add_option_function<std::string>(
         "--hf-file",
         [take, name](const std::string& file) { take(name->substr(0, name->find(':', 3)) + "/" + file, true); },
         "Which file of the repository, if QUANT does not tell. Short: -hff")
      ->check(not_empty())
      ->needs(repo)
      ->option_text("FILE");
  if (auto* model = cmd->get_option_no_throw("--model"); model && cmd->get_name() != "serve") model->excludes(repo);
  cmd->add_flag("--offline", hub_settings().offline, "Take what the cache folder has; connect to no hub");
}

Status fetch_named(std::string& path, HubUse use) {
  if (!path.starts_with("hf:")) return Ok{};
  auto found = fetch_from_hub(hub_config(), path, use);
  if (!found) return found.error();
  path = std::move(*found);
  return Ok{};
}

}  // namespace facet
