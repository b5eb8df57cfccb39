#include "app/expert_usage.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <utility>

#include "app/option_checks.h"
#include "base/files.h"
#include "base/print.h"
#include "hub/environment.h"
#include "model/gemma4_config.h"
#include "session/fingerprint.h"
#include "tools/expert_usage_file.h"

namespace facet {

void add_expert_usage_option(CLI::App* cmd, EngineConfig& c) {
  c.expert_usage_file = "auto";
  cmd->add_option("--expert-usage", c.expert_usage_file,
                  "Which experts stay on the GPU where others are in RAM: those that a model chose most, by a file of "
                  "facet quality --experts; auto: MODEL.experts.json, or what serve --count-experts counted; none: "
                  "those of whole layers")
      ->check(not_empty())
      ->option_text("FILE|auto|none [auto]");
}

std::string counted_experts_path(const GgufFile& file) {
  const std::string folder = hub_cache_folder();
  return folder.empty() ? "" : folder + "/experts/" + file_fingerprint(file) + ".json";
}

Status find_expert_usage(EngineConfig& c, const GgufFile& file) {
  const std::string asked = std::exchange(c.expert_usage_file, "");
  if (asked.empty() || asked == "none" || c.backend == "cpu" || c.backend == "ref" || !c.gpus.empty()) return Ok{};
  const auto m = gemma4_config(file);
  if (!m || m->n_expert == 0) return Ok{};  // opening the model says what is wrong with it
  std::string path = asked;
  if (asked == "auto") {
    path = c.model + ".experts.json";
    std::error_code error;
    if (!std::filesystem::exists(path, error)) path = counted_experts_path(file);
    if (path.empty() || !std::filesystem::exists(path, error)) return Ok{};
  }
  auto usage = read_expert_usage(path, file, *m);
  if (usage) {
    c.expert_usage = std::make_shared<const ExpertUsage>(std::move(*usage));
    return Ok{};
  }
  if (asked != "auto") return usage.error();
  print_err("note: whole layers of experts are placed: {}\n", usage.error().message());
  return Ok{};
}

Status keep_counted_experts(const ExpertUsage& counted, const std::string& model) {
  auto file = GgufFile::open(model);
  if (!file) return file.error();
  auto m = gemma4_config(*file);
  if (!m) return m.error();
  const std::string path = counted_experts_path(*file);
  if (path.empty())
    return Error{"--count-experts", "expected a cache folder, found neither FACET_CACHE nor HOME", "set FACET_CACHE"};
  ExpertUsage all = counted;
  all.chosen.resize(size_t(m->n_layer()));
  for (auto& of : all.chosen) of.resize(size_t(m->n_expert));
  if (const auto before = read_expert_usage(path, *file, *m); before)
    for (size_t l = 0; l < before->chosen.size(); ++l) all.add(int(l), before->chosen[l]);
  if (auto ok = make_folders(hub_cache_folder(), "experts"); !ok) return ok;
  return write_expert_usage(all, path, *file);
}

}  // namespace facet
