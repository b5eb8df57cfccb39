#pragma once
#include <string>

namespace facet {

// The model that comes with the program, found relative to the executable; empty if it is not there.
std::string default_model_path();
// What a drafter beside the model may be called, for a message: "facet-nano-dflash*".
std::string drafter_pattern(const std::string& model, const std::string& kind);
// The questions that go with it (facet eval).
std::string default_eval_path();

}  // namespace facet
