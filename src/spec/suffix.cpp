#include "spec/suffix.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace facet {
namespace {

uint32_t hash_of(std::span<const int32_t> tokens) {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (const int32_t t : tokens) h = (h ^ uint32_t(t)) * 0xBF58476D1CE4E5B9u, h ^= h >> 29;
  return uint32_t(h >> 16);
}

// Vectors that grow by a quarter, so that kBytesPerToken holds.
void push(std::vector<int32_t>& v, int32_t x) {
  if (v.size() == v.capacity()) v.reserve(v.size() + std::max<size_t>(64, v.size() / 4));
  v.push_back(x);
}

constexpr size_t kLeastHeads = 64;
constexpr double kForget = .98, kTrials = 4;
// Shares of right drafts by the length of the match: 3, 4, 5.., 7.., 10.., 14.., 21.., 40...
constexpr std::array<int, 8> kFrom{3, 4, 5, 7, 10, 14, 21, 40};
constexpr std::array<double, 8> kAtFirst{.45, .55, .65, .75, .82, .87, .92, .96};

size_t kind_of(int length) {
  size_t k = 0;
  while (k + 1 < kFrom.size() && length >= kFrom[k + 1]) ++k;
  return k;
}

}  // namespace

void SuffixIndex::clear() {
  for (Chains& c : chains_) c = {};
  n_ = 0;
}

size_t SuffixIndex::bytes() const {
  size_t n = 0;
  for (const Chains& c : chains_) n += (c.head.capacity() + c.link.capacity()) * sizeof(int32_t);
  return n;
}

void SuffixIndex::add(Chains& c, int order, std::span<const int32_t> history, size_t at) {
  int32_t before = -1;
  if (at + 1 >= size_t(order)) {
    int32_t& head = c.head[hash_of(history.subspan(at + 1 - size_t(order), size_t(order))) & (c.head.size() - 1)];
    before = std::exchange(head, int32_t(at));
  }
  if (at < c.link.size())
    c.link[at] = before;
  else
    push(c.link, before);
}

bool SuffixIndex::extend(std::span<const int32_t> history) {
  if (history.size() < n_) clear();
  const size_t end = std::min(history.size(), n_ + kMostAtOnce);
  for (size_t o = 0; o < kOrders.size(); ++o) {
    Chains& c = chains_[o];
    size_t at = n_;
    if (c.head.size() * 2 < end) {  // more chains: all places are hung up again
      c.head.assign(std::max(kLeastHeads, std::bit_ceil((end + 1) / 2)), -1);
      at = 0;
    }
    for (; at < end; ++at) add(c, kOrders[o], history, at);
  }
  n_ = end;
  return n_ == history.size();
}

void SuffixIndex::look(size_t order, std::span<const int32_t> history, std::vector<Match>& out) const {
  const Chains& c = chains_[order];
  const size_t n = history.size(), found = out.size();
  if (n <= size_t(kOrders[order])) return;
  int32_t at = c.link[n - 1];
  for (int i = 0; i < kMostPlaces && at >= 0; ++i, at = c.link[size_t(at)]) {
    int length = 0;
    while (length < kMostLength && length <= at && history[size_t(at - length)] == history[n - 1 - size_t(length)])
      ++length;
    if (length < kOrders[order]) continue;  // the same hash of other tokens
    const auto known = [&](const Match& m) { return m.next == at + 1; };
    if (std::none_of(out.begin(), out.begin() + ptrdiff_t(found), known)) out.push_back({at + 1, length});
  }
}

void SuffixIndex::matches(std::span<const int32_t> history, std::vector<Match>& out) const {
  CHECK(history.size() == n_, "{} tokens, {} of them chained", history.size(), n_);
  out.clear();
  for (size_t o = kOrders.size(); o-- > 0;) look(o, history, out);
  std::sort(out.begin(), out.end(), [](const Match& a, const Match& b) {
    return a.length != b.length ? a.length > b.length : a.next > b.next;
  });
}

double MatchTrust::value(int length) const {
  const size_t k = kind_of(length);
  return (known_[k].hit + kTrials * kAtFirst[k]) / (known_[k].trial + kTrials);
}
void MatchTrust::observe(int length, bool right) {
  Known& k = known_[kind_of(length)];
  k.hit = k.hit * kForget + (right ? 1 : 0), k.trial = k.trial * kForget + 1;
}

namespace {

struct Count {
  int32_t token = 0;
  int n = 0;
};

// What follows those matches that are at least so long.
struct Walk {
  std::span<const int32_t> history;
  const MatchTrust& trust;
  int most, n_top;
  std::vector<int32_t> next;  // places that agree with the chain so far
  std::vector<Count> counts;

  // The token at a place, of which those behind the end are the chain's own: a loop goes on.
  int32_t token_at(int32_t place, const Continuation& c) const {
    return size_t(place) < history.size() ? history[size_t(place)] : c.chain[size_t(place) - history.size()].token;
  }
  void count(const Continuation& c) {
    counts.clear();
    for (const int32_t place : next) {
      const int32_t t = token_at(place, c);
      const auto at = std::find_if(counts.begin(), counts.end(), [&](const Count& x) { return x.token == t; });
      if (at == counts.end())
        counts.push_back({t, 1});
      else
        ++at->n;
    }
    std::stable_sort(counts.begin(), counts.end(), [](const Count& a, const Count& b) { return a.n > b.n; });
  }
  // The sum of the chances that 1, 2, .. tokens are right.
  double run(int length, Continuation& c) {
    constexpr double kLeast = .05;  // chance for which a token is worth a look
    double survival = 1, expected = 0;
    for (int depth = 0; depth < most; ++depth) {
      count(c);
      const int32_t token = counts[0].token;
      if (token < 0) break;  // into a picture or a sound, whose ids are below 0
      const double of_match = trust.value(std::min(length + depth, SuffixIndex::kMostLength));
      const auto chance = [&](int n) { return of_match * n / double(next.size()); };
      const double p = chance(counts[0].n);
      if ((survival *= p) < kLeast && depth > 0) break;
      expected += survival;
      if (n_top > 1) {
        for (int i = 0; i < n_top; ++i) {
          const bool is = size_t(i) < counts.size() && counts[size_t(i)].token >= 0;
          c.top.push_back(is ? counts[size_t(i)].token : -1);
          c.top_probability.push_back(is ? float(chance(counts[size_t(i)].n)) : 1e-9f);
        }
      }
      std::erase_if(next, [&](int32_t place) { return token_at(place, c) != token; });
      c.chain.push_back({token, float(p), std::min(length + depth, SuffixIndex::kMostLength)});
      // After the chain has its new token every place has one behind it.
      const size_t end = history.size() + c.chain.size();
      for (int32_t& place : next) ++place;
      std::erase_if(next, [&](int32_t place) { return size_t(place) >= end; });
      if (next.empty()) break;
    }
    return expected;
  }
};

}  // namespace

Continuation continue_matches(std::span<const int32_t> history, std::span<const SuffixIndex::Match> matches,
                              const MatchTrust& trust, int most, int n_top) {
  Continuation best;
  double expected = 0;
  // Few long matches against many short ones: whichever is expected to bring more.
  for (size_t i = 0; i < matches.size() && most > 0;) {
    const size_t kind = kind_of(matches[i].length);
    while (i < matches.size() && kind_of(matches[i].length) == kind) ++i;
    Walk w{.history = history, .trust = trust, .most = most, .n_top = n_top, .next = {}, .counts = {}};
    for (const auto& m : matches.first(i)) w.next.push_back(m.next);
    Continuation c;
    if (const double e = w.run(matches[i - 1].length, c); e > expected) expected = e, best = std::move(c);
  }
  return best;
}

}  // namespace facet
