#include "tokenizer/json.h"

#include <fmt/format.h>

#include <vector>

#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr int kMaxDepth = 100;
// Keys of an ordered object are found by looking at each: an object of n members costs n * n / 2 comparisons to read.
constexpr size_t kMaxComparisons = 20'000'000;

// What makes the text too expensive to read, or nothing. Ill-formed text is left to the parser.
std::string too_much(std::string_view text) {
  std::vector<size_t> members;  // of each open object and array; an array's are counted as well, and do not matter
  std::vector<bool> object;
  size_t comparisons = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (members.size() == kMaxDepth) return fmt::format("expected JSON nested at most {} deep", kMaxDepth);
      members.push_back(0);
      object.push_back(c == '{');
    } else if (members.empty()) {
      continue;
    } else if (c == ']' || c == '}') {
      members.pop_back();
      object.pop_back();
    } else if (c == ',' && object.back() && (comparisons += ++members.back()) > kMaxComparisons) {
      return "expected JSON with smaller objects";
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
