#include "grammar/schema_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

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

Json merge_properties(const Json& a, const Json& b) {
  Json out = Json::object();
  const Json none = Json::object();
  const Json& x = a.contains("properties") ? a["properties"] : none;
  const Json& y = b.contains("properties") ? b["properties"] : none;
  const auto other = [](const Json& mine, const Json& theirs, const Json& their_rest) {
    return their_rest == Json(true) ? mine : all_of(mine, theirs);
  };
  for (auto it = x.begin(); it != x.end(); ++it)
    out[it.key()] = y.contains(it.key()) ? all_of(*it, y[it.key()]) : other(*it, rest_of(b), rest_of(b));
  for (auto it = y.begin(); it != y.end(); ++it)
    if (!x.contains(it.key())) out[it.key()] = other(*it, rest_of(a), rest_of(a));
  return out;
}

// Checks forms that later code relies on. "" or what is wrong.
std::string check_form(std::string_view key, const Json& v) {
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

}  // namespace

Result<const Json*> SchemaSource::resolve(const Json& ref, const std::string& where) const {
  const auto& text = ref.get_ref<const std::string&>();
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
    if (at->is_object() && at->contains(step)) {
      next = &(*at)[step];
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

Result<Json> SchemaSource::flatten(const Json& schema, std::string& where, int depth) const {
  if (schema.is_boolean()) return schema;
  if (!schema.is_object()) return Error{where, fmt::format("expected a schema, found {}", schema.type_name()), ""};
  if (++work_ > kMaxWork)
    return Error{where, fmt::format("expected at most {} schemas, found more", kMaxWork), "simplify it"};
  if (depth > kMaxDepth)
    return bad(where, "$ref", fmt::format("expected $ref and allOf nested at most {} deep", kMaxDepth),
               "a schema must not refer to itself before it has described something");
  Json base = Json::object();
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const std::string& key = it.key();
    if (contains(kAnnotations, key) || key.starts_with("x-")) continue;
    if (!contains(kKeywords, key))
      return bad(where, key, "this keyword is not supported", "see the table of keywords in docs/structured-output.md");
    if (std::string problem = check_form(key, *it); !problem.empty()) return bad(where, key, std::move(problem));
    if (key == "$ref" || key == "allOf") continue;
    if (key == "uniqueItems") {
      if (it->get<bool>()) return bad(where, key, "true is not supported");
      continue;
    }
    if (key == "oneOf" && !schema.contains("anyOf"))
      base["anyOf"] = *it;
    else if (key == "oneOf")
      return bad(where, key, "not supported beside anyOf");
    else if ((key == "pattern" || key == "format") && it->is_string())
      base[key] = Json::array({*it});
    else
      base[key] = *it;
  }
  const std::string here = where;
  Json out = base;
  if (const auto all = schema.find("allOf"); all != schema.end()) {
    for (size_t i = 0; i < all->size(); ++i) {
      std::string at = fmt::format("{}/allOf/{}", here, i);
      Result<Json> part = flatten((*all)[i], at, depth + 1);
      if (!part) return part;
      Result<Json> merged = merge(out, *part, here);
      if (!merged) return merged;
      out = std::move(*merged);
    }
  }
  if (const auto ref = schema.find("$ref"); ref != schema.end()) {
    Result<const Json*> target = resolve(*ref, here);
    if (!target) return target.error();
    std::string at = ref->get<std::string>();
    Result<Json> part = flatten(**target, at, depth + 1);
    if (!part) return part;
    if (out.empty()) {
      where = at;
      return part;
    }
    return merge(*part, out, here);
  }
  return out;
}

Result<Json> SchemaSource::merge(const Json& a, const Json& b, const std::string& where) const {
  if (a.is_boolean()) return a.get<bool>() ? b : a;
  if (b.is_boolean()) return b.get<bool>() ? a : b;
  Json out = a;
  for (auto it = b.begin(); it != b.end(); ++it) {
    const std::string& key = it.key();
    const Json& y = *it;
    if (key == "properties" || key == "additionalProperties") continue;  // below
    if (!a.contains(key)) {
      out[key] = y;
      continue;
    }
    const Json& x = a[key];
    if (x == y) continue;
    if (key == "type") {
      out[key] = both_types(x, y);
      if (out[key].empty()) return Json(false);
    } else if (key == "required" || key == "pattern" || key == "format") {
      for (const Json& v : y)
        if (std::find(out[key].begin(), out[key].end(), v) == out[key].end()) out[key].push_back(v);
    } else if (key == "enum") {
      out[key] = Json::array();
      for (const Json& v : x)
        if (std::find(y.begin(), y.end(), v) != y.end()) out[key].push_back(v);
      if (out[key].empty()) return Json(false);
    } else if (key == "const") {
      return Json(false);
    } else if (key.starts_with("min") || (key == "exclusiveMinimum" && x.is_number() && y.is_number())) {
      out[key] = std::max(x.get<double>(), y.get<double>()) == x.get<double>() ? x : y;
    } else if (key.starts_with("max") || (key == "exclusiveMaximum" && x.is_number() && y.is_number())) {
      out[key] = std::min(x.get<double>(), y.get<double>()) == x.get<double>() ? x : y;
    } else if ((key == "items" && !x.is_array() && !y.is_array()) || key == "propertyNames") {
      out[key] = all_of(x, y);
    } else if (key == "multipleOf" && x.is_number_unsigned() && y.is_number_unsigned() && x < 1001 && y < 1001) {
      out[key] = std::lcm(x.get<uint64_t>(), y.get<uint64_t>());
    } else if (key == "anyOf" && x.size() * y.size() <= 64) {
      out[key] = Json::array();
      for (const Json& p : x)
        for (const Json& q : y) out[key].push_back(all_of(p, q));
    } else {
      return bad(where, "allOf", fmt::format("two different values of {} cannot be put together", key),
                 "write one schema that says both");
    }
  }
  const bool tuple = out.contains("prefixItems") || (out.contains("items") && out["items"].is_array());
  if (tuple && a.contains("items") + a.contains("prefixItems") > 0 &&
      b.contains("items") + b.contains("prefixItems") > 0)
    return bad(where, "allOf", "prefixItems beside another schema's items cannot be put together");
  if (a.contains("patternProperties") + b.contains("patternProperties") > 0 &&
      (a.contains("properties") || a.contains("additionalProperties")) &&
      (b.contains("properties") || b.contains("additionalProperties")))
    return bad(where, "allOf", "patternProperties beside another schema's properties cannot be put together");
  if (a.contains("properties") || b.contains("properties")) out["properties"] = merge_properties(a, b);
  if (b.contains("additionalProperties"))
    out["additionalProperties"] = a.contains("additionalProperties")
                                      ? all_of(a["additionalProperties"], b["additionalProperties"])
                                      : b["additionalProperties"];
  return out;
}

}  // namespace facet::grammar
