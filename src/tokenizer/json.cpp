#include "tokenizer/json.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr int kMaxDepth = 100;
// Keys of an ordered object are found by looking at each: an object of n members costs n * n / 2 comparisons to read,
// each of which looks at a key's bytes and costs as much as some of them besides.
constexpr size_t kMaxCompared = 400'000'000, kComparison = 16;  // bytes

// Bytes of values, by estimate: an array's element and an object's member with room to grow, and what an array or object
// takes itself. Strings take no more than their text.
constexpr size_t kMaxValueBytes = size_t(256) << 20, kElement = 32, kMember = 80, kContainer = 56;

// What makes the text too expensive to read, or nothing. Ill-formed text is left to the parser.
std::string too_much(std::string_view text) {
  std::vector<size_t> members;  // of each open object; an array has none
  std::vector<bool> object;
  size_t compared = 0, begin = 0, bytes = 0;
  bool in_string = false, key_next = false, is_key = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      in_string = false;
      if (!is_key) continue;
      compared += members.back()++ * (kComparison + i - begin);
      if (compared > kMaxCompared) return "expected JSON with smaller objects or shorter keys";
    } else if (c == '"') {
      in_string = true, begin = i, is_key = std::exchange(key_next, false);
    } else if (c == '[' || c == '{') {
      if (members.size() == kMaxDepth) return fmt::format("expected JSON nested at most {} deep", kMaxDepth);
      members.push_back(0);
      bytes += kContainer;
      object.push_back(c == '{');
      key_next = c == '{';
    } else if (members.empty()) {
      continue;
    } else if (c == ']' || c == '}') {
      members.pop_back();
      object.pop_back();
      key_next = false;
    } else if (c == ',') {
      key_next = object.back();
      bytes += key_next ? kMember : kElement;
      if (bytes > kMaxValueBytes) return "expected JSON of fewer values";
    }
  }
  return "";
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& where) {
  if (std::string problem = too_much(text); !problem.empty())
    return Error{where, std::move(problem), "simplify the value"};
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {  // parse_error, and out_of_range for 1e999
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    std::string_view what = e.what();
    if (const size_t at = what.find("] "); at != std::string_view::npos) what.remove_prefix(at + 2);
    return Error{where, fmt::format("expected JSON: {}", cut(what)), ""};  // it quotes what it read last
  }
}

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace facet
