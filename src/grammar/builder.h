#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/compile_budget.h"

// The one form every front end (JSON Schema, regex, GBNF, choices, tool calls) writes: rules whose right sides are
// expressions over bytes and special tokens. automaton.h makes an automaton of it.
namespace facet::grammar {

// Tokens that are terminals of their own: no text can stand for them.
enum class SpecialToken : uint8_t { kQuote, kToolCallOpen, kToolCallClose, kChannelOpen, kChannelClose };
inline constexpr int kSpecialTokens = 5;

using ExprId = uint32_t;
using RuleId = uint32_t;

struct Arc {
  uint32_t from, to;  // states of a graph
  ExprId label;
};

struct Expr {
  enum class Kind : uint8_t {
    kNone,    // matches nothing
    kEmpty,   // matches the empty text
    kBytes,   // text
    kRange,   // one byte, a..b
    kToken,   // special token a
    kSeq,     // items
    kAlt,     // items
    kRepeat,  // items[0], a to b times; b = kUnbounded: without end
    kRule,    // rule a
    kGraph,   // a states, from 0 to any of items, along arcs
  } kind = Kind::kEmpty;
  uint32_t a = 0, b = 0;
  std::vector<uint32_t> items = {};
  std::string text = {};
  std::vector<Arc> arcs = {};
};
inline constexpr uint32_t kUnbounded = UINT32_MAX;

class Builder {
 public:
  static constexpr size_t kMaxExprs = 400'000;
  static constexpr size_t kMaxRules = 20'000;

  explicit Builder(CompileBudget& budget) : budget_(&budget) {}
  CompileBudget& budget() const { return *budget_; }

  ExprId none() { return put({.kind = Expr::Kind::kNone}); }
  ExprId empty() { return put({}); }
  ExprId bytes(std::string_view text);
  ExprId byte(uint8_t lo, uint8_t hi) { return put({.kind = Expr::Kind::kRange, .a = lo, .b = hi}); }
  ExprId chars(const CharSet& set);  // one code point, in UTF-8
  ExprId token(SpecialToken t) { return put({.kind = Expr::Kind::kToken, .a = uint32_t(t)}); }
  ExprId seq(std::vector<ExprId> items);
  ExprId alt(std::vector<ExprId> items);
  ExprId repeat(ExprId e, uint32_t min, uint32_t max);
  ExprId optional(ExprId e) { return repeat(e, 0, 1); }
  ExprId graph(uint32_t states, std::vector<Arc> arcs, std::vector<uint32_t> accept);

  RuleId new_rule(std::string name);
  void define(RuleId rule, ExprId e) { rules_[rule].expr = e; }
  ExprId rule(RuleId r) { return put({.kind = Expr::Kind::kRule, .a = r}); }

  // More was written than one grammar may hold; what there is is not complete.
  bool overflow() const { return exprs_.size() >= kMaxExprs || rules_.size() >= kMaxRules; }

  struct Rule {
    std::string name;
    ExprId expr = 0;
  };
  const std::vector<Rule>& rules() const { return rules_; }
  const Expr& expr(ExprId e) const { return exprs_[e]; }
  size_t size() const { return exprs_.size(); }

 private:
  ExprId put(Expr e);
  CompileBudget* budget_;
  std::vector<Expr> exprs_{Expr{.kind = Expr::Kind::kNone}};  // 0: what an undefined rule is
  std::vector<Rule> rules_;
};

}  // namespace facet::grammar
