#pragma once
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/quantize.h"
#include "formats/random_blocks.h"
#include "support/must.h"

namespace facet::test {

// A random Gemma-4-shaped model: both layer kinds, K=V on full layers, window 16, everything small and nothing at its
// default (gains and scales of 1 would hide most bugs). Written as a GGUF without a vocabulary.
struct TinyModel {
  bool moe = false, split_experts = false, ple = false;
  int window = 16, vocab = 96;
  unsigned seed = 1;
  DType type = DType::kF32;  // of the matrices whose rows are whole blocks
  int width = 64, d_ff = 96;
  int experts = 6, used = 2, d_expert = 32;
};

// Long: a list of keys and tensors, as the file has them.
inline std::string write_tiny_model(const TinyModel& o) {
  const int D = o.width, H = 4, F = o.d_ff, E_swa = 64, E_full = 128, experts = o.experts, used = o.used,
            d_expert = o.d_expert, P = 16;
  const int L = o.ple ? 10 : 6, every = o.ple ? 5 : 3, shared = o.ple ? 5 : 0;
  std::mt19937 rng(o.seed);
  std::normal_distribution<float> normal;
  GgufWriter w;
  std::vector<std::vector<std::byte>> data;
  auto tensor = [&](const std::string& name, std::vector<int64_t> ne, float mean, float sd, DType type = DType::kF32) {
    int64_t n = 1;
    for (int64_t x : ne) n *= x;
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = mean + sd * normal(rng);
    if (ne[0] % dtype_info(type).block != 0) type = DType::kF32;
    w.add_tensor(name, type, ne);
    data.emplace_back(row_bytes(type, n));
    if (type == DType::kF32)
      std::memcpy(data.back().data(), v.data(), data.back().size());
    else if (has_random_blocks(type))  // of no values that are known here
      random_blocks(
          type, sd, [&] { return uint64_t(rng()) << 32 | rng(); }, data.back());
    else
      quantize_row(type, v.data(), data.back().data(), n);
  };
  auto matrix = [&](const std::string& name, int n_in, int n_out, int stack = 0) {
    std::vector<int64_t> ne{n_in, n_out};
    if (stack) ne.push_back(stack);
    tensor(name, ne, 0, 1 / std::sqrt(float(n_in)), o.type);
    constexpr std::string_view kWeight = ".weight";
    const std::string base = name.substr(0, name.size() - kWeight.size());
    if (o.type == DType::kNVFP4 && n_in % 64 == 0 && !base.ends_with("ffn_down_exps"))  // which has one in any case
      tensor(base + ".scale", {std::max(1, stack)}, 1, .25f);
  };
  auto gain = [&](const std::string& name, int n) { tensor(name, {n}, 1, .25f); };

  std::vector<int64_t> kv, ff;
  std::vector<bool> sliding;
  for (int l = 0; l < L; ++l) {
    const bool full = (l + 1) % every == 0;
    sliding.push_back(!full);
    kv.push_back(full || o.ple ? 1 : 2);
    ff.push_back(l >= L - shared ? 2 * F : F);
  }
  w.add("general.architecture", "gemma4");
  w.add("general.name", "tiny");
  w.add("gemma4.block_count", int64_t(L));
  w.add("gemma4.context_length", int64_t(4096));
  w.add("gemma4.embedding_length", int64_t(D));
  w.add("gemma4.feed_forward_length", ff);
  w.add("gemma4.attention.head_count", int64_t(H));
  w.add("gemma4.attention.head_count_kv", kv);
  w.add("gemma4.attention.sliding_window_pattern", sliding);
  w.add("gemma4.attention.sliding_window", int64_t(o.window));
  w.add("gemma4.attention.shared_kv_layers", int64_t(shared));
  w.add("gemma4.attention.key_length", int64_t(E_full));
  w.add("gemma4.attention.value_length", int64_t(E_full));
  w.add("gemma4.attention.key_length_swa", int64_t(E_swa));
  w.add("gemma4.attention.value_length_swa", int64_t(E_swa));
  w.add("gemma4.rope.dimension_count", int64_t(E_full));
  w.add("gemma4.rope.dimension_count_swa", int64_t(E_swa));
  w.add("gemma4.rope.freq_base", 1e6);
  w.add("gemma4.rope.freq_base_swa", 1e4);
  w.add("gemma4.attention.layer_norm_rms_epsilon", 1e-6);
  w.add("gemma4.final_logit_softcapping", 30.0);
  w.add("gemma4.embedding_length_per_layer_input", int64_t(o.ple ? P : 0));
  if (o.moe) {
    w.add("gemma4.expert_count", int64_t(experts));
    w.add("gemma4.expert_used_count", int64_t(used));
    w.add("gemma4.expert_feed_forward_length", int64_t(d_expert));
  }
  w.add("tokenizer.ggml.model", "no_vocab");

  tensor("token_embd.weight", {D, o.vocab}, 0, .5f);
  gain("output_norm.weight", D);
  if (o.ple) {
    tensor("per_layer_token_embd.weight", {L * P, o.vocab}, 0, .25f);
    matrix("per_layer_model_proj.weight", D, L * P);
    gain("per_layer_proj_norm.weight", P);
  }
  for (int l = 0; l < L; ++l) {
    const std::string b = "blk." + std::to_string(l) + ".";
    const int E = sliding[size_t(l)] ? E_swa : E_full, KV = int(kv[size_t(l)]) * E, Fl = int(ff[size_t(l)]);
    gain(b + "attn_norm.weight", D);
    matrix(b + "attn_q.weight", D, H * E);
    matrix(b + "attn_k.weight", D, KV);
    if (sliding[size_t(l)] || o.ple) matrix(b + "attn_v.weight", D, KV);
    matrix(b + "attn_output.weight", H * E, D);
    tensor(b + "attn_q_norm.weight", {E}, .5f, .1f);
    tensor(b + "attn_k_norm.weight", {E}, .5f, .1f);
    for (const char* n : {"post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight"}) gain(b + n, D);
    matrix(b + "ffn_gate.weight", D, Fl);
    matrix(b + "ffn_up.weight", D, Fl);
    matrix(b + "ffn_down.weight", Fl, D);
    tensor(b + "layer_output_scale.weight", {1}, .8f, .05f);
    if (o.moe) {
      for (const char* n : {"post_ffw_norm_1.weight", "pre_ffw_norm_2.weight", "post_ffw_norm_2.weight"})
        gain(b + n, D);
      tensor(b + "ffn_gate_inp.weight", {D, experts}, 0, 2);
      gain(b + "ffn_gate_inp.scale", D);
      if (o.split_experts) {
        matrix(b + "ffn_gate_exps.weight", D, d_expert, experts);
        matrix(b + "ffn_up_exps.weight", D, d_expert, experts);
      } else {
        matrix(b + "ffn_gate_up_exps.weight", D, 2 * d_expert, experts);
      }
      matrix(b + "ffn_down_exps.weight", d_expert, D, experts);
      tensor(b + "ffn_down_exps.scale", {experts}, 1, .25f);
    }
    if (o.ple) {
      matrix(b + "inp_gate.weight", D, P);
      matrix(b + "proj.weight", P, D);
      gain(b + "post_norm.weight", D);
    }
  }
  const std::string path =
      (std::filesystem::temp_directory_path() /
       ("facet-tiny-" + std::to_string(getpid()) + "-" + std::to_string(o.moe) + std::to_string(o.split_experts) +
        std::to_string(o.ple) + "-" + std::to_string(o.window) + "-" + std::to_string(o.vocab) + "-" +
        std::to_string(o.seed) + "-" + std::to_string(o.width) + "-" + dtype_name(o.type) + ".gguf"))
          .string();
  must(w.begin(path));
  for (const auto& v : data) must(w.write(v));
  must(w.finish());
  return path;
}

// The model's file for the life of the object.
class TinyFile {
 public:
  explicit TinyFile(const TinyModel& o = {}) : path_(write_tiny_model(o)) {}
  ~TinyFile() { std::filesystem::remove(path_); }
  TinyFile(const TinyFile&) = delete;
  TinyFile& operator=(const TinyFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<int32_t> random_ids(int n, int vocab, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> v(static_cast<size_t>(n));
  for (int32_t& x : v) x = int32_t(rng() % unsigned(vocab));
  return v;
}

}  // namespace facet::test
