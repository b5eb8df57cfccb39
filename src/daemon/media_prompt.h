#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "api/engine.h"
#include "api/media.h"

namespace facet {

// Stands for a picture or a sound in a text, as in llama-server's prompts.
inline constexpr std::string_view kDaemonMediaMarker = "<__media__>";

struct MediaPrompt {
  std::vector<int32_t> ids;
  std::vector<MediaSpan> media;
};
// A text with a marker for each of `list`: base64 or data: URLs of pictures and sounds, at most 32. They are encoded
// here, those that the cache does not have. Errors name the field multimodal_data.
Result<MediaPrompt> media_prompt(const Engine& engine, std::string_view text, const nlohmann::json& list, bool add_bos,
                                 MediaCache& cache);

}  // namespace facet
