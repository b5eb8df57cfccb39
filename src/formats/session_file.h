#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace facet {

// The state of a sequence in a file (docs/kv-cache.md has the format): a header that says whose it is, of which tokens
// and how long each section is, then the sections. What rows mean is not its business: a section is so many rows of so
// many bytes, and the fingerprint tells whether they mean the same to the reader as to the writer.
struct SessionHeader {
  using Fingerprint = std::array<uint8_t, 16>;
  struct Section {
    uint64_t rows = 0, row_bytes = 0;
    uint64_t offset = 0, checksum = 0;
    uint64_t bytes() const { return rows * row_bytes; }
  };
  struct Owner {                         // the model, then each drafter
    int32_t len = 0, high = 0;           // of its own rows; 0 where it has none
    int32_t held = 0;                    // rows of the sequence that it knows
    std::vector<Section> sections = {};  // of its own rows
    Section beside = {.row_bytes = 4};   // floats
  };
  Fingerprint fingerprint = {};
  std::string salt = {};
  std::vector<int32_t> tokens = {};
  std::vector<Owner> owners = {};
  uint64_t file_bytes = 0;
};

// Bytes of a fingerprint that are no hash, so that what they differ in has a name.
inline constexpr size_t kFingerprintArithmetic = 14, kFingerprintLayout = 15;

inline constexpr size_t kSessionHead = 64;  // bytes that tell how long the header is, and whose the file is
inline constexpr uint64_t kMaxSessionHeader = 64 << 20;

struct SessionHead {
  uint64_t header_bytes = 0, file_bytes = 0;
  SessionHeader::Fingerprint fingerprint = {};
};
enum class SessionMagic : uint8_t { kForeign, kOtherVersion, kOurs };
SessionMagic session_magic(std::span<const std::byte> bytes);  // of at least the first kSessionHead

// The first kSessionHead bytes. file_bytes: the file's real size, which must be the one that it says.
Result<SessionHead> parse_session_head(std::span<const std::byte> head, uint64_t file_bytes, const std::string& where);
// The whole header, head included. Every size is checked before anything is allocated for it, and all sections lie in
// the file, one behind the other, up to its end.
Result<SessionHeader> parse_session_header(std::span<const std::byte> header, uint64_t file_bytes,
                                           const std::string& where);

// Lays the sections out: fills offsets and file_bytes. Then the header's bytes, with checksums.
void place_sections(SessionHeader& h);
std::vector<std::byte> session_header_bytes(const SessionHeader& h);

uint64_t session_header_checksum(std::span<const std::byte> header);  // of all but its own bytes

// A section's checksum: pieces may be hashed by several threads, in any order.
inline constexpr uint64_t kSessionPiece = 4 << 20;
uint64_t join_piece_hashes(std::span<const uint64_t> pieces);
uint64_t section_checksum(std::span<const std::byte> bytes);

}  // namespace facet
