#include "grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/automaton.h"
#include "grammar/number_range.h"
#include "grammar/stepper.h"
#include "grammar/string_formats.h"
#include "tokenizer/utf8.h"

namespace facet::grammar {
namespace {

constexpr std::string_view kObjectKeywords[] = {"properties",        "required",      "additionalProperties",
                                                "patternProperties", "propertyNames", "minProperties",
                                                "maxProperties"};
constexpr std::string_view kArrayKeywords[] = {"items", "prefixItems", "additionalItems", "minItems", "maxItems"};
constexpr std::string_view kStringKeywords[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumberKeywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                "multipleOf"};

template <class List>
bool any_key(const Json& s, const List& keys) {
  return std::any_of(std::begin(keys), std::end(keys), [&](std::string_view k) { return s.contains(k); });
}

// A schema without a type describes the types whose keywords it has.
std::vector<std::string> types_of(const Json& s) {
  std::vector<std::string> out;
  if (const auto t = s.find("type"); t != s.end()) {
    if (t->is_string()) return {t->get<std::string>()};
    for (const Json& one : *t) {
      const auto name = one.get<std::string>();
      if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
    }
    if (std::find(out.begin(), out.end(), "number") != out.end()) std::erase(out, "integer");
    return out;
  }
  if (any_key(s, kObjectKeywords)) out.push_back("object");
  if (any_key(s, kArrayKeywords)) out.push_back("array");
  if (any_key(s, kStringKeywords)) out.push_back("string");
  if (any_key(s, kNumberKeywords)) out.push_back("number");
  return out;
}

uint64_t count(const Json& s, const char* key, uint64_t otherwise) {
  const auto it = s.find(key);
  return it == s.end() ? otherwise : it->get<uint64_t>();
}

std::string lower(std::string s) {
  for (char& c : s)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return s;
}

// Whether a whole text matches.
bool matches(const Automaton& a, std::string_view text) {
  Stepper stepper;
  stepper.reset(a);
  Frame at, next;
  stepper.start(at);
  for (const char c : text) {
    stepper.step(at, uint8_t(c), next);
    std::swap(at, next);
    if (!at.alive()) return false;
  }
  return at.may_end;
}

bool accepts(const CharDfa& dfa, std::string_view text) {
  std::vector<uint32_t> chars;
  if (!decode_utf8(text, chars)) return false;
  uint32_t at = 0;
  for (const uint32_t c : chars) {
    const auto& edges = dfa.states[at].edges;
    const auto e = std::find_if(edges.begin(), edges.end(), [&](const auto& edge) { return edge.on.contains(c); });
    if (e == edges.end()) return false;
    at = e->to;
  }
  return dfa.states[at].accepts;
}

}  // namespace

ExprId SchemaCompiler::fail(const std::string& where, std::string what, std::string hint) {
  if (!failed_) error_ = Error{where, std::move(what), std::move(hint)};
  failed_ = true;
  return 0;
}

Result<ExprId> SchemaCompiler::compile(const Json& schema, const std::string& where) {
  const ExprId e = value(schema, where, 0);
  if (failed_) return error_;
  return e;
}

ExprId SchemaCompiler::value(const Json& schema, std::string where, int depth) {
  if (failed_ || b_.overflow()) return 0;
  if (depth > SchemaSource::kMaxDepth)
    return fail(where, fmt::format("expected schemas nested at most {} deep", SchemaSource::kMaxDepth), "use $ref");
  const Result<Json> s = source_.flatten(schema, where);
  if (!s) return failed_ = true, error_ = s.error(), 0;
  if (s->is_boolean()) return s->get<bool>() ? v_.any() : b_.none();
  if (s->empty()) return v_.any();
  const auto [it, fresh] = rules_.try_emplace(dump_json(*s), 0);
  if (fresh) {
    const RuleId rule = it->second = b_.new_rule(where);
    b_.define(rule, flat(*s, where, depth));
  }
  return b_.rule(it->second);
}

ExprId SchemaCompiler::flat(const Json& s, const std::string& where, int depth) {
  std::vector<ExprId> all;
  if (const auto any = s.find("anyOf"); any != s.end()) {
    Json base = s;
    base.erase("anyOf");
    for (size_t i = 0; i < any->size(); ++i) {
      std::string at = fmt::format("{}/anyOf/{}", where, i);
      const Result<Json> branch = source_.flatten((*any)[i], at);
      if (!branch) return failed_ = true, error_ = branch.error(), 0;
      const Result<Json> merged = base.empty() ? *branch : source_.merge(base, *branch, at);
      if (!merged) return failed_ = true, error_ = merged.error(), 0;
      all.push_back(value(*merged, at, depth + 1));
    }
    return b_.alt(std::move(all));
  }
  if (s.contains("enum") || s.contains("const")) return literals(s, where, depth);
  for (const std::string& type : types_of(s)) all.push_back(typed(type, s, where, depth));
  return all.empty() ? v_.any() : b_.alt(std::move(all));
}

ExprId SchemaCompiler::typed(const std::string& type, const Json& s, const std::string& where, int depth) {
  if (type == "object") return object(s, where, depth);
  if (type == "array") return array(s, where, depth);
  if (type == "string") return text(s, where);
  if (type == "number" || type == "integer") return number(s, type == "integer", where);
  if (type == "boolean") return b_.alt({b_.bytes("true"), b_.bytes("false")});
  return b_.bytes("null");
}

// Of enum and const, the values that the other keywords allow.
ExprId SchemaCompiler::literals(const Json& s, const std::string& where, int depth) {
  std::vector<Json> values;
  if (const auto e = s.find("enum"); e != s.end()) values.assign(e->begin(), e->end());
  if (const auto c = s.find("const"); c != s.end()) {
    if (!s.contains("enum")) values = {*c};
    std::erase_if(values, [&](const Json& v) { return v != *c; });
  }
  Json others = s;
  others.erase("enum");
  others.erase("const");
  if (!others.empty()) {
    Builder builder;
    Values plain(builder, Syntax::kJson);
    SchemaCompiler compiler(plain, root_);
    const RuleId rule = builder.new_rule("check");
    builder.define(rule, compiler.value(others, where, depth + 1));
    if (compiler.failed_) return failed_ = true, error_ = compiler.error_, 0;
    const Result<Automaton> a = Automaton::compile(builder, rule, 256, 0);
    if (!a) values.clear();
    std::erase_if(values, [&](const Json& v) { return !matches(*a, dump_json(v)); });
  }
  if (values.empty()) return b_.none();
  std::vector<ExprId> all;
  for (const Json& v : values) {
    const Result<ExprId> e = v_.literal(v, where + (s.contains("enum") ? "/enum" : "/const"));
    if (!e) return failed_ = true, error_ = e.error(), 0;
    all.push_back(*e);
  }
  return b_.alt(std::move(all));
}

// --- strings

bool SchemaCompiler::narrow(CharDfa& dfa, const CharDfa& by, const std::string& where, const char* keyword) {
  Result<CharDfa> both = dfa.intersect(by);
  if (!both) {
    fail(where, fmt::format("{}: {}", keyword, both.error().what), both.error().hint);
    return false;
  }
  if (dfa.states.size() > 1 && by.states.size() > 1) string_states_ += both->states.size();
  dfa = std::move(*both);
  if (string_states_ <= kMaxStringStates) return true;
  fail(where,
       fmt::format("{}: expected at most {} states for the strings of a schema, found more", keyword, kMaxStringStates),
       "use shorter lengths, or fewer strings with pattern and maxLength");
  return false;
}

bool SchemaCompiler::string_dfa(const Json& s, const std::string& where, CharDfa& out) {
  const auto apply = [&](const char* keyword, std::string_view text, RegexMatch match) {
    const Result<Regex> regex = parse_regex(text, match);
    Result<CharDfa> dfa = regex ? CharDfa::regex(*regex) : regex.error();
    if (!dfa) {
      fail(where, fmt::format("{} \"{}\": {}", keyword, cut(text), dfa.error().what), dfa.error().hint);
      return false;
    }
    return narrow(out, *dfa, where, keyword);
  };
  if (const auto p = s.find("pattern"); p != s.end())
    for (const Json& one : *p)
      if (!apply("pattern", one.get<std::string>(), RegexMatch::kSearch)) return false;
  if (const auto f = s.find("format"); f != s.end()) {
    for (const Json& one : *f) {
      const auto name = one.get<std::string>();
      const char* regex = format_regex(name);
      if (!regex) {
        fail(where, fmt::format("format: expected {}, found \"{}\"", supported_formats(), name), "use pattern");
        return false;
      }
      if (*regex && !apply("format", regex, RegexMatch::kWhole)) return false;
    }
  }
  const uint64_t min = count(s, "minLength", 0), max = count(s, "maxLength", kUnbounded);
  if (min > 0 || max < kUnbounded) {
    if (min > max) return out = CharDfa{{{}}}, true;
    if (min > kMaxLength || (max > kMaxLength && max < kUnbounded)) {
      fail(where,
           fmt::format("{}: expected at most {}", max < kUnbounded && max > kMaxLength ? "maxLength" : "minLength",
                       kMaxLength),
           "use a smaller length or none");
      return false;
    }
    return narrow(out, CharDfa::length(uint32_t(min), uint32_t(max)), where, "maxLength");
  }
  return true;
}

ExprId SchemaCompiler::text(const Json& s, const std::string& where) {
  if (!any_key(s, kStringKeywords)) return v_.string();
  CharDfa dfa = CharDfa::any();
  if (!string_dfa(s, where, dfa)) return 0;
  if (!s.contains("pattern") && !s.contains("format")) {
    const uint64_t min = count(s, "minLength", 0), max = count(s, "maxLength", kUnbounded);
    return min > max ? b_.none() : v_.string_of_length(uint32_t(min), uint32_t(max));
  }
  const bool free =
      dfa.states.size() == 1 && dfa.states[0].edges.size() == 1 && dfa.states[0].edges[0].on == CharSet::all();
  return free ? v_.string() : v_.string(dfa);
}

// --- numbers

ExprId SchemaCompiler::number(const Json& s, bool integer, const std::string& where) {
  if (!any_key(s, kNumberKeywords)) return integer ? v_.integer() : v_.number();
  NumberRange range;
  range.fraction = integer ? 0 : 16;
  const auto bound = [&](const char* inclusive, const char* exclusive, bool lower) {
    std::optional<Bound> out;
    const auto i = s.find(inclusive), e = s.find(exclusive);
    if (i != s.end()) out = Bound{*i, e != s.end() && e->is_boolean() && e->get<bool>()};
    if (e == s.end() || !e->is_number()) return out;
    const double x = e->get<double>(), y = out ? out->value.get<double>() : x;
    if (!out || (lower ? x >= y : x <= y)) out = Bound{*e, true};
    return out;
  };
  range.min = bound("minimum", "exclusiveMinimum", true);
  range.max = bound("maximum", "exclusiveMaximum", false);
  if (const auto m = s.find("multipleOf"); m != s.end()) {
    const double value = m->get<double>();
    if (value != double(uint32_t(std::min(value, 2000.))) || value > 1000)
      return fail(where, fmt::format("multipleOf: expected a whole number from 1 to 1000, found {}", dump_json(*m)));
    range.multiple = uint32_t(value);
    range.fraction = 0;
  }
  ExprId out = 0;
  if (std::string problem = number_range(b_, range, out); !problem.empty())
    return fail(where, fmt::format("minimum or maximum: {}", problem));
  return out;
}

// --- arrays

ExprId SchemaCompiler::array(const Json& s, const std::string& where, int depth) {
  if (!any_key(s, kArrayKeywords)) return v_.any_array();
  // Before 2020, items could be a list, and additionalItems what follows it.
  Json first = s.value("prefixItems", Json::array());
  Json each = s.value("items", Json(true));
  std::string first_key = "prefixItems", each_key = "items";
  if (each.is_array()) {
    first = each;
    each = s.value("additionalItems", Json(true));
    first_key = "items", each_key = "additionalItems";
  }
  const uint64_t min = count(s, "minItems", 0);
  uint64_t max = count(s, "maxItems", kUnbounded);
  if (each == Json(false)) max = std::min<uint64_t>(max, first.size());
  if (min > max) return b_.none();
  if (std::max<uint64_t>({min, max < kUnbounded ? max : 0, first.size()}) > kMaxItems)
    return fail(where, fmt::format("{}: expected at most {}", max < kUnbounded ? "maxItems" : "minItems", kMaxItems),
                "use a smaller number or none");
  std::vector<ExprId> items;
  for (size_t i = 0; i < std::min<uint64_t>(first.size(), max); ++i)
    items.push_back(value(first[i], fmt::format("{}/{}/{}", where, first_key, i), depth + 1));
  const ExprId rest = max > first.size() ? value(each, fmt::format("{}/{}", where, each_key), depth + 1) : b_.none();
  const ExprId comma = v_.comma();
  const uint32_t last = uint32_t(max < kUnbounded ? max : std::max<uint64_t>({min, first.size(), 1}));
  std::vector<Arc> arcs;
  std::vector<uint32_t> accept;
  const ExprId next = b_.seq({comma, rest});
  for (uint32_t i = 0; i <= last; ++i) {
    if (i >= min) accept.push_back(i);
    if (i == last) break;
    const ExprId item = i < items.size() ? items[i] : rest;
    arcs.push_back({i, i + 1, i == 0 ? item : i < items.size() ? b_.seq({comma, item}) : next});
  }
  if (max == kUnbounded) arcs.push_back({last, last, next});
  return b_.seq({v_.open('['), b_.graph(last + 1, std::move(arcs), std::move(accept)), v_.close(']')});
}

// --- objects

std::vector<SchemaCompiler::Property> SchemaCompiler::properties(const Json& s, const std::string& where, int depth) {
  std::vector<Property> all;
  const Json empty = Json::object(), none = Json::array();
  const Json& listed = s.contains("properties") ? s["properties"] : empty;
  const Json& required = s.contains("required") ? s["required"] : none;
  std::vector<std::pair<std::string, const Json*>> names;
  for (auto it = listed.begin(); it != listed.end(); ++it) names.emplace_back(it.key(), &*it);
  // Required names that no schema is given for are what additionalProperties says.
  const Json others = s.value("additionalProperties", Json(true));
  for (const Json& name : required)
    if (std::none_of(names.begin(), names.end(), [&](const auto& n) { return n.first == name.get_ref<const std::string&>(); }))
      names.emplace_back(name.get<std::string>(), &others);
  // The model's template sorts the keys of calls, ignoring case.
  if (v_.syntax() == Syntax::kCall)
    std::stable_sort(names.begin(), names.end(),
                     [](const auto& a, const auto& b) { return lower(a.first) < lower(b.first); });
  CharDfa allowed;
  const bool restricted = s.contains("propertyNames");
  if (restricted && !name_dfa(s, where, allowed)) return all;
  std::vector<std::pair<std::string, CharDfa>> patterns;
  if (s.contains("patternProperties") && !names.empty())
    for (auto p = s["patternProperties"].begin(); p != s["patternProperties"].end(); ++p) {
      const Result<Regex> regex = parse_regex(p.key(), RegexMatch::kSearch);
      if (Result<CharDfa> dfa = regex ? CharDfa::regex(*regex) : regex.error(); dfa)
        patterns.emplace_back(p.key(), std::move(*dfa));
    }
  for (const auto& [name, schema] : names) {
    const std::string at = fmt::format("{}/properties/{}", where, name);
    if (v_.syntax() == Syntax::kCall && name.find("<|\"|>") != std::string::npos) {
      fail(at, "a name with <|\"|> cannot be an argument");
      return all;
    }
    for (const auto& [pattern, dfa] : patterns) {
      if (!accepts(dfa, name)) continue;
      fail(where, fmt::format("patternProperties \"{}\": not supported where it matches a listed property (\"{}\")",
                              pattern, name));
      return all;
    }
    const bool must = std::find(required.begin(), required.end(), name) != required.end();
    const bool possible = *schema != Json(false) && (!restricted || accepts(allowed, name));
    const ExprId member = possible ? b_.seq({v_.key(name), value(*schema, at, depth + 1)}) : b_.none();
    if (failed_) return all;
    if (possible || must) all.push_back({name, member, must});
  }
  return all;
}

// propertyNames, as far as it can say something about names.
bool SchemaCompiler::name_dfa(const Json& s, const std::string& where, CharDfa& out) {
  std::string at = where + "/propertyNames";
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
    if (std::find(std::begin(kStringKeywords), std::end(kStringKeywords), key) == std::end(kStringKeywords)) {
      fail(at, fmt::format("{}: not supported for names", cut(key)));
      return false;
    }
  }
  if (!string_dfa(*names, at, out)) return false;
  for (const char* key : {"enum", "const"}) {
    if (!names->contains(key)) continue;
    const Json& listed = (*names)[key];
    std::vector<std::string> texts;
    if (listed.is_string()) texts.push_back(listed.get<std::string>());
    for (const Json& v : listed)
      if (v.is_string() && listed.is_array()) texts.push_back(v.get<std::string>());
    if (!narrow(out, CharDfa::texts(texts), at, key)) return false;
  }
  return true;
}

// Members whose names are not listed. Names are written in one way only, so that no escape gets past the list.
SchemaCompiler::Rest SchemaCompiler::rest(const Json& s, const std::string& where, int depth) {
  const bool patterns = s.contains("patternProperties");
  const bool listed = s.contains("properties") || patterns;
  const Json others = s.value("additionalProperties", Json(!listed));
  CharDfa names = CharDfa::any();
  if (s.contains("propertyNames") && !name_dfa(s, where, names)) return {};
  std::vector<std::string> taken;
  for (const char* key : {"properties", "required"}) {
    if (!s.contains(key)) continue;
    for (auto it = s[key].begin(); it != s[key].end(); ++it)
      taken.push_back(s[key].is_object() ? it.key() : it->get<std::string>());
  }
  if (!taken.empty() && (patterns || others != Json(false)) &&
      !narrow(names, CharDfa::texts(taken).complement(), where, "additionalProperties"))
    return {};
  if (v_.syntax() == Syntax::kCall && !narrow(names, Values::key_chars(Syntax::kCall), where, "additionalProperties"))
    return {};
  std::vector<ExprId> members;
  const auto add = [&](CharDfa dfa, const Json& schema, const std::string& at) {
    if (schema == Json(false) || !dfa.trim()) return;
    members.push_back(b_.seq({v_.key(dfa), value(schema, at, depth + 1)}));
  };
  if (patterns) {
    for (auto p = s["patternProperties"].begin(); p != s["patternProperties"].end(); ++p) {
      const Result<Regex> regex = parse_regex(p.key(), RegexMatch::kSearch);
      const Result<CharDfa> dfa = regex ? CharDfa::regex(*regex) : regex.error();
      if (!dfa) {
        fail(where, fmt::format("patternProperties \"{}\": {}", cut(p.key()), dfa.error().what), dfa.error().hint);
        return {};
      }
      CharDfa mine = names;
      if (!narrow(mine, *dfa, where, "patternProperties")) return {};
      add(mine, *p, fmt::format("{}/patternProperties/{}", where, p.key()));
      if (!narrow(names, dfa->complement(), where, "patternProperties")) return {};  // one pattern for a name
    }
  }
  add(names, others, where + "/additionalProperties");
  if (members.empty()) return {};
  return {b_.alt(std::move(members)), true};
}

// States are (properties passed, members written, distinct members known to be written). Members that are not listed
// may repeat a name, so all of them count as one towards min.
ExprId SchemaCompiler::members(const std::vector<Property>& all, const Rest& rest, uint32_t min, uint32_t max) {
  const uint32_t n = uint32_t(all.size());
  const uint32_t counted = max < kUnbounded ? max : std::max(min, 1u);
  std::map<std::array<uint32_t, 3>, uint32_t> ids;
  std::vector<std::array<uint32_t, 3>> order;
  std::vector<Arc> arcs;
  std::vector<uint32_t> accept;
  const auto state = [&](uint32_t passed, uint32_t written, uint32_t distinct) {
    const std::array<uint32_t, 3> key{passed, std::min(written, counted), std::min(distinct, std::max(min, 1u))};
    const auto [it, fresh] = ids.try_emplace(key, uint32_t(order.size()));
    if (fresh) order.push_back(key);
    return it->second;
  };
  const ExprId comma = v_.comma(), nothing = b_.empty();
  std::vector<ExprId> later;
  for (const Property& p : all) later.push_back(b_.seq({comma, p.member}));
  const ExprId later_rest = rest.allowed ? b_.seq({comma, rest.member}) : 0;
  state(0, 0, 0);
  for (uint32_t id = 0; id < order.size() && order.size() < 100'000; ++id) {
    const auto [passed, written, distinct] = order[id];
    const bool room = max == kUnbounded || written < max;
    if (passed < n) {
      if (!all[passed].required) arcs.push_back({id, state(passed + 1, written, distinct), nothing});
      if (room)
        arcs.push_back(
            {id, state(passed + 1, written + 1, distinct + 1), written ? later[passed] : all[passed].member});
      continue;
    }
    if (distinct >= min) accept.push_back(id);
    if (!rest.allowed || !room) continue;
    const uint32_t gain = passed == n ? 1 : 0;
    arcs.push_back({id, state(n + 1, written + 1, distinct + gain), written ? later_rest : rest.member});
  }
  return b_.graph(uint32_t(order.size()), std::move(arcs), std::move(accept));
}

ExprId SchemaCompiler::object(const Json& s, const std::string& where, int depth) {
  if (!any_key(s, kObjectKeywords)) return v_.any_object();
  const uint64_t min = count(s, "minProperties", 0), max = count(s, "maxProperties", kUnbounded);
  if (min > max) return b_.none();
  const std::vector<Property> listed = properties(s, where, depth);
  if (failed_) return 0;
  const Rest others = rest(s, where, depth);
  if (failed_) return 0;
  if (listed.size() > kMaxProperties)
    return fail(where, fmt::format("properties: expected at most {}, found {}", kMaxProperties, listed.size()));
  if (others.allowed && min > listed.size() + 1)
    return fail(where, fmt::format("minProperties: expected at most {}, one more than there are properties, found {}",
                                   listed.size() + 1, min));
  const uint64_t counts = std::max(min, max < kUnbounded ? std::min<uint64_t>(max, kMaxProperties) : 0);
  if (max < kUnbounded && max > kMaxProperties && others.allowed)
    return fail(where, fmt::format("maxProperties: expected at most {}", kMaxProperties));
  if (counts * (listed.size() + 2) > 50'000)
    return fail(where, "minProperties or maxProperties: not supported with so many properties");
  const bool no_limit = max == kUnbounded || (!others.allowed && max >= listed.size());
  const ExprId all =
      members(listed, others, uint32_t(std::min<uint64_t>(min, kMaxProperties)), no_limit ? kUnbounded : uint32_t(max));
  return b_.seq({v_.open('{'), all, v_.close('}')});
}

}  // namespace facet::grammar
