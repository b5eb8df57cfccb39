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
  if (c.id_map.empty())
    W.body.tok_embd = part(specs.vocabulary(), "token_embd.weight", D, m.n_vocab, 1, /*optional=*/true);
  W.body.head = part(specs.vocabulary(), "output.weight", D, m.n_vocab, 1, /*optional=*/true);
  const typename B::Freqs freqs = b.upload(std::span<const double>(c.freqs));
  for (int l = 0; l < m.n_layer(); ++l) {
    const LayerCfg& L = m.layer[size_t(l)];
    const int64_t E = L.head_dim, Q = m.n_q_head * E, KV = L.n_kv_head * E;
    auto name = [&](const char* rest) { return fmt::format("blk.{}.{}", l, rest); };
    LayerW<B> w;
    w.freqs = freqs;
    w.attn_norm = gain(name("attn_norm.weight"), D);
    w.q_norm = gain(name("attn_q_norm.weight"), E);
    w.k_norm = gain(name("attn_k_norm.weight"), E);
    w.wq = part(specs.heads(E), name("attn_q.weight"), D, Q);
    w.wk = part(specs.kv_heads(E), name("attn_k.weight"), D, KV);
    w.wv = part(specs.kv_heads(E), name("attn_v.weight"), D, KV);
    w.wo = part(specs.of_heads(E), name("attn_output.weight"), Q, D);
    w.ffn_norm = gain(name("ffn_norm.weight"), D);
    const TensorView* down = find.peek(name("ffn_down.weight"));
    w.gate = part(specs.hidden(down), name("ffn_gate.weight"), D, L.d_ff);
    w.up = part(specs.hidden(down), name("ffn_up.weight"), D, L.d_ff);
    w.down = part(specs.of_hidden(down), name("ffn_down.weight"), L.d_ff, D);
    W.body.layer.push_back(w);
  }
  if (auto done = find.finish(); !done) return done.error();
  return W;
}

// What the backend must be reserved for: n_tok tokens at once over caches of max_rows.
inline BackendLimits dflash_limits(const DflashCfg& c, int d_target, int n_tok, int64_t max_rows) {
  BackendLimits l = backend_limits(c.body, n_tok, max_rows);
  const int feature_cols = int(c.taps.size()) * d_target;
  l.max_cols = std::max(l.max_cols, feature_cols);
  l.max_matrix = std::max(l.max_matrix, int64_t(feature_cols) * c.body.d_model);
  return l;
}

}  // namespace facet
