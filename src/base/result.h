#pragma once
#include <string>
#include <utility>
#include <variant>

namespace facet {

// A failure the user or the environment can cause. Printed as "where: what (hint)".
struct Error {
  std::string where;        // file, URL, request id, option name
  std::string what;         // key; expected X, found Y
  std::string hint;         // what to do about it; may be empty
  std::string detail = {};  // lines to show below: a table

  std::string message() const {
    std::string s = where.empty() ? what : where + ": " + what;
    return hint.empty() ? s : s + " (" + hint + ")";
  }
};

// A value or an Error. Same spelling as std::expected (C++23) for the parts we use.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}
  explicit operator bool() const { return v_.index() == 0; }
  T& operator*() { return std::get<0>(v_); }
  const T& operator*() const { return std::get<0>(v_); }
  T* operator->() { return &std::get<0>(v_); }
  const T* operator->() const { return &std::get<0>(v_); }
  const Error& error() const { return std::get<1>(v_); }

 private:
  std::variant<T, Error> v_;
};
struct Ok {};
using Status = Result<Ok>;

}  // namespace facet
