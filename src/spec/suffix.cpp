#include "spec/suffix.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "spec/answer_memory.h"

namespace facet {
namespace {

constexpr double kForget = .99, kTrials = 6;  // of what is known at first
constexpr std::array<int, CopyTrust::kLengths> kFrom{1, 2, 3, 4, 5, 7, 10, 14, 21, 40};
// Shares of right tokens by length as they were measured on texts of several kinds (bench spec --replay), rounded; and
// by how much more or less it is where sources agree.
constexpr std::array<double, CopyTrust::kLengths> kAtFirst[] = {
    {.1, .25, .4, .5, .6, .7, .78, .85, .9, .95},
    {.3, .5, .65, .75, .8, .85, .9, .93, .95, .97},
    {.1, .25, .4, .5, .6, .7, .78, .85, .9, .95},
};
constexpr std::array<double, CopyTrust::kAgreements> kByAgreement{1, 1.05, .8, .4};
constexpr double kMost = .98;
constexpr int kMostNear = 48;         // sources beside cursors that no chain has
constexpr double kLeastEscape = .02;  // chance of being right that is left for worse classes

// Best kind first.
constexpr CopySource::Kind kKindOrder[] = {CopySource::kNear, CopySource::kFar, CopySource::kRemembered};

}  // namespace

int CopyTrust::length_class(int length) {
  static constexpr auto kClass = [] {
    std::array<int8_t, SuffixIndex::kMostLength + 1> of{};
    for (int n = 0, k = 0; n <= SuffixIndex::kMostLength; ++n) {
      while (k + 1 < kLengths && n >= kFrom[size_t(k) + 1]) ++k;
      of[size_t(n)] = int8_t(k);
    }
    return of;
  }();
  return kClass[size_t(std::clamp(length, 0, SuffixIndex::kMostLength))];
}
int CopyTrust::agreement(int sources, int distinct) {
  return sources <= 1 ? 0 : distinct == 1 ? 1 : 2 * distinct <= sources + 1 ? 2 : 3;
}
double CopyTrust::value(int of_class) const {
  const int kind = of_class / (kLengths * kAgreements), length = of_class / kAgreements % kLengths;
  const double first = std::min(kMost, kAtFirst[kind][size_t(length)] * kByAgreement[size_t(of_class % kAgreements)]);
  const Known& k = known_[size_t(of_class)];
  return (k.hit + kTrials * first) / (k.trial + kTrials);
}
void CopyTrust::observe(int of_class, bool right) {
  Known& k = known_[size_t(of_class)];
  k.hit = k.hit * kForget + (right ? 1 : 0), k.trial = k.trial * kForget + 1;
}

void CopyCursors::touch(int32_t place) {
  int at = 0;
  const auto is_near = [&](int32_t c) { return place - c >= -kBack && place - c <= kAhead; };
  while (at < n_ && !is_near(at_[size_t(at)])) ++at;
  if (at == n_) at = n_ < kMost ? n_++ : kMost - 1;  // a new one, in place of the one that was used last long ago
  for (; at > 0; --at) at_[size_t(at)] = at_[size_t(at) - 1];
  at_[0] = place;
}

float CopyCursors::nearness(int32_t place) const {
  constexpr int kTurn = 8, kBehind = 3;
  constexpr float kHalf = 4, kOlder = .5f;  // tokens of distance that halve it; what each newer cursor takes of it
  float best = 0;
  for (int i = 0; i < n_; ++i) {
    const int d = place - at_[size_t(i)];
    if (d < -kBack || d > kAhead) continue;
    const float far = float(d >= 0 ? d : kTurn - kBehind * d);
    best = std::max(best, 1 / ((1 + far / kHalf) * (1 + kOlder * float(i))));
  }
  return best;
}

// A source's token; behind the history's end the path to the node goes on: a loop.
int32_t CopyGuesser::token_at(const CopyRecord& r, int node, const CopySource& s) const {
  if (s.kind == CopySource::kRemembered) return memory_->token(s.place);
  if (size_t(s.place) < history_.size()) return history_[size_t(s.place)];
  if (!loops_) return AnswerMemory::kEnd;
  const int depth = s.place - int(history_.size()) + 1;
  while (r.nodes[size_t(node)].depth > depth) node = r.nodes[size_t(node)].parent;
  return r.nodes[size_t(node)].token;
}

void CopyGuesser::find_sources(const SuffixIndex& index, const CopyCursors& cursors, CopyRecord& r) {
  const auto add = [&](int32_t place, int length, float nearness) {
    const bool is_near = nearness > 0;
    r.sources.push_back(
        {place, int16_t(length), is_near ? CopySource::kNear : CopySource::kFar, is_near ? nearness : 1});
  };
  index.matches(history_, matches_);
  for (const auto& m : matches_) add(m.next, m.length, cursors.nearness(m.next));
  // Beside a cursor one token is a match; places in front of it come first.
  const int32_t n = int32_t(history_.size()), last = history_.back();
  int left = kMostNear;
  const auto look_at = [&](int32_t at) {
    if (at < 1 || at >= n || left == 0 || history_[size_t(at) - 1] != last ||
        std::any_of(r.sources.begin(), r.sources.end(), [&](const CopySource& s) { return s.place == at; }))
      return;
    add(at, match_length(history_, size_t(at), history_), cursors.nearness(at));
    --left;
  };
  for (const int32_t c : cursors.places()) {
    for (int d = 0; d <= CopyCursors::kAhead; ++d) look_at(c + d);
    for (int d = 1; d <= CopyCursors::kBack; ++d) look_at(c - d);
  }
  if (!memory_) return;
  memory_->matches(history_, matches_);
  for (const auto& m : matches_) r.sources.push_back({m.next, int16_t(m.length), CopySource::kRemembered, 1});
}

// What a node's sources say, to groups_ by class, those that are trusted most first, and their votes_.
void CopyGuesser::vote(const CopyRecord& r, int node) {
  constexpr int kBuckets = CopyTrust::kKinds * CopyTrust::kLengths;
  const auto& n = r.nodes[size_t(node)];
  groups_.clear(), votes_.clear(), seen_.clear(), bucket_.clear();
  uint32_t buckets = 0;
  for (int i = n.begin; i < n.end; ++i) {
    const CopySource& s = r.sources[size_t(i)];
    bucket_.push_back(int8_t(int(s.kind) * CopyTrust::kLengths + CopyTrust::length_class(s.length)));
    buckets |= 1u << bucket_.back();
  }
  static_assert(kBuckets <= 32);
  int sources = 0;
  for (int length = CopyTrust::kLengths; length-- > 0;)
    for (const CopySource::Kind kind : kKindOrder) {
      const int b = int(kind) * CopyTrust::kLengths + length;
      if (!(buckets >> b & 1)) continue;
      Group g{.of_class = 0, .begin = int(votes_.size()), .end = 0, .trust = 0};
      for (int i = n.begin; i < n.end; ++i) {
        if (bucket_[size_t(i - n.begin)] != b) continue;
        const CopySource& s = r.sources[size_t(i)];
        const int32_t t = token_at(r, node, s);
        if (t < 0) continue;  // a picture, a sound, the end of an answer
        ++sources;
        if (std::find(seen_.begin(), seen_.end(), t) == seen_.end()) seen_.push_back(t);
        const auto have =
            std::find_if(votes_.begin() + g.begin, votes_.end(), [&](const Vote& v) { return v.token == t; });
        if (have == votes_.end())
          votes_.push_back({t, s.weight});
        else
          have->weight += s.weight;
      }
      g.end = int(votes_.size());
      if (g.begin == g.end) continue;
      g.of_class = CopyTrust::class_of(kind, length, CopyTrust::agreement(sources, int(seen_.size())));
      g.trust = trust_->value(g.of_class);
      groups_.push_back(g);
    }
  std::stable_sort(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.trust > b.trust; });
}

// What may follow a node, to open_: a class has what the better ones leave.
void CopyGuesser::expand(CopyRecord& r, int node) {
  vote(r, node);
  auto& n = r.nodes[size_t(node)];
  n.level_begin = int(r.levels.size());
  const int first_token = int(r.tokens.size());
  const auto is_new = [&](int32_t t) {
    return std::find(r.tokens.begin() + first_token, r.tokens.end(), t) == r.tokens.end();
  };
  Child best{0, 0, int16_t(node)};
  double left = 1;
  for (const Group& g : groups_) {
    if (left < kLeastEscape) break;
    double sum = 0;
    const int begin = int(r.tokens.size());
    for (int i = g.begin; i < g.end; ++i) sum += is_new(votes_[size_t(i)].token) ? votes_[size_t(i)].weight : 0;
    if (sum <= 0) continue;
    for (int i = g.begin; i < g.end; ++i) {
      const Vote& v = votes_[size_t(i)];
      if (!is_new(v.token)) continue;
      r.tokens.push_back(v.token);
      const Child c{float(n.chance * left * g.trust * v.weight / sum), v.token, int16_t(node)};
      if (c.chance > best.chance) best = c;
      if (limits_.branches && c.chance >= kLeastChance) open_.push(c);
    }
    r.levels.push_back({g.of_class, begin, int(r.tokens.size())});
    left *= 1 - g.trust;
  }
  n.level_end = int(r.levels.size());
  if (!limits_.branches && best.chance >= kLeastChance) open_.push(best);
}

int CopyGuesser::add_node(CopyRecord& r, const Child& c) {
  const int node = int(r.nodes.size()), begin = int(r.sources.size());
  const auto parent = r.nodes[size_t(c.parent)];
  const int depth = parent.depth + 1;
  for (int i = parent.begin; i < parent.end; ++i) {
    CopySource s = r.sources[size_t(i)];
    if (token_at(r, c.parent, s) != c.token) continue;
    s.place = s.kind == CopySource::kRemembered ? memory_->next(s.place) : s.place + 1;
    if (s.kind != CopySource::kRemembered && size_t(s.place) >= history_.size() + size_t(depth)) continue;
    s.length = int16_t(std::min(s.length + 1, SuffixIndex::kMostLength));
    r.sources.push_back(s);
  }
  r.nodes.push_back({.token = c.token,
                     .parent = c.parent,
                     .depth = int16_t(depth),
                     .begin = begin,
                     .end = int(r.sources.size()),
                     .level_begin = 0,
                     .level_end = 0,
                     .sibling = parent.first_child,
                     .chance = c.chance});
  r.nodes[size_t(c.parent)].first_child = int16_t(node);
  return node;
}

void CopyGuesser::guess(std::span<const int32_t> history, const SuffixIndex& index, const AnswerMemory* memory,
                        const CopyCursors& cursors, Limits limits, CopyRecord& r, CopyTree& out) {
  history_ = history, memory_ = memory, limits_ = limits, loops_ = true;
  r.clear();
  r.n_history = history.size();
  find_sources(index, cursors, r);
  out.start(history.back());
  grow(r, out);
}

void CopyGuesser::go_on(std::span<const int32_t> history, std::span<const int32_t> tail, const SuffixIndex& index,
                        const CopyCursors& cursors, int nodes, CopyTree& out) {
  constexpr int kLeast = 6;  // tokens of a match that are worth going on from
  history_ = history, memory_ = nullptr, loops_ = false;
  limits_ = {.nodes = nodes, .depth = nodes, .branches = false};
  CopyRecord& r = behind_;
  r.clear();
  index.matches_of(history, tail, matches_);
  for (const auto& m : matches_)
    if (m.length >= kLeast)
      r.sources.push_back(
          {m.next, int16_t(m.length), cursors.nearness(m.next) > 0 ? CopySource::kNear : CopySource::kFar, 1});
  out.start(tail.back());
  grow(r, out);
}

// The tree of what r.sources say.
void CopyGuesser::grow(CopyRecord& r, CopyTree& out) {
  r.nodes.push_back({.token = out.token[0],
                     .parent = -1,
                     .depth = 0,
                     .begin = 0,
                     .end = int(r.sources.size()),
                     .level_begin = 0,
                     .level_end = 0,
                     .chance = 1});
  open_ = {};
  expand(r, 0);
  while (!open_.empty() && out.n_draft() < limits_.nodes) {
    const Child c = open_.top();
    open_.pop();
    if (r.nodes[size_t(c.parent)].depth >= limits_.depth) continue;
    const int node = add_node(r, c);
    out.token.push_back(c.token), out.parent.push_back(c.parent), out.chance.push_back(c.chance);
    if (out.n_draft() < limits_.nodes) expand(r, node);
  }
}

void CopyGuesser::learn(std::span<const int32_t> history, CopyRecord& r, CopyCursors& cursors) {
  const size_t n = std::exchange(r.n_history, 0);
  if (n == 0 || history.size() <= n || history[n - 1] != r.nodes[0].token) return;
  constexpr int kSure = 4;  // tokens of a match that say where the text is copied from
  int at = 0;
  for (size_t i = n; i < history.size() && at >= 0; ++i) {
    const auto& node = r.nodes[size_t(at)];
    for (int l = node.level_begin; l < node.level_end; ++l) {
      const auto& level = r.levels[size_t(l)];
      const auto end = r.tokens.begin() + level.end;
      const bool right = std::find(r.tokens.begin() + level.begin, end, history[i]) != end;
      trust_->observe(level.of_class, right);
      if (right) break;
    }
    const CopySource* from = nullptr;
    int best = 0;
    for (int s = node.begin; s < node.end; ++s) {
      const CopySource& source = r.sources[size_t(s)];
      const bool is_near = source.kind == CopySource::kNear;
      if (source.kind == CopySource::kRemembered || size_t(source.place) >= i || (!is_near && source.length < kSure) ||
          history[size_t(source.place)] != history[i])
        continue;
      if (const int worth = source.length * (is_near ? 2 : 1); worth > best) best = worth, from = &source;
    }
    if (from) cursors.touch(from->place + 1);
    int child = node.first_child;
    while (child > 0 && r.nodes[size_t(child)].token != history[i]) child = r.nodes[size_t(child)].sibling;
    at = child > 0 && r.nodes[size_t(child)].level_end > r.nodes[size_t(child)].level_begin ? child : -1;
  }
}

}  // namespace facet
