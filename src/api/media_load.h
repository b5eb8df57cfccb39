#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/media.h"

namespace facet {

// A picture or a sound as it came, on its way into a prompt: open() tells how many soft tokens it has, encode() makes
// them, or finds them in the cache. One thread at a time; a sound of more than 30 s is several items.
class MediaLoad {
 public:
  // bytes stay where they are. budget: most soft tokens of a picture; 0: the encoder's. where: for errors.
  MediaLoad(bool is_picture, std::span<const std::byte> bytes, std::string where, int budget = 0)
      : is_picture_(is_picture), bytes_(bytes), where_(std::move(where)), budget_(budget) {}

  // Of a picture the header alone is read, which takes no time to speak of. A sound is decoded: up to a second.
  Status open(MediaEncoder& encoder, MediaCache& cache);
  bool is_open() const { return n_items_ > 0; }
  int n_tokens() const { return n_tokens_; }  // soft tokens, after open()
  int n_items() const { return n_items_; }
  bool is_picture() const { return is_picture_; }

  // After open(). Decodes what the cache does not have.
  Status encode(MediaEncoder& encoder, MediaCache& cache);
  const std::vector<MediaItem>& items() const { return items_; }
  int n_encoded() const { return n_encoded_; }  // of the items, those that the cache did not have
  double encode_s() const { return encode_s_; }

 private:
  int budget_of(const MediaEncoder& e) const { return budget_ > 0 ? std::min(budget_, e.budget()) : e.budget(); }
  bool known(MediaEncoder& encoder, MediaCache& cache);
  template <class Encode>
  Status add(MediaCache& cache, const Hash128::Digest& hash, int n, Encode&& encode);

  const bool is_picture_;
  std::span<const std::byte> bytes_;
  std::string where_;
  int budget_;
  Hash128::Digest file_ = {};
  bool is_hashed_ = false;
  std::vector<float> samples_;  // of a sound that is open
  int n_tokens_ = 0, n_items_ = 0;
  std::vector<MediaItem> items_;
  int n_encoded_ = 0;
  double encode_s_ = 0;
};

}  // namespace facet
