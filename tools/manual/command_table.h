#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

// The program's commands and options, as the manual page and the completions list them.
namespace facet {

std::vector<const CLI::App*> commands_of(const CLI::App& app);
// As --help: without the hidden ones.
std::vector<const CLI::Option*> options_of(const CLI::App& cmd);
// "-c", "--ctx-size"
std::vector<std::string> dashed_names(const CLI::Option& o);
// The words that may follow an option, if they are a list: "{auto,cpu}", or "{f16->1,...}" with what they stand for.
std::vector<std::string> choices_of(const CLI::Option& o);

std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace facet
