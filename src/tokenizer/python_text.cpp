#include "tokenizer/python_text.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "tokenizer/chat.h"
#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

namespace facet {

std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(text, size_t(end - text));  // "-1.25e+20": the fewest digits that read back
  const size_t e = shortest.find('e');
  int exponent = 0;
  std::from_chars(shortest.data() + e + (shortest[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  std::string s(text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr);
  return s.find('.') == std::string::npos ? s + ".0" : s;
}

namespace python {
namespace {

// The code points that str.strip() removes.
bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Bytes of the whitespace character that s begins with, or 0.
size_t leading_space(std::string_view s) {
  if (s.empty()) return 0;
  const Utf8Head head = utf8_head(s);
  if (head.kind != Utf8Head::kValid) return 0;
  const auto bits = [&](size_t i) { return char32_t(uint8_t(s[i]) & 0x3F); };
  char32_t c = uint8_t(s[0]);
  if (head.length == 2) c = (c & 0x1F) << 6 | bits(1);
  if (head.length == 3) c = (c & 0x0F) << 12 | bits(1) << 6 | bits(2);
  return head.length < 4 && is_space(c) ? size_t(head.length) : 0;
}

}  // namespace

std::string_view trim(std::string_view s) {
  while (const size_t n = leading_space(s)) s.remove_prefix(n);
  while (!s.empty()) {
    size_t begin = s.size() - 1;
    while (begin > 0 && (uint8_t(s[begin]) & 0xC0) == 0x80) --begin;
    if (leading_space(s.substr(begin)) != s.size() - begin) break;
    s = s.substr(0, begin);
  }
  return s;
}

std::string upper(std::string s) {
  for (char& c : s)
    if (c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
  return s;
}

std::string lower(std::string s) {
  for (char& c : s)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return s;
}

std::string number_text(const Json& v) {
  if (v.is_number_float()) return python_number(v.get<double>());
  return v.is_number_unsigned() ? fmt::format("{}", v.get<uint64_t>()) : fmt::format("{}", v.get<int64_t>());
}

namespace {
std::string repr(const Json& v) {
  if (v.is_null()) return "None";
  if (v.is_boolean()) return v.get<bool>() ? "True" : "False";
  if (v.is_number()) return number_text(v);
  if (v.is_string()) {
    const auto& s = v.get_ref<const std::string&>();
    const char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
    std::string out(1, quote);
    for (const char c : s) {
      if (c == '\n')
        out += "\\n";
      else if (c == '\t')
        out += "\\t";
      else if (c == '\r')
        out += "\\r";
      else if (c == '\\' || c == quote)
        (out += '\\') += c;
      else
        out += c;
    }
    return out += quote;
  }
  std::string out(1, v.is_array() ? '[' : '{');
  for (auto it = v.begin(); it != v.end(); ++it) {
    if (it != v.begin()) out += ", ";
    if (v.is_object()) out += repr(Json(it.key())) + ": ";
    out += repr(*it);
  }
  return out += v.is_array() ? ']' : '}';
}
}  // namespace

std::string str(const Json& v) { return v.is_string() ? v.get<std::string>() : repr(v); }

bool truthy(const Json* v) {
  if (!v || v->is_null()) return false;
  if (v->is_boolean()) return v->get<bool>();
  if (v->is_number()) return v->get<double>() != 0;
  return v->is_string() ? !v->get_ref<const std::string&>().empty() : !v->empty();
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

}  // namespace python
}  // namespace facet
