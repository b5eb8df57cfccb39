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
  ranges_.push_back({lo, hi});
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> joined;
  for (const Range& r : ranges_) {
    if (!joined.empty() && r.first <= joined.back().second + 1)
      joined.back().second = std::max(joined.back().second, r.second);
    else
      joined.push_back(r);
  }
  ranges_ = std::move(joined);
}

void CharSet::add(const CharSet& other) {
  if (ranges_.empty()) {
    ranges_ = other.ranges_;
    return;
  }
  for (const Range& r : other.ranges_) insert(r.first, r.second);
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

void append_utf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | c >> 6);
    out += char(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += char(0xE0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  } else {
    out += char(0xF0 | c >> 18);
    out += char(0x80 | (c >> 12 & 0x3F));
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  }
}

}  // namespace facet::grammar
