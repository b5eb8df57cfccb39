#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace facet {

// Gives every command its help: options in groups of one concern, wrapped to the terminal, with an example.
void arrange_help(CLI::App& app);
// What stands for the value of an option: "FILE", "FOLDER", ..., or the name of its type.
std::string value_name(const CLI::Option& o);
// What `facet` alone says: the commands to begin with.
std::string first_words();

}  // namespace facet
