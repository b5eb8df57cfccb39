#include "api/media.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "media/patches.h"
#include "media/sound.h"

namespace facet {
namespace {

// 64 bits well mixed (the finaliser of SplitMix64).
uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

void append_soft_ids(const Hash128::Digest& hash, int n, std::vector<int32_t>& to) {
  uint64_t part[2];
  static_assert(sizeof part == sizeof hash);
  std::memcpy(part, &hash, sizeof part);
  // The first four hold 124 bits of the hash as they are, all others mixtures.
  for (int i = 0; i < n; ++i) {
    uint64_t bits = part[i / 2 % 2] >> (i % 2 * 31);
    if (i >= 4) bits = mix(part[0] + uint64_t(i)) ^ mix(part[1] ^ uint64_t(i) << 32);
    to.push_back(int32_t(uint32_t(bits) | 0x80000000u));
  }
}

int soft_token_border(std::span<const int32_t> tokens, int n) {
  constexpr int kLeast = 4;
  int run = 0;  // soft tokens in a row that end at i
  for (int i = 0; i < n; ++i) {
    if (is_soft_id(tokens[size_t(i)])) {
      ++run;
      continue;
    }
    if (run > 0 && run < kLeast) return std::max(0, i - run - 1);
    run = 0;
  }
  return run > 0 ? std::max(0, n - run - 1) : n;
}

MediaCache::Rows MediaCache::find(const Hash128::Digest& hash) {
  const std::lock_guard lock(mutex_);
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  entries_.splice(entries_.begin(), entries_, it->second);
  return entries_.front().rows;
}

void MediaCache::put(const Hash128::Digest& hash, Rows rows) {
  const auto bytes = [](const Rows& r) { return int64_t(r->size() * sizeof(float)); };
  const std::lock_guard lock(mutex_);
  if (by_hash_.contains(hash) || bytes(rows) > max_bytes_) return;
  stats_.bytes += bytes(rows);
  entries_.push_front({hash, std::move(rows)});
  by_hash_[hash] = entries_.begin();
  while (stats_.bytes > max_bytes_) {
    stats_.bytes -= bytes(entries_.back().rows);
    by_hash_.erase(entries_.back().hash);
    entries_.pop_back();
  }
}

MediaCache::Stats MediaCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

namespace {

template <class Encode>
Result<MediaItem> cached(MediaCache& cache, bool is_picture, const Hash128::Digest& hash, int n,
                         const std::string& where, Encode&& encode) {
  MediaItem item{.is_picture = is_picture, .hash = hash, .n = n, .rows = cache.find(hash)};
  if (item.rows) return item;
  auto rows = encode();
  if (!rows) {
    Error e = rows.error();
    e.where = where;
    return e;
  }
  item.rows = std::make_shared<const std::vector<float>>(std::move(*rows));
  cache.put(hash, item.rows);
  return item;
}

}  // namespace

Result<MediaItem> encode_picture(MediaEncoder& encoder, MediaCache& cache, std::span<const std::byte> bytes,
                                 const std::string& where, int budget) {
  if (!encoder.sees())
    return Error{where, "expected no picture: the mmproj file encodes sound only", "use one that sees"};
  if (budget <= 0) budget = encoder.budget();
  auto picture = decode_resized(bytes, std::min(budget, encoder.budget()), where);
  if (!picture) return picture.error();
  const int n = picture->width / 48 * (picture->height / 48);
  return cached(cache, true, picture_hash(*picture, budget, encoder.projector()), n, where,
                [&] { return encoder.encode(*picture); });
}

Result<std::vector<MediaItem>> encode_sound(MediaEncoder& encoder, MediaCache& cache, std::span<const std::byte> bytes,
                                            const std::string& where) {
  if (!encoder.hears())
    return Error{where, "expected no sound: the mmproj file encodes pictures only", "use one that hears"};
  auto sound = decode_sound(bytes, where);
  if (!sound) return sound.error();
  std::vector<MediaItem> items;
  for (const std::span<const float> piece : sound_pieces(sound->samples, encoder.least_samples())) {
    auto item = cached(cache, false, sound_hash(piece, encoder.projector()),
                       encoder.sound_tokens(int64_t(piece.size())), where, [&] { return encoder.encode(piece); });
    if (!item) return item.error();
    items.push_back(std::move(*item));
  }
  if (items.empty())
    return Error{where, "expected a sound, found one that is too short for a token", "send more of it"};
  return items;
}

Status expand_media(const MediaTokens& ids, std::span<const MediaItem> items, std::vector<int32_t>& prompt,
                    std::vector<MediaSpan>& spans) {
  std::vector<int32_t> out;
  size_t next = 0;
  for (const int32_t id : prompt) {
    const bool is_picture = id == ids.image, is_sound = id == ids.audio;
    if (id < 0 || (!is_picture && !is_sound)) {
      out.push_back(id);
      continue;
    }
    if (next == items.size() || items[next].is_picture != is_picture)
      return Error{"prompt", fmt::format("expected {} placeholders of pictures and sound in their order", items.size()),
                   "a text cannot spell them"};
    const MediaItem& item = items[next++];
    out.push_back(is_picture ? ids.image_begin : ids.audio_begin);
    spans.push_back({.begin = int(out.size()), .n = item.n, .is_picture = is_picture, .rows = item.rows});
    append_soft_ids(item.hash, item.n, out);
    out.push_back(is_picture ? ids.image_end : ids.audio_end);
  }
  if (next != items.size())
    return Error{"prompt", fmt::format("expected {} placeholders of pictures and sound, found {}", items.size(), next),
                 "this vocabulary may have none"};
  prompt = std::move(out);
  return Ok{};
}

}  // namespace facet
