#pragma once
#include <string>
#include <utility>
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

// Files given on a command line: --image, --video and --audio.
enum class MediaKind { kPicture, kVideo, kSound };
struct MediaFiles {
  std::vector<std::string> images, videos, sounds;
  // f(path, kind) for each, in the order they stand in a prompt, until one fails.
  template <class F>
  Status for_each(F&& f) const {
    for (const auto& [paths, kind] : {std::pair(&images, MediaKind::kPicture), std::pair(&videos, MediaKind::kVideo),
                                      std::pair(&sounds, MediaKind::kSound)})
      for (const std::string& path : *paths)
        if (Status ok = f(path, kind); !ok) return ok;
    return Ok{};
  }
};
void add_media_files(CLI::App* cmd, MediaFiles& files);
// A file's part of a message: one of several pictures and pieces of sound, or a video's frames.
struct EncodedPart {
  std::vector<MediaItem> items;
  std::string before;  // ContentPart::before
};
Result<std::vector<EncodedPart>> encode_file(const std::string& path, MediaKind kind, const Engine& engine);

}  // namespace facet
