// Forks of sequences, and those whose pages are not mapped yet.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "cache/kv_cache.h"

namespace facet {

void KvCache::unmap(const FullPart& f, SlotId s) {
  std::byte* const base = f.base + s * f.stride;
  const int64_t n = int64_t(pages_of(f, s).pages.size());
  const Unmapped hole = std::exchange(pages_of(f, s).unmapped, {});
  if (hole.from == hole.to) return pool_->unmap(base, n);
  pool_->unmap(base, hole.from);
  pool_->unmap(base + hole.to * pool_->page_bytes(), n - hole.to);
}

bool KvCache::unmapped(SlotId s) const {
  return (mirror_ && mirror_->unmapped(s)) ||
         std::ranges::any_of(seq_[size_t(s)].full, [](const FullPages& p) { return p.unmapped.from < p.unmapped.to; });
}

Result<int64_t> KvCache::map_pages(SlotId s, int64_t pages) {
  const int64_t page = pool_->page_bytes();
  int64_t done = 0;
  for (const FullPart& f : full_) {
    Unmapped& hole = pages_of(f, s).unmapped;
    const int64_t n = std::min(hole.to - hole.from, pages - done);
    if (n <= 0) continue;
    const auto some = std::span(pages_of(f, s).pages).subspan(size_t(hole.from), size_t(n));
    if (auto ok = pool_->map(f.base + s * f.stride + hole.from * page, some); !ok) return ok.error();
    hole.from += n, done += n;
  }
  if (mirror_)
    if (auto other = mirror_->map_pages(s, pages); !other) return other.error();
  return done;
}
Status KvCache::map_all(SlotId s) {
  if (!unmapped(s)) return Ok{};
  if (auto n = map_pages(s, std::numeric_limits<int64_t>::max()); !n) return n.error();
  return Ok{};
}

int64_t KvCache::premap(SlotId s, int64_t most) {
  if (mirror_) mirror_->premap(s, most);
  Sequence& q = seq_[size_t(s)];
  const int rows = std::min(kPremapped, plan_.max_ctx);
  const int64_t have = slot_pages(s), lacks = pages(rows) - have;
  if (lacks <= 0 || (!q.spare && have > 0)) return 0;
  if (!pool_->may_spare(lacks) || pool_->untaken() < 2 * lacks) return 0;
  const auto left = [&] { return most - (slot_pages(s) - have); };
  bool ok = bool(take_rings(s, most));
  for (const FullPart& f : full_) ok = ok && grow(f, s, rows, left());
  const int64_t n = slot_pages(s) - have;
  q.spare = q.spare || n > 0;
  pool_->add_spare(n);
  return n;
}

Status KvCache::fork(SlotId from, SlotId to, Fork how) {
  Sequence &a = seq_[size_t(from)], &b = seq_[size_t(to)];
  CHECK(from != to && b.len == 0 && (b.spare || slot_pages(to) == 0),
        "slot {} is to become a fork of {} and holds rows", to, from);
  take_up(to);
  auto fail = [&](const Error& e) {
    release(to);
    return Status(e);
  };
  if (mirror_)
    if (auto ok = mirror_->fork(from, to, how); !ok) return fail(ok.error());
  const int64_t page = pool_->page_bytes();
  // The page that is shared in part is copied.
  if (std::ranges::any_of(full_,
                          [&](const FullPart& f) { return a.len * f.row / page < pages_of(f, from).unmapped.to; }))
    if (auto ok = map_all(from); !ok) return fail(ok.error());
  for (const FullPart& f : full_) {
    const int64_t bytes = a.len * f.row, whole = bytes / page;
    std::vector<PageId>& pages = pages_of(f, to).pages;
    const std::vector<PageId>& source = pages_of(f, from).pages;
    const int64_t had = std::min(whole, int64_t(pages.size()));  // of the slot before, where shared ones come
    if (had > 0) {
      pool_->wait();
      pool_->unmap(f.base + to * f.stride, int64_t(pages.size()));
      drop(pages);
    }
    if (whole == 0) continue;
    for (int64_t i = 0; i < whole; ++i) pool_->share(source[size_t(i)]);
    std::vector<PageId> shared(source.begin(), source.begin() + whole);
    if (how == Fork::kUnmapped) {
      pages_of(f, to).unmapped = {0, whole};
    } else if (auto ok = pool_->map(f.base + to * f.stride, shared); !ok) {
      drop(shared);
      return fail(ok.error());
    }
    pages = std::move(shared);
  }
  b.prepared = 0;
  b.shared_below = a.len;
  a.shared_below = std::max(a.shared_below, a.len);
  if (auto ok = grow(to, a.len); !ok) return fail(ok.error());
  if (a.high > 0)
    if (auto ok = take_rings(to); !ok) return fail(ok.error());
  for (const FullPart& f : full_) {
    const int64_t bytes = a.len * f.row, whole = bytes / page * page;
    if (bytes > whole) pool_->copy(f.base + to * f.stride + whole, f.base + from * f.stride + whole, bytes - whole);
  }
  if (a.high > 0 && ring_stride_ > 0)
    pool_->copy(ring_base_ + to * ring_stride_, ring_base_ + from * ring_stride_,
                ring_parts_.back().offset + ring_parts_.back().cap * ring_parts_.back().row);
  b.len = a.len, b.high = a.high;
  return Ok{};
}

}  // namespace facet
