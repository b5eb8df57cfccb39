#pragma once
#include <cmath>

#include "model/encoder_types.h"

namespace facet {

// The encoders of pictures of Gemma 4, every backend. Read it from the bottom. A batch of pictures is a step: each is a
// sequence of patches (of 12B, cells), row by row.
//
// x [T, D] is the residual stream, h the normalised input of the next branch, y a branch's output.

// y = Wo attend(h), among the patches of a picture
template <EncoderBackend B>
void vision_attention(B& b, const VisionLayerW<B>& L, const VisionCfg& c, typename B::Freqs freqs, const Step& s,
                      VisionWork<B>& w) {
  const int T = s.shape.n_tok, D = c.d_model;
  auto h = w.h.view(T, D), q = w.q.view(T, D), k = w.k.view(T, D), v = w.v.view(T, D), a = w.a.view(T, D);
  if (!c.has_clips) {
    b.qkv(q, k, v, h, L.wq.w, L.wk.w, L.wv.w);
  } else {
    clipped_of_one(b, h, w.c, {q, &L.wq}, {k, &L.wk}, {v, &L.wv});
  }
  b.grid_norm_rope(q, L.q_norm, freqs, s, c.eps);
  b.grid_norm_rope(k, L.k_norm, freqs, s, c.eps);
  b.head_norm(v, c.head_dim, c.eps);
  b.encoder_attend(a, q, k, v, s, c.head_dim, 1.f);  // no scale: q and k are normalised
  clipped(b, w.y.view(T, D), a, L.wo, w.c);
}

// y = Wdown (gelu(Wgate h) * (Wup h)), the tanh form
template <EncoderBackend B>
void vision_ffn(B& b, const VisionLayerW<B>& L, const VisionCfg& c, const Step& s, VisionWork<B>& w) {
  const int T = s.shape.n_tok;
  auto h = w.h.view(T, c.d_model), g = w.g.view(T, c.d_ff);
  if (!c.has_clips) {
    b.gate_up(g, h, L.gate.w, L.up.w, Act::kGelu);
  } else {
    auto u = w.u.view(T, c.d_ff);
    clipped_of_one(b, h, w.c, {g, &L.gate}, {u, &L.up});
    b.act_mul(g, g, u, Act::kGelu);
  }
  clipped(b, w.y.view(T, c.d_model), g, L.down, w.c);
}

// x, and h for the layer that follows. The last one's h is not wanted: no norm follows it.
template <EncoderBackend B>
void vision_layer(B& b, const VisionW<B>& W, size_t l, const VisionCfg& c, const Step& s, VisionWork<B>& w) {
  const VisionLayerW<B>& L = W.layer[l];
  const int T = s.shape.n_tok;
  auto x = w.x.view(T, c.d_model), h = w.h.view(T, c.d_model), y = w.y.view(T, c.d_model);
  vision_attention(b, L, c, W.freqs, s, w);
  b.residual_norm(x, h, y, {.post = L.attn_post, .next = L.ln2, .eps = c.eps});
  vision_ffn(b, L, c, s, w);
  const auto next = l + 1 < W.layer.size() ? W.layer[l + 1].ln1 : typename B::Vec{};
  b.residual_norm(x, h, y, {.post = L.ffn_post, .next = next, .out_scale = L.out_scale, .eps = c.eps});
}

// x = Wp (2 p - 1) + positions; h for the first layer. w.p: 2 p - 1 (vision_pixels).
template <EncoderBackend B>
void vision_embed(B& b, const VisionW<B>& W, const VisionCfg& c, const Step& s, VisionWork<B>& w) {
  const int T = s.shape.n_tok;
  auto x = w.x.view(T, c.d_model);
  b.matmul(x, w.p.view(T, c.patch_cols()), W.patch_embd);
  b.add_positions(x, W.position, s);
  b.rms_norm(w.h.view(T, c.d_model), x, W.layer[0].ln1, c.eps);
}

// s [S, D]: means of 3 x 3 patches, times sqrt(D). f32: 26B's std_bias is near 5e4, and the difference is small.
template <EncoderBackend B>
typename B::Rows vision_pool(B& b, const VisionCfg& c, const Step& s, VisionWork<B>& w) {
  auto rows = w.s.view(s.shape.n_tok / (c.pool * c.pool), c.d_model);
  b.pool(rows, w.x.view(s.shape.n_tok, c.d_model), s, c.pool, std::sqrt(float(c.d_model)));
  return rows;
}

// The embedder of 12B: s [T, D] from cells of 48 x 48 pixels.
template <EncoderBackend B>
typename B::Rows vision_unified(B& b, const VisionW<B>& W, const VisionCfg& c, const Step& s, VisionWork<B>& w) {
  const int T = s.shape.n_tok;
  auto p = w.p.view(T, c.patch_cols()), x = w.x.view(T, c.d_model), rows = w.s.view(T, c.d_model);
  b.layer_norm(p, p, W.norm_gain[0], W.norm_bias[0], c.ln_eps);
  b.matmul(x, p, W.patch_embd);
  b.shift_scale(x, W.patch_bias, {});
  b.layer_norm(x, x, W.norm_gain[1], W.norm_bias[1], c.ln_eps);
  b.add_positions(x, W.position, s);
  b.layer_norm(rows, x, W.norm_gain[2], W.norm_bias[2], c.ln_eps);
  return rows;
}

// Soft tokens [S, D_out] of a batch whose pixels are in w.p, picture after picture. They replace embeddings of the text
// model as they are: the norm is before the projection, and no sqrt(D) follows.
template <EncoderBackend B>
typename B::Rows vision_forward(B& b, const VisionCfg& c, const VisionW<B>& W, const Step& s, VisionWork<B>& w) {
  typename B::Rows rows;
  if (c.is_unified) {
    rows = vision_unified(b, W, c, s, w);
  } else {
    vision_embed(b, W, c, s, w);
    for (size_t l = 0; l < W.layer.size(); ++l) vision_layer(b, W, l, c, s, w);
    rows = vision_pool(b, c, s, w);
    if (c.standardizes) b.shift_scale(rows, W.std_bias, W.std_scale);
  }
  auto out = w.out.view(rows.rows, c.d_out);
  b.rms_norm(rows, rows, {}, c.eps);
  clipped(b, out, rows, W.project, w.c);
  return out;
}

// Input rows [T, 3 P P] for w.p from patches of bytes in (row, column, channel) order, as decoders of pictures give
// them: channel by channel, as the files' matrices have their columns. Of a tower 2 v / 255 - 1; of 12B v / 255.
void vision_pixels(const VisionCfg& c, std::span<const uint8_t> patches, float* to);

}  // namespace facet
