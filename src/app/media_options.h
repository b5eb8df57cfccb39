#pragma once
#include <string>
#include <vector>

#include "api/engine.h"
#include "api/media.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace facet {

// Options of commands that take pictures and sound: --mmproj, --image-tokens, --no-mmproj-offload.
void add_mmproj_options(CLI::App* cmd, EngineConfig& c);
// The file that --mmproj means: a path, "auto" (beside the model, by content) or "none". note: what was left out.
Status find_encoders(EngineConfig& c, std::vector<std::string>* notes);

// Files given on a command line: --image and --audio.
struct MediaFiles {
  std::vector<std::string> images, sounds;
};
void add_media_files(CLI::App* cmd, MediaFiles& files);
Result<std::vector<MediaItem>> encode_file(const std::string& path, bool is_picture, const Engine& engine);
// All of them, pictures first.
Result<std::vector<MediaItem>> encode_files(const MediaFiles& files, const Engine& engine);
std::vector<ContentPart> parts_of(std::span<const MediaItem> items);

}  // namespace facet
