#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace facet {

// XXH3: finds accidents, not forgeries.
uint64_t hash64(std::span<const std::byte> bytes);

// 128 bits of everything that was added, in order.
class Hash128 {
 public:
  using Digest = std::array<uint8_t, 16>;
  Hash128();
  ~Hash128();
  Hash128(const Hash128&) = delete;
  Hash128& operator=(const Hash128&) = delete;
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);  // with its length
  void add(int64_t n);
  Digest digest() const;

 private:
  void* state_;
};
std::string hex(const Hash128::Digest& d);

}  // namespace facet
