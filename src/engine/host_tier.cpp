#include "engine/host_tier.h"

#include <algorithm>

namespace facet {

void HostTier::put(SessionImage image) {
  const int64_t n = image.bytes();
  if (n > most_ || holds(image.tokens, image.salt)) return;
  while (bytes_ + n > most_) {
    bytes_ -= images_.back()->bytes();
    images_.pop_back();
  }
  images_.push_front(std::make_shared<const SessionImage>(std::move(image)));
  bytes_ += n;
}

bool HostTier::holds(std::span<const int32_t> tokens, const std::string& salt) {
  for (auto i = images_.begin(); i != images_.end(); ++i)
    if ((*i)->salt == salt && std::equal(tokens.begin(), tokens.end(), (*i)->tokens.begin(), (*i)->tokens.end())) {
      images_.splice(images_.begin(), images_, i);
      return true;
    }
  return false;
}

std::shared_ptr<const SessionImage> HostTier::find(std::span<const int32_t> tokens, const std::string& salt,
                                                   int least) {
  auto best = images_.end();
  size_t longest = size_t(std::max(0, least));
  for (auto i = images_.begin(); i != images_.end(); ++i)
    if ((*i)->salt == salt && (*i)->tokens.size() > longest && (*i)->tokens.size() < tokens.size() &&
        std::equal((*i)->tokens.begin(), (*i)->tokens.end(), tokens.begin()))
      best = i, longest = (*i)->tokens.size();
  if (best == images_.end()) return nullptr;
  images_.splice(images_.begin(), images_, best);
  return images_.front();
}

}  // namespace facet
