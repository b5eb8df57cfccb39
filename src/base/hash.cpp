#include "base/hash.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"

namespace facet {
namespace {
XXH3_state_t* state_of(void* p) { return static_cast<XXH3_state_t*>(p); }
}  // namespace

uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hash128::Hash128() : state_(XXH3_createState()) {
  CHECK(state_ != nullptr, "no memory for a hash");
  XXH3_128bits_reset(state_of(state_));
}
Hash128::~Hash128() { XXH3_freeState(state_of(state_)); }
void Hash128::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_of(state_), bytes.data(), bytes.size());
}
void Hash128::add(std::string_view text) {
  add(int64_t(text.size()));
  add(std::as_bytes(std::span(text)));
}
void Hash128::add(int64_t n) { add(std::as_bytes(std::span(&n, 1))); }
Hash128::Digest Hash128::digest() const {
  XXH128_canonical_t c;
  XXH128_canonicalFromHash(&c, XXH3_128bits_digest(state_of(state_)));
  Digest d;
  std::copy(std::begin(c.digest), std::end(c.digest), d.begin());
  return d;
}

std::string hex(const Hash128::Digest& d) {
  std::string s;
  for (const uint8_t b : d) s += fmt::format("{:02x}", b);
  return s;
}

}  // namespace facet
