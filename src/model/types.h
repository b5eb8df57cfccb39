#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace facet {

// Plain structs. An empty Vec or Weight means that the model has none.
struct LayerCfg {
  int n_kv_head = 0, head_dim = 0, d_ff = 0;
  int window = 0;  // 0: full attention
  bool norm_v = true, moe = false;
  bool causal_block = false;  // causal inside a draft block (DFlash sliding layers)
  bool k_is_v = false;        // K is V times a gain, rotated: both may lie in one row (formats/kv_codec)
  bool query_only = false;    // reads the rows of kv_source, appends nothing
  int kv_source = 0;          // the layer whose rows this one reads; itself, unless K/V is shared
  int settles = -1;           // the layer whose rows nobody reads after this one, or -1
  bool shares(int least_head) const { return k_is_v && least_head > 0 && head_dim >= least_head; }
};

struct ModelCfg {
  std::string name;
  int d_model = 0, n_q_head = 0, n_vocab = 0, n_ctx_train = 0;
  int n_expert = 0, n_expert_used = 0, d_expert = 0;
  int d_ple = 0;  // width of a layer's slice of the per-layer embeddings; 0: none
  float embed_scale = 1.f, attn_scale = 1.f, softcap = 0.f, eps = 1e-6f;
  Act act = Act::kGelu;
  bool pictures_ahead = false;  // sliding layers: tokens of a picture see all of it (12B, 26B, 31B)
  std::vector<LayerCfg> layer;

  int n_layer() const { return int(layer.size()); }
  int max_q_cols() const;  // widest query row over layers
  int max_kv_cols() const;
  int max_d_ff() const;
};

// q_norm of a layer that reads shared rows holds the gain that K's channels there lack.
template <class B>
struct LayerW {
  typename B::Vec attn_norm{}, q_norm{}, k_norm{}, attn_post{}, ffn_norm{}, ffn_post{};
  typename B::Freqs freqs{};
  typename B::Weight wq{}, wk{}, wv{}, wo{}, gate{}, up{}, down{};            // empty wv: V comes from wk
  typename B::Vec shared_post{}, routed_pre{}, routed_post{}, router_norm{};  // MoE layers only
  MoeWeights<typename B::Weight, typename B::Vec> experts{};
  typename B::Weight ple_gate{}, ple_proj{};  // per-layer embeddings only
  typename B::Vec ple_post{};
  float out_scale = 1.f;
  std::vector<float> k_gain;  // of K, where the layer's rows are shared: for queries of others that read them
};

template <class B>
struct ModelW {
  typename B::Weight tok_embd{}, head{};
  typename B::Weight ple_table{}, ple_model_proj{};
  typename B::Vec out_norm{}, ple_norm{};
  std::vector<LayerW<B>> layer;
  // The gain applied to the residual stream after layer l: the next layer's, or the output's.
  typename B::Vec norm_after(size_t l) const { return l + 1 < layer.size() ? layer[l + 1].attn_norm : out_norm; }
};

// Scratch activations, sized once for the largest step; view() narrows them per use.
template <class B>
struct Work {
  typename B::Rows x, h, y;       // [T, D]
  typename B::Rows q, a, k, v;    // [T, heads * E]
  typename B::Rows g;             // [T, F]
  typename B::Rows e, r;          // [T, D] experts' input, router's input
  typename B::Rows ple, ple_ctx;  // [T, L * P]
  typename B::Rows out, logits;   // [O, D], [O, V]
  typename B::Rows soft;          // [T, D] of a step: embeddings that encoders made; no rows: no encoder
};

// Hidden states to keep: the residual stream after layer[i] into dst[i] (DFlash), and the final one, after the
// output norm (MTP).
template <class B>
struct Taps {
  std::span<const int> layer;
  std::span<const typename B::Rows> dst;
  std::optional<typename B::Rows> final_hidden;
};

}  // namespace facet
