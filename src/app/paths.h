#pragma once
#include <string>

namespace facet {

// The model that comes with the program, found relative to the executable; empty if it is not there.
std::string default_model_path();
// A drafter of this kind (dflash, mtp) for the model: a file or folder beside it whose name is the model's, up to its
// quantisation, then the kind; empty if there is none. A GGUF is preferred.
std::string drafter_beside(const std::string& model, const std::string& kind);
std::string drafter_pattern(const std::string& model, const std::string& kind);  // "facet-nano-dflash*"
// The questions that go with it (facet eval).
std::string default_eval_path();

}  // namespace facet
