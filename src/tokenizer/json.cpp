#include "tokenizer/json.h"

#include <fmt/format.h>

namespace facet {
namespace {

constexpr int kMaxDepth = 100;

bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& where) {
  if (too_deep(text))
    return Error{where, fmt::format("expected JSON nested at most {} deep", kMaxDepth), "flatten the value"};
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {  // parse_error, and out_of_range for 1e999
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string_view what = e.what();
    if (const size_t at = what.find("] "); at != std::string_view::npos) what.remove_prefix(at + 2);
    return Error{where, fmt::format("expected JSON: {}", what), ""};
  }
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace facet
