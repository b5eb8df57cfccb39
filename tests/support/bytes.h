#pragma once
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Files built byte by byte, and a folder to put them in.
namespace facet::test {

// Little-endian bytes, appended.
struct Bytes {
  std::vector<std::byte> b;

  template <class T>
  Bytes& put(T v) {
    const auto* p = reinterpret_cast<const std::byte*>(&v);
    b.insert(b.end(), p, p + sizeof v);
    return *this;
  }
  Bytes& u32(uint32_t v) { return put(v); }
  Bytes& u64(uint64_t v) { return put(v); }
  Bytes& text(std::string_view s) {
    const auto* p = reinterpret_cast<const std::byte*>(s.data());
    b.insert(b.end(), p, p + s.size());
    return *this;
  }
  Bytes& str(std::string_view s) { return u64(s.size()).text(s); }
  Bytes& fill(size_t n, int v = 0) {
    b.insert(b.end(), n, std::byte(v));
    return *this;
  }
  Bytes& align(size_t a) { return fill((a - b.size() % a) % a); }
  operator std::span<const std::byte>() const { return b; }
};

// Removed with everything in it.
class TempDir {
 public:
  explicit TempDir(const char* in = "/tmp") : path_(in) {
    path_ += "/facet_test_XXXXXX";
    if (!::mkdtemp(path_.data())) path_ = ".";
  }
  ~TempDir() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string write(std::string_view name, std::span<const std::byte> bytes) const {
    std::ofstream(file(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
    return file(name);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace facet::test
