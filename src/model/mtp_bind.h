#pragma once
#include "backend/optional.h"
#include "model/drafters.h"
#include "model/gemma4_bind.h"
#include "model/mtp_config.h"

namespace facet {

// Binds every tensor of an MTP assistant. rope_freqs and the ordering are in c already. Its queries read the target's
// rows as the target bound them.
template <Backend B>
Result<MtpW<B>> bind_mtp(B& b, const DrafterFile& file, const MtpCfg& c, const ModelW<B>& target) {
  TensorFinder find(file.path(), file.tensors());
  Uploader<B> up(b, find);
  // Its queries go where the rows are that they read; its other layers are small and whole in every shard.
  if (auto ok = check_shards(file.path(), c.body, shards_of(b)); !ok) return ok.error();
  const ModelShardSpecs specs(c.body, shards_of(b));
  auto weight = [&](auto... args) { return up.weight(args...); };
  auto part = [&](const ShardSpec& spec, auto... args) { return up.part(spec, args...); };
  auto gain = [&](auto... args) { return up.gain(args...); };
  const ModelCfg& m = c.body;
  const int64_t D = m.d_model, DT = c.d_target, V = m.n_vocab;
  MtpW<B> W;
  W.pre = weight("nextn.pre_projection.weight", 2 * DT, D);
  W.post = weight("nextn.post_projection.weight", D, DT);
  const ShardSpec vocabulary = c.n_cluster > 0 ? ShardSpec{} : specs.vocabulary();
  W.body.head = part(vocabulary, "output.weight", D, V, 1, /*optional=*/true);
  if (!W.body.head) W.body.head = part(vocabulary, "token_embd.weight", D, V);
  W.body.out_norm = gain("output_norm.weight", D);
  if (c.n_cluster > 0) {
    W.clusters.head = W.body.head;
    W.clusters.centroid = weight("masked_embd_centroids.weight", D, c.n_cluster);
    W.clusters.order = b.upload(std::span<const int32_t>(c.order));
    W.clusters.top_k = c.top_k;
  }
  for (int l = 0; l < m.n_layer(); ++l) {
    const LayerCfg& L = m.layer[size_t(l)];
    const int64_t E = L.head_dim, Q = m.n_q_head * E;
    auto name = [&](const char* rest) { return fmt::format("blk.{}.{}", l, rest); };
    LayerW<B> w;
    w.freqs = b.upload(std::span<const double>(c.freqs[size_t(l)]));
    w.attn_norm = gain(name("attn_norm.weight"), D);
    const size_t source = size_t(L.kv_source);
    w.q_norm = up.query_gain(name("attn_q_norm.weight"), E,
                             source < target.layer.size() ? target.layer[source].k_gain : std::vector<float>{});
    w.wq = part(specs.heads(E), name("attn_q.weight"), D, Q);
    w.wo = part(specs.of_heads(E), name("attn_output.weight"), Q, D);
    w.attn_post = gain(name("post_attention_norm.weight"), D);
    w.ffn_norm = gain(name("ffn_norm.weight"), D);
    w.ffn_post = gain(name("post_ffw_norm.weight"), D);
    w.gate = weight(name("ffn_gate.weight"), D, L.d_ff);
    w.up = weight(name("ffn_up.weight"), D, L.d_ff);
    w.down = weight(name("ffn_down.weight"), L.d_ff, D);
    if (const std::vector<float> s = find.vector(name("layer_output_scale.weight"), 1, true); !s.empty())
      w.out_scale = s[0];
    W.body.layer.push_back(w);
  }
  if (auto done = find.finish(); !done) return done.error();
  return W;
}

// What the backend must be reserved for: n_tok chains at once over caches of max_rows.
inline BackendLimits mtp_limits(const MtpCfg& c, int n_tok, int64_t max_rows) {
  BackendLimits l = backend_limits(c.body, n_tok, max_rows);
  l.max_cols = std::max(l.max_cols, 2 * c.d_target);
  l.max_matrix =
      std::max({l.max_matrix, int64_t(2) * c.d_target * c.body.d_model, int64_t(c.n_cluster) * c.body.d_model});
  l.n_cluster = c.n_cluster;
  return l;
}

}  // namespace facet
