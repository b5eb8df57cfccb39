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
  // DSpark: by token [V, rank], and by row of the head [rows, rank]; empty: none.
  typename B::Weight markov_from{}, markov_to{};
  // DFlash 2: convolutions around attention and around the FFN of each layer, before and behind the branch; empty: none.
  struct Conv {
    typename B::Weight project{};  // [2 * taps * groups, D]: what the branch's input adds to the kernels
    typename B::Vec base[2]{};     // [taps, D]
  };
  struct Convs {
    Conv attention, ffn;
  };
  std::vector<Convs> conv;
  typename B::Weight selector{};  // [rank, D]; empty: none
};
template <class B>
struct ConvWork {
  typename B::Rows rows, delta;  // [T, D], [T, 2 * taps * groups]
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
    if (L.wv)
      b.matmul(v, g, L.wv);  // of Qwen's layers neither normalised nor rotated
    else
      b.copy_rows(v, k);  // V is the raw K
    if (m.layer[l].norm_v) b.head_norm(v, m.layer[l].head_dim, m.eps);
    b.head_norm_rope(k, L.k_norm, L.freqs, s, m.eps);
    b.kv_append(kv[l], k, v, s);
    if (s.shape.staged && m.layer[l].settles >= 0) b.kv_settle(kv[l], s);
  }
}

// A layer of DFlash 2: x += conv(branch(conv(rms(x)))), both kernels from the branch's input. Nothing goes from one
// block to another, and rows of committed tokens are not convolved.
template <Backend B>
void convolved_layer(B& b, const DflashW<B>& W, size_t l, const ModelCfg& m, typename B::KvLayer kv, const Step& s,
                     Work<B>& w, ConvWork<B>& cw) {
  const int T = s.shape.n_tok;
  auto x = w.x.view(T, m.d_model), h = w.h.view(T, m.d_model), y = w.y.view(T, m.d_model);
  auto c = cw.rows.view(T, m.d_model), delta = cw.delta.view(T, cw.delta.cols);
  Work<B> branch = w;
  branch.h = cw.rows;
  auto around = [&](const typename DflashW<B>::Conv& k, typename B::Vec next, auto&& run) {
    const int width = delta.cols / 2;
    b.matmul(delta, h, k.project);
    b.block_conv(c, h, delta.cols_at(0, width), k.base[0], s);
    run();
    b.block_conv(c, y, delta.cols_at(width, width), k.base[1], s);
    b.residual_norm(x, h, c, {.next = next, .eps = m.eps});
  };
  const LayerW<B>& L = W.body.layer[l];
  around(W.conv[l].attention, L.ffn_norm, [&] {
    attention(b, L, m.layer[l], m, kv, s, branch);
    if (s.shape.staged && m.layer[l].settles >= 0) b.kv_settle(kv, s);
  });
  around(W.conv[l].ffn, W.body.norm_after(l), [&] { feed_forward(b, L, m.layer[l], m, s, branch); });
}

// [newest token, MASK, MASK, ...] under Mask::kBlock -> logits of the step's out_rows: the row of slot i is about the
// token at slot i's own position, or about the one behind it (DflashCfg::from_anchor). Their states stay in w. The
// block's K/V rows are never committed, so the next absorb overwrites them.
template <Backend B>
typename B::Rows dflash_draft(B& b, const ModelCfg& m, const DflashW<B>& W, const ModelW<B>& target, const Step& s,
                              std::span<const typename B::KvLayer> kv, Work<B>& w, ConvWork<B>& cw) {
  auto x = w.x.view(s.shape.n_tok, m.d_model), h = w.h.view(s.shape.n_tok, m.d_model);
  b.embed(x, W.body.tok_embd ? W.body.tok_embd : target.tok_embd, s, m.embed_scale);  // the one place that scales
  b.rms_norm(h, x, W.body.layer[0].attn_norm, m.eps);
  for (size_t l = 0; l < W.body.layer.size(); ++l)
    W.conv.empty() ? decoder_layer(b, W.body, l, m, kv, s, w) : convolved_layer(b, W, l, m, kv[l], s, w, cw);
  return output_head(b, W.body.head ? W.body.head : target.head, m, s,
                     w);  // h has the drafter's norm, not the target's
}

// What a Markov head adds to the logits of slots behind the step's tokens: [T, rows of the head].
template <Backend B>
typename B::Rows markov_bias(B& b, const DflashW<B>& W, typename B::Rows m, typename B::Rows bias, const Step& s) {
  b.embed(m, W.markov_from, s, 1.f);
  b.matmul(bias, m, W.markov_to);
  return bias;
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

// ---- EAGLE-3: one layer that reads a token beside the state of the row before it; drafts one token per pass.
//
// The state of a committed row p is its features, fused; with the token at p + 1 it makes the drafter's K/V row p. A
// chain goes on with the state that the pass before returned, and its K/V rows are never committed.

template <class B>
struct Eagle3W {
  ModelW<B> body;                               // its layer's wq, wk, wv read 2 D columns; tok_embd empty: the target's
  std::vector<typename B::Vec> feature_norm{};  // one of all columns, one for each tapped layer, or none
  typename B::Weight fuse{};                    // [D, n_tap * D]
  typename B::Vec embed_norm{}, state_norm{};   // [D]
};

template <class B>
struct Eagle3Work {
  Work<B> w;
  typename B::Rows pair;  // [T, 2 D]: token, state
};

// States of rows from their features, which are lost.
template <Backend B>
void eagle3_fuse(B& b, const ModelCfg& m, const Eagle3W<B>& W, typename B::Rows state, typename B::Rows features) {
  const int n = int(W.feature_norm.size());
  for (int i = 0; i < n; ++i) {
    auto part = features.cols_at(i * (features.cols / n), features.cols / n);
    b.rms_norm(part, part, W.feature_norm[size_t(i)], m.eps);
  }
  b.matmul(state, features, W.fuse);
}

// The step's tokens beside the states of the rows before them -> w.q, and their K/V rows.
template <Backend B>
void eagle3_rows(B& b, const ModelCfg& m, const Eagle3W<B>& W, const ModelW<B>& target, typename B::Rows state,
                 const Step& s, typename B::KvLayer kv, Eagle3Work<B>& ew) {
  Work<B>& w = ew.w;
  const int T = s.shape.n_tok, D = m.d_model;
  const LayerW<B>& L = W.body.layer[0];
  const LayerCfg& c = m.layer[0];
  auto pair = ew.pair.view(T, 2 * D);
  embed_concat(b, pair, W.body.tok_embd ? W.body.tok_embd : target.tok_embd, s, 1.f, state);
  b.rms_norm(pair.cols_at(0, D), pair.cols_at(0, D), W.embed_norm, m.eps);
  b.rms_norm(pair.cols_at(D, D), pair.cols_at(D, D), W.state_norm, m.eps);
  auto q = w.q.view(T, m.n_q_head * c.head_dim);
  auto k = w.k.view(T, c.n_kv_head * c.head_dim), v = w.v.view(T, c.n_kv_head * c.head_dim);
  b.qkv(q, k, v, pair, L.wq, L.wk, L.wv);
  if (L.q_norm) return norm_rope_append(b, kv, q, k, v, L.q_norm, L.k_norm, L.freqs, false, s, m.eps);
  b.head_rope(k, L.freqs, s);
  b.kv_append(kv, k, v, s);
  b.head_rope(q, L.freqs, s);
}

// The same -> logits of the step's out_rows; the states become those of the tokens.
template <Backend B>
typename B::Rows eagle3_step(B& b, const ModelCfg& m, const Eagle3W<B>& W, const ModelW<B>& target,
                             typename B::Rows state, const Step& s, typename B::KvLayer kv, Eagle3Work<B>& ew,
                             bool norm_before_residual, bool norm_output) {
  Work<B>& w = ew.w;
  const int T = s.shape.n_tok, D = m.d_model;
  const LayerW<B>& L = W.body.layer[0];
  const LayerCfg& c = m.layer[0];
  auto x = w.x.view(T, D), h = w.h.view(T, D), y = w.y.view(T, D);
  eagle3_rows(b, m, W, target, state, s, kv, ew);
  auto a = w.a.view(T, m.n_q_head * c.head_dim);
  b.attend(a, w.q.view(T, m.n_q_head * c.head_dim), kv, s,
           {.n_q_head = m.n_q_head, .head_dim = c.head_dim, .scale = m.attn_scale});
  b.matmul(y, a, L.wo);
  b.copy_rows(x, norm_before_residual ? ew.pair.view(T, 2 * D).cols_at(D, D) : state);
  b.residual_norm(x, h, y, {.next = L.ffn_norm, .eps = m.eps});
  feed_forward(b, L, c, m, s, w);
  b.residual_norm(x, h, y, {.next = W.body.out_norm, .eps = m.eps});
  b.copy_rows(state, norm_output ? h : x);
  return output_head(b, W.body.head ? W.body.head : target.head, m, s, w);
}

}  // namespace facet
