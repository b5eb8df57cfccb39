#include "model/shards.h"

#include <fmt/format.h>

#include <algorithm>

namespace facet {

bool divides(const ModelCfg& m, int n_shard) {
  if (n_shard < 1 || n_shard > kMaxShards || m.n_q_head % n_shard != 0) return false;
  return std::all_of(m.layer.begin(), m.layer.end(), [&](const LayerCfg& c) {
    return c.n_kv_head % n_shard == 0 || n_shard % std::max(1, c.n_kv_head) == 0;
  });
}

std::vector<int> shard_counts(const ModelCfg& m) {
  std::vector<int> v;
  for (int n = 2; n <= kMaxShards; ++n)
    if (divides(m, n)) v.push_back(n);
  return v;
}

Status check_shards(const std::string& path, const ModelCfg& m, int n_shard) {
  if (n_shard == 1 || divides(m, n_shard)) return Ok{};
  std::string kv;
  std::vector<int> seen;
  for (const LayerCfg& c : m.layer)
    if (std::find(seen.begin(), seen.end(), c.n_kv_head) == seen.end()) {
      seen.push_back(c.n_kv_head);
      kv += fmt::format("{}{}", kv.empty() ? "" : " or ", c.n_kv_head);
    }
  const std::vector<int> work = shard_counts(m);
  return Error{path,
               fmt::format("expected a number of shards that divides its {} query heads and {} K/V heads a layer, "
                           "found {}",
                           m.n_q_head, kv, n_shard),
               work.empty() ? "run it on one" : fmt::format("use 1 or {}", fmt::join(work, " or "))};
}

ModelCfg shard_config(const ModelCfg& m, int n_shard) {
  if (!divides(m, n_shard)) return m;
  ModelCfg s = m;
  s.n_q_head /= n_shard;
  for (LayerCfg& c : s.layer) c.n_kv_head = std::max(1, c.n_kv_head / n_shard);
  return s;
}

}  // namespace facet
