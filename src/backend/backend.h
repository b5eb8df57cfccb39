#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>

#include "backend/kv_layer.h"
#include "backend/sampling.h"
#include "backend/select.h"
#include "backend/step.h"
#include "formats/dtype.h"

// The contract between models and devices: a short list of verbs (verbs.def). A verb is one pass over memory on the
// fast backend; its meaning is what CpuRef does. Outputs come first. Verbs allocate nothing, read no device data on the
// host, and may be recorded into a CUDA graph.
//
// A backend's associated types:
//   Rows     activations [rows, cols] with a row stride; view(r, c) narrows, cols_at(begin, n) takes columns,
//            rows_at(begin, n) rows
//   Weight   a matrix [n_out, n_in] or a stack of them (experts), in any tensor type; false when absent
//   Vec      f32 gains; false when absent
//   Freqs    RoPE: angle per position of each pair, head_dim / 2 of them, 0 where a pair does not rotate
//   KvLayer  one layer's cache view
//   Ids      token ids on the device; [i] reads one on the host
//   Scores   floats beside them, likewise
//   Table    a constant list of int32 on the device; false when absent
namespace facet {

// Largest sizes a backend is asked for; its scratch is allocated from them once, at open.
struct BackendLimits {
  int max_tok = 0;                 // tokens of a step
  int64_t max_rows = 0;            // cache rows a token can see
  int max_cols = 0;                // widest row of a weight or an activation
  int64_t max_matrix = 0;          // elements of the largest matrix that all rows of a long chunk are multiplied by
  int n_group = 1;                 // query heads per K/V head
  int n_q_head = 0, head_dim = 0;  // of the widest layer
  int n_expert = 0, n_expert_used = 0, d_expert = 0, d_moe = 0;  // d_moe: columns that go into an expert and come out
  int n_cluster = 0;                                             // of a clustered head
  int n_select = 0;             // cache slots, if steps may select blocks of rows; 0: none does
  int n_kv_head = 0;            // most K/V heads of a full layer
  bool weights_in_ram = false;  // some layers' are: the GPU's memory is scarce
  bool shared_codes = false;    // full layers may keep shared rows of a quantised type
  int encoder_head = 0;         // columns of a head of encoder_attend; 0: no encoder

  // What serves both: a drafter runs on its target's backend.
  BackendLimits with(const BackendLimits& o) const {
    BackendLimits l;
    l.max_tok = std::max(max_tok, o.max_tok), l.max_rows = std::max(max_rows, o.max_rows),
    l.max_cols = std::max(max_cols, o.max_cols);
    l.max_matrix = std::max(max_matrix, o.max_matrix);
    l.n_group = std::max(n_group, o.n_group), l.n_q_head = std::max(n_q_head, o.n_q_head),
    l.head_dim = std::max(head_dim, o.head_dim);
    l.n_expert = std::max(n_expert, o.n_expert), l.n_expert_used = std::max(n_expert_used, o.n_expert_used);
    l.d_expert = std::max(d_expert, o.d_expert), l.d_moe = std::max(d_moe, o.d_moe),
    l.n_cluster = std::max(n_cluster, o.n_cluster);
    l.n_select = std::max(n_select, o.n_select), l.n_kv_head = std::max(n_kv_head, o.n_kv_head);
    l.shared_codes = shared_codes || o.shared_codes;
    l.weights_in_ram = weights_in_ram || o.weights_in_ram;
    l.encoder_head = std::max(encoder_head, o.encoder_head);
    return l;
  }
};

struct AttnSpec {
  int n_q_head = 0, head_dim = 0;
  int window = 0;  // 0: full attention; else keys with pos_q - pos_k < window
  float scale = 1.f;
  bool causal_block = false;  // a kBlock sequence is causal in this layer (DFlash sliding layers)
  bool selected = false;      // reads the blocks that the last select_blocks chose
  bool ahead = false;         // tokens of a picture see its tokens behind them: Step::ahead
};
enum class Act : uint8_t { kGelu, kSilu };  // kGelu is the tanh form

// Attention of an audio encoder: to few tokens of the past, with a term for their distance.
struct RelativeWindow {
  int head_dim = 0;
  int n_key = 0;     // that a token sees, itself included; rel has a row for each distance from 0
  float cap = 50.f;  // of scores, by tanh
};

template <class Vec>
struct ResidualSpec {
  Vec post{};  // norm of the branch before it is added; empty: added as it is
  Vec next{};  // norm of the next branch's input; empty: h is not written
  float out_scale = 1.f;
  float eps = 1e-6f;
};

template <class Weight, class Vec>
struct MoeWeights {
  Weight router{};      // [N, D], F32
  Weight gate_up{};     // N x [2F, D]: gate rows, then up rows; or empty and
  Weight gate{}, up{};  // N x [F, D] each
  Weight down{};        // N x [D, F]
  Vec scale{};          // [N] multiplies an expert's routing weight; empty: 1
};

constexpr int kMaxClusters = 256;  // chosen at once

// A head that scores only some of the tokens: those of the clusters whose centroids score best.
template <class Weight, class Table>
struct ClusteredHead {
  Weight head{};      // [V, D]
  Weight centroid{};  // [N, D]
  Table order{};      // [V] token ids, cluster after cluster, V / N each
  int top_k = 0;      // clusters scored
};

// Which verbs of the table a backend has: Has<B>::matmul.
template <class B>
struct Has {
  using Rows = typename B::Rows;
  using Weight = typename B::Weight;
  using Vec = typename B::Vec;
  using Freqs = typename B::Freqs;
  using KvLayer = typename B::KvLayer;
  using Ids = typename B::Ids;
  using Scores = typename B::Scores;
  using Table = typename B::Table;
#define FACET_LIST(...) __VA_ARGS__
#define VERB(name, parameters, arguments, ...) \
  static constexpr bool name = requires(B backend, FACET_LIST parameters) { backend.name arguments; };
#define MERGED VERB
#define CHAINED VERB
#define ENCODER VERB
#include "backend/verbs.def"
};

// A type with the verbs that every backend has.
template <class B>
concept Backend = requires {
  typename B::Rows;
  typename B::Weight;
  typename B::Vec;
  typename B::Freqs;
  typename B::KvLayer;
  typename B::Ids;
  typename B::Scores;
  typename B::Table;
}
#define VERB(name, ...) &&Has<B>::name
#include "backend/verbs.def"
;

// A backend that runs encoders of pictures and sound as well.
template <class B>
concept EncoderBackend = Backend<B>
#define ENCODER(name, ...) &&Has<B>::name
#include "backend/verbs.def"
    ;

// A backend made of another one, such as Traced<B>, has each verb of a model that B has: else a pass on it is another
// program. Those of encoders it need not have: they run on a backend of their own.
template <class D, class B>
concept Decorates = Backend<D>
#define VERB(name, ...) &&(Has<D>::name == Has<B>::name)
#define MERGED VERB
#define CHAINED VERB
#include "backend/verbs.def"
    ;

}  // namespace facet
