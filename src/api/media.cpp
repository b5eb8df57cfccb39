#include "api/media.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

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

MediaCache::Rows MediaCache::find_locked(const Hash128::Digest& hash) {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return entries_.front().rows;
}

MediaCache::Rows MediaCache::find(const Hash128::Digest& hash) {
  const std::lock_guard lock(mutex_);
  Rows rows = find_locked(hash);
  ++(rows ? stats_.hits : stats_.misses);
  return rows;
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

std::optional<std::vector<MediaItem>> MediaCache::find_file(const Hash128::Digest& file) {
  const std::lock_guard lock(mutex_);
  const auto it = files_.find(file);
  if (it == files_.end()) return std::nullopt;
  std::vector<MediaItem> items = it->second;
  for (MediaItem& i : items)
    if (!(i.rows = find_locked(i.hash))) return std::nullopt;
  stats_.hits += int64_t(items.size());
  return items;
}

void MediaCache::put_file(const Hash128::Digest& file, const std::vector<MediaItem>& items) {
  const std::lock_guard lock(mutex_);
  if (max_bytes_ == 0 || files_.contains(file)) return;
  std::vector<MediaItem>& kept = files_[file] = items;
  for (MediaItem& i : kept) i.rows = nullptr;
  file_order_.push_front(file);
  if (file_order_.size() <= kMostFiles) return;
  files_.erase(file_order_.back());
  file_order_.pop_back();
}

void MediaCache::encoded(double seconds) {
  const std::lock_guard lock(mutex_);
  stats_.encode_s += seconds;
}

MediaCache::Stats MediaCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Status insert_media(const MediaTokens& ids, std::span<const MediaItem> items, std::span<const size_t> at,
                    std::vector<int32_t>& prompt, std::vector<MediaSpan>& spans) {
  std::vector<int32_t> out;
  size_t from = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const MediaItem& item = items[i];
    const int32_t begin = item.is_picture ? ids.image_begin : ids.audio_begin;
    const int32_t end = item.is_picture ? ids.image_end : ids.audio_end;
    if (begin < 0 || end < 0)
      return Error{"prompt",
                   fmt::format("expected a vocabulary with the tokens around a {}, found none",
                               item.is_picture ? "picture" : "sound"),
                   "this model takes none"};
    out.insert(out.end(), prompt.begin() + ptrdiff_t(from), prompt.begin() + ptrdiff_t(at[i]));
    from = at[i];
    out.push_back(begin);
    spans.push_back({.begin = int(out.size()), .n = item.n, .is_picture = item.is_picture, .rows = item.rows});
    append_soft_ids(item.hash, item.n, out);
    out.push_back(end);
  }
  out.insert(out.end(), prompt.begin() + ptrdiff_t(from), prompt.end());
  prompt = std::move(out);
  return Ok{};
}

Status expand_media(const MediaTokens& ids, std::span<const MediaItem> items, std::vector<int32_t>& prompt,
                    std::vector<MediaSpan>& spans) {
  std::vector<int32_t> text;
  std::vector<size_t> at;
  for (const int32_t id : prompt) {
    const bool is_picture = id == ids.image, is_sound = id == ids.audio;
    if (id < 0 || (!is_picture && !is_sound)) {
      text.push_back(id);
      continue;
    }
    if (at.size() == items.size() || items[at.size()].is_picture != is_picture)
      return Error{"prompt", fmt::format("expected {} placeholders of pictures and sound in their order", items.size()),
                   "a text cannot spell them"};
    at.push_back(text.size());
  }
  if (at.size() != items.size())
    return Error{"prompt",
                 fmt::format("expected {} placeholders of pictures and sound, found {}", items.size(), at.size()),
                 "this vocabulary may have none"};
  prompt = std::move(text);
  return insert_media(ids, items, at, prompt, spans);
}

}  // namespace facet
