// Options that say how K/V rows are kept.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>

#include "app/commands.h"
#include "app/compute_options.h"
#include "app/option_checks.h"
#include "base/print.h"
#include "model/gemma4_config.h"
#include "session/fingerprint.h"
#include "tools/paths.h"
#include "tools/quality.h"

namespace facet {
namespace {

const std::map<std::string, KvLayout> kKvLayouts{
    {"auto", KvLayout::kShared}, {"split", KvLayout::kSplit}, {"shared", KvLayout::kShared}};

// "5=q8_0", "0-3=q8_0/q4_0".
std::optional<KvOfLayers> kv_of_layers(const std::string& s) {
  const size_t equals = s.find('=');
  if (equals == std::string::npos) return std::nullopt;
  const auto kv = kv_pair_from_name(std::string_view(s).substr(equals + 1));
  KvOfLayers own;
  const char* end = s.data() + equals;
  auto [at, error] = std::from_chars(s.data(), end, own.first);
  own.last = own.first;
  if (error == std::errc() && at != end && *at == '-') {
    const auto second = std::from_chars(at + 1, end, own.last);
    at = second.ptr, error = second.ec;
  }
  if (error != std::errc() || at != end || own.first < 0 || own.last < own.first || !kv) return std::nullopt;
  own.kv = *kv;
  return own;
}

std::vector<KvOfLayers> all_kv_of_layers(const std::vector<std::string>& entries) {
  std::vector<KvOfLayers> all;
  for (const std::string& s : entries) {
    const KvOfLayers own = *kv_of_layers(s);
    for (const KvOfLayers& other : all)
      if (own.first <= other.last && other.first <= own.last)
        throw CLI::ValidationError(
            "--kv-layers", fmt::format("expected each layer once, found {} twice", std::max(own.first, other.first)));
    all.push_back(own);
  }
  return all;
}

}  // namespace

void add_kv_options(CLI::App* cmd, EngineConfig& c) {
  auto* both = cmd->add_option_function<std::string>(
                      "--kv",
                      [&c](const std::string& name) {
                        c.kv_auto = name == "auto";
                        if (const auto kv = kv_pair_from_name(name)) c.kv_k = kv->k, c.kv_v = kv->v;
                      },
                      fmt::format("Type of cached keys and values: {}, or two as q8_0/q4_0; auto: the most precise "
                                  "that has room for the context, of those that cost nearly nothing by the quality "
                                  "report beside the model (default: f16; f32 on ref)",
                                  kv_type_names()))
                   ->check(CLI::Validator(
                       [](std::string& s) {
                         if (s == "auto" || kv_pair_from_name(s)) return std::string();
                         return fmt::format("expected {}, two of them as q8_0/q4_0, or auto, found '{}'",
                                            kv_type_names(), on_one_line(s));
                       },
                       "", "kv_type"))
                   ->option_text("TYPE[/TYPE]|auto");
  add_named(cmd, "--kv-k", c.kv_k, kv_types_by_name(), "Type of cached keys alone")->excludes(both);
  add_named(cmd, "--kv-v", c.kv_v, kv_types_by_name(), "Type of cached values alone")->excludes(both);
  cmd->add_option_function<std::vector<std::string>>(
         "--kv-layers", [&c](const std::vector<std::string>& entries) { c.kv_layers = all_kv_of_layers(entries); },
         "Types of single layers, such as 5=q8_0,0-3=q8_0/q4_0; the others have --kv's")
      ->delimiter(',')
      ->check(CLI::Validator(
          [](std::string& s) {
            if (kv_of_layers(s)) return std::string();
            return fmt::format("expected LAYER=TYPE or FIRST-LAST=TYPE, such as 5=q8_0 or 0-3=q8_0/q4_0, found '{}'",
                               on_one_line(s));
          },
          "", "kv_layers"))
      ->option_text("LAYERS=TYPE,...");
  add_named(cmd, "--kv-layout", c.kv_layout, kKvLayouts,
            "Full layers whose K is V: shared (auto) keeps one row of 640 values a token, split two of 512");
}

Status read_kv_choices(EngineConfig& c, const GgufFile& file) {
  if (!c.kv_auto) return Ok{};
  const std::string path = quality_path(c.model);
  if (!std::filesystem::exists(path)) {
    c.kv_reason = fmt::format("--kv auto: no {}, so the usual type; facet quality writes it", path);
    return Ok{};
  }
  const auto r = read_quality(path);
  if (!r) return r.error();
  choose_by_quality(*r, path, file_fingerprint(file), c);
  return Ok{};
}

}  // namespace facet
