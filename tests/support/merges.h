#pragma once
#include "backend/compose.h"
#include "backend/cpu/cpu_ref.h"

namespace facet::test {

// The reference with every verb that a backend may merge or chain, as the composition that it stands for.
struct Merges : CpuRef {
  using CpuRef::CpuRef;
  using Experts = MoeWeights<Weight, Vec>;
  using Residual = ResidualSpec<Vec>;
  CpuRef& plain() { return *this; }
  void norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs freqs, bool norm_v,
                        const Step& s, float eps) {
    facet::norm_rope_append(plain(), kv, q, k, v, q_gain, k_gain, freqs, norm_v, s, eps);
  }
  void embed_concat(Rows y, Weight table, const Step& s, float scale, Rows x) {
    facet::embed_concat(plain(), y, table, s, scale, x);
  }
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) { facet::matmul_beside(plain(), y, w, z, u, x); }
  void residual_norm_moe(Rows x, Rows h, Rows y, Residual spec, Rows r, Rows e, Vec router_gain, Vec expert_gain) {
    facet::residual_norm_moe(plain(), x, h, y, spec, r, e, router_gain, expert_gain);
  }
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r, Experts w,
                      int n_used, Act act) {
    facet::ffn_beside_moe(plain(), y, g, h, gate, up, down, o, e, r, w, n_used, act);
  }
  void join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain, Residual spec) {
    facet::join_residual_norm(plain(), x, h, y, o, y_gain, o_gain, spec);
  }
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) { top_k(ids, log_probs, logits, k); }
  void next_step(const Step&) {}
};

}  // namespace facet::test
