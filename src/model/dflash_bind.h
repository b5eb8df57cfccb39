#pragma once
#include "backend/optional.h"
#include "model/dflash_config.h"
#include "model/drafters.h"
#include "model/gemma4_bind.h"

namespace facet {

// Binds every tensor of a DFlash drafter. Norm gains are used as they are stored.
template <Backend B>
Result<DflashW<B>> bind_dflash(B& b, const DrafterFile& file, const DflashCfg& c) {
  TensorFinder find(file.path(), file.tensors());
  Uploader<B> up(b, find);
  const ModelShardSpecs specs(c.body, shards_of(b));  // whole in every shard where its heads are not divided
  auto weight = [&](auto... args) { return up.weight(args...); };
  auto part = [&](const ShardSpec& spec, auto... args) { return up.part(spec, args...); };
  auto gain = [&](auto... args) { return up.gain(args...); };
  const ModelCfg& m = c.body;
  const int64_t D = m.d_model;
  DflashW<B> W;
  W.fuse = weight("fc.weight", int64_t(c.taps.size()) * D, D);
  W.fuse_norm = gain("enc.output_norm.weight", D);
  W.body.out_norm = gain("output_norm.weight", D);
  if (!c.shares_embedding)
    W.body.tok_embd = part(specs.vocabulary(), "token_embd.weight", D, m.n_vocab, 1, /*optional=*/true);
  if (!c.shares_embedding || !c.id_map.empty())
    W.body.head = part(specs.vocabulary(), "output.weight", D, m.n_vocab, 1, /*optional=*/true);
  if (c.markov.rank > 0) {
    W.markov_from = weight("markov_w1.weight", c.markov.rank, c.markov.n_from);
    W.markov_to = weight("markov_w2.weight", c.markov.rank, m.n_vocab);
  }
  if (c.selector.rank > 0) W.selector = weight("selector_hidden.weight", D, c.selector.rank);
  auto conv = [&](int l, const char* branch) {
    typename DflashW<B>::Conv k;
    const auto name = [&](const char* of) { return fmt::format("blk.{}.{}_conv_{}.weight", l, branch, of); };
    k.project = weight(name("proj"), D, 2 * c.conv_taps * (D / c.conv_group));
    const TensorView* t = find.matrix(name("base"), D, c.conv_taps, 2);
    std::vector<float> base(t ? size_t(t->n_elements()) : 0);
    if (t) dequantize_row(t->type, t->data.data(), base.data(), t->n_elements());
    for (size_t side = 0; side < 2 && t; ++side)
      k.base[side] = b.upload(std::span<const float>(base).subspan(side * base.size() / 2, base.size() / 2));
    return k;
  };
  for (int l = 0; l < m.n_layer(); ++l) {
    if (c.conv_taps > 0) W.conv.push_back({conv(l, "attn"), conv(l, "ffn")});
    const LayerCfg& L = m.layer[size_t(l)];
    const int64_t E = L.head_dim, Q = m.n_q_head * E, KV = L.n_kv_head * E;
    auto name = [&](const char* rest) { return fmt::format("blk.{}.{}", l, rest); };
    LayerW<B> w;
    w.freqs = b.upload(std::span<const double>(c.freqs[size_t(l)]));
    w.attn_norm = gain(name("attn_norm.weight"), D);
    w.q_norm = gain(name("attn_q_norm.weight"), E);
    w.k_norm = gain(name("attn_k_norm.weight"), E);
    w.wq = part(specs.heads(E), name("attn_q.weight"), D, Q);
    w.wk = part(specs.kv_heads(E), name("attn_k.weight"), D, KV);
    w.wv = part(specs.kv_heads(E), name("attn_v.weight"), D, KV, 1, /*optional=*/L.norm_v);
    w.wo = part(specs.of_heads(E), name("attn_output.weight"), Q, D);
    w.ffn_norm = gain(name("ffn_norm.weight"), D);
    if (L.norm_v) {  // Gemma's layers
      w.attn_post = gain(name("post_attention_norm.weight"), D);
      w.ffn_post = gain(name("post_ffw_norm.weight"), D);
      if (const std::vector<float> s = find.vector(name("layer_output_scale.weight"), 1, true); !s.empty())
        w.out_scale = s[0];
    }
    const TensorView* down = find.peek(name("ffn_down.weight"));
    w.gate = part(specs.hidden(down), name("ffn_gate.weight"), D, L.d_ff);
    w.up = part(specs.hidden(down), name("ffn_up.weight"), D, L.d_ff);
    w.down = part(specs.of_hidden(down), name("ffn_down.weight"), L.d_ff, D);
    W.body.layer.push_back(w);
  }
  if (auto done = find.finish(); !done) return done.error();
  return W;
}

// Columns of what DFlash 2's convolutions add to their kernels.
inline int conv_cols(const DflashCfg& c) { return 2 * c.conv_taps * (c.body.d_model / c.conv_group); }

// What the backend must be reserved for: n_tok tokens at once over caches of max_rows.
inline BackendLimits dflash_limits(const DflashCfg& c, int d_target, int n_tok, int64_t max_rows) {
  BackendLimits l = backend_limits(c.body, n_tok, max_rows);
  const int feature_cols = int(c.taps.size()) * d_target;
  l.max_cols = std::max(l.max_cols, feature_cols);
  l.max_matrix = std::max({l.max_matrix, int64_t(feature_cols) * c.body.d_model,
                           int64_t(c.markov.rank) * std::max(c.body.n_vocab, c.markov.n_from)});
  return l;
}

}  // namespace facet
