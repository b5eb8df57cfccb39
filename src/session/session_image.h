#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "api/media.h"
#include "base/host_bytes.h"
#include "base/result.h"
#include "cache/kv_cache.h"
#include "formats/session_file.h"

namespace facet {

// All that a sequence's state is, in host memory: rows of the model and of every drafter, as KvCache::parts gives them,
// and what drafters keep beside them. A state without its drafters' is none: drafts would be worse for it.
struct SessionImage {
  struct Part {
    int64_t rows = 0, row = 0;  // row: its bytes
    bool operator==(const Part&) const = default;
  };
  struct Owner {
    KvState state = {};
    int held = 0;  // rows of the sequence that it knows
    std::vector<Part> parts = {};
    HostBytes rows = {};  // of all parts, one behind the other
    std::vector<float> beside = {};
  };
  std::vector<int32_t> tokens = {};  // whose rows these are
  std::string salt = {};
  std::vector<Owner> owners = {};  // the model, then each drafter with a state
  std::vector<KvState> states() const {
    std::vector<KvState> v;
    for (const Owner& o : owners) v.push_back(o.state);
    return v;
  }
  int64_t bytes() const {
    int64_t n = int64_t(tokens.size() * sizeof(int32_t));
    for (const Owner& o : owners) n += int64_t(o.rows.size() + o.beside.size() * sizeof(float));
    return n;
  }
};

size_t shared_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

// How far what is known goes with a prompt, at most, and whether it has another token there.
struct Nearest {
  int len = 0;
  bool differs = false;
  void look_at(std::span<const int32_t> known, std::span<const int32_t> prompt) {
    const size_t n = shared_prefix(known, prompt);
    const bool other = n < std::min(known.size(), prompt.size());
    if (int(n) > len || (int(n) == len && !other)) *this = {int(n), other};
  }
};

// Whether a state of which the owners' rows go so far can go back to `len` rows.
using Reaches = std::function<bool(std::span<const KvState> owners, int len)>;

// Bytes of the file that an image makes.
int64_t session_file_bytes(const SessionImage& image);
// Any thread. The file appears when it is complete, for its owner alone. Returns its bytes.
Result<int64_t> write_session(const std::string& path, const SessionImage& image,
                              const SessionHeader::Fingerprint& whose);

// What a file says of itself, without its sections.
struct SessionEntry {
  SessionMagic magic = SessionMagic::kForeign;
  int64_t bytes = 0;
  SessionHeader header = {};
};
// Any thread. An error for what is damaged; `entry` has what was found out before.
Status read_session_header(const std::string& path, SessionEntry& entry);
// Any thread. Checks every section. An error too if it belongs to another model or other options.
Result<SessionImage> read_session(const std::string& path, const SessionHeader::Fingerprint& whose);

}  // namespace facet
