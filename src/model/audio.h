#pragma once
#include "model/encoder_types.h"

namespace facet {

// The encoders of sound of Gemma 4, every backend. Read it from the bottom. A step's sequences are sounds, its tokens
// the soft tokens, one for 40 ms. A conformer takes one sound at a time.
//
// x [T, D] is the residual stream, h the normalised input of the next branch, y a branch's output.

// x += half of a feed-forward branch; h for the one that follows
template <EncoderBackend B>
void conformer_ffn(B& b, const typename AudioLayerW<B>::Ffn& f, typename B::Vec next, const AudioCfg& c, int T,
                   AudioWork<B>& w) {
  auto x = w.x.view(T, c.d_model), h = w.h.view(T, c.d_model), y = w.y.view(T, c.d_model), g = w.g.view(T, c.d_ff);
  clipped(b, g, h, f.up, w.c);
  b.silu(g);
  clipped(b, y, g, f.down, w.c);
  b.residual_norm(x, h, y, {.post = f.post, .next = next, .eps = c.eps});
}

// x += attention to the last c.n_key tokens; h for the convolution
template <EncoderBackend B>
void conformer_attention(B& b, const AudioW<B>& W, const AudioLayerW<B>& L, const AudioCfg& c, const Step& s,
                         AudioWork<B>& w) {
  const int T = s.shape.n_tok, D = c.d_model;
  auto x = w.x.view(T, D), h = w.h.view(T, D), y = w.y.view(T, D), a = w.a.view(T, D);
  auto q = w.q.view(T, D), k = w.k.view(T, D), v = w.v.view(T, D), r = w.r.view(c.n_distance, D);
  clipped_of_one(b, h, w.c, {q, &L.wq}, {k, &L.wk}, {v, &L.wv});
  b.shift_scale(q, {}, L.q_scale);
  b.shift_scale(k, {}, L.k_scale);
  b.matmul(r, W.distance, L.rel);
  b.relative_attend(a, q, k, v, r, s, {.head_dim = c.head_dim, .n_key = c.n_key, .cap = c.softcap});
  clipped(b, y, a, L.wo, w.c);
  b.residual_norm(x, h, y, {.post = L.attn_post, .next = L.conv_pre, .eps = c.eps});
}

// x += a gated causal convolution; h for the second half of the feed-forward
template <EncoderBackend B>
void conformer_conv(B& b, const AudioLayerW<B>& L, const AudioCfg& c, const Step& s, AudioWork<B>& w) {
  const int T = s.shape.n_tok, D = c.d_model;
  auto x = w.x.view(T, D), h = w.h.view(T, D), y = w.y.view(T, D), a = w.a.view(T, D), g = w.g.view(T, 2 * D);
  clipped(b, g, h, L.conv_in, w.c);
  b.glu(a, g);
  b.causal_conv(y, a, L.conv, s);
  b.rms_norm(a, y, L.conv_post, c.eps);
  b.silu(a);
  clipped(b, y, a, L.conv_out, w.c);
  b.residual_norm(x, h, y, {.post = {}, .next = L.ffn[1].pre, .eps = c.eps});
}

template <EncoderBackend B>
void conformer_layer(B& b, const AudioW<B>& W, size_t l, const AudioCfg& c, const Step& s, AudioWork<B>& w) {
  const AudioLayerW<B>& L = W.layer[l];
  const int T = s.shape.n_tok;
  auto x = w.x.view(T, c.d_model);
  b.rms_norm(w.h.view(T, c.d_model), x, L.ffn[0].pre, c.eps);
  conformer_ffn(b, L.ffn[0], L.attn_pre, c, T, w);
  conformer_attention(b, W, L, c, s, w);
  conformer_conv(b, L, c, s, w);
  conformer_ffn(b, L.ffn[1], {}, c, T, w);
  b.rms_norm(x, x, L.out_norm, c.eps);
}

// One of the two convolutions over time and mel channel, and its norm over channels; relu
template <EncoderBackend B>
void subsample(B& b, const AudioW<B>& W, int i, typename B::Rows y, typename B::Rows x, const AudioCfg& c) {
  b.conv2d(y, x, W.conv[i], i == 0 ? 1 : c.conv[0]);
  b.layer_norm(y, y, W.conv_norm[i], {}, c.eps);
  b.clamp(y, y, 0.f, Clip::kNoClip);
}

// x [T, D] from mel frames w.m [F, M]
template <EncoderBackend B>
void audio_embed(B& b, const AudioW<B>& W, const AudioCfg& c, int n_frame, AudioWork<B>& w) {
  const int half = (n_frame + 1) / 2, T = (half + 1) / 2;
  auto c0 = w.c0.view(half, c.n_mel / 2 * c.conv[0]), c1 = w.c1.view(T, c.n_mel / 4 * c.conv[1]);
  subsample(b, W, 0, c0, w.m.view(n_frame, c.n_mel), c);
  subsample(b, W, 1, c1, c0, c);
  b.matmul(w.x.view(T, c.d_model), c1, W.in);
}

// Soft tokens [T, D_out]. n_row: rows of input in w.m: mel frames of one sound, or 12B's frames of samples of all sounds
// of the step.
template <EncoderBackend B>
typename B::Rows audio_forward(B& b, const AudioCfg& c, const AudioW<B>& W, const Step& s, int n_row, AudioWork<B>& w) {
  const int T = s.shape.n_tok;
  auto out = w.out.view(T, c.d_out);
  if (c.is_unified) {
    auto m = w.m.view(T, c.frame);
    b.rms_norm(m, m, {}, c.eps);
    clipped(b, out, m, W.project, w.c);
    return out;
  }
  auto e = w.e.view(T, c.d_project);
  audio_embed(b, W, c, n_row, w);
  for (size_t l = 0; l < W.layer.size(); ++l) conformer_layer(b, W, l, c, s, w);
  clipped(b, e, w.x.view(T, c.d_model), W.out, w.c);
  b.shift_scale(e, W.out_bias, {});
  b.rms_norm(e, e, {}, c.eps);
  clipped(b, out, e, W.project, w.c);
  return out;
}

}  // namespace facet
