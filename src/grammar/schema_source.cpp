#include "grammar/schema_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "tokenizer/utf8.h"

namespace facet::grammar {
namespace {

constexpr std::string_view kAnnotations[] = {
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$schema",
    "$id",
    "id",
    "$comment",
    "$anchor",
    "$defs",
    "definitions",
    "deprecated",
    "readOnly",
    "writeOnly",
    "nullable",
    "discriminator",
    "strict",
    "contentEncoding",
    "contentMediaType",
    "propertyOrdering",
    "externalDocs",
    "xml",
};
constexpr std::string_view kKeywords[] = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
};

template <class List>
bool contains(const List& list, std::string_view key) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

Error bad(const std::string& where, std::string_view keyword, std::string what, std::string hint = "") {
  return Error{where, fmt::format("{}: {}", cut(keyword), what), std::move(hint)};
}

// Types that both allow; integer is a part of number.
Json both_types(const Json& a, const Json& b) {
  const auto list = [](const Json& t) { return t.is_array() ? t : Json::array({t}); };
  const auto has = [](const Json& all, std::string_view t) {
    return std::find(all.begin(), all.end(), t) != all.end();
  };
  Json out = Json::array();
  const Json x = list(a), y = list(b);
  for (const Json& t : x) {
    if (has(y, t.get<std::string>()) || (t == "integer" && has(y, "number")))
      out.push_back(t);
    else if (t == "number" && has(y, "integer"))
      out.push_back("integer");
  }
  return out;
}

Json all_of(const Json& a, const Json& b) { return a == b ? a : Json{{"allOf", Json::array({a, b})}}; }

// The bound of old drafts' exclusiveMinimum: true.
bool is_flag(const Json& v) { return v.is_boolean(); }

// What a name that is not in `properties` must satisfy.
Json rest_of(const Json& schema) { return schema.value("additionalProperties", Json(true)); }

using Members = std::unordered_map<std::string_view, const Json*>;

Members members_of(const Json& object) {
  Members out;
  out.reserve(object.size());
  for (auto it = object.begin(); it != object.end(); ++it) out.emplace(it.key(), &*it);
  return out;
}

// Adds what is not there yet.
void add_distinct(Json& list, const Json& more) {
  std::unordered_set<std::string> known;
  for (const Json& v : list) known.insert(value_key(v));
  for (const Json& v : more)
    if (known.insert(value_key(v)).second) list.push_back(v);
}

Json in_both(const Json& a, const Json& b) {
  std::unordered_set<std::string> known;
  for (const Json& v : b) known.insert(value_key(v));
  Json out = Json::array();
  for (const Json& v : a)
    if (known.contains(value_key(v))) out.push_back(v);
  return out;
}

}  // namespace

size_t weight(const Json& value) {
  size_t n = 4;
  if (value.is_string()) return n + value.get_ref<const std::string&>().size() / 8;
  if (value.is_array())
    for (const Json& v : value) n += weight(v);
  if (value.is_object())
    for (auto it = value.begin(); it != value.end(); ++it) n += 8 + it.key().size() / 8 + weight(*it);
  return n;
}

std::string below(const std::string& where, std::string_view keyword, std::string_view name) {
  constexpr size_t kMaxPlace = 400;
  std::string out = where.size() > kMaxPlace ? where.substr(0, kMaxPlace) + "..." : where;
  out += '/';
  out += keyword;
  if (name.data()) out += '/', out += cut(name);
  return out;
}

std::string value_key(const Json& value) {
  if (value.is_number_float()) {
    const double x = value.get<double>();
    if (x == std::floor(x) && std::abs(x) < 9e15) return std::to_string(int64_t(x));
  }
  return dump_json(value);
}

SchemaSource::Keyword SchemaSource::kind(std::string_view key) {
  if (contains(kAnnotations, key) || key.starts_with("x-")) return Keyword::kAnnotation;
  return contains(kKeywords, key) ? Keyword::kKnown : Keyword::kUnknown;
}

Error SchemaSource::unsupported(const std::string& where, std::string_view key) {
  return bad(where, key, "this keyword is not supported", "see the table of keywords in docs/structured-output.md");
}

// Checks forms that later code relies on.
std::string SchemaSource::check_form(std::string_view key, const Json& v) {
  const auto strings = [](const Json& list) {
    return list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& s) { return s.is_string(); });
  };
  const auto schema = [](const Json& s) { return s.is_object() || s.is_boolean(); };
  const auto schemas = [&](const Json& list) { return std::all_of(list.begin(), list.end(), schema); };
  constexpr std::array<std::string_view, 7> kTypes = {"string", "number", "integer", "boolean",
                                                      "object", "array",  "null"};
  const auto type = [&](const Json& t) { return t.is_string() && contains(kTypes, t.get_ref<const std::string&>()); };
  const auto expected = [&](bool ok, std::string_view what) {
    return ok ? std::string() : fmt::format("expected {}, found {}", what, dump_json(v).substr(0, 60));
  };
  if (key == "type")
    return expected(type(v) || (v.is_array() && !v.empty() && std::all_of(v.begin(), v.end(), type)),
                    "string, number, integer, boolean, object, array, null or a list of these");
  if (key == "properties" || key == "patternProperties")
    return expected(v.is_object() && schemas(v), "an object of schemas");
  if (key == "required") return expected(strings(v), "an array of strings");
  if (key == "additionalProperties" || key == "propertyNames" || key == "additionalItems")
    return expected(schema(v), "a schema");
  if (key == "items") return expected(schema(v) || (v.is_array() && schemas(v)), "a schema");
  if (key == "prefixItems" || key == "anyOf" || key == "oneOf" || key == "allOf")
    return expected(v.is_array() && !v.empty() && schemas(v), "an array of schemas");
  if (key == "enum") return expected(v.is_array() && !v.empty(), "an array of values");
  if (key == "$ref" || key == "format") return expected(v.is_string() || strings(v), "a string");
  if (key == "pattern") return expected(v.is_string() || strings(v), "a string");
  if (key == "uniqueItems") return expected(v.is_boolean(), "true or false");
  if (key.starts_with("min") && key != "minimum") return expected(v.is_number_unsigned(), "a whole number");
  if (key.starts_with("max") && key != "maximum") return expected(v.is_number_unsigned(), "a whole number");
  if (key == "minimum" || key == "maximum") return expected(v.is_number(), "a number");
  if (key == "exclusiveMinimum" || key == "exclusiveMaximum") return expected(v.is_number() || is_flag(v), "a number");
  if (key == "multipleOf") return expected(v.is_number() && v.get<double>() > 0, "a number above 0");
  return "";
}

Result<const Json*> SchemaSource::resolve(const Json& ref, const std::string& where) const {
  const auto& text = ref.get_ref<const std::string&>();
  budget_.spend(8 + text.size());
  if (text == "#") return &root_;
  if (!text.starts_with("#/"))
    return bad(where, "$ref", fmt::format("expected a reference into this schema (#/...), found \"{}\"", cut(text)),
               "put what is referred to under $defs");
  const Json* at = &root_;
  std::string_view rest = std::string_view(text).substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    std::string step;
    for (size_t i = 0; i < end; ++i) {  // ~0, ~1 and %XX
      const auto hex = [&](size_t k) {
        return k < end ? std::string_view("0123456789abcdef").find(char(rest[k] | 32)) : std::string::npos;
      };
      if (rest[i] == '~' && i + 1 < end && (rest[i + 1] == '0' || rest[i + 1] == '1'))
        step += rest[++i] == '0' ? '~' : '/';
      else if (rest[i] == '%' && hex(i + 1) < 16 && hex(i + 2) < 16)
        step += char(hex(i + 1) * 16 + hex(i + 2)), i += 2;
      else
        step += rest[i];
    }
    rest.remove_prefix(end);
    const Json* next = nullptr;
    if (at->is_object()) {
      next = member(*at, step);
    } else if (at->is_array() && !step.empty() && step.size() < 7 &&
               step.find_first_not_of("0123456789") == std::string::npos) {
      const size_t i = size_t(std::stoul(step));
      if (i < at->size()) next = &(*at)[i];
    }
    if (!next) return bad(where, "$ref", fmt::format("\"{}\" leads nowhere", cut(text)));
    at = next;
  }
  return at;
}

const Json* SchemaSource::member(const Json& object, const std::string& name) const {
  if (object.size() <= 16) {
    const auto it = object.find(name);
    return it == object.end() ? nullptr : &*it;
  }
  const auto [known, fresh] = members_.try_emplace(&object);
  if (fresh) {
    budget_.spend(10 * object.size());
    known->second = members_of(object);
  }
  const auto it = known->second.find(name);
  return it == known->second.end() ? nullptr : it->second;
}

// Its own keywords, without those that lead to other schemas.
Result<Json> SchemaSource::keywords(const Json& schema, const std::string& where) const {
  Json base = Json::object();
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const std::string& key = it.key();
    const Keyword known = kind(key);
    if (known == Keyword::kAnnotation || (known == Keyword::kUnknown && lenient_)) continue;
    if (known == Keyword::kUnknown) return unsupported(where, key);
    budget_.spend(4 * weight(*it));
    if (std::string problem = check_form(key, *it); !problem.empty()) return bad(where, key, std::move(problem));
    if (key == "$ref" || key == "allOf" || key == "oneOf") continue;
    if (key == "uniqueItems" && !it->get<bool>()) continue;
    if ((key == "pattern" || key == "format") && it->is_string())
      base[key] = Json::array({*it});
    else
      base[key] = *it;
  }
  return base;
}

Result<Json> SchemaSource::flatten(const Json& schema, std::string& where, int depth) const {
  if (schema.is_boolean()) return schema;
  if (!schema.is_object()) return Error{where, fmt::format("expected a schema, found {}", schema.type_name()), ""};
  if (++work_ > kMaxWork)
    return Error{where, fmt::format("expected at most {} schemas, found more", kMaxWork), "simplify it"};
  if (depth > kMaxDepth)
    return bad(where, "$ref", fmt::format("expected $ref and allOf nested at most {} deep", kMaxDepth),
               "a schema must not refer to itself before it has described something");
  const std::string here = where;
  Result<Json> own = keywords(schema, here);
  if (!own) return own;
  Json out = std::move(*own);
  if (const auto one = schema.find("oneOf"); one != schema.end()) {
    Result<Json> merged = merge(std::move(out), Json{{"anyOf", *one}}, here);
    if (!merged) return merged;
    out = std::move(*merged);
  }
  if (const auto all = schema.find("allOf"); all != schema.end()) {
    for (size_t i = 0; i < all->size(); ++i) {
      std::string at = below(here, "allOf", std::to_string(i));
      Result<Json> part = flatten((*all)[i], at, depth + 1);
      if (!part) return part;
      Result<Json> merged = merge(std::move(out), *part, here);
      if (!merged) return merged;
      out = std::move(*merged);
    }
  }
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    const Result<const Json*> target = resolve(*ref, here);
    if (!target && lenient_) return out;
    if (!target) return target.error();
    std::string at = ref->get<std::string>();
    Result<Json> part = flatten(**target, at, depth + 1);
    if (!part) return part;
    if (out.is_object() && out.empty()) {
      where = at;
      return part;
    }
    return merge(std::move(*part), out, here);
  }
  return out;
}

// Puts one keyword of another schema beside a's own value of it. False where that cannot be said in one schema; a
// becomes false where both contradict each other.
bool SchemaSource::merge_keyword(Json& a, const std::string& key, const Json& y) const {
  Json& x = a[key];
  const bool numbers = x.is_number() && y.is_number();
  if (key == "type") {
    x = both_types(x, y);
    if (x.empty()) a = false;
  } else if (key == "required" || key == "pattern" || key == "format") {
    add_distinct(x, y);
  } else if (key == "enum") {
    x = in_both(x, y);
    if (x.empty()) a = false;
  } else if (key == "const") {
    a = false;
  } else if (numbers && (key.starts_with("min") || key == "exclusiveMinimum")) {
    if (x < y) x = y;
  } else if (numbers && (key.starts_with("max") || key == "exclusiveMaximum")) {
    if (y < x) x = y;
  } else if ((key == "items" && !x.is_array() && !y.is_array()) || key == "propertyNames") {
    x = all_of(x, y);
  } else if (key == "multipleOf" && x.is_number_unsigned() && y.is_number_unsigned() && x < 1001 && y < 1001) {
    x = std::lcm(x.get<uint64_t>(), y.get<uint64_t>());
  } else if (key == "anyOf" && x.size() * y.size() <= 64) {
    budget_.spend(4 * (weight(x) * y.size() + weight(y) * x.size()));
    Json all = Json::array();
    for (const Json& p : x)
      for (const Json& q : y) all.push_back(all_of(p, q));
    x = std::move(all);
  } else {
    return false;
  }
  return true;
}

Json SchemaSource::merge_properties(const Json& a, const Json& b) const {
  const Json none = Json::object();
  const auto listed = [&](const Json& s) -> const Json& {
    const auto it = s.find("properties");
    return it == s.end() ? none : *it;
  };
  const Json &x = listed(a), &y = listed(b);
  const Json rest_a = rest_of(a), rest_b = rest_of(b);
  const auto other = [&](const Json& mine, const Json& rest) {
    if (rest == Json(true)) return mine;
    budget_.spend(4 * weight(rest));
    return all_of(mine, rest);
  };
  budget_.spend(6 * (weight(x) + weight(y)));
  const Members in_x = members_of(x), in_y = members_of(y);
  Json out = Json::object();
  // Names of one object are distinct: there is nothing to look for.
  auto& members = static_cast<std::vector<std::pair<const std::string, Json>>&>(out.get_ref<Json::object_t&>());
  for (auto it = x.begin(); it != x.end(); ++it) {
    const auto both = in_y.find(it.key());
    members.emplace_back(it.key(), both != in_y.end() ? all_of(*it, *both->second) : other(*it, rest_b));
  }
  for (auto it = y.begin(); it != y.end(); ++it)
    if (!in_x.contains(it.key())) members.emplace_back(it.key(), other(*it, rest_a));
  return out;
}

Result<Json> SchemaSource::merge(Json a, const Json& b, const std::string& where) const {
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  const bool tuples = (a.contains("prefixItems") || (a.contains("items") && a["items"].is_array()) ||
                       b.contains("prefixItems") || (b.contains("items") && b["items"].is_array())) &&
                      a.contains("items") + a.contains("prefixItems") > 0 &&
                      b.contains("items") + b.contains("prefixItems") > 0;
  const bool patterns = a.contains("patternProperties") + b.contains("patternProperties") > 0 &&
                        (a.contains("properties") || a.contains("additionalProperties")) &&
                        (b.contains("properties") || b.contains("additionalProperties"));
  if (tuples && !lenient_)
    return bad(where, "allOf", "prefixItems beside another schema's items cannot be put together");
  if (patterns && !lenient_)
    return bad(where, "allOf", "patternProperties beside another schema's properties cannot be put together");
  Json properties;
  if (!patterns && (a.contains("properties") || b.contains("properties"))) properties = merge_properties(a, b);
  for (auto it = b.begin(); it != b.end(); ++it) {
    const std::string& key = it.key();
    const bool of_tuple = key == "items" || key == "prefixItems" || key == "additionalItems";
    if (key == "properties" || key == "additionalProperties") continue;  // below
    if ((tuples && of_tuple) || (patterns && key == "patternProperties")) continue;
    budget_.spend(4 * weight(*it));
    const auto mine = a.find(key);
    if (mine == a.end()) {
      a[key] = *it;
      continue;
    }
    budget_.spend(4 * weight(*mine));
    if (*mine == *it || merge_keyword(a, key, *it)) {
      if (a.is_boolean()) return a;
      continue;
    }
    if (!lenient_)
      return bad(where, "allOf", fmt::format("two different values of {} cannot be put together", key),
                 "write one schema that says both");
  }
  if (patterns) return a;
  if (!properties.is_null()) a["properties"] = std::move(properties);
  if (const auto rest = b.find("additionalProperties"); rest != b.end()) {
    const auto mine = a.find("additionalProperties");
    a["additionalProperties"] = mine != a.end() ? all_of(*mine, *rest) : *rest;
  }
  return a;
}

}  // namespace facet::grammar
