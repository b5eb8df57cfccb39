#include "grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "grammar/number_range.h"
#include "grammar/schema_keywords.h"

namespace facet::grammar {
namespace {

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

bool SchemaCompiler::leave_out(const std::string& where, std::string what, std::string hint) {
  if (!source_.lenient()) fail(where, std::move(what), std::move(hint));
  return source_.lenient();
}

ExprId SchemaCompiler::value(const Json& schema, std::string where, int depth) {
  if (failed_ || b_.overflow()) return 0;
  budget_.set_place(where);
  if (depth > SchemaSource::kMaxDepth && source_.lenient()) return v_.any();
  if (depth > SchemaSource::kMaxDepth)
    return fail(where, fmt::format("expected schemas nested at most {} deep", SchemaSource::kMaxDepth), "use $ref");
  const Result<Json> s = source_.flatten(schema, where);
  if (!s) return failed_ = true, error_ = s.error(), 0;
  if (s->is_boolean()) return s->get<bool>() ? v_.any() : b_.none();
  if (s->empty()) return v_.any();
  std::string text = dump_json(*s);
  budget_.spend(16 + text.size());
  const auto [it, fresh] = rules_.try_emplace(std::move(text), 0);
  if (fresh) {
    const RuleId rule = it->second = b_.new_rule(where);
    b_.define(rule, flat(*s, where, depth));
  }
  return b_.rule(it->second);
}

ExprId SchemaCompiler::flat(const Json& s, const std::string& where, int depth) {
  if (s.contains("enum") || s.contains("const")) return b_.alt(literals(s, where));
  std::vector<ExprId> all;
  if (const auto any = s.find("anyOf"); any != s.end()) {
    Json base = s;
    base.erase("anyOf");
    const size_t size = weight(base);
    std::unordered_set<std::string> known;  // branches that say the same
    for (size_t i = 0; i < any->size() && !failed_; ++i) {
      std::string at = below(where, "anyOf", std::to_string(i));
      const Result<Json> branch = source_.flatten((*any)[i], at);
      if (!branch) return failed_ = true, error_ = branch.error(), 0;
      std::string text = dump_json(*branch);
      budget_.spend(16 + text.size());
      if (!known.insert(std::move(text)).second) continue;
      if (!base.empty()) budget_.spend(4 * size);
      const Result<Json> merged = base.empty() ? *branch : source_.merge(base, *branch, at);
      if (!merged) return failed_ = true, error_ = merged.error(), 0;
      all.push_back(value(*merged, at, depth + 1));
    }
    return b_.alt(std::move(all));
  }
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

// Of enum and const, the values that the other keywords allow; each once.
std::vector<ExprId> SchemaCompiler::literals(const Json& s, const std::string& where) {
  std::vector<ExprId> all;
  const auto constant = s.find("const");
  std::vector<const Json*> values;
  if (const auto e = s.find("enum"); e != s.end())
    for (const Json& v : *e) values.push_back(&v);
  else
    values.push_back(&*constant);
  const std::string at = below(where, s.contains("enum") ? "enum" : "const");
  std::unordered_set<std::string> known;
  SchemaCheck check(source_, patterns_, budget_);
  for (const Json* v : values) {
    budget_.spend(8 + 2 * weight(*v));
    if (constant != s.end() && *v != *constant) continue;
    if (!known.insert(value_key(*v)).second) continue;
    const bool allowed = check.allows(s, *v, where, false);
    if (check.error()) {
      fail(check.error()->where, check.error()->what, check.error()->hint);
      return {};
    }
    if (!allowed) continue;
    const Result<ExprId> e = v_.literal(*v, at);
    if (e) {
      all.push_back(*e);
    } else if (!leave_out(e.error().where, e.error().what, e.error().hint)) {
      return {};
    }
  }
  return all;
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
    if (!out || (lower ? !(*e < out->value) : !(out->value < *e))) out = Bound{*e, true};
    return out;
  };
  range.min = bound("minimum", "exclusiveMinimum", true);
  range.max = bound("maximum", "exclusiveMaximum", false);
  if (const auto m = s.find("multipleOf"); m != s.end()) {
    const double value = m->get<double>();
    if (value != double(uint32_t(std::min(value, 2000.))) || value > 1000) {
      if (!leave_out(where, fmt::format("multipleOf: expected a whole number from 1 to 1000, found {}", dump_json(*m))))
        return 0;
    } else {
      range.multiple = uint32_t(value);
      range.fraction = 0;
    }
  }
  ExprId out = 0;
  if (const std::string problem = number_range(b_, range, out); !problem.empty()) {
    if (!leave_out(where, fmt::format("minimum or maximum: {}", problem))) return 0;
    return integer ? v_.integer() : v_.number();
  }
  return out;
}

}  // namespace facet::grammar
