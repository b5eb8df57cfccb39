#include "app/media_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "api/media_load.h"
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
  cmd->add_option_function<int>(
         "--image-tokens", [&c](int n) { c.image_tokens = image_token_budget(n); },
         "Most tokens of a picture: 70, 140, 280, 560 or 1120; another number: the next one below")
      ->check(CLI::Range(kImageTokenBudgets[0], 1 << 24))
      ->default_str(std::to_string(c.image_tokens));
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

Result<std::vector<MediaItem>> encode_file(const std::string& path, bool is_picture, const Engine& engine) {
  MediaEncoder* encoder = engine.media();
  if (!encoder)
    return Error{path, "this model has no encoder of pictures and sound beside it",
                 "give its mmproj file (--mmproj FILE); publishers have it beside the model"};
  auto bytes = read_file(path, is_picture ? PictureLimits{}.bytes : SoundLimits{}.bytes);
  if (!bytes) return bytes.error();
  MediaCache none(0);
  MediaLoad load(is_picture, std::as_bytes(std::span(*bytes)), path);
  if (auto ok = load.open(*encoder, none); !ok) return ok.error();
  if (auto ok = load.encode(*encoder, none); !ok) return ok.error();
  return load.items();
}

Result<std::vector<MediaItem>> encode_files(const MediaFiles& files, const Engine& engine) {
  std::vector<MediaItem> items;
  for (const auto* paths : {&files.images, &files.sounds})
    for (const std::string& path : *paths) {
      auto some = encode_file(path, paths == &files.images, engine);
      if (!some) return some.error();
      std::move(some->begin(), some->end(), std::back_inserter(items));
    }
  return items;
}

std::vector<ContentPart> parts_of(std::span<const MediaItem> items) {
  std::vector<ContentPart> parts;
  for (const MediaItem& m : items)
    parts.push_back({m.is_picture ? ContentPart::Kind::kImage : ContentPart::Kind::kAudio, ""});
  return parts;
}

}  // namespace facet
