// Any text as a JSON Schema, of an answer and of a tool's arguments, and schemas made of the bytes, which are larger
// and say more than a text that a fuzzer arrives at: a grammar without dead ends, or an error, and either of them soon.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "grammar/tool_calls.h"
#include "grammar_check.h"

namespace {

using facet::Json;

// A schema from a few bytes: each op takes some, lists are made of a count and one description.
class Maker {
 public:
  Maker(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  Json document() {
    Json defs = Json::object();
    for (int i = 0; i < 4; ++i) defs[fmt::format("d{}", i)] = schema(2);
    Json out = schema(4);
    out["$defs"] = std::move(defs);
    return out;
  }

 private:
  uint32_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  // Takes one of the values that are left, before what is inside it takes its own.
  bool spend() { return left_ > 0 && left_-- > 0; }
  // 0 to 8,192, small ones as likely as large ones.
  size_t count() {
    const uint32_t b = byte();
    return std::min<size_t>((size_t(1) << (b % 14)) + b / 14 - 1, left_);
  }
  uint64_t number() {
    const uint32_t b = byte();
    return b < 128 ? b : uint64_t(b) << (b % 57);
  }
  std::string name(size_t i) { return fmt::format("{}{}", char('a' + i % 3), i); }

  template <class Make>
  Json list(const Make& make) {
    Json out = Json::array();
    const size_t n = count();
    for (size_t i = 0; i < n && spend(); ++i) out.push_back(make(i));
    if (out.empty()) out.push_back(make(0));
    return out;
  }
  // The same bytes for each, so that lists are long.
  Json again(int depth) {
    const size_t at = at_;
    Json out = schema(depth);
    last_ = std::max(last_, at_);
    at_ = at;
    return out;
  }
  template <class Key>
  Json object(int depth, const Key& key) {
    Json out = Json::object();
    const size_t n = count();
    for (size_t i = 0; i < n && i < 3000 && spend(); ++i) out[key(i)] = again(depth - 1);
    at_ = std::max(at_, last_);
    return out;
  }

  Json schema(int depth) {
    static const char* const kPatterns[] = {"^[a-z]+$",  "a",      "^(?!.*\\.\\.)[a-z.]*$",       "[ab]*a[ab]{9}$",
                                            "^x{0,200}", "(a|b)*", "^(?=.*\\d)(?=.*[a-z]).{4,}$", "^\\S+@\\S+$"};
    static const char* const kFormats[] = {"uri", "email", "date-time", "ipv6", "uuid", "hostname", "duration", "jwt"};
    static const char* const kTypes[] = {"string", "integer", "number", "boolean", "null", "array", "object"};
    if (depth <= 0 || !spend()) return {{"type", kTypes[byte() % 7]}};
    const size_t made = made_++;
    Json out = Json::object();
    const auto of_names = [&] { return list([&](size_t i) { return Json(name(i)); }); };
    switch (byte() % 16) {
      case 0:
        return {{"type", {kTypes[byte() % 7], kTypes[byte() % 7]}}};
      case 1:
        out["pattern"] = std::string(kPatterns[byte() % 8]) + (made % 2 ? "" : fmt::format("x{}", made));
        [[fallthrough]];
      case 2:
        out["type"] = "string";
        out["minLength"] = number() % 120'000;
        out["maxLength"] = number() % 120'000;
        return out;
      case 3:
        return {{"type", "string"}, {"format", kFormats[byte() % 8]}, {"maxLength", number() % 5000}};
      case 4:
        return {{"type", "number"}, {"minimum", -double(number()) / 7}, {"exclusiveMaximum", number()}};
      case 5:
        return {{"type", "integer"}, {"multipleOf", number() % 1200 + 1 + made % 8}, {"minimum", number()}};
      case 6: {
        const uint32_t kind = byte();
        return {{"enum", list([&](size_t i) { return kind % 2 ? Json(name(i)) : Json(i); })}};
      }
      case 7:
        return {{"const", std::string(count() * 8, 'a')}, {"anyOf", list([&](size_t) { return Json::object(); })}};
      case 8:
        out["properties"] = object(depth, [&](size_t i) { return name(i); });
        if (byte() % 2) out["required"] = of_names();
        if (byte() % 2) out["additionalProperties"] = byte() % 4 ? Json(false) : schema(depth - 1);
        if (byte() % 4 == 0) out["minProperties"] = number() % 300;
        if (byte() % 4 == 0) out["maxProperties"] = number() % 300;
        return out;
      case 9:
        out[byte() % 2 ? "anyOf" : "oneOf"] = list([&](size_t) { return again(depth - 1); });
        break;
      case 10:
        out["allOf"] = list([&](size_t) { return again(depth - 1); });
        break;
      case 11:
        out["items"] = schema(depth - 1);
        out["minItems"] = number() % 5000;
        out["maxItems"] = number() % 5000;
        out["uniqueItems"] = byte() % 2 == 0;
        return out;
      case 12:
        return {{"$ref", fmt::format("#/$defs/d{}", byte() % 4)}};
      case 13:
        out["patternProperties"] = object(depth, [&](size_t i) { return fmt::format("^x{}[a-z]*$", i); });
        out["propertyNames"] = {{"maxLength", number() % 200}};
        return out;
      case 14:
        return {{"prefixItems", list([&](size_t) { return again(depth - 1); })}};
      default: {
        Json other = schema(depth - 1);
        out = schema(depth - 1);
        for (auto it = other.begin(); it != other.end(); ++it) out[it.key()] = *it;
        return out;
      }
    }
    at_ = std::max(at_, last_);
    return out;
  }

  const uint8_t* data_;
  size_t size_, at_ = 0, last_ = 0, left_ = 6000, made_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  // Sanitizers make compiling several times as slow, and a unit may take two seconds.
  facet::ToolGrammarOptions options;
  options.limits.work = facet::CompileLimits::kDefaultWork / 8;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  facet::Result<Json> schema = data[0] & 0x80 ? Maker(data + 1, size - 1).document() : facet::parse_json(text, "input");
  if (!schema) return 0;
  if ((data[0] & 1) == 0) {
    check_grammar(facet::compile_json_schema(*schema, options), data[0]);
    return 0;
  }
  const Json tool{{"name", "f"}, {"strict", (data[0] & 0x40) != 0}, {"parameters", *schema}};
  options.choice = data[0] & 2 ? facet::ToolChoice::kAuto : facet::ToolChoice::kRequired;
  options.thought = facet::ThoughtMode((data[0] >> 2) % 3);
  check_grammar(facet::compile_tool_calls({&tool, 1}, options), data[0]);
  return 0;
}
