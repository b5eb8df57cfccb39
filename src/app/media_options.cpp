#include "app/media_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/option_checks.h"
#include "base/files.h"
#include "formats/gguf.h"
#include "media/picture.h"
#include "media/sound.h"
#include "model/gemma4_config.h"
#include "model/mmproj.h"

namespace facet {

void add_mmproj_options(CLI::App* cmd, EngineConfig& c) {
  c.mmproj = "auto";
  cmd->add_option("--mmproj", c.mmproj,
                  "Encoders of pictures and sound: a file; auto: one beside the model that fits it; none")
      ->check(not_empty())
      ->capture_default_str();
  cmd->add_option("--image-tokens", c.image_tokens, "Most tokens of a picture: 70, 140, 280, 560 or 1120")
      ->check(CLI::IsMember(std::vector<int>(std::begin(kImageTokenBudgets), std::end(kImageTokenBudgets))))
      ->capture_default_str();
  cmd->add_flag_callback(
      "--no-mmproj", [&c] { c.mmproj = "none"; }, "As --mmproj none");
  cmd->add_flag_callback(
      "--no-mmproj-offload", [&c] { c.mmproj_offload = false; }, "Encode on the CPU, also where the model is on a GPU");
}

Status find_encoders(EngineConfig& c, std::vector<std::string>* notes) {
  if (c.mmproj.empty()) return Ok{};
  if (c.mmproj == "none") return c.mmproj.clear(), Ok{};
  auto file = GgufFile::open(c.model);
  if (!file) return c.mmproj.clear(), Ok{};  // opening the model says what is wrong with it
  auto cfg = gemma4_config(*file);
  if (!cfg) return c.mmproj.clear(), Ok{};
  auto found = find_mmproj(c.mmproj, c.model, *cfg, notes);
  if (!found) return found.error();
  c.mmproj = std::move(*found);
  return Ok{};
}

void add_media_files(CLI::App* cmd, MediaFiles& files) {
  cmd->add_option("--image", files.images, "A picture that the prompt is about: JPEG, PNG, WebP, GIF or BMP; several")
      ->delimiter(',');
  cmd->add_option("--audio", files.sounds, "A sound: WAV, FLAC or MP3; several")->delimiter(',');
}

Result<std::vector<MediaItem>> encode_files(const MediaFiles& files, const Engine& engine) {
  std::vector<MediaItem> items;
  if (files.images.empty() && files.sounds.empty()) return items;
  MediaEncoder* encoder = engine.media();
  if (!encoder)
    return Error{files.images.empty() ? files.sounds[0] : files.images[0],
                 "this model has no encoder of pictures and sound beside it",
                 "give its mmproj file (--mmproj FILE); publishers have it beside the model"};
  MediaCache cache(0);
  auto bytes_of = [&](const std::string& path, size_t most) { return read_file(path, most); };
  for (const std::string& path : files.images) {
    auto bytes = bytes_of(path, PictureLimits{}.bytes);
    if (!bytes) return bytes.error();
    auto item = encode_picture(*encoder, cache, std::as_bytes(std::span(*bytes)), path);
    if (!item) return item.error();
    items.push_back(std::move(*item));
  }
  for (const std::string& path : files.sounds) {
    auto bytes = bytes_of(path, SoundLimits{}.bytes);
    if (!bytes) return bytes.error();
    auto pieces = encode_sound(*encoder, cache, std::as_bytes(std::span(*bytes)), path);
    if (!pieces) return pieces.error();
    std::move(pieces->begin(), pieces->end(), std::back_inserter(items));
  }
  return items;
}

std::vector<ContentPart> parts_of(std::span<const MediaItem> items) {
  std::vector<ContentPart> parts;
  for (const MediaItem& m : items)
    parts.push_back({m.is_picture ? ContentPart::Kind::kImage : ContentPart::Kind::kAudio, ""});
  return parts;
}

MediaTokens media_tokens(const Tokenizer& t) {
  return {.image_begin = t.find("<|image>"),
          .image = t.find("<|image|>"),
          .image_end = t.find("<image|>"),
          .audio_begin = t.find("<|audio>"),
          .audio = t.find("<|audio|>"),
          .audio_end = t.find("<audio|>")};
}

}  // namespace facet
