#include "grammar/automaton.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "grammar/determinize.h"

namespace facet::grammar {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

Error too_large() {
  return Error{
      "grammar",
      fmt::format("expected at most {} states and {} edges, found more", Automaton::kMaxNodes, Automaton::kMaxEdges),
      "use smaller repetition counts or fewer alternatives"};
}

// For each node the stack entries its rule needs to be completed; kNever where it cannot be. Shortest paths, from the
// ends of rules back.
std::vector<uint32_t> needs(const RawNodes& raw, const std::vector<uint32_t>& start) {
  const uint32_t n = uint32_t(raw.nodes.size());
  const auto end = [&](auto member, size_t size, uint32_t i) {
    return i + 1 < n ? raw.nodes[i + 1].*member : uint32_t(size);
  };
  struct Use {
    uint32_t node, rule, to;  // rule kNever: no call
  };
  std::vector<std::vector<Use>> users(n);  // by what has to be known first
  for (uint32_t i = 1; i < n; ++i) {
    for (uint32_t e = raw.nodes[i].ranges; e < end(&RawNodes::Node::ranges, raw.ranges.size(), i); ++e)
      if (users[raw.ranges[e].to].empty() || users[raw.ranges[e].to].back().node != i)
        users[raw.ranges[e].to].push_back({i, kNever, raw.ranges[e].to});
    for (uint32_t e = raw.nodes[i].tokens; e < end(&RawNodes::Node::tokens, raw.tokens.size(), i); ++e)
      users[raw.tokens[e].to].push_back({i, kNever, raw.tokens[e].to});
    for (uint32_t e = raw.nodes[i].calls; e < end(&RawNodes::Node::calls, raw.calls.size(), i); ++e) {
      const Use use{i, raw.calls[e].rule, raw.calls[e].to};
      users[use.to].push_back(use);
      users[start[use.rule]].push_back(use);
    }
  }
  // Needs grow from zero, so nodes are settled in that order.
  std::vector<uint32_t> need(n, kNever);
  std::vector<std::vector<uint32_t>> levels(1);
  for (uint32_t i = 1; i < n; ++i)
    if (raw.nodes[i].final) need[i] = 0, levels[0].push_back(i);
  std::vector<bool> settled(n, false);
  for (size_t level = 0; level < levels.size(); ++level) {
    for (size_t k = 0; k < levels[level].size(); ++k) {
      const uint32_t i = levels[level][k];
      if (settled[i]) continue;
      settled[i] = true;
      for (const Use& use : users[i]) {
        uint32_t value = need[use.to];
        if (use.rule != kNever) {
          if (value == kNever || need[start[use.rule]] == kNever) continue;
          value = std::max(value, need[start[use.rule]] + 1);
        }
        if (value >= need[use.node]) continue;
        need[use.node] = value;
        if (value >= levels.size()) levels.resize(value + 1);
        levels[value].push_back(use.node);
      }
    }
  }
  return need;
}

// Orders rules so that whoever calls before consuming comes first. The name of a rule on a cycle, or nothing.
std::string rank_rules(Automaton& a, const Builder& b) {
  enum Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> mark(a.rules.size(), kNew);
  uint32_t next = uint32_t(a.rules.size());
  std::vector<std::pair<uint32_t, size_t>> stack;  // rule, calls looked at
  for (uint32_t root = 0; root < a.rules.size(); ++root) {
    if (mark[root] != kNew || a.rules[root].start == 0) continue;
    stack.assign(1, {root, 0});
    mark[root] = kOpen;
    while (!stack.empty()) {
      auto& [rule, at] = stack.back();
      const auto calls = a.calls_of(a.rules[rule].start);
      if (at == calls.size()) {
        a.rules[rule].rank = --next;
        mark[rule] = kDone;
        stack.pop_back();
        continue;
      }
      const uint32_t callee = calls[at++].rule;
      if (mark[callee] == kOpen) return b.rules()[callee].name;
      if (mark[callee] == kDone) continue;
      mark[callee] = kOpen;
      stack.push_back({callee, 0});
    }
  }
  return "";
}

// Nodes reachable from the root's start that can be completed, renumbered.
void keep_useful(const RawNodes& raw, const std::vector<uint32_t>& start, const std::vector<uint32_t>& need,
                 Automaton& a) {
  const uint32_t n = uint32_t(raw.nodes.size());
  const auto next = [&](uint32_t i) {
    return i + 1 < n ? raw.nodes[i + 1] : RawNodes::Node{uint32_t(raw.ranges.size()),
                                                         uint32_t(raw.calls.size()),
                                                         uint32_t(raw.tokens.size()),
                                                         0,
                                                         false,
                                                         false};
  };
  std::vector<uint32_t> number(n, 0), order{0};
  const auto visit = [&](uint32_t i) {
    if (number[i] || need[i] == kNever) return;
    number[i] = uint32_t(order.size());
    order.push_back(i);
  };
  const auto useful = [&](const Automaton::Call& c) { return need[c.to] != kNever && need[start[c.rule]] != kNever; };
  visit(start[a.root]);
  for (size_t k = 1; k < order.size(); ++k) {
    const uint32_t i = order[k];
    for (uint32_t e = raw.nodes[i].ranges; e < next(i).ranges; ++e) visit(raw.ranges[e].to);
    for (uint32_t e = raw.nodes[i].tokens; e < next(i).tokens; ++e) visit(raw.tokens[e].to);
    for (uint32_t e = raw.nodes[i].calls; e < next(i).calls; ++e)
      if (useful(raw.calls[e])) visit(raw.calls[e].to), visit(start[raw.calls[e].rule]);
  }
  for (const uint32_t i : order) {
    Automaton::Node node{uint32_t(a.ranges.size()), uint32_t(a.calls.size()), uint32_t(a.tokens.size()),
                         i ? need[i] : 0, 0};
    if (i) {
      for (uint32_t e = raw.nodes[i].ranges; e < next(i).ranges; ++e)
        if (const auto& r = raw.ranges[e]; number[r.to]) a.ranges.push_back({r.lo, r.hi, number[r.to]});
      for (uint32_t e = raw.nodes[i].tokens; e < next(i).tokens; ++e)
        if (const auto& t = raw.tokens[e]; number[t.to]) a.tokens.push_back({t.token, number[t.to]});
      for (uint32_t e = raw.nodes[i].calls; e < next(i).calls; ++e)
        if (const auto& c = raw.calls[e]; useful(c)) a.calls.push_back({c.rule, number[c.to]});
      const bool terminals = a.ranges.size() > node.ranges || a.tokens.size() > node.tokens,
                 calls = a.calls.size() > node.calls;
      node.flags =
          uint8_t((raw.nodes[i].final ? Automaton::kFinal : 0) | (calls ? Automaton::kCalls : 0) |
                  (terminals ? Automaton::kTerminals : 0) | (raw.nodes[i].overlaps ? Automaton::kOverlaps : 0) |
                  (raw.nodes[i].final && !terminals && !calls ? Automaton::kPureFinal : 0));
    }
    a.nodes.push_back(node);
    a.in_root.push_back(i && raw.nodes[i].rule == a.root);
  }
  a.nodes.push_back({uint32_t(a.ranges.size()), uint32_t(a.calls.size()), uint32_t(a.tokens.size()), 0, 0});
  for (uint32_t r = 0; r < start.size(); ++r) a.rules[r].start = number[start[r]];
}

uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9E3779B97F4A7C15u;
  return h ^ h >> 32;
}

// Partition refinement, a byte a round, by 128-bit hashes.
class Classifier {
 public:
  Classifier(Automaton& a, uint64_t unique, CompileBudget& budget) : a_(a), unique_(unique), budget_(budget) {
    static const uint64_t seed = std::random_device{}() * 0x100000001ull + std::random_device{}();
    seed_ = seed;
  }

  void run() {
    const uint32_t n = uint32_t(a_.nodes.size()) - 1;
    a_.classes.assign(n, {});
    // Nodes reachable from a rule's start within the rule; those of other rules are not told apart.
    std::vector<uint32_t> part;
    std::vector<bool> seen(n, false);
    for (const Automaton::Rule& rule : a_.rules) {
      if (!rule.start || seen[rule.start]) continue;
      part.assign(1, rule.start);
      seen[rule.start] = true;
      bool calls = false;
      for (size_t k = 0; k < part.size(); ++k) {
        const auto visit = [&](uint32_t to) {
          if (seen[to]) return;
          seen[to] = true;
          part.push_back(to);
        };
        for (const auto& e : a_.ranges_of(part[k])) visit(e.to);
        for (const auto& e : a_.tokens_of(part[k])) visit(e.to);
        for (const auto& e : a_.calls_of(part[k])) visit(e.to), calls = true;
      }
      refine(part, calls);
    }
  }

 private:
  void refine(const std::vector<uint32_t>& part, bool calls) {
    const uint64_t base = mix(seed_, calls ? unique_ + 1 : 0);
    for (const uint32_t i : part) a_.classes[i] = {base, base + 1};
    std::vector<Automaton::Class> next(part.size());
    std::vector<uint64_t> distinct;
    size_t known = 1, edges = 0;
    for (const uint32_t i : part) edges += a_.ranges_of(i).size() + a_.tokens_of(i).size() + a_.calls_of(i).size();
    for (int round = 0; round < Automaton::kHorizon; ++round) {
      budget_.spend(1 + (part.size() + edges) / 2);
      for (size_t k = 0; k < part.size(); ++k) next[k] = {signature(part[k], 0), signature(part[k], 1)};
      for (size_t k = 0; k < part.size(); ++k) a_.classes[part[k]] = next[k];
      if (part.size() > 5000 && round % 8 != 7) continue;  // counting costs more than a round
      distinct.clear();
      budget_.spend(part.size());
      for (const Automaton::Class& c : next) distinct.push_back(c[0]);
      std::sort(distinct.begin(), distinct.end());
      const size_t n = size_t(std::unique(distinct.begin(), distinct.end()) - distinct.begin());
      if (n == known && round > 0) break;
      known = n;
    }
  }

  uint64_t signature(uint32_t node, int half) const {
    uint64_t h = mix(seed_ + uint64_t(half), (a_.nodes[node].flags & Automaton::kFinal) + 2);
    const auto ranges = a_.ranges_of(node);
    for (size_t i = 0; i < ranges.size();) {
      const uint64_t to = a_.classes[ranges[i].to][size_t(half)];
      uint32_t hi = ranges[i].hi;
      size_t k = i + 1;
      while (k < ranges.size() && ranges[k].lo == hi + 1 && a_.classes[ranges[k].to][size_t(half)] == to)
        hi = ranges[k++].hi;
      h = mix(mix(h, uint64_t(ranges[i].lo) << 8 | hi), to);
      i = k;
    }
    for (const auto& e : a_.tokens_of(node))
      h = mix(mix(h, 0x10000u + uint32_t(e.token)), a_.classes[e.to][size_t(half)]);
    for (const auto& e : a_.calls_of(node))
      h = mix(mix(h, 0x20000u + uint64_t(e.rule)), a_.classes[e.to][size_t(half)]);
    return h;
  }

  Automaton& a_;
  uint64_t unique_, seed_;
  CompileBudget& budget_;
};

}  // namespace

size_t Automaton::bytes() const {
  return nodes.size() * (sizeof(Node) + sizeof(Class)) + ranges.size() * sizeof(Range) + calls.size() * sizeof(Call) +
         tokens.size() * sizeof(TokenEdge) + rules.size() * sizeof(Rule);
}

Result<Automaton> Automaton::compile(const Builder& builder, RuleId root, uint32_t max_depth, uint64_t unique) {
  if (builder.overflow()) return too_large();
  Automaton a;
  a.root = root;
  a.max_depth = max_depth;
  const std::vector<bool> nullable = nullable_rules(builder);
  RawNodes raw;
  raw.nodes.push_back({0, 0, 0, 0, false, false});  // kEscape
  std::vector<uint32_t> start;
  size_t edges = 0;
  CompileBudget& budget = builder.budget();
  for (RuleId r = 0; r < builder.rules().size(); ++r) {
    budget.set_place(builder.rules()[r].name);
    const Nfa nfa = Nfa::make(builder, builder.rules()[r].expr, nullable);
    edges += nfa.edges.size();
    if (nfa.overflow || edges > Nfa::kMaxEdges) return too_large();
    start.push_back(append_rule(nfa, r, raw, budget));
    if (raw.overflow || raw.nodes.size() > 2 * kMaxNodes) return too_large();
  }
  // What follows is a few passes over all of it.
  budget.spend(16 * raw.nodes.size() + 12 * (raw.ranges.size() + raw.calls.size() + raw.tokens.size()));
  const std::vector<uint32_t> need = needs(raw, start);
  if (need[start[root]] == kNever)
    return Error{"grammar", fmt::format("rule {} matches no text", builder.rules()[root].name),
                 "every alternative ends in a contradiction or repeats for ever"};
  if (need[start[root]] > max_depth)
    return Error{"grammar",
                 fmt::format("expected rules nested at most {} deep, found {}", max_depth, need[start[root]]),
                 "simplify the grammar"};
  a.rules.assign(start.size(), {0, 0});
  keep_useful(raw, start, need, a);
  if (a.nodes.size() > kMaxNodes) return too_large();
  if (const std::string name = rank_rules(a, builder); !name.empty())
    return Error{"grammar", fmt::format("rule {} begins with itself (left recursion)", name),
                 "write the repetition with * or +, or put what repeats at the end"};
  Classifier(a, unique, budget).run();
  return a;
}

}  // namespace facet::grammar
