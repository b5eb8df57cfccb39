#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace facet {

// Options that the environment sets: FACET_CTX_SIZE=8192 is --ctx-size 8192, of a flag 1 or 0. What the command line
// says wins, and so does an option that excludes one of these. `args`: as with_own_names returns them. Returns the
// names that were taken, for errors.
std::vector<std::string> add_environment(const CLI::App& app, std::vector<std::string>& args);

// The same of a file:
//   ctx-size = 8192      # before a section: of every command that has the option
//   [serve]              # of this command alone, and before the above
//   port = 9000
// FACET_CONFIG names it; else it is facet/facet.conf in XDG_CONFIG_HOME or ~/.config, if it is there. Called after
// add_environment, which wins. Errors: what is no option, with its file and line.
struct FromFile {
  std::string name, where;  // of an option that was taken; "FILE line 3"
};
Result<std::vector<FromFile>> add_config_file(const CLI::App& app, std::vector<std::string>& args);

}  // namespace facet
