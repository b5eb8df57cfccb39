#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace facet {
namespace {
constexpr int kPresentRows = 256;  // rows of full layers that become present together
constexpr size_t kAlign = 4096;    // a page: slots of a full layer are committed on their own

int64_t align_up(int64_t n) { return (n + int64_t(kAlign) - 1) / int64_t(kAlign) * int64_t(kAlign); }
}  // namespace

KvCache::KvCache(const ModelCfg& m, const KvPlan& p) : plan_(p), layers_(m.layer.size()), seq_(size_t(p.max_seq)) {
  min_slack_ = std::numeric_limits<int>::max();
  for (size_t l = 0; l < m.layer.size(); ++l) {
    const LayerCfg& c = m.layer[l];
    if (c.query_only) continue;
    KvLayer& k = layers_[l];
    k.n_head = c.n_kv_head;
    k.head_dim = c.head_dim;
    k.window = c.window;
    k.margin = p.margin;
    k.k_type = p.k;
    k.v_type = p.v;
    k.k_row = c.n_kv_head * int64_t(kv_row_bytes(p.k, c.head_dim));
    k.v_row = c.n_kv_head * int64_t(kv_row_bytes(p.v, c.head_dim));
    k.cap = c.window ? ring_rows(c, p) : p.max_ctx;
    k.k_slot = align_up(k.cap * k.k_row);
    k.v_slot = align_up(k.cap * k.v_row);
    owners_.push_back(int(l));
    if (c.window == 0) continue;
    any_ring_ = true;
    // A ring as long as the context never wraps.
    if (k.cap < p.max_ctx) min_slack_ = std::min(min_slack_, int(k.cap) - (c.window - 1));
  }
  for (Sequence& s : seq_) s.saved.resize(size_t(p.checkpoints));
}

Status KvCache::prepare(SlotId s, int n) {
  Sequence& q = seq_[size_t(s)];
  CHECK(n >= 0 && n <= plan_.max_step, "{} rows in a step planned for {}", n, plan_.max_step);
  if (q.len + n > plan_.max_ctx)
    return Error{"context", fmt::format("full: {} rows and {} more exceed the context of {}", q.len, n, plan_.max_ctx),
                 "start with a larger -c, or shorten the conversation"};
  const int want = std::min((q.len + n + kPresentRows - 1) / kPresentRows * kPresentRows, plan_.max_ctx);
  if (want > q.prepared) {
    if (auto ok = make_present(s, q.prepared, want); !ok) return ok;
    q.prepared = want;
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

void KvCache::commit_path(SlotId s, std::span<const int16_t> path) {
  Sequence& q = seq_[size_t(s)];
  for (size_t i = 0; i < path.size(); ++i) {
    CHECK(path[i] >= int(i) && (i == 0 ? path[i] == 0 : path[i] > path[i - 1]), "path node {} is {}", i, path[i]);
    if (path[i] == int(i)) continue;
    for (int l : owners_) {
      move_row(l, s, q.len + path[i], q.len + int(i));
      if (mirror_) mirror_->move_row(l, s, q.len + path[i], q.len + int(i));
    }
  }
  moves_done(s);
  if (mirror_) mirror_->moves_done(s);
  commit(s, int(path.size()));
}

// Whether rings that hold rows up to `high` still have the window that a token at position `len` sees.
bool KvCache::window_held(int len, int high) const { return !any_ring_ || high - len <= min_slack_ || len == 0; }

// Rows after `len` will be written anew, with other tokens: checkpoints hold true only up to there.
void KvCache::go_back(Sequence& q, int len) {
  q.len = len;
  for (Checkpoint& c : q.saved) c.len = std::min(c.len, len);
}

Rewind KvCache::rewind(SlotId s, int len) {
  Sequence& q = seq_[size_t(s)];
  CHECK(len >= 0 && len <= q.len, "rewind from {} to {}", q.len, len);
  if (!window_held(len, q.high)) return Rewind::kNeedsPrefill;
  go_back(q, len);
  if (len == 0) q.high = 0;
  if (mirror_) CHECK(mirror_->rewind(s, len) == Rewind::kDone, "mirrored rewind to {}", len);
  return Rewind::kDone;
}

void KvCache::clear(SlotId s) {
  Sequence& q = seq_[size_t(s)];
  q.len = q.high = 0;
  for (Checkpoint& c : q.saved) c = {};
  if (mirror_) mirror_->clear(s);
}

void KvCache::checkpoint(SlotId s) {
  Sequence& q = seq_[size_t(s)];
  if (q.saved.empty() || !any_ring_) return;
  size_t at = 0;
  for (size_t i = 0; i < q.saved.size(); ++i)
    if (q.saved[i].age < q.saved[at].age) at = i;
  q.saved[at] = {q.len, q.high, ++clock_};
  copy_rings(s, int(at), true);
  if (mirror_) mirror_->checkpoint(s);
}

Rewind KvCache::restore(SlotId s, int len) {
  Sequence& q = seq_[size_t(s)];
  int best = -1;
  for (size_t i = 0; i < q.saved.size(); ++i) {
    const Checkpoint& c = q.saved[i];
    if (c.age > 0 && len <= c.len && window_held(len, c.high) && (best < 0 || c.age > q.saved[size_t(best)].age))
      best = int(i);
  }
  if (best < 0) return Rewind::kNeedsPrefill;
  copy_rings(s, best, false);
  go_back(q, len);
  q.high = q.saved[size_t(best)].high;
  if (mirror_) CHECK(mirror_->restore(s, len) == Rewind::kDone, "mirrored restore to {}", len);
  return Rewind::kDone;
}

Result<std::unique_ptr<HostKvCache>> HostKvCache::create(const ModelCfg& m, const KvPlan& p) {
  std::unique_ptr<HostKvCache> c(new HostKvCache(m, p));
  int64_t full = 0, rings = 0, saved = 0, k_stage = 0, v_stage = 0;
  for (int l : c->owners_) {
    const KvLayer& k = c->layers_[size_t(l)];
    (k.window ? rings : full) += (k.k_slot + k.v_slot) * p.max_seq;
    if (k.window == 0) continue;
    saved += k.cap * (k.k_row + k.v_row);
    k_stage = std::max(k_stage, k.k_row), v_stage = std::max(v_stage, k.v_row);
  }
  const bool stages = p.max_step > p.margin;
  const int64_t stage_bytes = stages ? (k_stage + v_stage) * p.max_step : 0;
  auto full_mem = ReservedMemory::create(size_t(full));
  auto ring_mem = ReservedMemory::create(size_t(rings + stage_bytes));
  auto saved_mem = ReservedMemory::create(size_t(saved * p.max_seq * p.checkpoints));
  if (!full_mem) return full_mem.error();
  if (!ring_mem) return ring_mem.error();
  if (!saved_mem) return saved_mem.error();
  c->full_ = std::move(*full_mem), c->rings_ = std::move(*ring_mem), c->saved_ = std::move(*saved_mem);
  c->saved_slot_ = saved;
  if (auto ok = c->rings_.commit(0, c->rings_.size()); !ok) return ok.error();
  if (auto ok = c->saved_.commit(0, c->saved_.size()); !ok) return ok.error();

  std::byte *at_full = c->full_.data(), *at_ring = c->rings_.data();
  std::byte* stage = c->rings_.data() + rings;
  for (int l : c->owners_) {
    KvLayer& k = c->layers_[size_t(l)];
    std::byte*& at = k.window ? at_ring : at_full;
    k.k = at, at += k.k_slot * p.max_seq;
    k.v = at, at += k.v_slot * p.max_seq;
    // One staging area for all sliding layers: a layer's staged rows are settled before the next layer appends.
    if (k.window && stages) k.k_stage = stage, k.v_stage = stage + k_stage * p.max_step;
  }
  for (size_t l = 0; l < m.layer.size(); ++l)
    if (m.layer[l].query_only) c->layers_[l] = c->layers_[size_t(m.layer[l].kv_source)];
  return c;
}

Status HostKvCache::make_present(SlotId s, int from, int to) {
  for (int l : owners_) {
    const KvLayer& k = layers_[size_t(l)];
    if (k.window) continue;
    const size_t k0 = size_t(k.k - full_.data() + s * k.k_slot), v0 = size_t(k.v - full_.data() + s * k.v_slot);
    if (auto ok = full_.commit(k0 + size_t(from * k.k_row), k0 + size_t(to * k.k_row)); !ok) return ok;
    if (auto ok = full_.commit(v0 + size_t(from * k.v_row), v0 + size_t(to * k.v_row)); !ok) return ok;
  }
  return Ok{};
}

void HostKvCache::move_row(int layer, SlotId s, int from, int to) {
  const KvLayer& k = layers_[size_t(layer)];
  const KvRow a = kv_ring_row(k, s, from), b = kv_ring_row(k, s, to);
  std::memcpy(b.k, a.k, size_t(k.k_row));
  std::memcpy(b.v, a.v, size_t(k.v_row));
}

void HostKvCache::copy_rings(SlotId s, int checkpoint, bool save) {
  std::byte* at = saved_.data() + (int64_t(s) * plan_.checkpoints + checkpoint) * saved_slot_;
  auto copy = [&](std::byte* ring, int64_t bytes) {
    save ? std::memcpy(at, ring, size_t(bytes)) : std::memcpy(ring, at, size_t(bytes));
    at += bytes;
  };
  for (int l : owners_) {
    const KvLayer& k = layers_[size_t(l)];
    if (k.window == 0) continue;
    copy(k.k + s * k.k_slot, k.cap * k.k_row);
    copy(k.v + s * k.v_slot, k.cap * k.v_row);
  }
}

}  // namespace facet
