#pragma once
#include <string>

namespace facet {

// The model that comes with the program, found relative to the executable; empty if it is not there.
std::string default_model_path();

}  // namespace facet
