#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

#include "grammar/schema.h"
#include "grammar/schema_keywords.h"
#include "tokenizer/utf8.h"

namespace facet::grammar {
namespace {

std::string lower(std::string s) {
  for (char& c : s)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return s;
}

}  // namespace

std::vector<SchemaCompiler::Property> SchemaCompiler::properties(const Json& s, const std::string& where, int depth) {
  std::vector<Property> all;
  const Json empty = Json::object(), none = Json::array();
  const Json& listed = s.contains("properties") ? s["properties"] : empty;
  const Json& required = s.contains("required") ? s["required"] : none;
  if (std::max(listed.size(), required.size()) > kMaxProperties) {
    fail(where, fmt::format("properties: expected at most {}, found {}", kMaxProperties,
                            std::max(listed.size(), required.size())));
    return all;
  }
  struct Named {
    std::string name, order;
    const Json* schema;
  };
  std::vector<Named> names;
  std::unordered_set<std::string_view> known, musts;
  for (auto it = listed.begin(); it != listed.end(); ++it) {
    budget_.spend(16 + it.key().size() / 4);
    names.push_back({it.key(), "", &*it});
    known.insert(it.key());
  }
  // Required names that no schema is given for are what additionalProperties says.
  const Json others = s.value("additionalProperties", Json(true));
  for (const Json& name : required) {
    const auto& text = name.get_ref<const std::string&>();
    budget_.spend(16 + text.size() / 4);
    musts.insert(text);
    if (known.insert(text).second) names.push_back({text, "", &others});
  }
  // The model's template sorts the keys of calls, ignoring case.
  if (v_.syntax() == Syntax::kCall) {
    for (Named& n : names) n.order = lower(n.name);
    std::stable_sort(names.begin(), names.end(), [](const Named& a, const Named& b) { return a.order < b.order; });
  }
  CharDfa allowed;
  const bool restricted = s.contains("propertyNames");
  if (restricted && !name_dfa(s, where, allowed)) return all;
  for (const auto& [name, order, schema] : names) {
    const std::string at = below(where, "properties", name);
    if (v_.syntax() == Syntax::kCall && name.find("<|\"|>") != std::string::npos) {
      fail(at, "a name with <|\"|> cannot be an argument");
      return all;
    }
    const bool must = musts.contains(name);
    const bool possible = *schema != Json(false) && (!restricted || allowed.accepts(name, budget_));
    const ExprId member = possible ? b_.seq({v_.key(name), value(*schema, at, depth + 1)}) : b_.none();
    if (failed_) return all;
    if (possible || must) all.push_back({name, member, must});
  }
  return all;
}

// The patterns of patternProperties; none of them may match a listed name.
bool SchemaCompiler::name_patterns(const Json& s, const std::string& where, std::vector<const CharDfa*>& out) {
  std::vector<std::string> names;
  for (const char* key : {"properties", "required"}) {
    const auto listed = s.find(key);
    if (listed == s.end()) continue;
    for (auto it = listed->begin(); it != listed->end(); ++it)
      names.push_back(listed->is_object() ? it.key() : it->get<std::string>());
  }
  const Json& patterns = s["patternProperties"];
  for (auto p = patterns.begin(); p != patterns.end(); ++p) {
    const Result<const CharDfa*> dfa = patterns_.pattern(p.key());
    if (!dfa) return fail(where, "patternProperties: " + dfa.error().what, dfa.error().hint), false;
    for (const std::string& name : names) {
      if (!(*dfa)->accepts(name, budget_)) continue;
      fail(where, fmt::format("patternProperties \"{}\": not supported where it matches a listed property (\"{}\")",
                              cut(p.key()), cut(name)));
      return false;
    }
    out.push_back(*dfa);
  }
  return true;
}

// Members whose names are not listed. Names are written in one way only, so that no escape gets past the list.
SchemaCompiler::Rest SchemaCompiler::rest(const Json& s, const std::string& where, int depth) {
  bool patterns = s.contains("patternProperties");
  const bool listed = s.contains("properties") || patterns;
  std::vector<const CharDfa*> dfas;
  if (patterns && !name_patterns(s, where, dfas)) {
    if (!source_.lenient()) return {};
    failed_ = false, patterns = false;  // left out: then any other name may come
  }
  const Json others = s.value("additionalProperties", Json(!listed || patterns != s.contains("patternProperties")));
  CharDfa names = CharDfa::any();
  if (s.contains("propertyNames") && !name_dfa(s, where, names)) return {};
  std::vector<std::string> taken;
  for (const char* key : {"properties", "required"}) {
    if (!s.contains(key)) continue;
    for (auto it = s[key].begin(); it != s[key].end(); ++it)
      taken.push_back(s[key].is_object() ? it.key() : it->get<std::string>());
  }
  if (v_.syntax() == Syntax::kCall &&
      !narrow(names, Values::key_chars(Syntax::kCall), where, "additionalProperties", CharDfa::Size::kWhole))
    return {};
  constexpr CharDfa::Size kWhole = CharDfa::Size::kWhole;
  if (!taken.empty() && (patterns || others != Json(false))) {
    const Result<CharDfa> free = names.intersect(CharDfa::texts(taken, budget_).complement(budget_), budget_, kWhole);
    // Names that are too many to be told from others: no others.
    if (!free && source_.lenient()) return {};
    if (!free) return fail(where, "additionalProperties: " + free.error().what, "set it to false"), Rest{};
    names = *free;
  }
  std::vector<ExprId> members;
  const auto add = [&](CharDfa dfa, const Json& schema, const std::string& at) {
    if (schema == Json(false) || !dfa.trim()) return;
    members.push_back(b_.seq({v_.key(dfa), value(schema, at, depth + 1)}));
  };
  for (size_t i = 0; i < dfas.size() && patterns; ++i) {
    const auto p = std::next(s["patternProperties"].begin(), std::ptrdiff_t(i));
    CharDfa mine = names;
    if (!narrow(mine, *dfas[i], where, "patternProperties", CharDfa::Size::kWhole)) return {};
    add(mine, *p, below(where, "patternProperties", p.key()));
    // One pattern for a name.
    const Result<CharDfa> left = names.intersect(dfas[i]->complement(budget_), budget_, kWhole);
    if (!left) return fail(where, "patternProperties: " + left.error().what, left.error().hint), Rest{};
    names = *left;
  }
  add(names, others, below(where, "additionalProperties"));
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
    budget_.spend(16);
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

namespace {

// What stands against counting so many members. "" or what is wrong.
std::string count_problem(uint64_t min, uint64_t max, size_t listed, bool others) {
  if (others && min > listed + 1)
    return fmt::format("minProperties: expected at most {}, one more than there are properties, found {}", listed + 1,
                       min);
  const uint64_t most = SchemaCompiler::kMaxProperties;
  if (max < kUnbounded && max > most && others) return fmt::format("maxProperties: expected at most {}", most);
  if (std::max(min, max < kUnbounded ? std::min(max, most) : 0) * (listed + 2) > 50'000)
    return "minProperties or maxProperties: not supported with so many properties";
  return "";
}

}  // namespace

ExprId SchemaCompiler::object(const Json& s, const std::string& where, int depth) {
  if (!any_key(s, kObjectKeywords)) return v_.any_object();
  uint64_t min = count_of(s, "minProperties", 0), max = count_of(s, "maxProperties", kUnbounded);
  if (min > max) return b_.none();
  const std::vector<Property> listed = properties(s, where, depth);
  if (failed_) return 0;
  const Rest others = rest(s, where, depth);
  if (failed_) return 0;
  if (listed.size() > kMaxProperties)
    return fail(where, fmt::format("properties: expected at most {}, found {}", kMaxProperties, listed.size()));
  if (const std::string problem = count_problem(min, max, listed.size(), others.allowed); !problem.empty()) {
    if (!leave_out(where, problem)) return 0;
    min = 0, max = kUnbounded;
  }
  const bool no_limit = max == kUnbounded || (!others.allowed && max >= listed.size());
  const ExprId all =
      members(listed, others, uint32_t(std::min<uint64_t>(min, kMaxProperties)), no_limit ? kUnbounded : uint32_t(max));
  return b_.seq({v_.open('{'), all, v_.close('}')});
}

}  // namespace facet::grammar
