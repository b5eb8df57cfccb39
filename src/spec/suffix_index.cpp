#include "spec/suffix_index.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace facet {
namespace {

// Vectors that grow by a quarter, so that kBytesPerToken holds.
void push(std::vector<int32_t>& v, int32_t x) {
  if (v.size() == v.capacity()) v.reserve(v.size() + std::max<size_t>(64, v.size() / 4));
  v.push_back(x);
}

constexpr size_t kLeastHeads = 64;

}  // namespace

uint32_t hash_of_tokens(std::span<const int32_t> tokens) {
  uint64_t h = 0x9E3779B97F4A7C15u;
  for (const int32_t t : tokens) h = (h ^ uint32_t(t)) * 0xBF58476D1CE4E5B9u, h ^= h >> 29;
  return uint32_t(h >> 16);
}

int match_length(std::span<const int32_t> text, size_t at, std::span<const int32_t> history) {
  const size_t most = std::min({at, history.size(), size_t(SuffixIndex::kMostLength)});
  size_t n = 0;
  while (n < most && text[at - 1 - n] == history[history.size() - 1 - n]) ++n;
  return int(n);
}

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
    int32_t& head =
        c.head[hash_of_tokens(history.subspan(at + 1 - size_t(order), size_t(order))) & (c.head.size() - 1)];
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

void SuffixIndex::look(size_t order, std::span<const int32_t> history, std::span<const int32_t> tail, int32_t at,
                       size_t found, std::vector<Match>& out) const {
  const Chains& c = chains_[order];
  for (int i = 0; i < kMostPlaces && at >= 0; ++i, at = c.link[size_t(at)]) {
    const int length = match_length(history, size_t(at) + 1, tail);
    if (length < kOrders[order]) continue;  // the same hash of other tokens
    const auto known = [&](const Match& m) { return m.next == at + 1; };
    if (std::none_of(out.begin(), out.begin() + ptrdiff_t(found), known)) out.push_back({at + 1, length});
  }
}

void SuffixIndex::matches(std::span<const int32_t> history, std::vector<Match>& out) const {
  CHECK(history.size() == n_, "{} tokens, {} of them chained", history.size(), n_);
  out.clear();
  for (size_t o = kOrders.size(); o-- > 0;)
    if (n_ > size_t(kOrders[o])) look(o, history, history, chains_[o].link[n_ - 1], out.size(), out);
  sort_matches(out);
}

void SuffixIndex::matches_of(std::span<const int32_t> history, std::span<const int32_t> tail,
                             std::vector<Match>& out) const {
  CHECK(history.size() == n_, "{} tokens, {} of them chained", history.size(), n_);
  out.clear();
  for (size_t o = kOrders.size(); o-- > 0;) {
    const Chains& c = chains_[o];
    const size_t order = size_t(kOrders[o]);
    if (n_ < order || tail.size() < order) continue;
    look(o, history, tail, c.head[hash_of_tokens(tail.last(order)) & (c.head.size() - 1)], out.size(), out);
  }
  std::erase_if(out, [&](const Match& m) { return size_t(m.next) >= n_; });
  sort_matches(out);
}

}  // namespace facet
