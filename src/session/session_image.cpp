#include "session/session_image.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/files.h"
#include "base/hash.h"
#include "base/own_file.h"

namespace facet {
namespace {

constexpr int kReaders = 4;  // threads; a fast disk wants several requests at once

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

SessionHeader header_of(const SessionImage& image, const SessionHeader::Fingerprint& whose) {
  SessionHeader h{.fingerprint = whose, .salt = image.salt, .tokens = image.tokens};
  for (const SessionImage::Owner& o : image.owners) {
    SessionHeader::Owner& out = h.owners.emplace_back();
    out.len = o.state.len, out.high = o.state.high, out.held = o.held;
    for (const SessionImage::Part& p : o.parts)
      out.sections.push_back({.rows = uint64_t(p.rows), .row_bytes = uint64_t(p.row)});
    out.beside.rows = o.beside.size();
  }
  place_sections(h);
  return h;
}

const char* layout_of(const SessionHeader::Fingerprint& f) { return f[kFingerprintLayout] ? "shared" : "split"; }
// Whether the fingerprints differ in this byte alone.
bool differ_in(size_t at, SessionHeader::Fingerprint a, const SessionHeader::Fingerprint& b) {
  if (a[at] == b[at]) return false;
  a[at] = b[at];
  return a == b;
}

// f(section, its bytes in the image) for all, until one fails.
template <class H, class I, class F>
Status each_section(H& header, I& image, F f) {
  for (size_t i = 0; i < header.owners.size(); ++i) {
    auto& owner = header.owners[i];
    size_t at = 0;
    for (auto& s : owner.sections) {
      if (auto ok = f(s, image.owners[i].rows.span().subspan(at, size_t(s.bytes()))); !ok) return ok;
      at += size_t(s.bytes());
    }
    if (auto ok = f(owner.beside, std::as_writable_bytes(std::span(image.owners[i].beside))); !ok) return ok;
  }
  return Ok{};
}

// A piece of a section: where it lies in the file and in memory.
struct Piece {
  uint64_t offset;
  std::span<std::byte> bytes;
};

Status read_pieces(int fd, const std::string& path, std::span<const Piece> pieces, std::span<uint64_t> hashes) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<Status> errors(kReaders, Ok{});
  auto work = [&](int who) {
    for (size_t i; !failed && (i = next++) < pieces.size();) {
      if (auto ok = read_at(fd, pieces[i].offset, pieces[i].bytes, path); !ok) {
        errors[size_t(who)] = ok;
        failed = true;
        return;
      }
      hashes[i] = hash64(pieces[i].bytes);
    }
  };
  std::vector<std::thread> others;
  others.reserve(kReaders);
  try {
    for (int t = 1; t < std::min<int>(kReaders, int(pieces.size() / 4)); ++t) others.emplace_back(work, t);
  } catch (const std::exception&) {  // no more threads: the others read what is left
  }
  work(0);
  for (std::thread& t : others) t.join();
  for (const Status& e : errors)
    if (!e) return e;
  return Ok{};
}

Status read_sections(int fd, const std::string& path, const SessionHeader& header, SessionImage& image) {
  std::vector<Piece> pieces;
  auto ok = each_section(header, image, [&](const SessionHeader::Section& s, std::span<std::byte> to) {
    for (uint64_t at = 0; at < to.size(); at += kSessionPiece)
      pieces.push_back({s.offset + at, to.subspan(at, std::min<size_t>(kSessionPiece, to.size() - at))});
    return Status(Ok{});
  });
  std::vector<uint64_t> hashes(pieces.size());
  if (ok = read_pieces(fd, path, pieces, hashes); !ok) return ok;
  size_t first = 0;
  return each_section(header, image, [&](const SessionHeader::Section& s, std::span<std::byte> to) -> Status {
    const size_t n = (to.size() + kSessionPiece - 1) / kSessionPiece;
    const uint64_t sum = join_piece_hashes(std::span(hashes).subspan(first, n));
    first += n;
    if (sum == s.checksum) return Ok{};
    return Error{path, fmt::format("the checksum of {} bytes at {} is another", s.bytes(), s.offset),
                 "the file is damaged"};
  });
}

}  // namespace

size_t shared_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return size_t(std::mismatch(a.begin(), a.begin() + ptrdiff_t(std::min(a.size(), b.size())), b.begin()).first -
                a.begin());
}

int64_t session_file_bytes(const SessionImage& image) { return int64_t(header_of(image, {}).file_bytes); }

Result<int64_t> write_session(const std::string& path, const SessionImage& image,
                              const SessionHeader::Fingerprint& whose) {
  SessionHeader header = header_of(image, whose);
  auto ok =
      each_section(header, const_cast<SessionImage&>(image), [](SessionHeader::Section& s, std::span<std::byte> b) {
        s.checksum = section_checksum(b);
        return Status(Ok{});
      });
  auto file = OutputFile::create_private(path);
  if (!file) return file.error();
  const std::vector<std::byte> head = session_header_bytes(header);
  if (ok = file->write(head); !ok) return ok.error();
  uint64_t at = head.size();
  const std::vector<std::byte> zeros(4096);
  ok = each_section(header, const_cast<SessionImage&>(image),
                    [&](const SessionHeader::Section& s, std::span<std::byte> b) -> Status {
                      if (auto w = file->write(std::span(zeros).first(size_t(s.offset - at))); !w) return w;
                      at = s.offset + b.size();
                      return file->write(b);
                    });
  if (!ok) return ok.error();
  if (ok = file->finish(); !ok) return ok.error();
  return int64_t(header.file_bytes);
}

namespace {

// Opens the file and reads its header.
Result<int> open_session(const std::string& path, SessionEntry& entry) {
  auto fd = open_own(path);
  if (!fd) return fd.error();
  auto fail = [&](const Error& e) -> Result<int> {
    ::close(*fd);
    return e;
  };
  struct stat st {};
  if (::fstat(*fd, &st) != 0) return fail({path, "cannot read its size", "check the disk"});
  entry.bytes = int64_t(st.st_size);
  std::vector<std::byte> bytes(size_t(std::min<int64_t>(st.st_size, int64_t(kSessionHead))));
  if (auto ok = read_at(*fd, 0, bytes, path); !ok) return fail(ok.error());
  entry.magic = session_magic(bytes);
  const auto head = parse_session_head(bytes, uint64_t(st.st_size), path);
  if (!head) return fail(head.error());
  entry.header.fingerprint = head->fingerprint;
  bytes.resize(size_t(head->header_bytes));
  if (auto ok = read_at(*fd, kSessionHead, std::span(bytes).subspan(kSessionHead), path); !ok) return fail(ok.error());
  auto header = parse_session_header(bytes, uint64_t(st.st_size), path);
  if (!header) return fail(header.error());
  entry.header = std::move(*header);
  return *fd;
}

}  // namespace

Status read_session_header(const std::string& path, SessionEntry& entry) {
  auto fd = open_session(path, entry);
  if (!fd) return fd.error();
  ::close(*fd);
  return Ok{};
}

Result<SessionImage> read_session(const std::string& path, const SessionHeader::Fingerprint& whose) {
  SessionEntry entry;
  auto opened = open_session(path, entry);
  if (!opened) return opened.error();
  const Descriptor fd(*opened);
  SessionHeader& h = entry.header;
  if (differ_in(kFingerprintArithmetic, h.fingerprint, whose))
    return Error{
        path,
        fmt::format("expected rows of arithmetic {}, found {}", whose[kFingerprintArithmetic],
                    h.fingerprint[kFingerprintArithmetic]),
        "its rows were rounded by another state of the program, which can read it; here the prompt is read anew"};
  if (differ_in(kFingerprintLayout, h.fingerprint, whose))
    return Error{path, fmt::format("expected {} K/V rows, found {}", layout_of(whose), layout_of(h.fingerprint)),
                 fmt::format("it can be read with --kv-layout {}", layout_of(h.fingerprint))};
  if (h.fingerprint != whose)
    return Error{path, "expected the state of this model with these options, found another's",
                 "it can be read with the model, drafters, K/V types and program that wrote it"};
  SessionImage image{.tokens = std::move(h.tokens), .salt = std::move(h.salt)};
  for (const SessionHeader::Owner& o : h.owners) {
    SessionImage::Owner& out = image.owners.emplace_back();
    out.state = {o.len, o.high};
    out.held = o.held;
    uint64_t n = 0;
    for (const SessionHeader::Section& s : o.sections) {
      out.parts.push_back({int64_t(s.rows), int64_t(s.row_bytes)});
      n += s.bytes();
    }
    if (o.beside.row_bytes != sizeof(float)) return Error{path, "a section of floats that are none", ""};
    out.rows = HostBytes(size_t(n));
    if (out.rows.size() != n) return Error{path, fmt::format("no memory for its {} bytes", n), ""};
    out.beside.resize(size_t(o.beside.rows));
  }
  if (auto ok = read_sections(fd.get(), path, h, image); !ok) return ok.error();
  return image;
}

}  // namespace facet
