#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "session/session_image.h"

namespace facet {

using ImagePtr = std::shared_ptr<const SessionImage>;

// Sessions that were given up, least recently used last, up to a number of bytes.
class HostTier {
 public:
  explicit HostTier(int64_t most_bytes) : most_(most_bytes) {}
  int64_t most() const { return most_; }
  int64_t bytes() const { return bytes_; }
  size_t size() const { return images_.size(); }

  // Takes the image in. Returns what has to go for it, least recently used first, or the image where it is too large.
  std::vector<ImagePtr> put(const ImagePtr& image);
  // Whether a state of exactly these tokens is there; then it counts as used now.
  bool holds(std::span<const int32_t> tokens, const std::string& salt);
  struct Found {
    ImagePtr image = {};  // null: none of more than `least` tokens
    int len = 0;          // tokens that it saves: all but the last at most
  };
  // The image from which `tokens` can go on with the fewest left. It stays, and counts as used now.
  Found find(std::span<const int32_t> tokens, const std::string& salt, int least, const Reaches& reaches);
  void look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const;
  // Most recently used first.
  const std::list<ImagePtr>& images() const { return images_; }

 private:
  int64_t most_, bytes_ = 0;
  std::list<ImagePtr> images_;
};

}  // namespace facet
