#include "session/session_rows.h"

#include <algorithm>

namespace facet {

bool SessionRows::reaches(SlotId s, int len) const {
  if (!cache_.reaches(s, len)) return false;
  return std::ranges::all_of(drafters_, [&](AnyDrafter* d) {
    const KvCache* c = d->rows();
    return !c || c->len(s) <= len || c->reaches(s, len);
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
