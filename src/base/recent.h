#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace facet {

// At most `most` values by key. A new one takes the place of the one that was asked for least recently; until then a
// value keeps its address.
template <class Key, class Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) { entries_.reserve(most); }

  // The value of `key`; a new one is Value{}. replaced(value) is told what gave way to it.
  template <class F>
  Value& at(const Key& key, F&& replaced) {
    Entry* oldest = nullptr;
    for (Entry& e : entries_) {
      if (e.key == key) {
        e.used = ++clock_;
        return e.value;
      }
      if (!oldest || e.used < oldest->used) oldest = &e;
    }
    if (entries_.size() < most_)
      oldest = &entries_.emplace_back();
    else
      replaced(oldest->value);
    *oldest = {key, Value{}, ++clock_};
    return oldest->value;
  }
  template <class F>
  void clear(F&& removed) {
    for (Entry& e : entries_) removed(e.value);
    entries_.clear();
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Key key{};
    Value value{};
    uint64_t used = 0;
  };
  size_t most_;
  uint64_t clock_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace facet
