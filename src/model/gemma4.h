#pragma once
#include <cmath>

#include "backend/compose.h"
#include "model/types.h"

namespace facet {

// Gemma 4 (31B, 26B-A4B, 12B, E4B, E2B): every phase, every backend. Read it from the bottom.
//
// x [T, D] is the residual stream, h the normalised input of the next branch, y a branch's output.

// y = Wo attend(h)
template <Backend B>
void attention(B& b, const LayerW<B>& L, const LayerCfg& c, const ModelCfg& m, typename B::KvLayer kv, const Step& s,
               Work<B>& w) {
  const int T = s.shape.n_tok;
  auto h = w.h.view(T, m.d_model), y = w.y.view(T, m.d_model);
  auto q = w.q.view(T, m.n_q_head * c.head_dim), a = w.a.view(T, m.n_q_head * c.head_dim);

  if (c.query_only) {  // a KV-sharing layer or an MTP head: another layer's rows
    b.matmul(q, h, L.wq);
    b.head_norm_rope(q, L.q_norm, L.freqs, s, m.eps);
  } else {
    auto k = w.k.view(T, c.n_kv_head * c.head_dim), v = w.v.view(T, c.n_kv_head * c.head_dim);
    b.qkv(q, k, v, h, L.wq, L.wk, L.wv);  // K=V layers have no wv: v is the raw k, before its norm and RoPE
    // Gemma normalises V, without gain, and does not rotate it; full layers rotate a quarter of the pairs: freqs are 0
    // elsewhere.
    norm_rope_append(b, kv, q, k, v, L.q_norm, L.k_norm, L.freqs, c.norm_v, s, m.eps);
  }
  const AttnSpec spec{.n_q_head = m.n_q_head,
                      .head_dim = c.head_dim,
                      .window = c.window,
                      .scale = m.attn_scale,  // Gemma's is 1: q and k are normalised
                      .causal_block = c.causal_block,
                      .selected = s.shape.select && c.window == 0,
                      .ahead = s.shape.ahead && m.pictures_ahead && c.window > 0};
  if (spec.selected) b.select_blocks(q, kv, s, spec);
  b.attend(a, q, kv, s, spec);
  b.matmul(y, a, L.wo);
}

// y = FFN(h); in MoE layers that is the shared expert, and w.a = experts(w.e), routed on w.r
template <Backend B>
void feed_forward(B& b, const LayerW<B>& L, const LayerCfg& c, const ModelCfg& m, const Step& s, Work<B>& w) {
  const int T = s.shape.n_tok;
  auto h = w.h.view(T, m.d_model), y = w.y.view(T, m.d_model);
  auto g = w.g.view(T, c.d_ff);
  if (c.moe)
    return ffn_beside_moe(b, y, g, h, L.gate, L.up, L.down, w.a.view(T, m.d_model), w.e.view(T, m.d_model),
                          w.r.view(T, m.d_model), L.experts, m.n_expert_used, m.act);
  ffn(b, y, g, h, L.gate, L.up, L.down, m.act);
}

// y = Wproj (gelu(Wgate x) * the layer's slice of the per-layer embeddings)
template <Backend B>
void per_layer_input(B& b, const LayerW<B>& L, size_t l, const ModelCfg& m, const Step& s, Work<B>& w) {
  const int T = s.shape.n_tok, P = m.d_ple;
  auto g = w.g.view(T, P);
  b.matmul(g, w.x.view(T, m.d_model), L.ple_gate);
  b.act_mul(g, g, w.ple.view(T, m.n_layer() * P).cols_at(int(l) * P, P), m.act);
  b.matmul(w.y.view(T, m.d_model), g, L.ple_proj);
}

template <Backend B>
void decoder_layer(B& b, const ModelW<B>& W, size_t l, const ModelCfg& m, std::span<const typename B::KvLayer> kv,
                   const Step& s, Work<B>& w) {
  const LayerW<B>& L = W.layer[l];
  const LayerCfg& c = m.layer[l];
  const int T = s.shape.n_tok;
  auto x = w.x.view(T, m.d_model), h = w.h.view(T, m.d_model), y = w.y.view(T, m.d_model);

  attention(b, L, c, m, kv[size_t(c.kv_source)], s, w);
  if (s.shape.staged && c.settles >= 0) b.kv_settle(kv[size_t(c.settles)], s);
  const ResidualSpec<typename B::Vec> open{
      .post = L.attn_post, .next = L.ffn_norm, .eps = m.eps};  // out_scale multiplies the whole stream, not the branch
  if (c.moe)  // both branches are fed by the stream: the router's 1/sqrt(D) is folded into its gain at load
    residual_norm_moe(b, x, h, y, open, w.r.view(T, m.d_model), w.e.view(T, m.d_model), L.router_norm, L.routed_pre);
  else
    b.residual_norm(x, h, y, open);
  feed_forward(b, L, c, m, s, w);
  const auto next = W.norm_after(l);
  ResidualSpec<typename B::Vec> close{.post = L.ffn_post, .next = next, .out_scale = L.out_scale, .eps = m.eps};
  if (m.d_ple > 0) close = {.post = L.ffn_post, .eps = m.eps};  // the layer goes on
  if (c.moe)
    join_residual_norm(b, x, h, y, w.a.view(T, m.d_model), L.shared_post, L.routed_post, close);
  else
    b.residual_norm(x, h, y, close);
  if (m.d_ple == 0) return;
  per_layer_input(b, L, l, m, s, w);
  b.residual_norm(x, h, y, {.post = L.ple_post, .next = next, .out_scale = L.out_scale, .eps = m.eps});
}

// ple [T, L * P]: a row of the table and a projection of the scaled embedding, one slice a layer
template <Backend B>
void per_layer_embeddings(B& b, const ModelCfg& m, const ModelW<B>& W, const Step& s, Work<B>& w) {
  const int T = s.shape.n_tok, cols = m.n_layer() * m.d_ple;
  auto p = w.ple.view(T, cols), c = w.ple_ctx.view(T, cols);
  b.embed(p, W.ple_table, s, std::sqrt(float(m.d_ple)));
  b.matmul(c, w.x.view(T, m.d_model), W.ple_model_proj);
  b.ple_combine(p, c, W.ple_norm, 1.f / std::sqrt(float(m.d_model)), std::sqrt(.5f), m.eps);
}

// Rows of the step's out_rows from the final hidden state in w.h.
template <Backend B>
typename B::Rows output_rows(B& b, const ModelCfg& m, const Step& s, Work<B>& w) {
  auto h = w.h.view(s.shape.n_tok, m.d_model), out = w.out.view(s.shape.n_out, m.d_model);
  if (s.shape.all_out()) return h;
  b.gather(out, h, s);
  return out;
}

// Logits [O, V] of the step's out_rows from the final hidden state in w.h.
template <Backend B>
typename B::Rows output_head(B& b, typename B::Weight head, const ModelCfg& m, const Step& s, Work<B>& w) {
  auto logits = w.logits.view(s.shape.n_out, m.n_vocab);
  b.matmul(logits, output_rows(b, m, s, w), head);
  b.softcap(logits, m.softcap);
  return logits;
}

template <Backend B>
typename B::Rows gemma4_forward(B& b, const ModelCfg& m, const ModelW<B>& W, const Step& s,
                                std::span<const typename B::KvLayer> kv, const Taps<B>& taps, Work<B>& w) {
  auto x = w.x.view(s.shape.n_tok, m.d_model), h = w.h.view(s.shape.n_tok, m.d_model);

  b.embed(x, W.tok_embd, s, m.embed_scale);
  if (s.shape.n_soft > 0) b.embed_soft(x, w.soft.view(s.shape.n_tok, m.d_model), s);  // not scaled
  if (m.d_ple > 0) per_layer_embeddings(b, m, W, s, w);
  b.rms_norm(h, x, W.layer[0].attn_norm, m.eps);
  for (size_t l = 0; l < W.layer.size(); ++l) {
    decoder_layer(b, W, l, m, kv, s, w);
    for (size_t i = 0; i < taps.layer.size(); ++i)
      if (taps.layer[i] == int(l)) b.copy_rows(taps.dst[i], x);
  }
  if (taps.final_hidden) b.copy_rows(*taps.final_hidden, h);
  if (s.shape.n_out == 0) return {};  // a prefill chunk that is not the last
  return output_head(b, W.head, m, s, w);
}

}  // namespace facet
