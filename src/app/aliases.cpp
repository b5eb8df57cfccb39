#include "app/aliases.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/print.h"

namespace facet {
namespace {

struct Alias {
  const char* theirs;
  const char* ours;
};
constexpr Alias kAliases[] = {
    {"-md", "--draft"},
    {"--model-draft", "--draft"},
    {"--spec-draft-model", "--draft"},
    {"--mtp", "--draft"},
    {"--draft-method", "--draft"},
    {"--spec-type", "--draft"},
    {"--spec-draft-n-max", "--draft-max"},
    {"--spec-draft-n-min", "--draft-min"},
    {"-ctk", "--kv-k"},
    {"--cache-type-k", "--kv-k"},
    {"-ctv", "--kv-v"},
    {"--cache-type-v", "--kv-v"},
    {"-ngl", "--backend"},
    {"--gpu-layers", "--backend"},
    {"--n-gpu-layers", "--backend"},
    {"-hf", "--hf-repo"},
    {"-hfr", "--hf-repo"},
    {"-hff", "--hf-file"},
    {"-hfd", "--draft"},
    {"-hfrd", "--draft"},
    {"--hf-repo-draft", "--draft"},
};
const Alias* alias_of(const std::string& name) {
  const auto* at =
      std::find_if(std::begin(kAliases), std::end(kAliases), [&](const Alias& a) { return name == a.theirs; });
  return at == std::end(kAliases) ? nullptr : at;
}

// What their value is called here. llama.cpp names drafters by kind, and counts the layers on a GPU: here it is all or
// none.
std::string own_value(const Alias& a, const std::string& value) {
  if (std::string(a.theirs) == "--spec-type") {
    if (value.starts_with("draft-")) return value.substr(6);
    if (value.starts_with("ngram")) return "ngram";
  }
  if (std::string(a.theirs).find("hf") != std::string::npos && std::string(a.ours) == "--draft") return "hf:" + value;
  if (std::string(a.ours) == "--backend") return value == "0" ? "cpu" : "auto";
  return value;
}

// The command that the arguments name.
const CLI::App* command_of(const CLI::App& app, const std::vector<std::string>& args) {
  const CLI::App* cmd = &app;
  for (const std::string& word : args) {
    const auto subs = cmd->get_subcommands([&](const CLI::App* s) { return s->get_name() == word; });
    if (subs.empty()) break;
    cmd = subs[0];
  }
  return cmd;
}

}  // namespace

std::vector<std::string> with_own_names(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc), out;
  const CLI::App* cmd = command_of(app, args);
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string name = word.substr(0, equals);
    const Alias* alias = alias_of(name);
    if (!alias || !cmd->get_option_no_throw(alias->ours)) {
      out.push_back(word);
      // The value of an option is no option, whatever it looks like.
      const CLI::Option* option = equals == std::string::npos ? cmd->get_option_no_throw(name) : nullptr;
      if (option && option->get_items_expected_min() > 0 && i + 1 < args.size()) out.push_back(args[++i]);
      continue;
    }
    std::optional<std::string> value;
    if (equals != std::string::npos)
      value = word.substr(equals + 1);
    else if (i + 1 < args.size())
      value = args[++i];
    out.push_back(alias->ours);
    if (value) out.push_back(own_value(*alias, *value));
    if (name == "-hf" || name == "-hfr" || name == "-hff") continue;  // short names, which the options' texts tell
    print_err("note: {}{} is {}{} here\n", name, value ? " " + *value : "", alias->ours, value ? " " + out.back() : "");
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace facet
