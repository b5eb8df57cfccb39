#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace facet {

// SHA-256, and SHA-1 as Git names small files, of everything that was added (FIPS 180-4). For files that are
// downloaded; base/hash.h is faster where nobody forges.
class Sha {
 public:
  enum class Kind { kSha1, kSha256 };
  explicit Sha(Kind kind = Kind::kSha256);
  void add(std::span<const std::byte> bytes);
  std::string hex() const;  // lower case, 64 digits or 40; more may be added after it

 private:
  void blocks(const std::byte* p, size_t n);  // n of 64 bytes each
  Kind kind_;
  std::array<uint32_t, 8> h_{};
  std::array<std::byte, 64> rest_{};  // of an unfinished block
  uint64_t bytes_ = 0;
};

}  // namespace facet
