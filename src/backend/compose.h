#pragma once
#include "backend/backend.h"

// Merged verbs: compositions of the backend's verbs, or its own single pass over memory where it has one.
namespace facet {

// All of a layer's work on q, k and v between projections and attention: q = rope(norm(q)), k = rope(norm(k)), v = norm(v)
// if norm_v, and the step's rows of k and v appended to the cache. Afterwards only q may be read.
template <Backend B>
void norm_rope_append(B& b, typename B::KvLayer kv, typename B::Rows q, typename B::Rows k, typename B::Rows v, typename B::Vec q_gain,
                      typename B::Vec k_gain, typename B::Freqs freqs, bool norm_v, int head_dim, const Step& s, float eps) {
  if constexpr (requires { b.norm_rope_append(kv, q, k, v, q_gain, k_gain, freqs, norm_v, s, eps); }) {
    b.norm_rope_append(kv, q, k, v, q_gain, k_gain, freqs, norm_v, s, eps);
  } else {
    b.head_norm_rope(k, k_gain, freqs, s, eps);
    if (norm_v) b.head_norm(v, head_dim, eps);
    b.kv_append(kv, k, v, s);
    b.head_norm_rope(q, q_gain, freqs, s, eps);
  }
}

}  // namespace facet
