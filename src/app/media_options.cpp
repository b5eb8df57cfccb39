#include "app/media_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "api/media_load.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "base/files.h"
#include "base/print.h"
#include "formats/gguf.h"
#include "media/picture.h"
#include "media/sound.h"
#include "model/gemma4_config.h"
#include "model/mmproj.h"
#include "tokenizer/media_part.h"
#include "tools/video_file.h"

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
  auto found = find_mmproj(c.mmproj, c.model, *cfg, notes, hub_folder_of(c.model));
  if (!found) return found.error();
  c.mmproj = std::move(*found);
  return Ok{};
}

void add_media_files(CLI::App* cmd, MediaFiles& files) {
  cmd->add_option("--image", files.images, "A picture that the prompt is about: JPEG, PNG, WebP, GIF or BMP; several")
      ->delimiter(',');
  cmd->add_option("--video", files.videos,
                  "A video, of which up to 32 pictures are taken, by the program ffmpeg; several")
      ->delimiter(',');
  cmd->add_option("--audio", files.sounds, "A sound: WAV, FLAC or MP3; several")->delimiter(',');
}

namespace {

Result<EncodedPart> encode(const std::string& bytes, const std::string& path, bool is_picture, MediaEncoder& encoder,
                           int budget = 0) {
  MediaCache none(0);
  MediaLoad load(is_picture, std::as_bytes(std::span(bytes)), path, budget);
  if (auto ok = load.open(encoder, none); !ok) return ok.error();
  if (auto ok = load.encode(encoder, none); !ok) return ok.error();
  return EncodedPart{load.items(), ""};
}

Result<std::vector<EncodedPart>> encode_video(const std::string& path, MediaEncoder& encoder) {
  auto video = read_video(path, {}, Interrupts::pending);
  if (Interrupts::pending()) Interrupts::clear();
  if (!video) return video.error();
  if (!video->is_timed) print_err("note: {} has no times: 24 pictures a second are assumed\n", path);
  std::vector<EncodedPart> parts;
  for (const VideoFrame& f : video->frames) {
    auto part = encode(f.png, path, /*is_picture=*/true, encoder, kFrameTokens);
    if (!part) return part.error();
    part->before = before_frame(parts.size(), f.second);
    parts.push_back(std::move(*part));
  }
  return parts;
}

}  // namespace

Result<std::vector<EncodedPart>> encode_file(const std::string& path, MediaKind kind, const Engine& engine) {
  MediaEncoder* encoder = engine.media();
  if (!encoder)
    return Error{path, "this model has no encoder of pictures and sound beside it",
                 "give its mmproj file (--mmproj FILE); publishers have it beside the model"};
  if (kind == MediaKind::kVideo && !encoder->sees())
    return Error{path, "expected no video: the mmproj file encodes sound only", "use one that sees"};
  if (kind == MediaKind::kVideo) return encode_video(path, *encoder);
  const bool is_picture = kind == MediaKind::kPicture;
  auto bytes = read_file(path, is_picture ? PictureLimits{}.bytes : SoundLimits{}.bytes);
  if (!bytes) return bytes.error();
  auto part = encode(*bytes, path, is_picture, *encoder);
  if (!part) return part.error();
  return std::vector<EncodedPart>{std::move(*part)};
}

}  // namespace facet
