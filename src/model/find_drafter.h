#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace facet {

// A drafter for a model among the files that lie around. Names only say where to look first: whether one belongs to the
// model is decided by its content (widths, vocabulary, layers).
struct DrafterSearch {
  std::string path = {};               // the smallest that fits; empty if none does
  std::vector<std::string> also = {};  // larger ones whose names say as much, not looked into
  std::vector<Error> unfit = {};       // why files were passed over; beside a model only such as may be meant for it
};

// Beside the model, and in folders beside it that are named for drafters (MTP/, dflash/). kind: dflash or mtp.
//   mtp-X*.gguf   MTP/X-*-MTP.gguf   X-assistant-MTP-*.gguf   X-mtp*.gguf   *dflash*   with and without -UD and
//   quantisation
DrafterSearch find_drafter_beside(const std::string& model, const std::string& kind);

// In a folder that was given for it, under whatever name.
DrafterSearch find_drafter_in(const std::string& folder, const std::string& model, const std::string& kind);

// Words of a file's name that tell models apart: "X-UD-Q4_K_XL.gguf" and "mtp-X.gguf" have the same.
std::vector<std::string> name_words(const std::string& file_name);

}  // namespace facet
