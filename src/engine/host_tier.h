#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"

namespace facet {

// All that a sequence's state is, in host memory: rows of the model and of every drafter, as KvCache::parts gives them,
// and what drafters keep beside them. A state without its drafters' is none: drafts would be worse for it.
struct SessionImage {
  std::vector<int32_t> tokens = {};
  std::string salt = {};
  KvState state = {};
  std::vector<std::byte> rows = {};
  struct Drafter {
    int held = 0;  // rows that it has
    KvState state = {};
    std::vector<std::byte> rows = {};
    std::vector<float> beside = {};
  };
  std::vector<Drafter> drafters = {};
  int64_t bytes() const {
    int64_t n = int64_t(rows.size() + tokens.size() * sizeof(int32_t));
    for (const Drafter& d : drafters) n += int64_t(d.rows.size() + d.beside.size() * sizeof(float));
    return n;
  }
};

// Sessions that were given up, least recently used last, up to a number of bytes.
class HostTier {
 public:
  explicit HostTier(int64_t most_bytes) : most_(most_bytes) {}
  int64_t most() const { return most_; }
  int64_t bytes() const { return bytes_; }
  size_t size() const { return images_.size(); }

  // Drops what was used least recently until there is room. An image that is too large for all of it is not kept.
  void put(SessionImage image);
  // Whether a state of exactly these tokens is there; then it counts as used now.
  bool holds(std::span<const int32_t> tokens, const std::string& salt);
  // The longest image whose tokens `tokens` begins with, shorter than `tokens` itself; null: none of more than `least`
  // tokens. It stays, and counts as used now.
  std::shared_ptr<const SessionImage> find(std::span<const int32_t> tokens, const std::string& salt, int least);

 private:
  int64_t most_, bytes_ = 0;
  std::list<std::shared_ptr<const SessionImage>> images_;
};

}  // namespace facet
