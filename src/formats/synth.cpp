// Plans: which tensors and keys a synthetic model file has. The weights are synth_write.cpp's business.
#include "formats/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "formats/format_error.h"
#include "formats/mixture.h"

namespace facet {
namespace {

constexpr int64_t kVocab = 262144;

// Text models. Layer i is full attention iff (i + 1) % full_every == 0, otherwise sliding.
struct TextShape {
  std::string_view preset;
  int64_t layers, width, heads, kv_swa, kv_full, ffn, window, context;
  int64_t full_every = 6;
  int64_t experts = 0, experts_used = 0, expert_ffn = 0;
  int64_t ple = 0;         // per-layer embedding width
  int64_t shared_kv = 0;   // last layers without K/V of their own
  int64_t shared_ffn = 0;  // their FFN width, if it differs
  int64_t hd_swa = 256, hd_full = 512;
  bool full_has_v = false;  // otherwise V of a full layer is its raw K projection
};

constexpr TextShape kTextShapes[] = {
    {"31b", 60, 5376, 32, 16, 4, 21504, 1024, 262144},
    {"26b-a4b", 30, 2816, 16, 8, 2, 2112, 1024, 262144, 6, 128, 8, 704},
    {"12b", 48, 3840, 16, 8, 1, 15360, 1024, 262144},
    {"e4b", 42, 2560, 8, 2, 2, 10240, 512, 131072, 6, 0, 0, 0, 256, 18, 0, 256, 512, true},
    {"e2b", 35, 1536, 8, 1, 1, 6144, 512, 131072, 5, 0, 0, 0, 256, 20, 12288, 256, 512, true},
    {"tiny", 12, 1024, 8, 4, 1, 6144, 1024, 131072},
};

struct DflashShape {
  std::string_view preset;
  int64_t width, heads, kv_heads, ffn;
  std::array<int64_t, 6> taps;  // target layers whose output is read
};

constexpr DflashShape kDflashShapes[] = {
    {"31b-dflash", 5376, 64, 8, 10752, {1, 12, 23, 35, 46, 57}},
    {"26b-a4b-dflash", 2816, 32, 8, 5632, {1, 6, 11, 17, 22, 27}},
};

struct MtpShape {
  std::string_view preset;
  int64_t backbone, heads, kv_swa, kv_full;
};

constexpr MtpShape kMtpShapes[] = {
    {"31b-mtp", 5376, 32, 16, 4},
    {"26b-a4b-mtp", 2816, 16, 8, 2},
};

constexpr std::string_view kPresets[] = {"31b",        "26b-a4b",        "12b",     "e4b",        "e2b", "tiny",
                                         "31b-dflash", "26b-a4b-dflash", "31b-mtp", "26b-a4b-mtp"};

// Of one type for all that is quantised, tables apart; facet quantize does not write them.
constexpr Mixture one_type(std::string_view name, int64_t file_type, DType t, DType table = DType::kQ5_K) {
  return {name, file_type, t, table, t, {MoreBits::kNever, t, t}, {MoreBits::kNever, t, t}};
}
constexpr Mixture kReadOnly[] = {
    one_type("IQ1_S", 24, DType::kIQ1_S),
    one_type("IQ1_M", 31, DType::kIQ1_M),
    one_type("IQ2_XXS", 19, DType::kIQ2_XXS),
    one_type("IQ2_XS", 20, DType::kIQ2_XS),
    one_type("IQ2_S", 28, DType::kIQ2_S),
    one_type("IQ3_XXS", 23, DType::kIQ3_XXS),
    one_type("IQ3_S", 26, DType::kIQ3_S),
    one_type("MXFP4", 38, DType::kMXFP4, DType::kQ8_0),
    one_type("NVFP4", 39, DType::kNVFP4, DType::kQ8_0),
};
constexpr std::string_view kQuantNames[] = {"Q4_K_M",  "Q5_K_M", "Q6_K",  "Q8_0",    "Q4_0",  "BF16",  "IQ1_S", "IQ1_M",
                                            "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "MXFP4", "NVFP4"};

// Matrices are BF16 in the file that llama-quantize reads, everything else is F32.
void choose_types(std::vector<SynthTensor>& tensors, const Mixture& q, const MixtureModel& model) {
  std::vector<MixtureTensor> source;
  source.reserve(tensors.size());
  for (const SynthTensor& t : tensors)
    source.push_back({t.name, t.ne, t.fill == SynthFill::kNormal ? DType::kBF16 : DType::kF32});
  const std::vector<DType> types = mixture_types(q, source, model);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].type = types[i];
}

// Files of llama-quantize list the global tensors first, then block by block, each sorted by name.
void sort_tensors(std::vector<SynthTensor>& tensors) {
  const auto block = [](const SynthTensor& t) {
    return t.name.starts_with("blk.") ? std::atoll(t.name.c_str() + 4) : -1;
  };
  std::sort(tensors.begin(), tensors.end(), [&](const SynthTensor& a, const SynthTensor& b) {
    return std::pair(block(a), std::string_view(a.name)) < std::pair(block(b), std::string_view(b.name));
  });
}

// Collects tensors and keys under the prefixes that repeat.
class Builder {
 public:
  explicit Builder(std::string arch) : arch_(std::move(arch)) { plan_.meta.push_back({"general.architecture", arch_}); }
  void block(int64_t i) { prefix_ = fmt::format("blk.{}.", i); }
  void matrix(std::string_view name, std::vector<int64_t> ne) { tensor(name, std::move(ne), SynthFill::kNormal); }
  void norm(std::string_view name, int64_t n) { tensor(name, {n}, SynthFill::kUnit); }
  void tensor(std::string_view name, std::vector<int64_t> ne, SynthFill fill) {
    plan_.tensors.push_back({prefix_ + std::string(name), std::move(ne), fill, DType::kF32});
  }
  void key(std::string_view name, auto v) { plan_.meta.push_back({arch_ + "." + std::string(name), std::move(v)}); }
  void general(std::string_view preset, const Mixture& q) {
    plan_.meta.push_back({"general.type", std::string("model")});
    plan_.meta.push_back({"general.name", fmt::format("synthetic {} {}", preset, q.name)});
    plan_.meta.push_back({"general.quantization_version", int64_t(2)});
    plan_.meta.push_back({"general.file_type", q.file_type});
    plan_.meta.push_back({"tokenizer.ggml.model", std::string("no_vocab")});
    key("vocab_size", kVocab);  // llama.cpp wants it where there are no tokens
  }
  SynthPlan finish(const Mixture& q, const MixtureModel& model) {
    choose_types(plan_.tensors, q, model);
    sort_tensors(plan_.tensors);
    return std::move(plan_);
  }
  SynthPlan& plan() { return plan_; }

 private:
  std::string arch_, prefix_;
  SynthPlan plan_;
};

bool is_full(const TextShape& s, int64_t layer) { return (layer + 1) % s.full_every == 0; }

void text_layer(Builder& b, const TextShape& s, int64_t i) {
  const bool full = is_full(s, i);
  const int64_t d = s.width, hd = full ? s.hd_full : s.hd_swa, kv = hd * (full ? s.kv_full : s.kv_swa);
  const int64_t ffn = s.shared_ffn && i >= s.layers - s.shared_kv ? s.shared_ffn : s.ffn;
  b.block(i);
  b.norm("attn_norm.weight", d);
  b.matrix("attn_q.weight", {d, hd * s.heads});
  b.matrix("attn_k.weight", {d, kv});
  if (!full || s.full_has_v) b.matrix("attn_v.weight", {d, kv});
  b.matrix("attn_output.weight", {hd * s.heads, d});
  b.norm("attn_q_norm.weight", hd);
  b.norm("attn_k_norm.weight", hd);
  b.norm("post_attention_norm.weight", d);
  b.norm("ffn_norm.weight", d);
  b.matrix("ffn_gate.weight", {d, ffn});
  b.matrix("ffn_up.weight", {d, ffn});
  b.matrix("ffn_down.weight", {ffn, d});
  b.norm("post_ffw_norm.weight", d);
  b.norm("layer_output_scale.weight", 1);
  if (s.experts) {
    b.tensor("ffn_gate_inp.weight", {d, s.experts}, SynthFill::kRouter);
    b.norm("ffn_gate_inp.scale", d);
    b.matrix("ffn_gate_up_exps.weight", {d, 2 * s.expert_ffn, s.experts});
    b.matrix("ffn_down_exps.weight", {s.expert_ffn, d, s.experts});
    b.norm("ffn_down_exps.scale", s.experts);
    b.norm("pre_ffw_norm_2.weight", d);
    b.norm("post_ffw_norm_1.weight", d);
    b.norm("post_ffw_norm_2.weight", d);
  }
  if (s.ple) {
    b.matrix("inp_gate.weight", {d, s.ple});
    b.matrix("proj.weight", {s.ple, d});
    b.norm("post_norm.weight", d);
  }
}

// Keys that every Gemma 4 like file has: target and MTP drafter.
struct AttnKeys {
  int64_t hd_full, hd_swa, window, shared_kv, ple;
  std::vector<bool> swa;
};

void attention_keys(Builder& b, const AttnKeys& a) {
  b.key("rope.freq_base", 1e6);
  b.key("rope.freq_base_swa", 1e4);
  b.key("rope.dimension_count", a.hd_full);
  b.key("rope.dimension_count_swa", a.hd_swa);
  b.key("attention.layer_norm_rms_epsilon", 1e-6);
  b.key("attention.key_length", a.hd_full);
  b.key("attention.value_length", a.hd_full);
  b.key("attention.key_length_swa", a.hd_swa);
  b.key("attention.value_length_swa", a.hd_swa);
  b.key("attention.sliding_window", a.window);
  b.key("attention.sliding_window_pattern", a.swa);
  b.key("attention.shared_kv_layers", a.shared_kv);
  b.key("embedding_length_per_layer_input", a.ple);
}

void text_keys(Builder& b, const TextShape& s) {
  AttnKeys a{s.hd_full, s.hd_swa, s.window, s.shared_kv, s.ple, {}};
  std::vector<int64_t> kv, ffn;
  for (int64_t i = 0; i < s.layers; ++i) {
    a.swa.push_back(!is_full(s, i));
    kv.push_back(is_full(s, i) ? s.kv_full : s.kv_swa);
    ffn.push_back(s.shared_ffn && i >= s.layers - s.shared_kv ? s.shared_ffn : s.ffn);
  }
  b.key("block_count", s.layers);
  b.key("context_length", s.context);
  b.key("embedding_length", s.width);
  if (s.shared_ffn)
    b.key("feed_forward_length", ffn);
  else
    b.key("feed_forward_length", s.ffn);
  b.key("attention.head_count", s.heads);
  if (s.kv_swa == s.kv_full)
    b.key("attention.head_count_kv", s.kv_swa);
  else
    b.key("attention.head_count_kv", kv);
  attention_keys(b, a);
  b.key("final_logit_softcapping", 30.0);
  if (!s.experts) return;
  b.key("expert_count", s.experts);
  b.key("expert_used_count", s.experts_used);
  b.key("expert_feed_forward_length", s.expert_ffn);
}

SynthPlan text_plan(const TextShape& s, const Mixture& q) {
  Builder b("gemma4");
  b.general(s.preset, q);
  text_keys(b, s);
  b.matrix("token_embd.weight", {s.width, kVocab});
  b.norm("output_norm.weight", s.width);
  b.tensor("rope_freqs.weight", {s.hd_full / 2}, SynthFill::kRopeFreqs);
  if (s.ple) {
    b.matrix("per_layer_token_embd.weight", {s.layers * s.ple, kVocab});
    b.matrix("per_layer_model_proj.weight", {s.width, s.layers * s.ple});
    b.norm("per_layer_proj_norm.weight", s.ple);
  }
  for (int64_t i = 0; i < s.layers; ++i) text_layer(b, s, i);
  return b.finish(q, {s.layers, s.heads / s.kv_swa});
}

// DFlash drafter in the dialect of upstream llama.cpp: no embedding of its own, taps are stored plus one.
SynthPlan dflash_plan(const DflashShape& s, const Mixture& q) {
  constexpr int64_t kLayers = 5, kHeadDim = 128, kWindow = 2048, kBlock = 16, kMask = 4;
  Builder b("dflash");
  b.general(s.preset, q);
  b.key("block_count", kLayers);
  b.key("context_length", kVocab);
  b.key("embedding_length", s.width);
  b.key("feed_forward_length", s.ffn);
  b.key("attention.head_count", s.heads);
  b.key("attention.head_count_kv", s.kv_heads);
  b.key("attention.key_length", kHeadDim);
  b.key("attention.value_length", kHeadDim);
  b.key("attention.layer_norm_rms_epsilon", 1e-6);
  b.key("attention.sliding_window", kWindow);
  b.key("attention.sliding_window_pattern", std::vector<bool>{true, true, true, true, false});
  b.key("rope.freq_base", 1e6);
  b.key("block_size", kBlock);
  std::vector<int64_t> inputs;
  for (int64_t t : s.taps) inputs.push_back(t + 1);
  b.key("target_layers", inputs);
  b.plan().meta.push_back({"tokenizer.ggml.mask_token_id", kMask});
  const int64_t d = s.width, q_dim = s.heads * kHeadDim, kv_dim = s.kv_heads * kHeadDim;
  b.matrix("fc.weight", {int64_t(s.taps.size()) * d, d});
  b.norm("enc.output_norm.weight", d);
  b.norm("output_norm.weight", d);
  for (int64_t i = 0; i < kLayers; ++i) {
    b.block(i);
    b.norm("attn_norm.weight", d);
    b.matrix("attn_q.weight", {d, q_dim});
    b.matrix("attn_k.weight", {d, kv_dim});
    b.matrix("attn_v.weight", {d, kv_dim});
    b.matrix("attn_output.weight", {q_dim, d});
    b.norm("attn_q_norm.weight", kHeadDim);
    b.norm("attn_k_norm.weight", kHeadDim);
    b.norm("ffn_norm.weight", d);
    b.matrix("ffn_gate.weight", {d, s.ffn});
    b.matrix("ffn_up.weight", {d, s.ffn});
    b.matrix("ffn_down.weight", {s.ffn, d});
  }
  return b.finish(q, {kLayers, s.heads / s.kv_heads});
}

// MTP drafter in the dialect of upstream llama.cpp: queries only, keys and values are the target's.
SynthPlan mtp_plan(const MtpShape& s, const Mixture& q) {
  constexpr int64_t kLayers = 4, kWidth = 1024, kFfn = 8192, kHdSwa = 256, kHdFull = 512, kWindow = 1024;
  Builder b("gemma4-assistant");
  b.general(s.preset, q);
  b.key("block_count", kLayers);
  b.key("context_length", kVocab);
  b.key("embedding_length", kWidth);
  b.key("embedding_length_out", s.backbone);
  b.key("nextn_predict_layers", kLayers);
  b.key("feed_forward_length", kFfn);
  b.key("attention.head_count", s.heads);
  b.key("attention.head_count_kv", std::vector<int64_t>{s.kv_swa, s.kv_swa, s.kv_swa, s.kv_full});
  attention_keys(b, {kHdFull, kHdSwa, kWindow, kLayers, 0, {true, true, true, false}});
  b.matrix("token_embd.weight", {kWidth, kVocab});
  b.matrix("nextn.pre_projection.weight", {2 * s.backbone, kWidth});
  b.matrix("nextn.post_projection.weight", {kWidth, s.backbone});
  b.norm("output_norm.weight", kWidth);
  b.tensor("rope_freqs.weight", {kHdFull / 2}, SynthFill::kRopeFreqs);
  for (int64_t i = 0; i < kLayers; ++i) {
    const int64_t hd = i + 1 == kLayers ? kHdFull : kHdSwa;
    b.block(i);
    b.norm("attn_norm.weight", kWidth);
    b.matrix("attn_q.weight", {kWidth, s.heads * hd});
    b.matrix("attn_output.weight", {s.heads * hd, kWidth});
    b.norm("attn_q_norm.weight", hd);
    b.norm("post_attention_norm.weight", kWidth);
    b.norm("ffn_norm.weight", kWidth);
    b.matrix("ffn_gate.weight", {kWidth, kFfn});
    b.matrix("ffn_up.weight", {kWidth, kFfn});
    b.matrix("ffn_down.weight", {kFfn, kWidth});
    b.norm("post_ffw_norm.weight", kWidth);
    b.norm("layer_output_scale.weight", 1);
  }
  return b.finish(q, {kLayers, s.heads / s.kv_swa});
}

template <class Range>
auto* named(Range& range, std::string_view name, std::string_view std::decay_t<decltype(range[0])>::*member) {
  for (auto& x : range)
    if (x.*member == name) return &x;
  return static_cast<decltype(&range[0])>(nullptr);
}

}  // namespace

std::span<const std::string_view> synth_presets() { return kPresets; }
std::span<const std::string_view> synth_quants() { return kQuantNames; }

Result<SynthPlan> synth_plan(std::string_view preset, std::string_view quant, bool is_pure) {
  const bool known = std::find(std::begin(kQuantNames), std::end(kQuantNames), quant) != std::end(kQuantNames);
  const Mixture* q = known ? find_mixture(quant) : nullptr;
  if (!q) q = named(kReadOnly, quant, &Mixture::name);
  if (!q)
    return format_error("synth", "quant", fmt::format("one of {}", fmt::join(kQuantNames, ", ")),
                        fmt::format("'{}'", quant), "");
  const Mixture mixture = is_pure ? pure(*q) : *q;
  if (const auto* s = named(kTextShapes, preset, &TextShape::preset)) return text_plan(*s, mixture);
  if (const auto* s = named(kDflashShapes, preset, &DflashShape::preset)) return dflash_plan(*s, mixture);
  if (const auto* s = named(kMtpShapes, preset, &MtpShape::preset)) return mtp_plan(*s, mixture);
  return format_error("synth", "preset", fmt::format("one of {}", fmt::join(kPresets, ", ")),
                      fmt::format("'{}'", preset), "");
}

}  // namespace facet
