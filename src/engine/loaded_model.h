#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "api/config.h"
#include "api/media.h"
#include "formats/gguf.h"
#include "model/drafter_file.h"
#include "model/types.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// What an engine is made of: files, with what is read from them once.
struct LoadedModel {
  GgufFile file;
  std::vector<DrafterFile> drafters;
  ModelCfg cfg;
  std::optional<Tokenizer> tokenizer;
  EngineDebug debug = {};
  std::unique_ptr<MediaEncoder> media = {};  // of pictures and sound; null: none
  int64_t drafter_pool_bytes = 0;            // of the page pool for rows of drafters; create_engine() sets it
};

}  // namespace facet
