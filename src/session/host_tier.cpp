#include "session/host_tier.h"

#include <algorithm>

namespace facet {

std::vector<ImagePtr> HostTier::put(const ImagePtr& image) {
  const int64_t n = image->bytes();
  if (holds(image->tokens, image->salt)) return {};
  if (n > most_) return {image};
  std::vector<ImagePtr> gone;
  while (bytes_ + n > most_) {
    gone.push_back(std::move(images_.back()));
    images_.pop_back();
    bytes_ -= gone.back()->bytes();
  }
  images_.push_front(image);
  bytes_ += n;
  return gone;
}

bool HostTier::holds(std::span<const int32_t> tokens, const std::string& salt) {
  for (auto i = images_.begin(); i != images_.end(); ++i)
    if ((*i)->salt == salt && std::equal(tokens.begin(), tokens.end(), (*i)->tokens.begin(), (*i)->tokens.end())) {
      images_.splice(images_.begin(), images_, i);
      return true;
    }
  return false;
}

HostTier::Found HostTier::find(std::span<const int32_t> tokens, const std::string& salt, int least,
                               const Reaches& reaches) {
  auto best = images_.end();
  int longest = least;
  for (auto i = images_.begin(); i != images_.end(); ++i) {
    const SessionImage& image = **i;
    if (image.salt != salt) continue;
    const int len = soft_token_border(tokens, int(std::min(shared_prefix(image.tokens, tokens), tokens.size() - 1)));
    if (len < longest || len <= least || !reaches(image.states(), len)) continue;
    if (best != images_.end() && len == longest && image.bytes() >= (*best)->bytes()) continue;
    best = i, longest = len;
  }
  if (best == images_.end()) return {};
  images_.splice(images_.begin(), images_, best);
  return {images_.front(), longest};
}

void HostTier::look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const {
  for (const ImagePtr& i : images_)
    if (i->salt == salt) nearest.look_at(i->tokens, tokens);
}

}  // namespace facet
