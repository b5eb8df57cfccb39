#pragma once
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/drafter_bench.h"

// Drafters of tests/data/drafters whose weights are made of their names instead of stored: what
// tools/make_block_fixtures.py does, bit for bit.
namespace facet::test {

// n values around mean with the spread sd, exact in BF16.
inline std::vector<float> random_values(const std::string& name, size_t n, double mean, double sd) {
  uint64_t seed = 0xCBF29CE484222325;
  for (const char c : name) seed = (seed ^ uint8_t(c)) * 0x100000001B3;
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) {
    uint64_t x = seed + (i + 1) * 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
    const float f = float(mean + sd * 3.4641016151377544 * (double(x >> 40) * 0x1p-24 - .5));
    uint32_t b;
    std::memcpy(&b, &f, 4);
    b = (b + 0x7FFF + ((b >> 16) & 1)) & 0xFFFF0000;
    std::memcpy(&v[i], &b, 4);
  }
  return v;
}
// n tokens of a vocabulary of V, none of the first five.
inline std::vector<int32_t> random_tokens(const std::string& name, size_t n, int V) {
  std::vector<int32_t> ids;
  for (const float f : random_values(name, n, 0, 1)) {
    uint32_t b;
    std::memcpy(&b, &f, 4);
    ids.push_back(int32_t(5 + (b >> 16) % uint32_t(V - 5)));
  }
  return ids;
}

// Tensors of one file, as they are written.
class SafetensorsText {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, const char* type, std::span<const std::byte> bytes) {
    head_[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void bf16(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& v) {
    std::vector<uint16_t> bits;
    for (const float f : v) {
      uint32_t b;
      std::memcpy(&b, &f, 4);
      bits.push_back(uint16_t(b >> 16));
    }
    add(name, std::move(shape), "BF16", std::as_bytes(std::span(bits)));
  }
  void write(const std::string& path) const {
    std::string text = head_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t n = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&n), 8);
    out << text << data_;
  }

 private:
  nlohmann::ordered_json head_;
  std::string data_;
};

// A folder with a drafter of the family for a target of n_vocab tokens and width 64, and golden.safetensors with an
// embedding, features and tokens for StandIn. change: of a tensor's values by name, or false to leave it out.
class RandomDrafter {
 public:
  using Change = std::function<bool(const std::string& name, std::vector<float>& values)>;
  static constexpr int kTokens = 28;
  explicit RandomDrafter(const std::string& family, int n_vocab = 128, const Change& change = {})
      : from_(data_path("drafters/" + family)), folder_(from_) {
    if (n_vocab != 128) edit("\"vocab_size\": 128", "\"vocab_size\": " + std::to_string(n_vocab));
    SafetensorsText weights, golden;
    std::ifstream in(from_ + "/weights.json");
    for (const auto& row : nlohmann::json::parse(in)) {
      const auto name = row[0].get<std::string>();
      std::vector<int64_t> shape;
      size_t n = 1;
      for (const auto& s : row[1])
        shape.push_back(s.is_string() ? n_vocab : s.get<int64_t>()), n *= size_t(shape.back());
      if (name == "d2t") {
        std::vector<int64_t> offsets;
        for (int64_t i = 0; i < shape[0]; ++i) offsets.push_back(i * n_vocab / shape[0] - i);
        weights.add(name, shape, "I64", std::as_bytes(std::span(offsets)));
        continue;
      }
      std::vector<float> v = random_values(name, n, row[2].get<double>(), row[3].get<double>());
      if (!change || change(name, v)) weights.bf16(name, shape, v);
    }
    weights.write(path() + "/model.safetensors");
    golden.bf16("embedding", {n_vocab, 64}, random_values("golden.embedding", size_t(n_vocab) * 64, 0, .5));
    const std::vector<float> features = random_values("golden.features", kTokens * 192, 0, 3);
    golden.add("features", {kTokens, 192}, "F32", std::as_bytes(std::span(features)));
    golden.write(path() + "/golden.safetensors");
  }
  const std::string& path() const { return folder_.path(); }
  void edit(const std::string& find, const std::string& put) { folder_.edit("config.json", find, put); }
  SafetensorsFile golden() const { return must(SafetensorsFile::open(path() + "/golden.safetensors")); }
  SafetensorsFile expected() const { return must(SafetensorsFile::open(from_ + "/expected.safetensors")); }

 private:
  std::string from_;
  Folder folder_;
};

}  // namespace facet::test
