#include "grammar/nfa.h"

#include <algorithm>

namespace facet::grammar {
namespace {

class Maker {
 public:
  Maker(const Builder& b, const std::vector<bool>& nullable, Nfa& out) : b_(b), nullable_(nullable), out_(out) {}

  // Adds the paths of e from one state to another. They add no edge into `from` and none out of `to`, so that
  // neighbours do not mix.
  void emit(ExprId id, uint32_t from, uint32_t to) {
    if (out_.edges.size() > Nfa::kMaxEdges) {
      out_.overflow = true;
      return;
    }
    const Expr& e = b_.expr(id);
    b_.budget().spend(1);
    switch (e.kind) {
      case Expr::Kind::kNone:
        return;
      case Expr::Kind::kEmpty:
        return epsilon(from, to);
      case Expr::Kind::kRange:
        return add({from, to, Nfa::Kind::kRange, uint8_t(e.a), uint8_t(e.b), 0});
      case Expr::Kind::kToken:
        return add({from, to, Nfa::Kind::kToken, uint8_t(e.a), 0, 0});
      case Expr::Kind::kRule:
        add({from, to, Nfa::Kind::kCall, 0, 0, e.a});
        if (nullable_[e.a]) epsilon(from, to);
        return;
      case Expr::Kind::kBytes:
        for (size_t i = 0; i < e.text.size(); ++i) {
          const uint32_t next = i + 1 == e.text.size() ? to : state();
          add({from, next, Nfa::Kind::kRange, uint8_t(e.text[i]), uint8_t(e.text[i]), 0});
          from = next;
        }
        return;
      case Expr::Kind::kSeq:
        for (size_t i = 0; i < e.items.size(); ++i) {
          const uint32_t next = i + 1 == e.items.size() ? to : state();
          emit(e.items[i], from, next);
          from = next;
        }
        return;
      case Expr::Kind::kAlt:
        for (const ExprId item : e.items) emit(item, from, to);
        return;
      case Expr::Kind::kRepeat:
        return repeat(e, from, to);
      case Expr::Kind::kGraph:
        return graph(e, from, to);
    }
  }

 private:
  uint32_t state() {
    b_.budget().spend(1);
    return out_.states++;
  }
  void add(const Nfa::Edge& e) {
    b_.budget().spend(3);  // with its place in order
    out_.edges.push_back(e);
  }
  void epsilon(uint32_t from, uint32_t to) { add({from, to, Nfa::Kind::kEpsilon, 0, 0, 0}); }

  void repeat(const Expr& e, uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < e.a && !out_.overflow; ++i) {
      const uint32_t next = state();
      emit(e.items[0], from, next);
      from = next;
    }
    if (e.b == kUnbounded) {
      const uint32_t head = state(), tail = state();
      epsilon(from, head);
      emit(e.items[0], head, tail);
      epsilon(tail, head);
      epsilon(head, to);
      return;
    }
    for (uint32_t i = e.a; i < e.b && !out_.overflow; ++i) {
      const uint32_t next = state();
      epsilon(from, to);
      emit(e.items[0], from, next);
      from = next;
    }
    epsilon(from, to);
  }

  void graph(const Expr& e, uint32_t from, uint32_t to) {
    const uint32_t first = out_.states;
    b_.budget().spend(e.a);
    out_.states += e.a;
    epsilon(from, first);
    for (const Arc& arc : e.arcs) {
      if (out_.overflow) return;
      emit(arc.label, first + arc.from, first + arc.to);
    }
    for (const uint32_t s : e.items) epsilon(first + s, to);
  }

  const Builder& b_;
  const std::vector<bool>& nullable_;
  Nfa& out_;
};

class Nullable {
 public:
  explicit Nullable(const Builder& b) : b_(b), rule_(b.rules().size(), false) {}

  std::vector<bool> run() {
    std::vector<std::vector<RuleId>> users(rule_.size());
    for (RuleId r = 0; r < rule_.size(); ++r) collect(b_.rules()[r].expr, r, users);
    std::vector<RuleId> todo;
    for (RuleId r = 0; r < rule_.size(); ++r) todo.push_back(r);
    while (!todo.empty()) {
      const RuleId r = todo.back();
      todo.pop_back();
      if (rule_[r] || !test(b_.rules()[r].expr)) continue;
      rule_[r] = true;
      todo.insert(todo.end(), users[r].begin(), users[r].end());
    }
    return rule_;
  }

 private:
  void collect(ExprId id, RuleId user, std::vector<std::vector<RuleId>>& users) {
    const Expr& e = b_.expr(id);
    b_.budget().spend(2);
    if (e.kind == Expr::Kind::kRule) {
      if (users[e.a].empty() || users[e.a].back() != user) users[e.a].push_back(user);
    } else if (e.kind == Expr::Kind::kGraph) {
      for (const Arc& arc : e.arcs) collect(arc.label, user, users);
    } else {
      for (const ExprId item : e.items) collect(item, user, users);
    }
  }

  bool test(ExprId id) const {
    const Expr& e = b_.expr(id);
    b_.budget().spend(1);
    const auto item = [&](ExprId i) { return test(i); };
    switch (e.kind) {
      case Expr::Kind::kEmpty:
        return true;
      case Expr::Kind::kRule:
        return rule_[e.a];
      case Expr::Kind::kSeq:
        return std::all_of(e.items.begin(), e.items.end(), item);
      case Expr::Kind::kAlt:
        return std::any_of(e.items.begin(), e.items.end(), item);
      case Expr::Kind::kRepeat:
        return e.a == 0 || test(e.items[0]);
      case Expr::Kind::kGraph:
        return graph(e);
      default:
        return false;
    }
  }

  bool graph(const Expr& e) const {
    std::vector<bool> reached(e.a, false);
    reached[0] = true;
    for (bool changed = true; changed;) {
      changed = false;
      b_.budget().spend(e.arcs.size() / 4);
      for (const Arc& arc : e.arcs) {
        if (!reached[arc.from] || reached[arc.to] || !test(arc.label)) continue;
        reached[arc.to] = true;
        changed = true;
      }
    }
    return std::any_of(e.items.begin(), e.items.end(), [&](uint32_t s) { return reached[s]; });
  }

  const Builder& b_;
  std::vector<bool> rule_;
};

}  // namespace

std::vector<bool> nullable_rules(const Builder& builder) { return Nullable(builder).run(); }

Nfa Nfa::make(const Builder& builder, ExprId e, const std::vector<bool>& nullable) {
  Nfa out;
  Maker(builder, nullable, out).emit(e, kStart, kAccept);
  if (out.overflow) return out;
  out.begin.assign(out.states + 1, 0);
  for (const Edge& edge : out.edges) ++out.begin[edge.from + 1];
  for (size_t s = 0; s < out.states; ++s) out.begin[s + 1] += out.begin[s];
  std::vector<Edge> sorted(out.edges.size());
  std::vector<uint32_t> at(out.begin.begin(), out.begin.end() - 1);
  for (const Edge& edge : out.edges) sorted[at[edge.from]++] = edge;
  out.edges = std::move(sorted);
  return out;
}

}  // namespace facet::grammar
