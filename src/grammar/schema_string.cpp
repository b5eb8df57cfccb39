#include <fmt/format.h>

#include "grammar/schema.h"
#include "grammar/schema_keywords.h"
#include "tokenizer/utf8.h"

namespace facet::grammar {

bool SchemaCompiler::narrow(CharDfa& dfa, const CharDfa& by, const std::string& where, const char* keyword,
                            CharDfa::Size size) {
  Result<CharDfa> both = dfa.intersect(by, budget_, size);
  if (!both) return leave_out(where, fmt::format("{}: {}", keyword, both.error().what), both.error().hint);
  dfa = std::move(*both);
  return true;
}

// What pattern and format say.
bool SchemaCompiler::string_dfa(const Json& s, const std::string& where, CharDfa& out) {
  for (const char* key : {"pattern", "format"}) {
    const auto all = s.find(key);
    if (all == s.end()) continue;
    for (const Json& one : *all) {
      const auto& text = one.get_ref<const std::string&>();
      const Result<const CharDfa*> dfa = key[0] == 'p' ? patterns_.pattern(text) : patterns_.format(text);
      if (!dfa) {
        if (!leave_out(where, dfa.error().what, dfa.error().hint)) return false;
      } else if (!(*dfa)->is_any() && !narrow(out, **dfa, where, key, CharDfa::Size::kMayCut)) {
        return false;
      }
    }
  }
  return true;
}

// Lengths of what is left of them; false where they cannot be had.
bool SchemaCompiler::lengths(const Json& s, const std::string& where, uint32_t& min, uint32_t& max) {
  const uint64_t from = count_of(s, "minLength", 0), to = count_of(s, "maxLength", kUnbounded);
  for (const auto& [key, n] : {std::pair("minLength", from), std::pair("maxLength", to == kUnbounded ? 0 : to)})
    if (n > kMaxLength &&
        !leave_out(where, fmt::format("{}: expected at most {}", key, kMaxLength), "use a smaller length or none"))
      return false;
  min = uint32_t(from > kMaxLength ? 0 : from);
  max = to == kUnbounded ? kUnbounded : uint32_t(std::min<uint64_t>(to, kMaxLength));
  return true;
}

ExprId SchemaCompiler::text(const Json& s, const std::string& where) {
  if (!any_key(s, kStringKeywords)) return v_.string();
  CharDfa dfa = CharDfa::any();
  uint32_t min = 0, max = kUnbounded;
  if (!string_dfa(s, where, dfa) || !lengths(s, where, min, max)) return 0;
  if (min > max) return b_.none();
  if (dfa.is_any()) return v_.string_of_length(min, max);
  return v_.string(dfa, min, max);
}

// propertyNames, as far as it can say something about names.
bool SchemaCompiler::name_dfa(const Json& s, const std::string& where, CharDfa& out) {
  std::string at = below(where, "propertyNames");
  const Result<Json> names = source_.flatten(s["propertyNames"], at);
  if (!names) {
    fail(names.error().where, names.error().what, names.error().hint);
    return false;
  }
  out = CharDfa::any();
  if (names->is_boolean()) return names->get<bool>() || (out = CharDfa{{{}}}, true);
  for (auto it = names->begin(); it != names->end(); ++it) {
    const std::string& key = it.key();
    if (key == "type" || key == "enum" || key == "const") continue;
    if (std::find(std::begin(kStringKeywords), std::end(kStringKeywords), key) == std::end(kStringKeywords) &&
        !leave_out(at, fmt::format("{}: not supported for names", cut(key))))
      return false;
  }
  uint32_t min = 0, max = kUnbounded;
  if (!string_dfa(*names, at, out) || !lengths(*names, at, min, max)) return false;
  if (min > max) return out = CharDfa{{{}}}, true;
  if (min > 0 || max < kUnbounded) {
    constexpr uint32_t kMaxNameLength = 4000;
    if (max < kUnbounded) max = std::min(max, kMaxNameLength);
    if (min > kMaxNameLength)
      return leave_out(at, fmt::format("minLength: expected at most {} for names", kMaxNameLength));
    if (!narrow(out, CharDfa::length(min, max), at, "maxLength", CharDfa::Size::kMayCut)) return false;
  }
  for (const char* key : {"enum", "const"}) {
    if (!names->contains(key)) continue;
    const Json& listed = (*names)[key];
    std::vector<std::string> texts;
    if (listed.is_string()) texts.push_back(listed.get<std::string>());
    for (const Json& v : listed)
      if (v.is_string() && listed.is_array()) texts.push_back(v.get<std::string>());
    if (!narrow(out, CharDfa::texts(texts, budget_), at, key, CharDfa::Size::kWhole)) return false;
  }
  return true;
}

}  // namespace facet::grammar
