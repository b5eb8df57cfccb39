#include "api/media_load.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "media/patches.h"
#include "media/picture.h"
#include "media/sound.h"

namespace facet {

// Whether all of the file is in the cache.
bool MediaLoad::known(MediaEncoder& encoder, MediaCache& cache) {
  if (!std::exchange(is_hashed_, true)) file_ = media_file_hash(bytes_, budget_of(encoder), encoder.projector());
  auto items = cache.find_file(file_);
  if (!items) return false;
  items_ = std::move(*items);
  return true;
}

Status MediaLoad::open(MediaEncoder& encoder, MediaCache& cache) {
  if (is_picture_) {
    if (!encoder.sees())
      return Error{where_, "expected no picture: the mmproj file encodes sound only", "use one that sees"};
    auto info = picture_info(bytes_, where_);
    if (!info) return info.error();
    auto size = target_size(info->width, info->height, budget_of(encoder), where_);
    if (!size) return size.error();
    n_tokens_ = size->soft_tokens, n_items_ = 1;
    return Ok{};
  }
  if (!encoder.hears())
    return Error{where_, "expected no sound: the mmproj file encodes pictures only", "use one that hears"};
  if (known(encoder, cache)) {
    for (const MediaItem& i : items_) n_tokens_ += i.n;
    n_items_ = int(items_.size());
    return Ok{};
  }
  auto sound = decode_sound(bytes_, where_);
  if (!sound) return sound.error();
  samples_ = std::move(sound->samples);
  for (const std::span<const float> piece : sound_pieces(samples_, encoder.least_samples()))
    n_tokens_ += encoder.sound_tokens(int64_t(piece.size())), ++n_items_;
  if (n_items_ == 0)
    return Error{where_, "expected a sound, found one that is too short for a token", "send more of it"};
  return Ok{};
}

template <class Encode>
Status MediaLoad::add(MediaCache& cache, const Hash128::Digest& hash, int n, Encode&& encode) {
  MediaItem item{.is_picture = is_picture_, .hash = hash, .n = n, .rows = cache.find(hash)};
  if (!item.rows) {
    const auto begin = std::chrono::steady_clock::now();
    auto rows = encode();
    if (!rows) {
      Error e = rows.error();
      e.where = where_;
      return e;
    }
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    cache.encoded(s);
    encode_s_ += s, ++n_encoded_;
    item.rows = std::make_shared<const std::vector<float>>(std::move(*rows));
    cache.put(hash, item.rows);
  }
  items_.push_back(std::move(item));
  return Ok{};
}

Status MediaLoad::encode(MediaEncoder& encoder, MediaCache& cache) {
  if (!items_.empty() || known(encoder, cache)) return Ok{};
  if (is_picture_) {
    auto picture = decode_resized(bytes_, budget_of(encoder), where_);
    if (!picture) return picture.error();
    const Hash128::Digest hash = picture_hash(*picture, budget_of(encoder), encoder.projector());
    if (auto ok = add(cache, hash, n_tokens_, [&] { return encoder.encode(*picture); }); !ok) return ok;
  } else {
    for (const std::span<const float> piece : sound_pieces(samples_, encoder.least_samples())) {
      auto ok = add(cache, sound_hash(piece, encoder.projector()), encoder.sound_tokens(int64_t(piece.size())),
                    [&] { return encoder.encode(piece); });
      if (!ok) return items_.clear(), ok;
    }
    samples_ = {};
  }
  cache.put_file(file_, items_);
  return Ok{};
}

}  // namespace facet
