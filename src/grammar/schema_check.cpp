#include "grammar/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "grammar/string_formats.h"
#include "tokenizer/utf8.h"

namespace facet::grammar {

Result<const CharDfa*> StringPatterns::keep(std::string key, std::string_view regex, RegexMatch match) {
  budget_.spend(8 + key.size());
  if (const auto it = known_.find(key); it != known_.end()) return &it->second;
  const Result<Regex> parsed = parse_regex(regex);
  if (!parsed) return parsed.error();
  Result<CharDfa> dfa = CharDfa::regex(*parsed, match, budget_);
  if (!dfa) return dfa.error();
  return &known_.emplace(std::move(key), std::move(*dfa)).first->second;
}

Result<const CharDfa*> StringPatterns::pattern(std::string_view text) {
  Result<const CharDfa*> dfa = keep("p" + std::string(text), text, RegexMatch::kSearch);
  if (dfa) return dfa;
  return Error{"", fmt::format("pattern \"{}\": {}", cut(text), dfa.error().what), dfa.error().hint};
}

Result<const CharDfa*> StringPatterns::format(std::string_view name) {
  const char* regex = format_regex(name);
  if (!regex)
    return Error{"", fmt::format("format: expected {}, found \"{}\"", supported_formats(), cut(name)), "use pattern"};
  // A format without a syntax: any text, which a search for nothing matches.
  return keep("f" + std::string(name), regex, *regex ? RegexMatch::kWhole : RegexMatch::kSearch);
}

bool SchemaCheck::fail(Error error) {
  if (!error_) error_ = std::move(error);
  return false;
}

bool is_multiple(const Json& value, const Json& of) {
  if (value.is_number_unsigned() && of.is_number_unsigned()) return value.get<uint64_t>() % of.get<uint64_t>() == 0;
  if (value.is_number_integer() && of.is_number_unsigned() && of.get<uint64_t>() <= INT64_MAX)
    return value.get<int64_t>() % of.get<int64_t>() == 0;
  const double q = value.get<double>() / of.get<double>();
  return q == std::floor(q);
}

bool SchemaCheck::allows(const Json& schema, const Json& value, const std::string& where, bool literals, int depth) {
  if (error_) return false;
  budget_.spend(8 + 4 * schema.size() + where.size() / 8);
  if (schema.is_boolean()) return schema.get<bool>();
  if (!schema.is_object()) return fail({where, fmt::format("expected a schema, found {}", schema.type_name()), ""});
  if (depth > SchemaSource::kMaxDepth)
    return fail({where, fmt::format("expected schemas nested at most {} deep", SchemaSource::kMaxDepth), "use $ref"});
  bool all = true;
  for (auto it = schema.begin(); it != schema.end() && all && !error_; ++it) {
    const std::string& key = it.key();
    const SchemaSource::Keyword kind = SchemaSource::kind(key);
    if (kind == SchemaSource::Keyword::kUnknown && !source_.lenient())
      return fail(SchemaSource::unsupported(where, key));
    if (kind != SchemaSource::Keyword::kKnown || (!literals && (key == "enum" || key == "const"))) continue;
    if (std::string problem = SchemaSource::check_form(key, *it); !problem.empty())
      return fail({where, fmt::format("{}: {}", key, problem), ""});
    all = keyword(schema, key, *it, value, where, depth);
  }
  return all && !error_;
}

bool SchemaCheck::listed(const Json& values, const Json& value) {
  const auto [it, fresh] = enums_.try_emplace(&values);
  if (fresh) {
    budget_.spend(10 * values.size() + 2 * weight(values));
    for (const Json& v : values) it->second.insert(value_key(v));
  }
  budget_.spend(8 + 2 * weight(value));
  return it->second.contains(value_key(value));
}

bool SchemaCheck::keyword(const Json& schema, const std::string& key, const Json& k, const Json& value,
                          const std::string& where, int depth) {
  const auto is_one = [&](const Json& t) {
    const auto& name = t.get_ref<const std::string&>();
    if (name == "number") return value.is_number();
    if (name == "integer")
      return value.is_number_integer() ||
             (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
    return name == value.type_name();
  };
  const auto same = [&](const Json& v) {
    budget_.spend(weight(v) < weight(value) ? weight(v) : weight(value));
    return v == value;
  };
  if (key == "type") return k.is_string() ? is_one(k) : std::any_of(k.begin(), k.end(), is_one);
  if (key == "const") return same(k);
  if (key == "enum") return k.size() > 16 ? listed(k, value) : std::any_of(k.begin(), k.end(), same);
  if (key == "$ref") {
    const Result<const Json*> target = source_.resolve(k, where);
    if (!target) return source_.lenient() || fail(target.error());
    return allows(**target, value, where, true, depth + 1);
  }
  if (key == "allOf" || key == "anyOf" || key == "oneOf") {
    const auto allowed = [&](const Json& s) { return allows(s, value, below(where, key), true, depth + 1); };
    return key == "allOf" ? std::all_of(k.begin(), k.end(), allowed) : std::any_of(k.begin(), k.end(), allowed);
  }
  if (value.is_number()) {
    if (key == "multipleOf") return is_multiple(value, k);
    const bool flag = k.is_boolean() && k.get<bool>();
    if (key == "minimum") return !(value < k);
    if (key == "maximum") return !(k < value);
    if (key == "exclusiveMinimum" && flag) return !schema.contains("minimum") || schema["minimum"] < value;
    if (key == "exclusiveMaximum" && flag) return !schema.contains("maximum") || value < schema["maximum"];
    if (key == "exclusiveMinimum" && k.is_number()) return k < value;
    if (key == "exclusiveMaximum" && k.is_number()) return value < k;
  }
  if (value.is_string()) return text(key, k, value.get_ref<const std::string&>(), where);
  if (value.is_array()) return array(schema, key, k, value, where, depth);
  if (value.is_object()) return object(schema, key, k, value, where, depth);
  return true;
}

bool SchemaCheck::text(const std::string& key, const Json& k, const std::string& value, const std::string& where) {
  if (key == "minLength" || key == "maxLength") {
    budget_.spend(value.size() / 4);
    const size_t n = size_t(std::count_if(value.begin(), value.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    return key == "minLength" ? n >= k.get<uint64_t>() : n <= k.get<uint64_t>();
  }
  if (key != "pattern" && key != "format") return true;
  const auto matches = [&](const Json& one) {
    const auto& name = one.get_ref<const std::string&>();
    const Result<const CharDfa*> dfa = key == "pattern" ? patterns_.pattern(name) : patterns_.format(name);
    if (!dfa) return source_.lenient() || fail({where, dfa.error().what, dfa.error().hint});
    return (*dfa)->accepts(value, budget_);
  };
  return k.is_string() ? matches(k) : std::all_of(k.begin(), k.end(), matches);
}

bool SchemaCheck::array(const Json& schema, const std::string& key, const Json& k, const Json& value,
                        const std::string& where, int depth) {
  if (key == "minItems") return value.size() >= k.get<uint64_t>();
  if (key == "maxItems") return value.size() <= k.get<uint64_t>();
  if (key == "uniqueItems" && k.get<bool>()) {
    std::unordered_set<std::string> seen;
    budget_.spend(2 * weight(value));
    return std::all_of(value.begin(), value.end(), [&](const Json& v) { return seen.insert(value_key(v)).second; });
  }
  const auto from = [&](const Json& s, size_t first) {
    for (size_t i = first; i < value.size(); ++i)
      if (!allows(s, value[i], below(where, key), true, depth + 1)) return false;
    return true;
  };
  const auto each = [&](const Json& list) {
    for (size_t i = 0; i < std::min(list.size(), value.size()); ++i)
      if (!allows(list[i], value[i], below(where, key), true, depth + 1)) return false;
    return true;
  };
  if (key == "prefixItems" || (key == "items" && k.is_array())) return each(k);
  if (key == "items") return from(k, schema.contains("prefixItems") ? schema["prefixItems"].size() : 0);
  if (key == "additionalItems" && schema.contains("items") && schema["items"].is_array())
    return from(k, schema["items"].size());
  return true;
}

bool SchemaCheck::object(const Json& schema, const std::string& key, const Json& k, const Json& value,
                         const std::string& where, int depth) {
  if (key == "minProperties") return value.size() >= k.get<uint64_t>();
  if (key == "maxProperties") return value.size() <= k.get<uint64_t>();
  const auto has = [&](const Json& object, const std::string& name) {
    budget_.spend(object.size());
    return object.contains(name);
  };
  if (key == "required")
    return std::all_of(k.begin(), k.end(), [&](const Json& name) { return has(value, name.get<std::string>()); });
  const auto of_pattern = [&](const std::string& pattern, const std::string& name) {
    const Result<const CharDfa*> dfa = patterns_.pattern(pattern);
    if (!dfa) return !source_.lenient() && fail({where, dfa.error().what, dfa.error().hint});
    return (*dfa)->accepts(name, budget_);
  };
  const auto& patterned = schema.find("patternProperties");
  for (auto m = value.begin(); m != value.end(); ++m) {
    const std::string at = below(where, key);
    if (key == "properties") {
      if (has(k, m.key()) && !allows(k[m.key()], *m, at, true, depth + 1)) return false;
    } else if (key == "propertyNames") {
      if (!allows(k, Json(m.key()), at, true, depth + 1)) return false;
    } else if (key == "patternProperties") {
      for (auto p = k.begin(); p != k.end(); ++p)
        if (of_pattern(p.key(), m.key()) && !allows(*p, *m, at, true, depth + 1)) return false;
    } else if (key == "additionalProperties") {
      bool named = schema.contains("properties") && has(schema["properties"], m.key());
      if (!named && patterned != schema.end())
        for (auto p = patterned->begin(); p != patterned->end() && !named; ++p) named = of_pattern(p.key(), m.key());
      if (!named && !allows(k, *m, at, true, depth + 1)) return false;
    }
  }
  return true;
}

}  // namespace facet::grammar
