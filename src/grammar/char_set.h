#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace facet::grammar {

// A set of Unicode code points, as ascending ranges with gaps between them. Surrogates are never members.
class CharSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // both ends included
  CharSet() = default;
  CharSet(std::initializer_list<Range> ranges) {
    for (const Range& r : ranges) add(r.first, r.second);
  }
  static CharSet all() { return {{0, 0x10FFFF}}; }
  static CharSet one(uint32_t c) { return {{c, c}}; }
  static CharSet of(std::vector<Range> ranges);  // in any order; many at a time cost less than one after the other

  void add(uint32_t lo, uint32_t hi);
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet intersect(const CharSet& other) const;
  CharSet without(const CharSet& other) const { return intersect(other.complement()); }
  bool contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  bool operator==(const CharSet&) const = default;

 private:
  void insert(uint32_t lo, uint32_t hi);
  std::vector<Range> ranges_;
};

// Splits well-formed UTF-8; false if the text is ill-formed.
bool decode_utf8(std::string_view text, std::vector<uint32_t>& out);

}  // namespace facet::grammar
