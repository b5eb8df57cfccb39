#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace facet {
namespace {
int64_t align_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
}  // namespace

KvCache::KvCache(const ModelCfg& m, const KvPlan& p) : plan_(p), layers_(m.layer.size()), seq_(size_t(p.resident())) {
  min_slack_ = min_ring_ = std::numeric_limits<int>::max();
  for (size_t l = 0; l < m.layer.size(); ++l) {
    const LayerCfg& c = m.layer[l];
    if (c.query_only) continue;
    KvLayer& k = layers_[l];
    k.n_head = c.n_kv_head;
    k.head_dim = c.head_dim;
    k.window = c.window;
    k.margin = p.margin;
    k.shared = kv_shared(c, p);
    const KvPair types = p.of_layer(l);
    k.k_type = types.k;
    k.v_type = k.shared ? types.k : types.v;
    const KvRowBytes row = kv_row_bytes(m, l, p);
    k.k_row = row.k;
    k.v_row = k.shared ? row.k : row.v;
    k.cap = c.window ? ring_rows(c, p) : p.max_ctx;
    owners_.push_back(int(l));
    if (c.window == 0) continue;
    min_ring_ = std::min(min_ring_, int(k.cap));
    // A ring as long as the context never wraps.
    if (k.cap < p.max_ctx) min_slack_ = std::min(min_slack_, int(k.cap) - (c.window - 1));
  }
}

Status KvCache::allocate(const ModelCfg& m, PagePool* shared, std::unique_ptr<PagePool> own) {
  own_pool_ = std::move(own);
  pool_ = shared ? shared : own_pool_.get();
  pool_->add_holder(this, [this] {
    bool any = false;
    for (SlotId s = 0; s < SlotId(seq_.size()); ++s)
      if (seq_[size_t(s)].spare) give_back(s), any = true;
    return any;
  });
  const int64_t page = pool_->page_bytes(), slots = plan_.resident();
  int64_t rings = 0, k_stage = 0, v_stage = 0;
  for (int l : owners_) {
    KvLayer& k = layers_[size_t(l)];
    const std::pair<std::byte**, int64_t*> part[] = {{&k.k, &k.k_slot}, {&k.v, &k.v_slot}};
    for (size_t i = 0; i < (k.shared ? 1 : 2); ++i) {
      const int64_t row = i ? k.v_row : k.k_row;
      if (k.window) {
        ring_parts_.push_back({.offset = rings, .row = row, .cap = k.cap});
        rings = align_up(rings + k.cap * row, 256);
        continue;
      }
      FullPart f{.number = full_.size(), .row = row};
      f.stride = align_up(k.cap * row + pool_->rows_read_beyond() * row, page);
      auto at = pool_->reserve(f.stride * slots);
      if (!at) return at.error();
      *part[i].first = f.base = *at, *part[i].second = f.stride;
      for (Sequence& q : seq_) q.full.emplace_back();
      full_.push_back(f);
    }
    if (k.shared) k.v = k.k + kv_shared_v_at(k.k_type, k.head_dim), k.v_slot = k.k_slot;
    if (k.window) k_stage = std::max(k_stage, k.k_row), v_stage = std::max(v_stage, k.v_row);
  }
  ring_stride_ = align_up(rings, page);
  const int64_t stage = plan_.max_step > plan_.margin ? align_up((k_stage + v_stage) * plan_.max_step, page) : 0;
  auto ring_base = pool_->reserve(ring_stride_ * slots), stage_base = pool_->reserve(stage),
       window = pool_->reserve(page);
  if (!ring_base) return ring_base.error();
  if (!stage_base) return stage_base.error();
  if (!window) return window.error();
  ring_base_ = *ring_base, copy_window_ = *window;
  auto stage_pages = take(stage / page);
  if (!stage_pages) return stage_pages.error();
  stage_pages_ = std::move(*stage_pages), stage_base_ = *stage_base;
  if (auto ok = pool_->map(stage_base_, stage_pages_); !ok) {
    drop(stage_pages_);
    return ok;
  }
  if (stage > 0) pool_->fresh(stage_base_, stage);
  size_t i = 0;
  for (int l : owners_) {
    KvLayer& k = layers_[size_t(l)];
    if (k.window == 0) continue;
    k.k = ring_base_ + ring_parts_[i++].offset, k.v = ring_base_ + ring_parts_[i++].offset;
    k.k_slot = k.v_slot = ring_stride_;
    // One staging area for all sliding layers: a layer's staged rows are settled before the next layer appends.
    if (stage > 0) k.k_stage = *stage_base, k.v_stage = *stage_base + k_stage * plan_.max_step;
  }
  for (size_t l = 0; l < m.layer.size(); ++l)
    if (m.layer[l].query_only) layers_[l] = layers_[size_t(m.layer[l].kv_source)];
  return Ok{};
}

void KvCache::release_all() {
  if (!pool_) return;
  for (SlotId s = 0; s < SlotId(seq_.size()); ++s) give_back(s);
  pool_->remove_holder(this);
  pool_->wait();
  pool_->unmap(stage_base_, int64_t(stage_pages_.size()));
  drop(stage_pages_);
}

Result<std::vector<PageId>> KvCache::take(int64_t n) {
  std::vector<PageId> pages;
  while (int64_t(pages.size()) < n) {
    auto p = pool_->take();
    if (!p) {
      drop(pages);
      return p.error();
    }
    pages.push_back(*p);
  }
  return pages;
}

void KvCache::drop(std::vector<PageId>& pages) {
  for (const PageId p : pages) pool_->drop(p);
  pages.clear();
}

int64_t KvCache::pages_for(const FullPart& p, int rows) const {
  if (rows == 0) return 0;
  const int64_t bytes = std::min((rows + pool_->rows_read_beyond()) * p.row, p.stride);
  return (bytes + pool_->page_bytes() - 1) / pool_->page_bytes();
}

// Memory for rings, or so many pages more of it.
Status KvCache::take_rings(SlotId s, int64_t most_pages) {
  Sequence& q = seq_[size_t(s)];
  const int64_t page = pool_->page_bytes(), have = int64_t(q.rings.size());
  const int64_t more = std::min(ring_stride_ / page - have, most_pages);
  if (more <= 0) return Ok{};
  auto pages = take(more);
  if (!pages) return pages.error();
  std::byte* at = ring_base_ + s * ring_stride_ + have * page;
  if (auto ok = pool_->map(at, *pages); !ok) {
    drop(*pages);
    return ok;
  }
  pool_->fresh(at, more * page);
  q.rings.insert(q.rings.end(), pages->begin(), pages->end());
  return Ok{};
}

// Memory for the first `rows` rows of a part, or so many pages more of it.
Status KvCache::grow(const FullPart& f, SlotId s, int rows, int64_t most_pages) {
  std::vector<PageId>& have = pages_of(f, s).pages;
  const int64_t more = std::min(pages_for(f, rows) - int64_t(have.size()), most_pages);
  if (more <= 0) return Ok{};
  auto pages = take(more);
  if (!pages) return pages.error();
  std::byte* at = f.base + s * f.stride + int64_t(have.size()) * pool_->page_bytes();
  if (auto ok = pool_->map(at, *pages); !ok) {
    drop(*pages);
    return ok;
  }
  pool_->fresh(at, more * pool_->page_bytes());
  have.insert(have.end(), pages->begin(), pages->end());
  return Ok{};
}

// Memory for the first `rows` rows of full layers.
Status KvCache::grow(SlotId s, int rows) {
  Sequence& q = seq_[size_t(s)];
  if (rows <= q.prepared) return Ok{};
  for (const FullPart& f : full_)
    if (auto ok = grow(f, s, rows, std::numeric_limits<int64_t>::max()); !ok) return ok;
  q.prepared = rows;
  return Ok{};
}

// Pages that hold rows [from, to) become the slot's alone: those that are shared are copied.
Status KvCache::own(SlotId s, int from, int to) {
  const int64_t page = pool_->page_bytes();
  for (const FullPart& f : full_) {
    std::vector<PageId>& have = pages_of(f, s).pages;
    const int64_t last = std::min((to * f.row + page - 1) / page, int64_t(have.size()));
    for (int64_t i = from * f.row / page; i < last; ++i) {
      PageId& p = have[size_t(i)];
      if (pool_->refs(p) == 1) continue;
      auto fresh = pool_->take();
      if (!fresh) return fresh.error();
      std::byte* at = f.base + s * f.stride + i * page;
      if (auto ok = pool_->map(copy_window_, {&*fresh, 1}); !ok) {
        pool_->drop(*fresh);
        return ok;
      }
      pool_->copy(copy_window_, at, page);
      pool_->wait();
      pool_->unmap(copy_window_, 1);
      pool_->unmap(at, 1);
      pool_->drop(std::exchange(p, *fresh));
      if (auto ok = pool_->map(at, {&p, 1}); !ok) return ok;
    }
  }
  return Ok{};
}

Status KvCache::prepare(SlotId s, int n) {
  Sequence& q = seq_[size_t(s)];
  CHECK(n >= 0 && n <= plan_.max_step, "{} rows in a step planned for {}", n, plan_.max_step);
  if (q.len + n > plan_.max_ctx)
    return Error{"context", fmt::format("full: {} rows and {} more exceed the context of {}", q.len, n, plan_.max_ctx),
                 "start with a larger -c, or shorten the conversation"};
  take_up(s);
  if (auto ok = map_all(s); !ok) return ok;
  if (auto ok = take_rings(s); !ok) return ok;
  if (auto ok = grow(s, q.len + n); !ok) return ok;
  if (q.len < q.shared_below) {
    if (auto ok = own(s, q.len, q.len + n); !ok) return ok;
  }
  if (mirror_)
    if (auto ok = mirror_->prepare(s, n); !ok) return ok;
  q.high = std::max(q.high, q.len + n);
  return Ok{};
}

void KvCache::commit(SlotId s, int n) {
  Sequence& q = seq_[size_t(s)];
  CHECK(n >= 0 && q.len + n <= q.high, "commit of {} rows after {}, {} written", n, q.len, q.high);
  q.len += n;
  if (mirror_) mirror_->commit(s, n);
}

void KvCache::move_path(SlotId s, std::span<const int16_t> path) {
  const int len = seq_[size_t(s)].len;
  for (size_t i = 0; i < path.size(); ++i) {
    CHECK(path[i] >= int(i) && (i == 0 ? path[i] == 0 : path[i] > path[i - 1]), "path node {} is {}", i, path[i]);
    if (path[i] == int(i)) continue;
    for (int l : owners_) move_row(l, s, len + path[i], len + int(i));
  }
  moves_done(s);
  if (mirror_) mirror_->move_path(s, path);
}

void KvCache::commit_path(SlotId s, std::span<const int16_t> path) {
  move_path(s, path);
  commit(s, int(path.size()));
}

// Whether rings that hold rows up to `high` still have the window that a token at position `len` sees. Before they have
// wrapped they hold everything.
bool KvCache::window_held(int len, int high) const {
  const bool held = ring_parts_.empty() || high <= min_ring_ || high - len <= min_slack_ || len == 0;
  return held && (!mirror_ || mirror_->window_held(len, high));
}

bool KvCache::reaches(SlotId s, int len) const { return reaches(state(s), len); }

Rewind KvCache::rewind(SlotId s, int len) {
  Sequence& q = seq_[size_t(s)];
  CHECK(len >= 0 && len <= q.len, "rewind from {} to {}", q.len, len);
  if (!window_held(len, q.high)) return Rewind::kNeedsPrefill;
  q.len = len;
  if (len == 0) q.high = 0;
  if (mirror_) CHECK(mirror_->rewind(s, len) == Rewind::kDone, "mirrored rewind to {}", len);
  return Rewind::kDone;
}

void KvCache::clear(SlotId s) {
  Sequence& q = seq_[size_t(s)];
  q.len = q.high = 0;
  if (mirror_) mirror_->clear(s);
}

int64_t KvCache::slot_pages(SlotId s) const {
  int64_t n = int64_t(seq_[size_t(s)].rings.size());
  for (const FullPart& f : full_) n += int64_t(pages_of(f, s).pages.size());
  return n;
}

// Mapping costs more than a short request: what a slot had alone stays there, a little of it, until memory is short.
bool KvCache::keep_spare(SlotId s) {
  Sequence& q = seq_[size_t(s)];
  const int64_t n = slot_pages(s);
  if (n == 0 || !pool_->may_spare(n) || owned_pages(s) != n || unmapped(s)) return false;
  q = {.prepared = q.prepared, .rings = std::move(q.rings), .full = std::move(q.full), .spare = true};
  pool_->add_spare(n);
  return true;
}

void KvCache::take_up(SlotId s) {
  if (std::exchange(seq_[size_t(s)].spare, false)) pool_->add_spare(-slot_pages(s));
}

void KvCache::release(SlotId s) {
  if (mirror_) mirror_->release(s);
  if (seq_[size_t(s)].spare || keep_spare(s) || keep_rings(s)) return;
  give_back(s);
}

// The same of rings alone, where other sequences have pages of the rows.
bool KvCache::keep_rings(SlotId s) {
  Sequence& q = seq_[size_t(s)];
  const int64_t n = int64_t(q.rings.size());
  if (n * pool_->page_bytes() != ring_stride_ || n == 0 || !pool_->may_spare(n)) return false;
  pool_->wait();
  for (const FullPart& f : full_) {
    unmap(f, s);
    drop(pages_of(f, s).pages);
  }
  q = {.rings = std::move(q.rings), .full = std::move(q.full), .spare = true};
  pool_->add_spare(n);
  return true;
}

void KvCache::give_back(SlotId s) {
  take_up(s);
  Sequence& q = seq_[size_t(s)];
  if (slot_pages(s) > 0) {
    pool_->wait();
    for (const FullPart& f : full_) {
      unmap(f, s);
      drop(pages_of(f, s).pages);
    }
    pool_->unmap(ring_base_ + s * ring_stride_, int64_t(q.rings.size()));
    drop(q.rings);
  }
  q = {.full = std::move(q.full)};
}

int64_t KvCache::pages(int rows) const {
  int64_t n = ring_stride_ / pool_->page_bytes();
  for (const FullPart& f : full_) n += pages_for(f, rows);
  return n;
}

int64_t KvCache::owned_pages(SlotId s) const {
  int64_t n = int64_t(seq_[size_t(s)].rings.size());
  for (const FullPart& f : full_)
    for (const PageId p : pages_of(f, s).pages) n += pool_->refs(p) == 1;
  return n;
}

std::vector<KvCache::Part> KvCache::parts_of(KvState state) const {
  std::vector<Part> v;
  for (const FullPart& f : full_) v.push_back({nullptr, state.len, f.row});
  for (const RingPart& r : ring_parts_) v.push_back({nullptr, std::min<int64_t>(state.high, r.cap), r.row, true});
  return v;
}

std::vector<KvCache::Part> KvCache::parts(SlotId s, KvState state) const {
  std::vector<Part> v = parts_of(state);
  size_t i = 0;
  for (const FullPart& f : full_) v[i++].at = f.base + s * f.stride;
  for (const RingPart& r : ring_parts_) v[i++].at = ring_base_ + s * ring_stride_ + r.offset;
  return v;
}

Result<KvCache::Mapped> KvCache::restore_some(SlotId s, KvState state, int64_t pages) {
  const auto m = restore_own(s, state, pages);
  if (!m || !mirror_) return m;
  const auto other = mirror_->restore_some(s, state, pages);
  if (other && (*other == *m || (other->whole && m->whole))) return m;  // stages have unequal numbers of parts
  // Memory ran out beside this one: it waits for the other, which may be tried again.
  if (m->whole) seq_[size_t(s)].len = seq_[size_t(s)].high = 0;
  if (!other) return other.error();
  const auto reached = [](const Mapped& x) { return std::tuple(x.rings, x.whole, x.parts, x.rows); };
  return std::min(*m, *other, [&](const Mapped& x, const Mapped& y) { return reached(x) < reached(y); });
}

Result<KvCache::Mapped> KvCache::restore_own(SlotId s, KvState state, int64_t pages) {
  Sequence& q = seq_[size_t(s)];
  CHECK(q.len == 0 && pages > 0, "slot {} is to be restored and holds rows", s);
  if (state.len < 0 || state.high < state.len || state.len > plan_.max_ctx || state.high > plan_.max_ctx)
    return Error{"saved rows",
                 fmt::format("expected lengths up to {}, found {} and {}", plan_.max_ctx, state.len, state.high),
                 "they belong to a server with a larger -c"};
  take_up(s);
  const int64_t page = pool_->page_bytes(), most = slot_pages(s) + pages;
  if (auto ok = take_rings(s, pages); !ok) return ok.error();
  Mapped m{.rings = int64_t(q.rings.size()) * page == ring_stride_};
  if (!m.rings) return m;
  for (const FullPart& f : full_) {
    if (auto ok = grow(f, s, state.len, most - slot_pages(s)); !ok) return ok.error();
    const int64_t have = int64_t(pages_of(f, s).pages.size());
    m.rows = int(std::min<int64_t>(state.len, have * page / f.row));
    if (have < pages_for(f, state.len)) return m;
    ++m.parts, m.rows = 0;
  }
  m.whole = true;
  q.prepared = std::max(q.prepared, state.len), q.len = state.len, q.high = state.high;
  return m;
}

Status KvCache::restore(SlotId s, KvState state) {
  CHECK(seq_[size_t(s)].spare || slot_pages(s) == 0, "slot {} is to be restored and holds rows", s);
  for (;;) {
    const auto m = restore_some(s, state, std::numeric_limits<int32_t>::max());
    if (m && m->whole) return Ok{};
    if (m) continue;
    release(s);
    return m.error();
  }
}

Result<std::unique_ptr<HostKvCache>> HostKvCache::create(const ModelCfg& m, const KvPlan& p, PagePool* pool) {
  std::unique_ptr<HostKvCache> c(new HostKvCache(m, p));
  std::unique_ptr<PagePool> own;
  if (!pool) {
    const int64_t page = host_page_bytes(m, p);
    auto made = HostPagePool::create(pool_bytes(m, p, page, 0), page);
    if (!made) return made.error();
    own = std::move(*made);
  }
  if (auto ok = c->allocate(m, pool, std::move(own)); !ok) return ok.error();
  return c;
}

HostKvCache::~HostKvCache() { release_all(); }

void HostKvCache::move_row(int layer, SlotId s, int from, int to) {
  const KvLayer& k = layers_[size_t(layer)];
  const KvRow a = kv_ring_row(k, s, from), b = kv_ring_row(k, s, to);
  std::memcpy(b.k, a.k, size_t(k.k_row));
  if (!k.shared) std::memcpy(b.v, a.v, size_t(k.v_row));
}

}  // namespace facet
