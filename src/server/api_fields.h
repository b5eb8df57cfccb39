#pragma once
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

namespace facet {

// The table of fields that would change the answer if they did what they say, and are not there: a request with
// one is refused, not answered otherwise than asked. Null: the name is not of these. Else the JSON text of a value that
// changes nothing and is accepted, or "".
const char* refused_field(std::string_view name);
std::vector<std::string_view> refused_fields();

// A value as an error quotes it.
inline std::string shown(const Json& v) {
  const std::string s = dump_json(v);
  return s.size() <= 40 ? s : v.type_name();
}

// The fields of an object, each read once with its type and range. The first error stays; null counts as absent.
class Fields {
 public:
  Fields(const Json& object, bool strict, std::string prefix = "")
      : object_(object), strict_(strict), prefix_(std::move(prefix)) {
    if (!object.is_object()) fail("", "expected an object", &object);
  }

  const Json* get(const char* key) {
    known_.insert(key);
    if (error_ || !object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* key) { return get(key) != nullptr; }

  void boolean(const char* key, bool& out) {
    const Json* v = get(key);
    if (!v) return;
    if (!v->is_boolean()) return fail(key, "expected true or false", v);
    out = v->get<bool>();
  }
  void integer(const char* key, int lo, int hi, int& out) {
    const Json* v = get(key);
    if (!v) return;
    const auto n = whole(*v, lo, hi);
    if (!n) return fail(key, fmt::format("expected an integer in [{}, {}]", lo, hi), v);
    out = int(*n);
  }
  void number(const char* key, double lo, double hi, float& out) {
    const Json* v = get(key);
    if (!v) return;
    if (!v->is_number() || !(v->get<double>() >= lo && v->get<double>() <= hi))
      return fail(key, fmt::format("expected a number in [{}, {}]", lo, hi), v);
    out = float(v->get<double>());
  }
  void string(const char* key, std::string& out) {
    const Json* v = get(key);
    if (!v) return;
    if (!v->is_string()) return fail(key, "expected a string", v);
    out = v->get<std::string>();
  }
  // A field of which only values that change nothing are supported.
  template <class... T>
  void only(const char* key, const char* expected, T... values) {
    const Json* v = get(key);
    if (v && !((*v == Json(values)) || ...)) fail(key, fmt::format("expected {}", expected), v, "not supported");
  }

  // 10 and 10.0 are the same number: some languages write no other.
  static std::optional<int64_t> whole(const Json& v, int64_t lo, int64_t hi) {
    if (v.is_number_float()) {
      const double d = v.get<double>();
      if (!(std::abs(d) <= 9007199254740992.0) || d != std::floor(d) || d < double(lo) || d > double(hi))
        return std::nullopt;
      return int64_t(d);
    }
    if (!v.is_number_integer()) return std::nullopt;
    if (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
      return std::nullopt;
    const int64_t n = v.get<int64_t>();
    if (n < lo || n > hi) return std::nullopt;
    return n;
  }

  std::string path(std::string_view key) const {
    if (prefix_.empty()) return cut(key);
    return key.empty() ? prefix_ : cut(fmt::format("{}.{}", prefix_, key));
  }
  void fail(std::string_view key, std::string expected, const Json* found, std::string hint = "") {
    fail(Error{path(key), fmt::format("{}, found {}", expected, found ? shown(*found) : "nothing"), std::move(hint)});
  }
  void fail(Error e) {
    if (!error_) error_ = std::move(e);
  }
  void check(const Status& s) {
    if (!s) fail(s.error());
  }
  const Json& object() const { return object_; }
  bool failed() const { return error_.has_value(); }

  // To be called last: judges the fields that nobody asked for.
  Status done() {
    if (!error_)
      for (auto it = object_.begin(); it != object_.end() && !error_; ++it)
        if (!known_.count(it.key())) judge(it.key(), *it);
    if (error_) return *error_;
    return Ok{};
  }

 private:
  // A field that is refused may have a value that changes nothing.
  void judge(const std::string& key, const Json& value) {
    if (value.is_null()) return;
    const char* neutral = prefix_.empty() ? refused_field(key) : nullptr;
    if (neutral) {
      if (*neutral && value == Json::parse(neutral, nullptr, false)) return;
      return fail(Error{path(cut(key)),
                        *neutral ? fmt::format("expected {}, found {}", neutral, shown(value))
                                 : "expected nothing: it would change the answer",
                        "not supported"});
    }
    if (strict_)
      fail(Error{path(cut(key)), "unknown field", "docs/server.md lists the fields; the server runs with --strict"});
  }

  const Json& object_;
  bool strict_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  std::optional<Error> error_;
};

}  // namespace facet
