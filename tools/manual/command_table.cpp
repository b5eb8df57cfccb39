#include "command_table.h"

#include <algorithm>

namespace facet {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& cmd) {
  return cmd.get_options([](const CLI::Option* o) { return !o->get_group().empty(); });
}

std::vector<std::string> dashed_names(const CLI::Option& o) {
  std::vector<std::string> names;
  for (const std::string& s : o.get_snames()) names.push_back("-" + s);
  for (const std::string& s : o.get_lnames()) names.push_back("--" + s);
  return names;
}

std::vector<std::string> choices_of(const CLI::Option& o) {
  const std::string type = o.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> words;
  if (open == type.npos || close == type.npos || close < open) return words;
  std::string rest = type.substr(open + 1, close - open - 1) + ",";
  for (size_t at; (at = rest.find(',')) != rest.npos; rest.erase(0, at + 1)) {
    std::string word = rest.substr(0, std::min(at, rest.find("->")));
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace facet
