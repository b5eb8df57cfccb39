#pragma once
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "backend/optional.h"
#include "backend/shard_spec.h"
#include "formats/gguf.h"
#include "model/gemma4_config.h"
#include "model/shards.h"
#include "model/types.h"

namespace facet {

// Finds tensors by name and checks shape and type; remembers the first error and which names were taken.
class TensorFinder {
 public:
  explicit TensorFinder(const GgufFile& f) : TensorFinder(f.path(), f.tensors()) {}
  TensorFinder(std::string path, std::span<const TensorView> tensors);
  // The tensor, or null: absent (an error unless optional), wrong shape or type (always an error).
  const TensorView* matrix(const std::string& name, int64_t n_in, int64_t n_out, int64_t n_stack = 1,
                           bool optional = false);
  // F32 values of a vector of n elements; empty when absent.
  std::vector<float> vector(const std::string& name, int64_t n, bool optional = false);
  void ignore(const std::string& name) { taken_.insert(name); }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  const TensorView* peek(const std::string& name) const {  // null: absent; nothing is said of it
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? nullptr : at->second;
  }
  std::vector<std::string> untaken() const;  // names nobody asked for, in order
  // Layer tensors nobody asked for would make the model run wrongly in silence.
  Status finish();

 private:
  void fail(const std::string& what, const std::string& hint);
  std::string path_;
  std::map<std::string, const TensorView*> tensors_;
  std::set<std::string> taken_;
  std::optional<Error> error_;
};

using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;  // bytes of weights

// Brings to a backend what a TensorFinder finds.
template <Backend B>
class Uploader {
 public:
  Uploader(B& b, TensorFinder& find, LoadProgress progress = {}, uint64_t total = 0)
      : b_(b), find_(find), progress_(std::move(progress)), total_(total) {}
  typename B::Weight weight(const std::string& name, int64_t n_in, int64_t n_out, int64_t n_stack = 1,
                            bool optional = false) {
    return part({}, name, n_in, n_out, n_stack, optional);
  }
  // Divided among shards, if the backend has some.
  typename B::Weight part(const ShardSpec& spec, const std::string& name, int64_t n_in, int64_t n_out,
                          int64_t n_stack = 1, bool optional = false) {
    const TensorView* t = find_.matrix(name, n_in, n_out, n_stack, optional);
    if (!t) return {};
    const auto w = upload_shard(b_, *t, spec);
    if (progress_) progress_(done_ += t->data.size(), total_);
    return w;
  }
  typename B::Vec gain(const std::string& name, int64_t n, bool optional = false) {
    const std::vector<float> v = find_.vector(name, n, optional);
    return v.empty() ? typename B::Vec{} : b_.upload(std::span<const float>(v));
  }
  // Of a layer's queries. k_gain: of the shared rows that they read, which lack it outside of K's own channels; empty:
  // they read others.
  typename B::Vec query_gain(const std::string& name, int64_t n, const std::vector<float>& k_gain) {
    std::vector<float> v = find_.vector(name, n);
    for (size_t i = 0; i < std::min(v.size(), k_gain.size()); ++i)
      if (!kv_is_own(int(i), int(n))) v[i] *= k_gain[i];
    return v.empty() ? typename B::Vec{} : b_.upload(std::span<const float>(v));
  }

 private:
  B& b_;
  TensorFinder& find_;
  LoadProgress progress_;
  uint64_t done_ = 0, total_;
};

// Binds every tensor of a Gemma 4 text model. share: least width of heads whose K is V that have shared rows (0: none).
// Folded here: the router's 1/sqrt(D) into router_norm, the gain that shared rows lack into q_norm.
template <Backend B>
Result<ModelW<B>> bind_gemma4(B& b, const GgufFile& file, const ModelCfg& m, int share,
                              const LoadProgress& progress = {}) {
  if (auto ok = check_shards(file.path(), m, shards_of(b)); !ok) return ok.error();
  const ModelShardSpecs specs(m, shards_of(b));
  TensorFinder find(file);
  Uploader<B> up(b, find, progress, file.file_bytes());
  auto weight = [&](auto... args) { return up.weight(args...); };
  auto part = [&](const ShardSpec& spec, auto... args) { return up.part(spec, args...); };
  auto gain = [&](auto... args) { return up.gain(args...); };
  const int64_t D = m.d_model, P = m.d_ple, L = m.n_layer();

  ModelW<B> W;
  W.tok_embd = part(specs.vocabulary(), "token_embd.weight", D, m.n_vocab);
  W.head = part(specs.vocabulary(), "output.weight", D, m.n_vocab, 1, true);
  if (!W.head) W.head = W.tok_embd;  // tied, and not scaled
  W.out_norm = gain("output_norm.weight", D);
  if (P > 0) {
    W.ple_table = part(specs.vocabulary(), "per_layer_token_embd.weight", L * P, m.n_vocab);
    W.ple_model_proj = weight("per_layer_model_proj.weight", D, L * P);
    W.ple_norm = gain("per_layer_proj_norm.weight", P);
  }
  for (int l = 0; l < m.n_layer(); ++l) {
    const LayerCfg& c = m.layer[size_t(l)];
    const int64_t E = c.head_dim, Q = int64_t(m.n_q_head) * E, KV = int64_t(c.n_kv_head) * E;
    auto name = [&](const char* rest) { return fmt::format("blk.{}.{}", l, rest); };
    LayerW<B> w;
    auto freqs = gemma4_freqs(file, m, l);
    if (!freqs) return freqs.error();
    w.freqs = b.upload(std::span<const double>(*freqs));
    w.attn_norm = gain(name("attn_norm.weight"), D);
    if (c.shares(share)) w.k_gain = find.vector(name("attn_k_norm.weight"), E);
    w.q_norm =
        up.query_gain(name("attn_q_norm.weight"), E, c.query_only ? W.layer[size_t(c.kv_source)].k_gain : w.k_gain);
    w.wq = part(specs.heads(E), name("attn_q.weight"), D, Q);
    w.wo = part(specs.of_heads(E), name("attn_output.weight"), Q, D);
    if (c.query_only) {  // published files still carry them; no engine reads them
      for (const char* unused :
           {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight", "attn_k.scale", "attn_v.scale"})
        find.ignore(name(unused));
    } else {
      w.k_norm = gain(name("attn_k_norm.weight"), E);
      w.wk = part(specs.kv_heads(E), name("attn_k.weight"), D, KV);
      w.wv = part(specs.kv_heads(E), name("attn_v.weight"), D, KV, 1, /*optional=*/c.window == 0);
    }
    w.attn_post = gain(name("post_attention_norm.weight"), D);
    w.ffn_norm = gain(name("ffn_norm.weight"), D);
    w.ffn_post = gain(name("post_ffw_norm.weight"), D);
    const TensorView* down = find.peek(name("ffn_down.weight"));
    w.gate = part(specs.hidden(down), name("ffn_gate.weight"), D, c.d_ff);
    w.up = part(specs.hidden(down), name("ffn_up.weight"), D, c.d_ff);
    w.down = part(specs.of_hidden(down), name("ffn_down.weight"), c.d_ff, D);
    if (const std::vector<float> s = find.vector(name("layer_output_scale.weight"), 1, true); !s.empty())
      w.out_scale = s[0];
    if (c.moe) {
      const int64_t N = m.n_expert, F = m.d_expert;
      w.shared_post = gain(name("post_ffw_norm_1.weight"), D);
      w.routed_pre = gain(name("pre_ffw_norm_2.weight"), D);
      w.routed_post = gain(name("post_ffw_norm_2.weight"), D);
      std::vector<float> router = find.vector(name("ffn_gate_inp.scale"), D);
      for (float& r : router) r /= std::sqrt(float(D));
      w.router_norm = b.upload(std::span<const float>(router));
      w.experts.router = weight(name("ffn_gate_inp.weight"), D, N);
      const TensorView* experts_down = find.peek(name("ffn_down_exps.weight"));
      const ShardSpec hidden = specs.hidden(experts_down);
      w.experts.gate_up = part(specs.hidden(experts_down, /*folds=*/2), name("ffn_gate_up_exps.weight"), D, 2 * F, N,
                               /*optional=*/true);
      if (!w.experts.gate_up) {
        w.experts.gate = part(hidden, name("ffn_gate_exps.weight"), D, F, N);
        w.experts.up = part(hidden, name("ffn_up_exps.weight"), D, F, N);
      }
      w.experts.down = part(specs.of_hidden(experts_down), name("ffn_down_exps.weight"), F, D, N);
      const std::string other = name("ffn_gate_inp.per_expert_scale");  // of some converters
      w.experts.scale = gain(find.has(other) ? other : name("ffn_down_exps.scale"), N, true);
    }
    if (P > 0) {
      w.ple_gate = weight(name("inp_gate.weight"), D, P);
      w.ple_proj = weight(name("proj.weight"), P, D);
      w.ple_post = gain(name("post_norm.weight"), D);
    }
    W.layer.push_back(w);
  }
  if (auto done = find.finish(); !done) return done.error();
  if (progress) progress(file.file_bytes(), file.file_bytes());
  return W;
}

// Scratch for steps of at most max_tok tokens and max_out rows of logits.
template <Backend B>
Work<B> make_work(B& b, const ModelCfg& m, int max_tok, int max_out, int max_soft = 0) {
  Work<B> w;
  const int D = m.d_model, wide = std::max(m.max_q_cols(), D), ple = m.n_layer() * m.d_ple;
  w.x = b.new_rows(max_tok, D), w.h = b.new_rows(max_tok, D), w.y = b.new_rows(max_tok, D);
  w.q = b.new_rows(max_tok, m.max_q_cols()), w.a = b.new_rows(max_tok, wide);
  w.k = b.new_rows(max_tok, m.max_kv_cols()), w.v = b.new_rows(max_tok, m.max_kv_cols());
  w.g = b.new_rows(max_tok, std::max(m.max_d_ff(), m.d_ple));
  if (m.n_expert > 0) w.e = b.new_rows(max_tok, D), w.r = b.new_rows(max_tok, D);
  if (ple > 0) w.ple = b.new_rows(max_tok, ple), w.ple_ctx = b.new_rows(max_tok, ple);
  w.out = b.new_rows(max_out, D), w.logits = b.new_rows(max_out, m.n_vocab);
  if (max_soft > 0) w.soft = b.new_rows(max_soft, D);
  return w;
}
// Elements that make_work asks for.
int64_t work_elements(const ModelCfg& m, int max_tok, int max_out);
BackendLimits backend_limits(const ModelCfg& m, int max_tok, int64_t max_rows);

}  // namespace facet
