#pragma once
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "formats/session_file.h"
#include "support/must.h"

// Files of sessions as a test wants them: read, changed, and with checksums that are right again.
namespace facet::test {

class TempFolder {
 public:
  TempFolder() {
    static int n = 0;
    path_ = (std::filesystem::temp_directory_path() /
             ("facet-cache-" + std::to_string(::getpid()) + "-" + std::to_string(n++)))
                .string();
    std::filesystem::remove_all(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> sessions() const {
    std::vector<std::string> v;
    for (const auto& e : std::filesystem::directory_iterator(path_))
      if (e.path().extension() == ".facet-session") v.push_back(e.path().string());
    std::sort(v.begin(), v.end());
    return v;
  }

 private:
  std::string path_;
};

inline std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  std::vector<char> v((std::istreambuf_iterator<char>(f)), {});
  std::vector<std::byte> b(v.size());
  if (!v.empty()) std::memcpy(b.data(), v.data(), v.size());
  return b;
}
inline void write_bytes(const std::string& path, std::span<const std::byte> b) {
  std::ofstream f(path, std::ios::binary | std::ios::trunc);
  f.write(reinterpret_cast<const char*>(b.data()), std::streamsize(b.size()));
}

struct SessionBytes {
  SessionHeader header;
  std::vector<std::byte> file;
  std::span<std::byte> section(const SessionHeader::Section& s) {
    return std::span(file).subspan(size_t(s.offset), size_t(s.bytes()));
  }
};
inline SessionBytes open_session_bytes(const std::string& path) {
  SessionBytes s{.header = {}, .file = read_bytes(path)};
  const auto head = must(parse_session_head(std::span(s.file).first(kSessionHead), s.file.size(), path));
  s.header = must(parse_session_header(std::span(s.file).first(size_t(head.header_bytes)), s.file.size(), path));
  return s;
}
// Sections may not have changed their sizes, nor the tokens their number.
inline void seal_session_bytes(const std::string& path, SessionBytes& s) {
  for (SessionHeader::Owner& o : s.header.owners) {
    for (SessionHeader::Section& p : o.sections) p.checksum = section_checksum(s.section(p));
    o.beside.checksum = section_checksum(s.section(o.beside));
  }
  const auto head = session_header_bytes(s.header);
  std::memcpy(s.file.data(), head.data(), head.size());
  write_bytes(path, s.file);
}

// An owner's rows end at `len`, and its full layers' sections with them.
inline void cut_session_bytes(const std::string& path, SessionBytes& s, size_t owner, int len) {
  SessionBytes cut{.header = s.header, .file = {}};
  for (SessionHeader::Section& p : cut.header.owners[owner].sections)
    if (p.rows == uint64_t(cut.header.owners[owner].len)) p.rows = uint64_t(len);
  cut.header.owners[owner].len = len;
  place_sections(cut.header);
  cut.file.resize(size_t(cut.header.file_bytes));
  for (size_t o = 0; o < s.header.owners.size(); ++o) {
    const auto copy = [&](const SessionHeader::Section& from, const SessionHeader::Section& to) {
      const auto bytes = s.section(from).first(size_t(to.bytes()));
      std::copy(bytes.begin(), bytes.end(), cut.section(to).begin());
    };
    const SessionHeader::Owner &from = s.header.owners[o], &to = cut.header.owners[o];
    for (size_t i = 0; i < from.sections.size(); ++i) copy(from.sections[i], to.sections[i]);
    copy(from.beside, to.beside);
  }
  seal_session_bytes(path, cut);
}

}  // namespace facet::test
