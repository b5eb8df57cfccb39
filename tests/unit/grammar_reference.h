#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

// What a grammar allows, the slow and obvious way: Earley's algorithm over productions of single bytes and rules, and
// an item counts only if the grammar can be completed from it. Nothing here is shared with src/grammar.
namespace facet::test {

struct Symbol {
  int rule = -1;  // or a byte from lo to hi
  uint8_t lo = 0, hi = 0;
};
using Production = std::vector<Symbol>;

struct SlowGrammar {
  std::vector<std::vector<Production>> rules;  // 0 is the root

  std::set<int> productive() const {
    std::set<int> good;
    for (bool changed = true; changed;) {
      changed = false;
      for (int r = 0; r < int(rules.size()); ++r) {
        if (good.count(r)) continue;
        for (const Production& p : rules[size_t(r)]) {
          bool ok = true;
          for (const Symbol& s : p) ok &= s.rule < 0 || good.count(s.rule) > 0;
          if (ok && good.insert(r).second) changed = true;
        }
      }
    }
    return good;
  }
};

class SlowMatcher {
 public:
  explicit SlowMatcher(const SlowGrammar& g) : g_(g), good_(g.productive()) {}

  // Whether some match begins with the text, and whether the text is one.
  struct Answer {
    bool prefix, match;
  };
  Answer ask(std::string_view text) const {
    if (!good_.count(0)) return {false, false};
    std::vector<std::set<Item>> chart(text.size() + 1);
    for (int p = 0; p < int(g_.rules[0].size()); ++p) add(chart[0], {0, p, 0, 0});
    for (size_t i = 0; i <= text.size(); ++i) {
      complete(chart, i);
      if (i == text.size()) break;
      for (const Item& item : chart[i]) {
        const Production& p = production(item);
        if (item.dot == p.size() || p[item.dot].rule >= 0) continue;
        const uint8_t b = uint8_t(text[i]);
        if (b >= p[item.dot].lo && b <= p[item.dot].hi) add(chart[i + 1], {item.rule, item.p, item.dot + 1, item.from});
      }
    }
    bool match = false;
    for (const Item& item : chart.back())
      match |= item.rule == 0 && item.from == 0 && item.dot == production(item).size();
    return {!chart.back().empty(), match};
  }

 private:
  struct Item {
    int rule, p;
    size_t dot, from;
    auto operator<=>(const Item&) const = default;
  };
  const Production& production(const Item& i) const { return g_.rules[size_t(i.rule)][size_t(i.p)]; }
  // Items that can be completed only: every rule that is still to come matches something.
  void add(std::set<Item>& set, const Item& item) const {
    for (const Symbol& s : production(item))
      if (s.rule >= 0 && !good_.count(s.rule)) return;
    set.insert(item);
  }
  void complete(std::vector<std::set<Item>>& chart, size_t i) const {
    for (size_t before = size_t(-1); before != chart[i].size();) {
      before = chart[i].size();
      const std::set<Item> now = chart[i];
      for (const Item& item : now) {
        const Production& p = production(item);
        if (item.dot < p.size()) {
          const int r = p[item.dot].rule;
          if (r < 0) continue;
          for (int k = 0; k < int(g_.rules[size_t(r)].size()); ++k) add(chart[i], {r, k, 0, i});
        } else {
          const std::set<Item> from = chart[item.from];
          for (const Item& c : from) {
            const Production& q = production(c);
            if (c.dot < q.size() && q[c.dot].rule == item.rule) add(chart[i], {c.rule, c.p, c.dot + 1, c.from});
          }
        }
      }
    }
  }

  const SlowGrammar& g_;
  std::set<int> good_;
};

}  // namespace facet::test
