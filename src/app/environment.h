#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace facet {

// Options that the environment sets: FACET_CTX_SIZE=8192 is --ctx-size 8192, of a flag 1 or 0. What the command line
// says wins, and so does an option that excludes one of these. `args`: as with_own_names returns them. Returns the
// names that were taken, for errors.
std::vector<std::string> add_environment(const CLI::App& app, std::vector<std::string>& args);

}  // namespace facet
