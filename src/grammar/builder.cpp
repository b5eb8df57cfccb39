#include "grammar/builder.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace facet::grammar {
namespace {

// Calls put(length, lo bytes, hi bytes) for byte ranges whose product is exactly the code points lo..hi of one
// encoded length.
template <class Put>
void split_utf8(uint32_t lo, uint32_t hi, const Put& put) {
  constexpr uint32_t kLast[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  for (const uint32_t last : kLast) {
    if (lo <= last && hi > last) {
      split_utf8(lo, last, put);
      split_utf8(last + 1, hi, put);
      return;
    }
  }
  const int length = hi <= 0x7F ? 1 : hi <= 0x7FF ? 2 : hi <= 0xFFFF ? 3 : 4;
  // Where the last i bytes do not run over their whole range, cut so that they do.
  for (int i = 1; i < length; ++i) {
    const uint32_t m = (1u << (6 * i)) - 1;
    if ((lo & ~m) == (hi & ~m)) continue;
    if ((lo & m) != 0) {
      split_utf8(lo, lo | m, put);
      split_utf8((lo | m) + 1, hi, put);
      return;
    }
    if ((hi & m) != m) {
      split_utf8(lo, (hi & ~m) - 1, put);
      split_utf8(hi & ~m, hi, put);
      return;
    }
  }
  std::string a, b;
  append_utf8(lo, a);
  append_utf8(hi, b);
  put(a, b);
}

}  // namespace

ExprId Builder::put(Expr e) {
  budget_->spend(16 + e.text.size() / 8 + e.items.size() / 2 + e.arcs.size() * 2);
  if (exprs_.size() >= kMaxExprs) return 0;
  exprs_.push_back(std::move(e));
  return ExprId(exprs_.size() - 1);
}

RuleId Builder::new_rule(std::string name) {
  budget_->spend(8 + name.size() / 8);
  if (rules_.size() >= kMaxRules) return 0;
  rules_.push_back({std::move(name), 0});
  return RuleId(rules_.size() - 1);
}

ExprId Builder::bytes(std::string_view text) {
  if (text.empty()) return empty();
  return put({.kind = Expr::Kind::kBytes, .text = std::string(text)});
}

ExprId Builder::chars(const CharSet& set) {
  std::vector<ExprId> all;
  for (const auto& [lo, hi] : set.ranges()) {
    split_utf8(lo, hi, [&](const std::string& a, const std::string& b) {
      std::vector<ExprId> one;
      for (size_t i = 0; i < a.size(); ++i) one.push_back(byte(uint8_t(a[i]), uint8_t(b[i])));
      all.push_back(seq(std::move(one)));
    });
  }
  return alt(std::move(all));
}

ExprId Builder::seq(std::vector<ExprId> items) {
  if (items.size() == 1) return items[0];
  if (items.empty()) return empty();
  return put({.kind = Expr::Kind::kSeq, .items = std::move(items)});
}

ExprId Builder::alt(std::vector<ExprId> items) {
  if (items.size() == 1) return items[0];
  if (items.empty()) return none();
  return put({.kind = Expr::Kind::kAlt, .items = std::move(items)});
}

ExprId Builder::repeat(ExprId e, uint32_t min, uint32_t max) {
  if (min == 1 && max == 1) return e;
  if (max == 0) return empty();
  return put({.kind = Expr::Kind::kRepeat, .a = min, .b = max, .items = {e}});
}

ExprId Builder::graph(uint32_t states, std::vector<Arc> arcs, std::vector<uint32_t> accept) {
  return put({.kind = Expr::Kind::kGraph, .a = states, .items = std::move(accept), .arcs = std::move(arcs)});
}

}  // namespace facet::grammar
