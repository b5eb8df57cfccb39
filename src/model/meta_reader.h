#pragma once
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "formats/gguf.h"

namespace facet {

// Reads metadata under one prefix; remembers the first error, so that a list of reads needs one test at its end.
class MetaReader {
 public:
  // prefix: of every key that is read, with its dot; hint: what to do about values that are wrong.
  MetaReader(const GgufFile& f, std::string prefix, std::string hint)
      : f_(f), prefix_(std::move(prefix)), hint_(std::move(hint)) {}
  bool has(const char* key) const { return f_.find_meta(full(key)) != nullptr; }

  int integer(const char* key, int64_t min, int64_t max) {
    auto v = f_.get_int(full(key));
    if (!v) return fail(v.error()), int(min);
    return check(key, *v, min, max);
  }
  int integer_or(const char* key, int64_t otherwise, int64_t min, int64_t max) {
    return has(key) ? integer(key, min, max) : int(otherwise);
  }
  std::vector<int> integers(const char* key, size_t n, int64_t min, int64_t max) {
    auto v = f_.get_ints(full(key), n);
    std::vector<int> out(n, int(min));
    if (!v) return fail(v.error()), out;
    for (size_t i = 0; i < n; ++i) out[i] = check(key, (*v)[i], min, max);
    return out;
  }
  std::vector<bool> bools(const char* key, size_t n) {
    auto v = f_.get_bools(full(key), n);
    if (!v) return fail(v.error()), std::vector<bool>(n);
    return *v;
  }
  float real(const char* key, double min, double max) {
    auto v = f_.get_float(full(key));
    if (!v) return fail(v.error()), float(min);
    if (!(*v >= min && *v <= max)) fail(key, fmt::format("a number in [{}, {}]", min, max), fmt::format("{}", *v));
    return float(*v);
  }
  float real_or(const char* key, double otherwise, double min, double max) {
    return has(key) ? real(key, min, max) : float(otherwise);
  }
  void fail(const std::string& key, const std::string& expected, const std::string& found) {
    fail(Error{f_.path(), fmt::format("{}: expected {}, found {}", key, expected, found), hint_});
  }
  void fail(const Error& e) {
    if (!error_) error_ = e;
  }
  const std::optional<Error>& error() const { return error_; }
  std::string full(const char* key) const { return prefix_ + key; }

 private:
  int check(const char* key, int64_t v, int64_t min, int64_t max) {
    if (v >= min && v <= max) return int(v);
    fail(full(key), fmt::format("an integer in [{}, {}]", min, max), fmt::format("{}", v));
    return int(min);
  }
  const GgufFile& f_;
  std::string prefix_, hint_;
  std::optional<Error> error_;
};

}  // namespace facet
