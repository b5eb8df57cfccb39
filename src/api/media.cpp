#include "api/media.h"

#include <cstring>

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
    if (run > 0 && run < kLeast) return i - run;
    run = 0;
  }
  return n - run;
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

}  // namespace facet
