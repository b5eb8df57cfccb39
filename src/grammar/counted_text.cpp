#include "grammar/counted_text.h"

#include <algorithm>
#include <map>
#include <optional>

#include "grammar/automaton.h"

namespace facet::grammar {
namespace {

// Characters of a block. What is left for the tail of a text is always longer than what nodes of one mask class may
// differ in, so that masks within a text are those of a text without a limit, up to near its end.
constexpr uint32_t kBlock = 128, kSlack = Automaton::kHorizon;

class CountedText {
 public:
  CountedText(Builder& b, const CharDfa& dfa, const std::function<ExprId(const CharSet&)>& label)
      : b_(b), dfa_(dfa), label_(label) {}

  ExprId make(uint32_t min, uint32_t max) {
    const uint32_t n = uint32_t(dfa_.states.size());
    state(0, 0, 0);
    end_ = max == kUnbounded ? 0 : state(kEnd, 0, 0);
    if (end_) accept_.push_back(end_);
    const uint32_t odd = min % kBlock, rounds = min / kBlock;
    for (uint32_t i = 0; i < odd; ++i)
      for (uint32_t q = 0; q < n; ++q)
        if (known(kOdd, i, q)) characters(state(kOdd, i, q), q, [&](uint32_t to) { return state(kOdd, i + 1, to); });
    for (uint32_t q = 0; q < n; ++q)
      if (known(kOdd, odd, q)) link(state(kOdd, odd, q), state(kNeeded, 0, q), b_.empty());
    for (uint32_t i = 0; i < rounds; ++i) blocks(kNeeded, i);
    for (uint32_t q = 0; q < n; ++q)
      if (known(kNeeded, rounds, q)) link(state(kNeeded, rounds, q), state(kMore, 0, q), b_.empty());
    if (max == kUnbounded)
      without_end();
    else
      up_to(max - min);
    return b_.graph(uint32_t(ids_.size()), std::move(arcs_), std::move(accept_));
  }

 private:
  enum Part : uint32_t { kOdd, kNeeded, kMore, kEnd };
  bool known(uint32_t part, uint32_t i, uint32_t q) const { return ids_.contains({part, i, q}); }
  uint32_t state(uint32_t part, uint32_t i, uint32_t q) {
    return ids_.try_emplace({part, i, q}, uint32_t(ids_.size())).first->second;
  }
  void link(uint32_t from, uint32_t to, ExprId label) {
    b_.budget().spend(4);
    arcs_.push_back({from, to, label});
  }
  template <class To>
  void characters(uint32_t from, uint32_t q, const To& to) {
    for (const CharDfa::Edge& e : dfa_.states[q].edges) link(from, to(e.to), label_(e.on));
  }

  // A block from each state known.
  void blocks(uint32_t part, uint32_t i) {
    const uint32_t n = uint32_t(dfa_.states.size());
    for (uint32_t q = 0; q < n; ++q) {
      if (!known(part, i, q)) continue;
      for (uint32_t to = 0; to < n; ++to)
        if (const auto e = block(q, to)) link(state(part, i, q), state(part, i + 1, to), *e);
    }
  }

  void without_end() {
    const uint32_t n = uint32_t(dfa_.states.size());
    for (uint32_t round = 0; round < n; ++round)  // states are known by and by
      for (uint32_t q = 0; q < n; ++q) {
        if (!known(kMore, 0, q) || (passed_.size() > q && passed_[q])) continue;
        passed_.resize(n, false);
        passed_[q] = true;
        const uint32_t from = state(kMore, 0, q);
        if (dfa_.states[q].accepts) accept_.push_back(from);
        characters(from, q, [&](uint32_t to) { return state(kMore, 0, to); });
      }
  }

  // Blocks, and behind each of them a tail that ends the text: where the number allows it, longer than a block, so that
  // it covers what the next block begins with.
  void up_to(uint32_t more) {
    const uint32_t n = uint32_t(dfa_.states.size()), least = kBlock - 1 + kSlack;
    const uint32_t rounds = more > least ? (more - least) / kBlock : 0, tail_length = more - rounds * kBlock;
    for (uint32_t i = 0; i <= rounds; ++i) {
      for (uint32_t q = 0; q < n; ++q)
        if (known(kMore, i, q)) link(state(kMore, i, q), end_, tail(q, tail_length));
      if (i < rounds) blocks(kMore, i);
    }
  }

  // Texts of `length` characters from q: to a state, or of up to so many to where a text may end.
  std::optional<ExprId> chain(uint32_t q, uint32_t length, std::optional<uint32_t> to) {
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids{{{0, q}, 0}};
    std::vector<std::pair<uint32_t, uint32_t>> order{{0, q}};
    std::vector<Arc> arcs;
    std::vector<uint32_t> accept;
    for (uint32_t id = 0; id < order.size(); ++id) {
      const auto [i, at] = order[id];
      if (to ? i == length && at == *to : dfa_.states[at].accepts) accept.push_back(id);
      if (i == length) continue;
      for (const CharDfa::Edge& e : dfa_.states[at].edges) {
        b_.budget().spend(16);
        const auto [it, fresh] = ids.try_emplace({i + 1, e.to}, uint32_t(order.size()));
        if (fresh) order.emplace_back(i + 1, e.to);
        arcs.push_back({id, it->second, label_(e.on)});
      }
    }
    if (accept.empty()) return std::nullopt;
    const RuleId rule = b_.new_rule("text of a counted length");
    b_.define(rule, b_.graph(uint32_t(order.size()), std::move(arcs), std::move(accept)));
    return b_.rule(rule);
  }
  std::optional<ExprId> block(uint32_t q, uint32_t to) {
    const auto [it, fresh] = blocks_.try_emplace({q, to});
    if (fresh) it->second = chain(q, kBlock, to);
    return it->second;
  }
  ExprId tail(uint32_t q, uint32_t length) {
    const auto [it, fresh] = tails_.try_emplace(q);
    if (fresh) it->second = chain(q, length, std::nullopt);
    return it->second.value_or(b_.none());
  }

  Builder& b_;
  const CharDfa& dfa_;
  const std::function<ExprId(const CharSet&)>& label_;
  std::map<std::array<uint32_t, 3>, uint32_t> ids_;
  std::vector<Arc> arcs_;
  std::vector<uint32_t> accept_;
  uint32_t end_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, std::optional<ExprId>> blocks_;
  std::map<uint32_t, std::optional<ExprId>> tails_;
  std::vector<bool> passed_;
};

}  // namespace

ExprId counted_text(Builder& b, const CharDfa& dfa, uint32_t min, uint32_t max,
                    const std::function<ExprId(const CharSet&)>& label) {
  return CountedText(b, dfa, label).make(min, max);
}

}  // namespace facet::grammar
