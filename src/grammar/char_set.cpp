#include "grammar/char_set.h"

#include <algorithm>
#include <string>

#include "tokenizer/utf8.h"

namespace facet::grammar {

void CharSet::add(uint32_t lo, uint32_t hi) {
  constexpr uint32_t kFirst = 0xD800, kLast = 0xDFFF;
  if (lo > hi) return;
  if (lo < kFirst) insert(lo, std::min(hi, kFirst - 1));
  if (hi > kLast) insert(std::max(lo, kLast + 1), hi);
}

void CharSet::insert(uint32_t lo, uint32_t hi) {
  if (ranges_.empty() || lo > ranges_.back().second + 1) {
    ranges_.push_back({lo, hi});
    return;
  }
  if (lo >= ranges_.back().first) {
    ranges_.back().second = std::max(ranges_.back().second, hi);
    return;
  }
  // The first range that it touches, and the first behind it that it does not.
  const auto first =
      std::lower_bound(ranges_.begin(), ranges_.end(), lo, [](const Range& r, uint32_t x) { return r.second + 1 < x; });
  auto end = first;
  while (end != ranges_.end() && end->first <= hi + 1) {
    lo = std::min(lo, end->first);
    hi = std::max(hi, end->second);
    ++end;
  }
  if (first == end) {
    ranges_.insert(first, {lo, hi});
    return;
  }
  *first = {lo, hi};
  ranges_.erase(first + 1, end);
}

CharSet CharSet::of(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharSet out;
  for (const Range& r : ranges) out.add(r.first, r.second);
  return out;
}

void CharSet::add(const CharSet& other) {
  if (other.ranges_.size() < 8 || ranges_.empty() || other.ranges_.front() > ranges_.back()) {
    if (ranges_.empty())
      ranges_ = other.ranges_;
    else
      for (const Range& r : other.ranges_) insert(r.first, r.second);
    return;
  }
  std::vector<Range> all = std::move(ranges_);
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  *this = of(std::move(all));
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.first > next) out.add(next, r.first - 1);
    next = r.second + 1;
  }
  if (next <= 0x10FFFF) out.add(next, 0x10FFFF);
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  size_t i = 0, k = 0;
  while (i < ranges_.size() && k < other.ranges_.size()) {
    const Range &a = ranges_[i], &b = other.ranges_[k];
    const uint32_t lo = std::max(a.first, b.first), hi = std::min(a.second, b.second);
    if (lo <= hi) out.ranges_.push_back({lo, hi});
    (a.second < b.second ? i : k)++;
  }
  return out;
}

bool CharSet::contains(uint32_t c) const {
  const auto it = std::upper_bound(ranges_.begin(), ranges_.end(), Range{c, UINT32_MAX});
  return it != ranges_.begin() && std::prev(it)->second >= c;
}

bool decode_utf8(std::string_view text, std::vector<uint32_t>& out) {
  while (!text.empty()) {
    const Utf8Head head = utf8_head(text);
    if (head.kind != Utf8Head::kValid) return false;
    const auto at = [&](int i) { return uint32_t(uint8_t(text[size_t(i)])); };
    uint32_t c = at(0);
    if (head.length > 1) c &= 0x7Fu >> head.length;
    for (int i = 1; i < head.length; ++i) c = c << 6 | (at(i) & 0x3F);
    out.push_back(c);
    text.remove_prefix(size_t(head.length));
  }
  return true;
}

}  // namespace facet::grammar
