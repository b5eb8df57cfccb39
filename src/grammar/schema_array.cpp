#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>

#include "grammar/schema.h"
#include "grammar/schema_keywords.h"

namespace facet::grammar {

// Lists of different values of few that may come. Up to kMaxAnyOrder values come in any order; more in the order of the
// schema, which no set minds. False where the values are not few, or do not look different: then nothing is promised.
bool SchemaCompiler::unique_items(const Json& each, std::string where, uint64_t min, uint64_t max, ExprId& out) {
  constexpr size_t kMaxAnyOrder = 8, kMaxArcs = 20'000;
  const Result<Json> s = source_.flatten(each, where);
  if (!s || !s->is_object()) return false;
  std::vector<ExprId> values;
  if (s->contains("enum") || s->contains("const"))
    values = literals(*s, where);
  else if (*s == Json{{"type", "boolean"}})
    values = {b_.bytes("true"), b_.bytes("false")};
  else
    return false;
  const size_t n = values.size();
  if (failed_ || min > n || n == 0) {
    out = n == 0 && min == 0 && !failed_ ? b_.seq({v_.open('['), v_.close(']')}) : b_.none();
    return true;
  }
  max = std::min<uint64_t>(max, n);
  const bool any_order = n <= kMaxAnyOrder;
  if (!any_order && n * n / 2 * std::max<uint64_t>(max == n ? min : max, 1) > kMaxArcs) return false;
  // What is written: a set of values, or how many (as far as that matters) and the first that may come next.
  const uint64_t counted = max == n ? min : max;
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> ids;
  std::vector<std::pair<uint64_t, uint64_t>> order;
  const auto state = [&](uint64_t a, uint64_t b) {
    const auto [it, fresh] = ids.try_emplace({a, b}, uint32_t(order.size()));
    if (fresh) order.emplace_back(a, b);
    return it->second;
  };
  std::vector<Arc> arcs;
  std::vector<uint32_t> accept;
  std::vector<ExprId> later;
  const ExprId comma = v_.comma();
  for (const ExprId v : values) later.push_back(b_.seq({comma, v}));
  state(0, 0);
  for (uint32_t id = 0; id < order.size(); ++id) {
    const auto [a, b] = order[id];
    const uint64_t written = any_order ? uint64_t(std::popcount(a)) : a;
    budget_.spend(16 + 4 * n);
    if (written >= min) accept.push_back(id);
    if (written >= max) continue;
    for (uint64_t i = any_order ? 0 : b; i < n; ++i) {
      if (any_order && (a >> i & 1)) continue;
      const uint32_t to =
          any_order ? state(a | 1ull << i, 0) : state(std::min(a + 1, std::max<uint64_t>(counted, 1)), i + 1);
      arcs.push_back({id, to, id == 0 ? values[i] : later[i]});
    }
  }
  const uint32_t states = uint32_t(order.size());
  out = b_.seq({v_.open('['), b_.graph(states, std::move(arcs), std::move(accept)), v_.close(']')});
  return true;
}

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
  uint64_t min = count_of(s, "minItems", 0), max = count_of(s, "maxItems", kUnbounded);
  if (each == Json(false)) max = std::min<uint64_t>(max, first.size());
  if (min > max) return b_.none();
  if (first.size() > kMaxItems) return fail(where, fmt::format("{}: expected at most {}", first_key, kMaxItems));
  if (std::max(min, max < kUnbounded ? max : 0) > kMaxItems) {
    if (!leave_out(where, fmt::format("{}: expected at most {}", max < kUnbounded ? "maxItems" : "minItems", kMaxItems),
                   "use a smaller number or none"))
      return 0;
    if (min > kMaxItems) min = 0;
    if (max < kUnbounded) max = std::min<uint64_t>(max, kMaxItems);
  }
  if (s.contains("uniqueItems") && first.empty()) {
    ExprId out = 0;
    if (unique_items(each, below(where, each_key), min, max, out)) return out;
  }
  std::vector<ExprId> items;
  for (size_t i = 0; i < std::min<uint64_t>(first.size(), max); ++i)
    items.push_back(value(first[i], below(where, first_key, std::to_string(i)), depth + 1));
  const ExprId rest = max > first.size() ? value(each, below(where, each_key), depth + 1) : b_.none();
  const ExprId comma = v_.comma();
  const uint32_t last = uint32_t(max < kUnbounded ? max : std::max<uint64_t>({min, first.size(), 1}));
  std::vector<Arc> arcs;
  std::vector<uint32_t> accept;
  const ExprId next = b_.seq({comma, rest});
  for (uint32_t i = 0; i <= last; ++i) {
    budget_.spend(8);
    if (i >= min) accept.push_back(i);
    if (i == last) break;
    const ExprId item = i < items.size() ? items[i] : rest;
    arcs.push_back({i, i + 1, i == 0 ? item : i < items.size() ? b_.seq({comma, item}) : next});
  }
  if (max == kUnbounded) arcs.push_back({last, last, next});
  return b_.seq({v_.open('['), b_.graph(last + 1, std::move(arcs), std::move(accept)), v_.close(']')});
}

}  // namespace facet::grammar
