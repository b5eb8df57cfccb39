#pragma once
#include "model/gemma4.h"

namespace facet {

// The two families of drafters for Gemma 4, made of the target's verbs and the target's decoder_layer. They draft
// tokens that the target verifies, so a mistake here costs speed and never text.

// ---- DFlash: a small transformer over features of the target; drafts a whole block in one pass.
//
// A feature row is the residual stream after each of the tapped layers, side by side, of one committed token. The
// drafter has K/V rows of its own: those of a committed token come from its features alone and never pass through
// the drafter's layers; those of the block in flight come from the block.

template <class B>
struct DflashW {
  ModelW<B> body;               // tok_embd and head empty: the target's
  typename B::Weight fuse{};    // [D, n_tap * D]
  typename B::Vec fuse_norm{};  // [D]
};

// Features of newly committed tokens, [T, n_tap * D] in the order of the step's tokens, to K/V rows. Each token once,
// ever. The fused row goes into wk and wv as it is: no layer's attn_norm comes in between.
template <Backend B>
void dflash_absorb(B& b, const ModelCfg& m, const DflashW<B>& W, typename B::Rows features, const Step& s,
                   std::span<const typename B::KvLayer> kv, Work<B>& w) {
  const int T = s.shape.n_tok;
  auto g = w.h.view(T, m.d_model);
  b.matmul(g, features, W.fuse);
  b.rms_norm(g, g, W.fuse_norm, m.eps);
  for (size_t l = 0; l < W.body.layer.size(); ++l) {
    const LayerW<B>& L = W.body.layer[l];
    const int cols = m.layer[l].n_kv_head * m.layer[l].head_dim;
    auto k = w.k.view(T, cols), v = w.v.view(T, cols);
    b.matmul(k, g, L.wk);
    b.matmul(v, g, L.wv);  // neither normalised nor rotated
    b.head_norm_rope(k, L.k_norm, L.freqs, s, m.eps);
    b.kv_append(kv[l], k, v, s);
    if (s.shape.staged && m.layer[l].settles >= 0) b.kv_settle(kv[l], s);
  }
}

// [newest token, MASK, MASK, ...] under Mask::kBlock -> logits of the step's out_rows: the row of slot i is about the
// token at slot i's own position. The block's K/V rows are never committed, so the next absorb overwrites them.
template <Backend B>
typename B::Rows dflash_draft(B& b, const ModelCfg& m, const DflashW<B>& W, const ModelW<B>& target, const Step& s,
                              std::span<const typename B::KvLayer> kv, Work<B>& w) {
  auto x = w.x.view(s.shape.n_tok, m.d_model), h = w.h.view(s.shape.n_tok, m.d_model);
  b.embed(x, W.body.tok_embd ? W.body.tok_embd : target.tok_embd, s, m.embed_scale);  // the one place that scales
  b.rms_norm(h, x, W.body.layer[0].attn_norm, m.eps);
  for (size_t l = 0; l < W.body.layer.size(); ++l) decoder_layer(b, W.body, l, m, kv, s, w);
  return output_head(b, W.body.head ? W.body.head : target.head, m, s,
                     w);  // h has the drafter's norm, not the target's
}

// ---- MTP: a few query-only layers that read the target's own K/V; drafts one token per pass.
//
// Pass 0 of a chain takes the newest token, which has no K/V yet, and the target's final hidden state, after its
// output norm, of the token before: the row whose logits gave the newest token. Later passes take the token just
// drafted and the state that the pass before returned. All passes of a chain stand at one position, that of the
// newest token, and see the keys before it: no pass writes any.

template <class B>
struct MtpW {
  ModelW<B> body;             // its tok_embd is the head; never an input
  typename B::Weight pre{};   // [D, 2 * D_target]: embedding first, hidden state second
  typename B::Weight post{};  // [D_target, D]
  ClusteredHead<typename B::Weight, typename B::Table> clusters{};  // empty: every token is scored
};

template <class B>
struct MtpWork {
  Work<B> w;
  typename B::Rows eh;  // [T, 2 * D_target]
};

// Tokens and hidden states h [T, D_target] -> logits of the step's out_rows; h becomes the next pass's, if there is
// one. Mask::kPast, `kv` the target's, one view a layer.
template <Backend B>
typename B::Rows mtp_step(B& b, const ModelCfg& m, const MtpW<B>& W, const ModelCfg& tm, const ModelW<B>& target,
                          typename B::Rows h_prev, const Step& s, std::span<const typename B::KvLayer> kv,
                          MtpWork<B>& mw, bool last = false) {
  Work<B>& w = mw.w;
  const int T = s.shape.n_tok;
  auto eh = mw.eh.view(T, 2 * tm.d_model);
  auto x = w.x.view(T, m.d_model), h = w.h.view(T, m.d_model);
  embed_concat(b, eh, target.tok_embd, s, tm.embed_scale,
               h_prev);  // the target's width sets the scale, not the drafter's
  b.matmul(x, eh, W.pre);
  b.rms_norm(h, x, W.body.layer[0].attn_norm, m.eps);
  for (size_t l = 0; l < W.body.layer.size(); ++l) decoder_layer(b, W.body, l, m, kv, s, w);
  if (!last && !W.clusters.top_k && s.shape.all_out()) {
    auto logits = w.logits.view(T, m.n_vocab);
    matmul_beside(b, logits, W.body.head, h_prev, W.post, h);  // h is normalised already
    b.softcap(logits, m.softcap);
    return logits;
  }
  if (!last) b.matmul(h_prev, h, W.post);
  if (!W.clusters.top_k) return output_head(b, W.body.head, m, s, w);
  auto logits = w.logits.view(s.shape.n_out, m.n_vocab);
  b.clustered_head(logits, output_rows(b, m, s, w), W.clusters);
  return logits;
}

}  // namespace facet
