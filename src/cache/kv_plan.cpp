#include "cache/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace facet {

bool kv_shared(const ModelCfg& m, const KvPlan& p) {
  return std::any_of(m.layer.begin(), m.layer.end(), [&](const LayerCfg& c) { return kv_shared(c, p); });
}

bool kv_shared_codes(const ModelCfg& m, const KvPlan& p) {
  for (size_t l = 0; l < m.layer.size(); ++l)
    if (kv_shared(m.layer[l], p) && kv_rotated(p.of_layer(l).k)) return true;
  return false;
}

KvPair KvPlan::of_layer(size_t l) const {
  KvPair kv{k, v};
  for (const KvOfLayers& own : layers)
    if (int(l) >= own.first && int(l) <= own.last) kv = own.kv;
  return kv;
}

KvRowBytes kv_row_bytes(const ModelCfg& m, size_t l, const KvPlan& p) {
  const LayerCfg& c = m.layer[l];
  const KvPair kv = p.of_layer(l);
  if (kv_shared(c, p)) return {c.n_kv_head * int64_t(kv_shared_bytes(kv.k, c.head_dim)), 0};
  return {c.n_kv_head * int64_t(kv_row_bytes(kv.k, c.head_dim)), c.n_kv_head * int64_t(kv_row_bytes(kv.v, c.head_dim))};
}

KvBytes kv_bytes(const ModelCfg& m, const KvPlan& p) {
  KvBytes b;
  int64_t widest_k = 0, widest_v = 0;
  for (size_t l = 0; l < m.layer.size(); ++l) {
    const LayerCfg& c = m.layer[l];
    if (c.query_only) continue;
    const KvRowBytes row = kv_row_bytes(m, l, p);
    if (c.window == 0) {
      b.full += row.both() * p.max_ctx * p.max_seq;
    } else {
      b.rings += row.both() * ring_rows(c, p) * p.max_seq;
      b.snapshots += row.both() * ring_rows(c, p) * p.snapshots;
      widest_k = std::max(widest_k, row.k), widest_v = std::max(widest_v, row.v);
    }
  }
  b.staging = p.max_step > p.margin ? (widest_k + widest_v) * p.max_step : 0;
  return b;
}

int64_t host_page_bytes(const ModelCfg& m, const KvPlan& p) {
  int64_t most = 0;
  for (size_t l = 0; l < m.layer.size(); ++l)
    if (m.layer[l].window == 0 && !m.layer[l].query_only) most = std::max(most, 64 * kv_row_bytes(m, l, p).k);
  return std::clamp<int64_t>(int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(most, 1)))), 4096, 1 << 18);
}

int64_t pool_bytes(const ModelCfg& m, const KvPlan& p, int64_t page, int64_t beyond) {
  auto whole = [&](int64_t n) { return (n + page - 1) / page * page; };
  int64_t full = 0, forked = 0, rings = 0, k_stage = 0, v_stage = 0;
  for (size_t l = 0; l < m.layer.size(); ++l) {
    const LayerCfg& c = m.layer[l];
    if (c.query_only) continue;
    const KvRowBytes bytes = kv_row_bytes(m, l, p);
    for (const int64_t row : {bytes.k, bytes.v}) {
      if (row == 0) continue;
      if (c.window == 0) {
        const int64_t most = whole((p.max_ctx + beyond) * row);
        full += most;
        forked += std::min(most, page + whole(beyond * row));  // what a copy shares in part, and what may be read there
      } else {
        rings += (ring_rows(c, p) * row + 255) / 256 * 256;
      }
    }
    if (c.window == 0) continue;
    k_stage = std::max(k_stage, bytes.k);
    v_stage = std::max(v_stage, bytes.v);
  }
  const int64_t stage = p.max_step > p.margin ? whole((k_stage + v_stage) * p.max_step) : 0;
  return p.max_seq * full + p.resident() * whole(rings) + p.snapshots * forked + stage;
}

std::vector<int64_t> stage_limits(int64_t limit, std::span<const ModelCfg> own, const KvPlan& p, int64_t more) {
  std::vector<int64_t> v;
  double all = 0;
  for (const ModelCfg& m : own) {
    v.push_back(kv_bytes(m, p).total() + (&m == &own.back() ? more : 0));
    all += double(v.back());
  }
  for (int64_t& n : v) n = std::max<int64_t>(1, int64_t(double(limit) * (double(n) / std::max(all, 1.))));
  return v;
}

int64_t MemoryPlan::total() const {
  int64_t n = 0;
  for (const MemoryLine& l : lines) n += l.bytes;
  for (const MemoryPlan& p : parts) n += p.total();
  return n;
}
bool MemoryPlan::fits() const {
  if (!parts.empty()) return std::ranges::all_of(parts, &MemoryPlan::fits);
  return available == 0 || total() <= available;
}
const MemoryPlan& MemoryPlan::fullest() const {
  if (parts.empty()) return *this;
  return *std::ranges::min_element(parts, {}, [](const MemoryPlan& p) { return p.available - p.total(); });
}

std::string MemoryPlan::table() const {
  if (!parts.empty()) {
    std::string all;
    for (const MemoryPlan& p : parts) all += fmt::format("{}\n{}", p.name, p.table());
    return all + fmt::format("together, {} of {}\n", human_bytes(total()), human_bytes(available));
  }
  size_t width = 9;
  for (const MemoryLine& l : lines) width = std::max(width, l.name.size());
  std::string s;
  for (const MemoryLine& l : lines)
    s += fmt::format("  {:<{}} {:>12}  {}\n", l.name, width, human_bytes(l.bytes), l.detail);
  s += fmt::format("  {:<{}} {:>12}\n", "total", width, human_bytes(total()));
  if (available > 0) s += fmt::format("  {:<{}} {:>12}\n", "available", width, human_bytes(available));
  return s;
}

std::string MemoryPlan::line() const {
  std::string s = human_bytes(total());
  if (available > 0) s += " of " + human_bytes(available);
  int64_t weights = 0, cache = 0;
  const auto add = [&](const MemoryPlan& p) {
    for (const MemoryLine& l : p.lines) {
      if (l.name == "weights" || l.name == "dflash" || l.name == "mtp" || l.name == "eagle3") weights += l.bytes;
      if (l.name.find("kv") != std::string::npos) cache += l.bytes;
    }
  };
  add(*this);
  std::ranges::for_each(parts, add);
  s += fmt::format(": weights {}, cache {}, work {}", human_bytes(weights), human_bytes(cache),
                   human_bytes(total() - weights - cache));
  return s;
}

std::string human_bytes(int64_t n) {
  if (n >= 1 << 30) return fmt::format("{:.2f} GiB", double(n) / (1 << 30));
  if (n >= 1 << 20) return fmt::format("{:.2f} MiB", double(n) / (1 << 20));
  return fmt::format("{:.1f} KiB", double(n) / 1024);
}

}  // namespace facet
