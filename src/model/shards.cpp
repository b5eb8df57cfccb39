#include "model/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

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

ShardSpec shard_spec_of(const ModelCfg& m, int n_shard, const TensorView& t, std::span<const TensorView> all) {
  const ModelShardSpecs specs(m, n_shard);
  std::string_view name = t.name;
  if (name == "token_embd.weight" || name == "output.weight" || name == "per_layer_token_embd.weight")
    return specs.vocabulary();
  constexpr std::string_view kLayer = "blk.";
  if (!name.starts_with(kLayer)) return {};
  name.remove_prefix(kLayer.size());
  size_t layer = 0;
  const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (bad != std::errc() || layer >= m.layer.size()) return {};
  const std::string_view part(end + 1, size_t(name.data() + name.size() - end - 1));
  const int64_t head = m.layer[layer].head_dim;
  const auto down = [&](const char* rest) {
    const std::string wanted = fmt::format("blk.{}.{}", layer, rest);
    const auto at = std::find_if(all.begin(), all.end(), [&](const TensorView& x) { return x.name == wanted; });
    return at == all.end() ? nullptr : &*at;
  };
  if (part == "attn_q.weight") return specs.heads(head);
  if (part == "attn_k.weight" || part == "attn_v.weight") return specs.kv_heads(head);
  if (part == "attn_output.weight") return specs.of_heads(head);
  if (part == "ffn_gate.weight" || part == "ffn_up.weight") return specs.hidden(down("ffn_down.weight"));
  if (part == "ffn_down.weight") return specs.of_hidden(&t);
  if (part == "ffn_gate_up_exps.weight") return specs.hidden(down("ffn_down_exps.weight"), /*folds=*/2);
  if (part == "ffn_gate_exps.weight" || part == "ffn_up_exps.weight") return specs.hidden(down("ffn_down_exps.weight"));
  if (part == "ffn_down_exps.weight") return specs.of_hidden(&t);
  return {};
}

std::vector<TensorView> shard_views(const ModelCfg& m, int n_shard, const TensorView& t,
                                    std::span<const TensorView> all) {
  const ShardSpec spec = shard_spec_of(m, n_shard, t, all);
  std::vector<TensorView> views(size_t(n_shard), t);
  if (spec.side == ShardSpec::Side::kWhole) return views;
  const bool in = spec.side == ShardSpec::Side::kIn;
  const ShardRanges r = shard_ranges(in ? t.ne[0] : t.ne[1] / spec.folds, spec, n_shard);
  if (in && !ranges_hold_whole_blocks(r, t.type)) return views;
  for (size_t i = 0; i < views.size(); ++i) views[i].ne[in ? 0 : 1] = r[i].size() * (in ? 1 : spec.folds);
  return views;
}

}  // namespace facet
