#include "session/session_rows.h"

#include <algorithm>

namespace facet {

bool SessionRows::reaches(SlotId s, int len, int more) const {
  const auto reaches = [&](const KvCache& c, int left, int high) {
    const KvState now = c.state(s);
    return c.reaches({now.len, std::max(now.high, high)}, left);
  };
  const int high = more > 0 ? cache_.len(s) + more : 0;
  int left = len;  // go_back() ends there
  if (len < cache_.len(s))
    for (const AnyDrafter* d : drafters_) left = std::min(left, d->rows_left(len));
  if (!reaches(cache_, left, high)) return false;
  return std::ranges::all_of(drafters_, [&](AnyDrafter* d) {
    const KvCache* c = d->rows();
    return !c || c->len(s) <= d->rows_left(len) || reaches(*c, d->rows_left(len), more > 0 ? high + 1 : 0);
  });
}

int SessionRows::go_back(SlotId s, int len) {
  while (len > 0 && cache_.rewind(s, len) == Rewind::kDone) {
    int kept = len;
    for (AnyDrafter* d : drafters_) kept = std::min(kept, d->rewind(s, std::min(len, d->held(s))));
    if (kept == len) return len;
    len = kept;
  }
  release(s);
  return 0;
}

Status SessionRows::fork(SlotId from, SlotId to, KvCache::Fork how) {
  if (auto ok = cache_.fork(from, to, how); !ok) return ok;
  for (AnyDrafter* d : drafters_)
    if (auto ok = d->fork(from, to); !ok) {
      release(to);
      return ok;
    }
  return Ok{};
}

void SessionRows::release(SlotId s) {
  cache_.release(s);
  for (AnyDrafter* d : drafters_) d->forget(s);
}

int64_t SessionRows::pages(int rows) const {
  int64_t n = cache_.pages(rows);
  for (AnyDrafter* d : drafters_)
    if (const KvCache* c = d->rows()) n += c->pages(rows);
  return n;
}

int64_t SessionRows::owned(SlotId s) const {
  int64_t n = cache_.owned_pages(s);
  for (AnyDrafter* d : drafters_)
    if (const KvCache* c = d->rows()) n += c->owned_pages(s);
  return n;
}

}  // namespace facet
