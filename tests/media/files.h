#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/sha.h"
#include "media/picture.h"
#include "media/sound.h"

namespace facet::test {

inline std::string media_path(const std::string& name) { return std::string(FACET_TEST_DATA) + "/media/" + name; }

inline std::string media_file(const std::string& name) {
  std::ifstream f(media_path(name), std::ios::binary);
  EXPECT_TRUE(f) << name;
  return {std::istreambuf_iterator<char>(f), {}};
}

inline std::span<const std::byte> bytes_of(const std::string& s) { return std::as_bytes(std::span(s)); }

// The rows of a table without its head.
inline std::vector<std::vector<std::string>> media_table(const std::string& name) {
  std::istringstream in(media_file(name));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    rows.emplace_back();
    for (std::string f; std::getline(fields, f, '\t');) rows.back().push_back(f);
  }
  EXPECT_GT(rows.size(), 1u) << name;
  rows.erase(rows.begin());
  return rows;
}

inline std::string sha256(const Picture& p) {
  Sha sha;
  sha.add(std::as_bytes(std::span(p.rgb)));
  return sha.hex();
}

inline Picture must_decode(const std::string& name) {
  const std::string file = media_file(name);
  auto p = decode_picture(bytes_of(file), name);
  EXPECT_TRUE(p) << p.error().message();
  return p ? *p : Picture{};
}

inline Picture must_resize(const std::string& name, int budget, int n_threads = 1) {
  const std::string file = media_file(name);
  auto p = decode_resized(bytes_of(file), budget, name, {}, n_threads);
  EXPECT_TRUE(p) << p.error().message();
  return p ? *p : Picture{};
}

// Some picture that repeats.
inline Picture noise(int width, int height, uint64_t seed = 1) {
  Picture p{width, height, std::vector<uint8_t>(size_t(width) * size_t(height) * 3)};
  for (uint8_t& v : p.rgb) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = uint8_t(seed >> 56);
  }
  return p;
}

}  // namespace facet::test
