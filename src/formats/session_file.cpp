#include "formats/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace facet {
namespace {

constexpr char kMagic[8] = {'f', 'a', 'c', 'e', 't', 's', 'e', 's'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kAlign = 4096;  // of sections
constexpr uint32_t kMaxOwners = 16, kMaxSections = 4096, kMaxSalt = 4096;
constexpr uint64_t kMaxFile = uint64_t(1) << 46;

uint64_t align(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// Numbers are little endian, as the machines that this runs on.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <class T>
  T get() {
    T v{};
    if (rest_.size() < sizeof v) return ok_ = false, v;
    std::memcpy(&v, rest_.data(), sizeof v);
    rest_ = rest_.subspan(sizeof v);
    return v;
  }
  std::span<const std::byte> take(size_t n) {
    if (rest_.size() < n) return ok_ = false, std::span<const std::byte>{};
    const auto taken = rest_.first(n);
    rest_ = rest_.subspan(n);
    return taken;
  }
  size_t left() const { return rest_.size(); }
  bool ok() const { return ok_; }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

class Writer {
 public:
  template <class T>
  void put(T v) {
    put_bytes(std::as_bytes(std::span(&v, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) bytes_.push_back(b);  // GCC 12 warns wrongly of insert()
  }
  std::vector<std::byte> bytes_;
};

uint64_t header_bytes(const SessionHeader& h) {
  uint64_t n = kSessionHead + align(h.salt.size(), 4) + 4 * h.tokens.size();
  for (const SessionHeader::Owner& o : h.owners) n += 16 + 24 * (o.sections.size() + 1);
  return align(n, 64);
}

Error broken(const std::string& where, const std::string& what) {
  return {where, what, "the file is damaged or was not written by facet"};
}

// Puts every section behind the one before. False: more bytes than a file can have.
bool place(SessionHeader& h, uint64_t from) {
  uint64_t at = from;
  auto put = [&](SessionHeader::Section& s) {
    if (s.row_bytes > kMaxFile || (s.row_bytes > 0 && s.rows > kMaxFile / s.row_bytes)) return false;
    s.offset = at = align(at, kAlign);
    at += s.bytes();
    return at <= kMaxFile;
  };
  for (SessionHeader::Owner& o : h.owners) {
    for (SessionHeader::Section& s : o.sections)
      if (!put(s)) return false;
    if (!put(o.beside)) return false;
  }
  h.file_bytes = at;
  return true;
}

}  // namespace

uint64_t session_header_checksum(std::span<const std::byte> header) {
  const uint64_t parts[] = {hash64(header.first(kSessionHead - 8)), hash64(header.subspan(kSessionHead))};
  return hash64(std::as_bytes(std::span(parts)));
}

SessionMagic session_magic(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof kMagic + 4 || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    return SessionMagic::kForeign;
  uint32_t version;
  std::memcpy(&version, bytes.data() + sizeof kMagic, sizeof version);
  return version == kVersion ? SessionMagic::kOurs : SessionMagic::kOtherVersion;
}

Result<SessionHead> parse_session_head(std::span<const std::byte> head, uint64_t file_bytes, const std::string& where) {
  if (session_magic(head) == SessionMagic::kForeign)
    return broken(where, "expected the state of a conversation, found another file");
  if (session_magic(head) == SessionMagic::kOtherVersion)
    return Error{where, fmt::format("expected version {} of the format, found another", kVersion),
                 "it was written by another version of facet"};
  if (head.size() < kSessionHead) return broken(where, fmt::format("ends after {} bytes", head.size()));
  Reader r(head.subspan(12));
  SessionHead h;
  h.header_bytes = r.get<uint32_t>();
  h.file_bytes = r.get<uint64_t>();
  const auto fingerprint = r.take(h.fingerprint.size());
  std::memcpy(h.fingerprint.data(), fingerprint.data(), fingerprint.size());
  if (h.file_bytes != file_bytes)
    return broken(where, fmt::format("expected {} bytes, as its header says, found {}", h.file_bytes, file_bytes));
  if (h.header_bytes < kSessionHead || h.header_bytes > std::min(kMaxSessionHeader, file_bytes))
    return broken(where, fmt::format("a header of {} bytes", h.header_bytes));
  return h;
}

Result<SessionHeader> parse_session_header(std::span<const std::byte> header, uint64_t file_bytes,
                                           const std::string& where) {
  const auto head = parse_session_head(header.first(std::min(header.size(), kSessionHead)), file_bytes, where);
  if (!head) return head.error();
  if (header.size() != head->header_bytes)
    return broken(where, fmt::format("expected a header of {} bytes, found {}", head->header_bytes, header.size()));
  Reader r(header.subspan(40));
  const uint32_t n_tokens = r.get<uint32_t>(), n_salt = r.get<uint32_t>(), n_owners = r.get<uint32_t>();
  r.get<uint32_t>();
  if (r.get<uint64_t>() != session_header_checksum(header))
    return broken(where, "the checksum of its header is another");
  if (n_salt > kMaxSalt || n_owners == 0 || n_owners > kMaxOwners || n_tokens > r.left() / 4)
    return broken(where,
                  fmt::format("{} tokens, {} owners and a salt of {} bytes in its header", n_tokens, n_owners, n_salt));
  SessionHeader h;
  h.fingerprint = head->fingerprint;
  const auto salt = r.take(align(n_salt, 4)), tokens = r.take(size_t(n_tokens) * 4);
  if (!r.ok()) return broken(where, "its header ends too early");
  h.salt.assign(reinterpret_cast<const char*>(salt.data()), n_salt);
  h.tokens.resize(n_tokens);
  if (n_tokens > 0) std::memcpy(h.tokens.data(), tokens.data(), tokens.size());
  for (uint32_t i = 0; i < n_owners; ++i) {
    SessionHeader::Owner o;
    o.len = r.get<int32_t>(), o.high = r.get<int32_t>(), o.held = r.get<int32_t>();
    const uint32_t n = r.get<uint32_t>();
    if (!r.ok() || n > kMaxSections || r.left() / 24 < n + 1) return broken(where, "its header ends too early");
    if (o.len < 0 || o.high < o.len || o.held < 0)
      return broken(where, fmt::format("lengths {}, {} and {} in its header", o.len, o.high, o.held));
    auto section = [&] {
      SessionHeader::Section s;
      s.rows = r.get<uint64_t>(), s.row_bytes = r.get<uint64_t>(), s.checksum = r.get<uint64_t>();
      return s;
    };
    for (uint32_t k = 0; k < n; ++k) o.sections.push_back(section());
    o.beside = section();
    h.owners.push_back(std::move(o));
  }
  if (!r.ok() || !place(h, head->header_bytes) || h.file_bytes != file_bytes)
    return broken(where, fmt::format("its sections do not end with its {} bytes", file_bytes));
  return h;
}

void place_sections(SessionHeader& h) { place(h, header_bytes(h)); }

std::vector<std::byte> session_header_bytes(const SessionHeader& h) {
  Writer w;
  w.put_bytes(std::as_bytes(std::span(kMagic)));
  w.put(kVersion);
  w.put(uint32_t(header_bytes(h)));
  w.put(h.file_bytes);
  w.put(h.fingerprint);
  w.put(uint32_t(h.tokens.size()));
  w.put(uint32_t(h.salt.size()));
  w.put(uint32_t(h.owners.size()));
  w.put(uint32_t(0));
  w.put(uint64_t(0));  // the checksum
  w.put_bytes(std::as_bytes(std::span(h.salt)));
  w.bytes_.resize(align(w.bytes_.size(), 4));
  w.put_bytes(std::as_bytes(std::span(h.tokens)));
  auto section = [&](const SessionHeader::Section& s) { w.put(s.rows), w.put(s.row_bytes), w.put(s.checksum); };
  for (const SessionHeader::Owner& o : h.owners) {
    w.put(o.len), w.put(o.high), w.put(o.held), w.put(uint32_t(o.sections.size()));
    for (const SessionHeader::Section& s : o.sections) section(s);
    section(o.beside);
  }
  w.bytes_.resize(header_bytes(h));
  const uint64_t sum = session_header_checksum(w.bytes_);
  std::memcpy(w.bytes_.data() + kSessionHead - 8, &sum, sizeof sum);
  return std::move(w.bytes_);
}

uint64_t join_piece_hashes(std::span<const uint64_t> pieces) { return hash64(std::as_bytes(pieces)); }

uint64_t section_checksum(std::span<const std::byte> bytes) {
  std::vector<uint64_t> pieces;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(bytes.size(), kSessionPiece)))
    pieces.push_back(hash64(bytes.first(std::min<size_t>(bytes.size(), kSessionPiece))));
  return join_piece_hashes(pieces);
}

}  // namespace facet
