#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace facet {

// The arguments without the program's name, last first, as CLI::App::parse wants them; options as llama.cpp and other
// engines spell them (llama_options.h) have the names that they have here, and a note says so, in the order typed. What
// changes nothing goes, with a note; what is not there is an error that says what to use. Only where a command loads a
// model and has no option of that name.
Result<std::vector<std::string>> with_own_names(const CLI::App& app, int argc, const char* const* argv);

// What CLI says of arguments that no option takes, in the order typed.
std::string unexpected_arguments(const CLI::App& app);

}  // namespace facet
