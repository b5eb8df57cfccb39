#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace facet {

// The arguments without the program's name, last first, as CLI::App::parse wants them; options as llama.cpp and other
// engines spell them have the names that they have here, and a note says so. Only where a command has the option.
std::vector<std::string> with_own_names(const CLI::App& app, int argc, const char* const* argv);

}  // namespace facet
