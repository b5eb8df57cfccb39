#pragma once
#include <string>

#include "base/result.h"
#include "engine/loaded_model.h"

namespace facet {

// Maps a model's file and reads its configuration and vocabulary.
Result<LoadedModel> load_model(const std::string& path);

// "dflash", "mtp" or "eagle3".
Result<std::string> drafter_kind_of(const std::string& path);

}  // namespace facet
