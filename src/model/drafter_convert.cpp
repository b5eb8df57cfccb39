#include "model/drafter_convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/files.h"
#include "formats/safetensors.h"
#include "model/drafter_check.h"
#include "model/drafter_rules.h"

namespace facet {
namespace {

bool is_ordering(const TensorView& t) { return t.name == "masked_embd_ordering"; }

// The type a tensor has in the file; empty for what has no place in one.
std::optional<DType> written_type(const TensorView& t) {
  if (is_ordering(t)) return DType::kI32;
  if (t.name == "t2d") return std::nullopt;  // follows from d2t
  if (t.name == "d2t") return DType::kI64;
  if (!dtype_info(t.type).matmul) return std::nullopt;
  return t.n_dims < 2 ? DType::kF32 : t.type;
}

std::vector<std::byte> written_bytes(const TensorView& t, bool offsets) {
  const int64_t n = t.n_elements();
  if (is_ordering(t) || t.name == "d2t") {
    std::vector<std::byte> out(size_t(n) * (is_ordering(t) ? 4 : 8));
    for (int64_t i = 0; i < n; ++i) {
      int64_t v = 0;
      if (t.type == DType::kI64) std::memcpy(&v, t.data.data() + 8 * i, 8);
      if (t.type == DType::kI32) {
        int32_t w;
        std::memcpy(&w, t.data.data() + 4 * i, 4);
        v = w;
      }
      if (t.name == "d2t" && offsets) v = int64_t(uint64_t(v) + uint64_t(i));  // a stranger's number: may wrap
      const int32_t w = int32_t(v);
      if (is_ordering(t))
        std::memcpy(out.data() + 4 * i, &w, 4);
      else
        std::memcpy(out.data() + 8 * i, &v, 8);
    }
    return out;
  }
  if (t.n_dims >= 2 || t.type == DType::kF32) return {t.data.begin(), t.data.end()};
  std::vector<std::byte> out(size_t(n) * 4);
  std::vector<float> x(static_cast<size_t>(n));
  dequantize_row(t.type, t.data.data(), x.data(), n);
  std::memcpy(out.data(), x.data(), out.size());
  return out;
}

struct Shape {
  int64_t n_layer = 0, d = 0, n_head = 0, head_dim = 0, d_ff = 0, full_dim = 0;
};

void add_dflash(GgufWriter& w, const DrafterFile& f, const Shape& s, const BlockRules& rules) {
  const DrafterMeta& m = f.meta();
  const std::string p = "dflash.";
  w.add(p + "attention.head_count_kv", f.find("blk.0.attn_k.weight")->ne[1] / s.head_dim);
  if (m.theta_swa) w.add(p + "rope.freq_base_swa", *m.theta_swa);
  w.add(p + "attention.key_length", s.head_dim);
  w.add(p + "attention.value_length", s.head_dim);
  if (m.theta) w.add(p + "rope.freq_base", *m.theta);
  if (m.block) w.add(p + "block_size", *m.block);
  if (m.mask_id) w.add(p + "mask_token_id", *m.mask_id), w.add("tokenizer.ggml.mask_token_id", *m.mask_id);
  std::vector<int64_t> taps = m.taps;
  for (int64_t& t : taps) t += 1;  // the dialect numbers the layer whose input is captured
  if (!taps.empty()) w.add(p + "target_layers", taps);
  // What was decided by the trainer is said in the file, which has no place for its name.
  if (rules.embed_scale.value) w.add(p + "embedding_scale", *rules.embed_scale.value);
  if (rules.softcap.value) w.add(p + "final_logit_softcapping", *rules.softcap.value);
  if (rules.from_anchor.value || f.find("markov_w1.weight")) w.add(p + "sample_from_anchor", rules.from_anchor.value);
  if (m.sliding_non_causal || !rules.sliding_causal.value)
    w.add("facet.dflash.sliding_window_non_causal", !rules.sliding_causal.value);
  for (const auto& [value, key] : {std::pair{m.conv_taps, "conv_kernel_size"},
                                   {m.conv_group, "conv_group_size"},
                                   {m.selector_rank, "selector_rank"},
                                   {m.selector_top_k, "selector_top_k"}})
    if (value) w.add(p + key, *value);
  if (m.causal) w.add("facet.dflash.is_causal", *m.causal);
  if (m.target_depth) w.add("facet.dflash.target_depth", *m.target_depth);
}

void add_mtp(GgufWriter& w, const DrafterFile& f, const Shape& s) {
  const DrafterMeta& m = f.meta();
  const std::string p = "gemma4-assistant.";
  if (std::find(m.kv_heads.begin(), m.kv_heads.end(), 0) == m.kv_heads.end() && !m.kv_heads.empty())
    w.add(p + "attention.head_count_kv", m.kv_heads);
  w.add(p + "attention.key_length", s.full_dim);
  w.add(p + "attention.value_length", s.full_dim);
  w.add(p + "attention.key_length_swa", s.head_dim);
  w.add(p + "attention.value_length_swa", s.head_dim);
  w.add(p + "rope.dimension_count", s.full_dim);
  w.add(p + "rope.dimension_count_swa", s.head_dim);
  w.add(p + "rope.freq_base", m.theta.value_or(1e6));
  w.add(p + "rope.freq_base_swa", m.theta_swa.value_or(1e4));
  w.add(p + "attention.shared_kv_layers", s.n_layer);
  w.add(p + "nextn_predict_layers", s.n_layer);
  w.add(p + "embedding_length_out", f.find("nextn.post_projection.weight")->ne[1]);
  w.add(p + "embedding_length_per_layer_input", int64_t(0));
  if (m.top_k && f.find("masked_embd_centroids.weight")) w.add(p + "centroid_top_k", *m.top_k);
  if (m.clustered) w.add(p + "use_ordered_embeddings", *m.clustered);
}

// Every file behind a drafter and its target: the result must be none of them.
std::vector<std::string> files_read(const DrafterFile& f, const GgufFile* target) {
  std::vector<std::string> files{f.path()};
  if (f.dialect().starts_with("safetensors"))
    if (auto parts = safetensors_parts(f.path())) files.insert(files.end(), parts->begin(), parts->end());
  if (target)
    for (std::string& part : gguf_parts(target->path())) files.push_back(std::move(part));
  return files;
}

}  // namespace

Result<uint64_t> convert_drafter(const DrafterFile& f, const GgufFile* target, const std::string& out) {
  if (f.kind() == DrafterKind::kEagle3)
    return Error{f.path(), "expected a DFlash or MTP drafter, found EAGLE-3",
                 "use it as it is: facet writes no GGUF of it"};
  auto blocks = count_blocks(f);
  if (!blocks) return blocks.error();
  const bool flash = f.kind() == DrafterKind::kDflash;
  Result<BlockRules> rules = BlockRules{};
  if (flash) rules = block_rules(f);
  if (!rules) return rules.error();
  DrafterCheck check(f);
  Shape s;
  s.n_layer = *blocks;
  s.d = check.dim(flash ? "fc.weight" : "nextn.pre_projection.weight", 1, 1 << 17);
  s.head_dim = s.full_dim = check.dim("blk.0.attn_q_norm.weight", 0, 512);
  for (int l = 1; l < *blocks; ++l)
    s.full_dim = std::max(s.full_dim, check.dim(fmt::format("blk.{}.attn_q_norm.weight", l), 0, 512));
  s.n_head = check.ratio("rows of blk.0.attn_q.weight", check.dim("blk.0.attn_q.weight", 1, 1 << 20), s.head_dim);
  s.d_ff = check.dim("blk.0.ffn_gate.weight", 1, 1 << 20);
  if (flash)
    check.dim("blk.0.attn_k.weight", 1, 1 << 20);
  else
    check.dim("nextn.post_projection.weight", 1, 1 << 17);
  if (!check) return *check.error();

  GgufWriter w;
  const DrafterMeta& m = f.meta();
  const std::string arch = flash ? "dflash" : "gemma4-assistant", p = arch + ".";
  w.add("general.architecture", arch);
  w.add("general.type", "model");
  w.add(p + "block_count", s.n_layer);
  w.add(p + "embedding_length", s.d);
  w.add(p + "feed_forward_length", s.d_ff);
  w.add(p + "attention.head_count", s.n_head);
  w.add(p + "attention.layer_norm_rms_epsilon", m.eps.value_or(1e-6));
  if (m.window) w.add(p + "attention.sliding_window", *m.window);
  if (!m.sliding.empty()) w.add(p + "attention.sliding_window_pattern", m.sliding);
  if (flash)
    add_dflash(w, f, s, *rules);
  else
    add_mtp(w, f, s);
  if (target)
    for (const auto& [key, value] : target->meta())
      if ((key.starts_with("tokenizer.") && key != "tokenizer.ggml.mask_token_id") || key == "gemma4.context_length")
        w.add_raw(key == "gemma4.context_length" ? p + "context_length" : key, value);

  std::vector<float> divisors;  // of full layers: a share of the pairs rotates
  if ((!flash || m.partial) && !f.find("rope_freqs.weight")) {
    divisors.assign(size_t(s.full_dim / 2), 1e30f);
    std::fill_n(divisors.begin(),
                flash ? int64_t(double(s.full_dim / 2) * std::clamp(*m.partial, 0., 1.)) : s.full_dim / 8, 1.f);
    w.add_tensor("rope_freqs.weight", DType::kF32, {s.full_dim / 2});
  }
  for (const TensorView& t : f.tensors())
    if (const auto type = written_type(t))
      w.add_tensor(t.name, *type, {t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims)});
  if (auto ok = check_output(out, files_read(f, target)); !ok) return ok.error();
  if (auto ok = check_room(out, w.total_bytes()); !ok) return ok.error();
  if (auto ok = w.begin(out); !ok) return ok.error();
  if (!divisors.empty())
    if (auto ok = w.write(std::as_bytes(std::span<const float>(divisors))); !ok) return ok.error();
  for (const TensorView& t : f.tensors())
    if (written_type(t))
      if (auto ok = w.write(written_bytes(t, f.dialect().starts_with("safetensors"))); !ok) return ok.error();
  if (auto ok = w.finish(); !ok) return ok.error();
  return w.total_bytes();
}

}  // namespace facet
