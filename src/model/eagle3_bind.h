#pragma once
#include "backend/optional.h"
#include "model/drafters.h"
#include "model/eagle3_config.h"
#include "model/gemma4_bind.h"

namespace facet {

// Binds every tensor of an EAGLE-3 drafter.
template <Backend B>
Result<Eagle3W<B>> bind_eagle3(B& b, const DrafterFile& file, const Eagle3Cfg& c) {
  TensorFinder find(file.path(), file.tensors());
  Uploader<B> up(b, find);
  const ModelShardSpecs specs(c.body, shards_of(b));
  const ModelCfg& m = c.body;
  const LayerCfg& L = m.layer[0];
  const int64_t D = m.d_model, E = L.head_dim, Q = m.n_q_head * E, KV = L.n_kv_head * E, n_tap = int64_t(c.taps.size());
  Eagle3W<B> W;
  if (c.norm_before_fc) W.feature_norm.push_back(up.gain("input_norm.weight", n_tap * D));
  for (int64_t i = 0; c.fc_norm && i < n_tap; ++i)
    W.feature_norm.push_back(up.gain(fmt::format("fc_norm.{}.weight", i), D));
  W.fuse = up.weight("fc.weight", n_tap * D, D);
  W.embed_norm = up.gain("blk.0.attn_norm.weight", D);
  W.state_norm = up.gain("blk.0.attn_norm_2.weight", D);
  W.body.out_norm = up.gain("output_norm.weight", D);
  if (c.own_embedding) W.body.tok_embd = up.part(specs.vocabulary(), "token_embd.weight", D, m.n_vocab);
  W.body.head = up.part(specs.vocabulary(), "output.weight", D, m.n_vocab, 1, /*optional=*/true);
  LayerW<B> w;
  w.freqs = b.upload(std::span<const double>(c.freqs));
  if (c.norm_qk) w.q_norm = up.gain("blk.0.attn_q_norm.weight", E), w.k_norm = up.gain("blk.0.attn_k_norm.weight", E);
  w.wq = up.part(specs.heads(E), "blk.0.attn_q.weight", 2 * D, Q);
  w.wk = up.part(specs.kv_heads(E), "blk.0.attn_k.weight", 2 * D, KV);
  w.wv = up.part(specs.kv_heads(E), "blk.0.attn_v.weight", 2 * D, KV);
  w.wo = up.part(specs.of_heads(E), "blk.0.attn_output.weight", Q, D);
  w.ffn_norm = up.gain("blk.0.ffn_norm.weight", D);
  const TensorView* down = find.peek("blk.0.ffn_down.weight");
  w.gate = up.part(specs.hidden(down), "blk.0.ffn_gate.weight", D, L.d_ff);
  w.up = up.part(specs.hidden(down), "blk.0.ffn_up.weight", D, L.d_ff);
  w.down = up.part(specs.of_hidden(down), "blk.0.ffn_down.weight", L.d_ff, D);
  W.body.layer.push_back(w);
  if (auto done = find.finish(); !done) return done.error();
  return W;
}

// What the backend must be reserved for: n_tok tokens at once over caches of max_rows.
inline BackendLimits eagle3_limits(const Eagle3Cfg& c, int n_tok, int64_t max_rows) {
  BackendLimits l = backend_limits(c.body, n_tok, max_rows);
  const int wide = std::max(2, int(c.taps.size())) * c.body.d_model;
  l.max_cols = std::max(l.max_cols, wide);
  l.max_matrix = std::max(l.max_matrix, int64_t(wide) * std::max(c.body.d_model, c.body.max_q_cols()));
  return l;
}

}  // namespace facet
