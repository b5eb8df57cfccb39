#pragma once
#include "backend/backend.h"

// The MERGED verbs of verbs.def: compositions of the backend's verbs, or its own single pass over memory where it has
// one.
namespace facet {

// All of a layer's work on q, k and v between projections and attention: q = rope(norm(q)), k = rope(norm(k)), v =
// norm(v) if norm_v, and the step's rows of k and v appended to the cache. Afterwards only q may be read.
template <Backend B>
void norm_rope_append(B& b, typename B::KvLayer kv, typename B::Rows q, typename B::Rows k, typename B::Rows v,
                      typename B::Vec q_gain, typename B::Vec k_gain, typename B::Freqs freqs, bool norm_v,
                      const Step& s, float eps) {
  if constexpr (Has<B>::norm_rope_append) {
    b.norm_rope_append(kv, q, k, v, q_gain, k_gain, freqs, norm_v, s, eps);
  } else {
    b.head_norm_rope(k, k_gain, freqs, s, eps);
    if (norm_v) b.head_norm(v, kv.head_dim, eps);
    b.kv_append(kv, k, v, s);
    b.head_norm_rope(q, q_gain, freqs, s, eps);
  }
}

// y = [embed, x]: embeddings of the step's tokens, and rows beside them.
template <Backend B>
void embed_concat(B& b, typename B::Rows y, typename B::Weight table, const Step& s, float scale, typename B::Rows x) {
  if constexpr (Has<B>::embed_concat) {
    b.embed_concat(y, table, s, scale, x);
  } else {
    b.embed(y.cols_at(0, y.cols - x.cols), table, s, scale);
    b.copy_rows(y.cols_at(y.cols - x.cols, x.cols), x);
  }
}

// Two products of the same rows: y = w x and z = u x, the first of them the longer one.
template <Backend B>
void matmul_beside(B& b, typename B::Rows y, typename B::Weight w, typename B::Rows z, typename B::Weight u,
                   typename B::Rows x) {
  if constexpr (Has<B>::matmul_beside) {
    b.matmul_beside(y, w, z, u, x);
  } else {
    b.matmul(y, x, w);
    b.matmul(z, x, u);
  }
}

// residual_norm, then both inputs of a mixture of experts from the new x: r = rms(x) * router_gain, e = rms(x) *
// expert_gain.
template <Backend B>
void residual_norm_moe(B& b, typename B::Rows x, typename B::Rows h, typename B::Rows y,
                       ResidualSpec<typename B::Vec> spec, typename B::Rows r, typename B::Rows e,
                       typename B::Vec router_gain, typename B::Vec expert_gain) {
  if constexpr (Has<B>::residual_norm_moe) {
    b.residual_norm_moe(x, h, y, spec, r, e, router_gain, expert_gain);
  } else {
    b.residual_norm(x, h, y, spec);
    b.rms_norm(r, x, router_gain, spec.eps);
    b.rms_norm(e, x, expert_gain, spec.eps);
  }
}

// y = down g, g = act(gate h) * (up h). Afterwards g may not be read.
template <Backend B>
void ffn(B& b, typename B::Rows y, typename B::Rows g, typename B::Rows h, typename B::Weight gate,
         typename B::Weight up, typename B::Weight down, Act act) {
  if constexpr (Has<B>::ffn) {
    b.ffn(y, g, h, gate, up, down, act);
  } else {
    b.gate_up(g, h, gate, up, act);
    b.matmul(y, g, down);
  }
}

// Both branches of a layer with experts, which need nothing of each other: y = down g, g = act(gate h) * (up h), and o
// = moe(e, r).
template <Backend B>
void ffn_beside_moe(B& b, typename B::Rows y, typename B::Rows g, typename B::Rows h, typename B::Weight gate,
                    typename B::Weight up, typename B::Weight down, typename B::Rows o, typename B::Rows e,
                    typename B::Rows r, MoeWeights<typename B::Weight, typename B::Vec> w, int n_used, Act act) {
  if constexpr (Has<B>::ffn_beside_moe) {
    b.ffn_beside_moe(y, g, h, gate, up, down, o, e, r, w, n_used, act);
  } else {
    b.gate_up(g, h, gate, up, act);
    b.matmul(y, g, down);
    b.moe(o, e, r, w, n_used, act);
  }
}

// residual_norm of the branch rms(y) * y_gain + rms(o) * o_gain: the end of a layer with experts. y and o are lost.
template <Backend B>
void join_residual_norm(B& b, typename B::Rows x, typename B::Rows h, typename B::Rows y, typename B::Rows o,
                        typename B::Vec y_gain, typename B::Vec o_gain, ResidualSpec<typename B::Vec> spec) {
  if constexpr (Has<B>::join_residual_norm) {
    b.join_residual_norm(x, h, y, o, y_gain, o_gain, spec);
  } else {
    b.rms_norm(y, y, y_gain, spec.eps);
    b.rms_norm(o, o, o_gain, spec.eps);
    b.add(y, y, o);
    b.residual_norm(x, h, y, spec);
  }
}

}  // namespace facet
