#include "daemon/media_prompt.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "api/media_load.h"
#include "media/picture.h"
#include "media/sound.h"
#include "tokenizer/media_part.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

constexpr size_t kMostMedia = 32;

Status encode(const nlohmann::json& data, const std::string& where, MediaEncoder& encoder, MediaCache& cache, size_t at,
              std::vector<MediaItem>& items, std::vector<size_t>& places) {
  const ContentPart part = media_from_url(
      ContentPart::Kind::kImage, data.is_string() ? std::string_view(data.get_ref<const std::string&>()) : "", where);
  if (part.error) return *part.error;
  const auto bytes = std::as_bytes(std::span(*part.bytes));
  MediaLoad load(/*is_picture=*/!picture_kind(bytes).empty() || sound_kind(bytes).empty(), bytes, where);
  if (auto ok = load.open(encoder, cache); !ok) return ok;
  if (auto ok = load.encode(encoder, cache); !ok) return ok;
  for (const MediaItem& item : load.items()) items.push_back(item), places.push_back(at);
  return Ok{};
}

}  // namespace

Result<MediaPrompt> media_prompt(const Engine& engine, std::string_view text, const nlohmann::json& list, bool add_bos,
                                 MediaCache& cache) {
  const std::string field = "multimodal_data";
  const Tokenizer& t = *engine.tokenizer();
  MediaEncoder* encoder = engine.media();
  if (!list.is_array() || list.size() > kMostMedia)
    return Error{field, fmt::format("expected an array of at most {} texts in base64", kMostMedia), ""};
  if (!encoder)
    return Error{field, "expected none: this model has no encoder of pictures and sound beside it",
                 "start with --mmproj FILE"};
  MediaPrompt p;
  std::vector<MediaItem> items;
  std::vector<size_t> places;
  const auto add = [&](std::string_view piece) {
    if (piece.empty() && !p.ids.empty()) return;
    const auto ids = t.encode(piece, add_bos && p.ids.empty(), /*parse_special=*/true);
    p.ids.insert(p.ids.end(), ids.begin(), ids.end());
  };
  size_t n = 0;
  for (size_t mark; (mark = text.find(kDaemonMediaMarker)) != std::string_view::npos; ++n) {
    if (n == list.size()) break;
    add(text.substr(0, mark));
    text.remove_prefix(mark + kDaemonMediaMarker.size());
    if (auto ok = encode(list[n], fmt::format("{}[{}]", field, n), *encoder, cache, p.ids.size(), items, places); !ok)
      return ok.error();
  }
  if (n != list.size() || text.find(kDaemonMediaMarker) != std::string_view::npos)
    return Error{field, fmt::format("expected one for each {} of the text, found {}", kDaemonMediaMarker, list.size()),
                 ""};
  add(text);
  const MediaTokens ids{.image_begin = t.find("<|image>"),
                        .image_end = t.find("<image|>"),
                        .audio_begin = t.find("<|audio>"),
                        .audio_end = t.find("<audio|>")};
  if (auto ok = insert_media(ids, items, places, p.ids, p.media); !ok) return ok.error();
  return p;
}

}  // namespace facet
