// mmproj files of the published shapes and names with random weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "formats/format_error.h"
#include "formats/synth.h"

namespace facet {
namespace {

constexpr std::string_view kPresets[] = {"e", "e2b", "e4b", "12b", "26b", "31b", "nano"};
constexpr std::string_view kTypes[] = {"BF16", "F16", "F32", "Q8_0"};

struct Builder {
  SynthPlan plan;
  DType type = DType::kBF16;

  // A matrix of layers or a projection. Rows that are no whole blocks are F16, as converters write them.
  void matrix(std::string name, int64_t n_in, int64_t n_out) {
    DType t = type;
    if (n_in % dtype_info(t).block != 0) t = DType::kF16;
    plan.tensors.push_back({std::move(name), {n_in, n_out}, SynthFill::kNormal, t});
  }
  void f32(std::string name, std::vector<int64_t> ne, SynthFill fill = SynthFill::kUnit) {
    plan.tensors.push_back({std::move(name), std::move(ne), fill, DType::kF32});
  }
  void clips(const std::string& base) {
    for (const char* end : {"input_min", "output_min"}) f32(base + "." + end, {1}, SynthFill::kClipLow);
    for (const char* end : {"input_max", "output_max"}) f32(base + "." + end, {1}, SynthFill::kClipHigh);
  }
  void linear(const std::string& base, int64_t n_in, int64_t n_out, bool clipped) {
    if (clipped) clips(base);
    matrix(base + ".weight", n_in, n_out);
  }
  void key(std::string name, auto v) { plan.meta.push_back({std::move(name), std::move(v)}); }
};

void tower(Builder& b, int64_t layers, int64_t D, int64_t F, int64_t heads, bool clipped) {
  for (int64_t n = 0; n < layers; ++n) {
    const std::string at = fmt::format("v.blk.{}.", n);
    for (const char* norm : {"ln1", "attn_post_norm", "ln2", "ffn_post_norm"}) b.f32(at + norm + ".weight", {D});
    for (const char* norm : {"attn_q_norm", "attn_k_norm"}) b.f32(at + norm + ".weight", {D / heads});
    for (const char* w : {"attn_q", "attn_k", "attn_v", "attn_out"}) b.linear(at + w, D, D, clipped);
    b.linear(at + "ffn_gate", D, F, clipped), b.linear(at + "ffn_up", D, F, clipped);
    b.linear(at + "ffn_down", F, D, clipped);
  }
  b.plan.tensors.push_back(
      {"v.patch_embd.weight", {16, 16, 3, D}, SynthFill::kNormal, b.type == DType::kF16 ? DType::kF16 : DType::kF32});
  b.f32("v.position_embd.weight", {D, 10240, 2}, SynthFill::kNormal);
}

void conformer(Builder& b, int64_t layers, int64_t D, int64_t F, int64_t heads, int64_t n_out) {
  for (int64_t n = 0; n < layers; ++n) {
    const std::string at = fmt::format("a.blk.{}.", n);
    for (const char* end : {"", "_1"}) {
      b.f32(at + "ffn_norm" + end + ".weight", {D}), b.f32(at + "ffn_post_norm" + end + ".weight", {D});
      b.linear(at + "ffn_up" + end, D, F, true), b.linear(at + "ffn_down" + end, F, D, true);
    }
    for (const char* norm : {"attn_pre_norm", "attn_post_norm", "ln2", "conv_norm", "norm_conv"})
      b.f32(at + norm + ".weight", {D});
    for (const char* w : {"attn_q", "attn_k", "attn_v", "attn_out", "conv_pw2"}) b.linear(at + w, D, D, true);
    b.linear(at + "conv_pw1", D, 2 * D, true);
    b.matrix(at + "attn_k_rel.weight", D, D);
    b.f32(at + "per_dim_scale.weight", {D / heads});
    b.f32(at + "conv_dw.weight", {5, D}, SynthFill::kNormal);
  }
  b.f32("a.conv1d.0.weight", {3, 3, 1, 128}, SynthFill::kNormal), b.f32("a.conv1d.0.norm.weight", {128});
  b.f32("a.conv1d.1.weight", {3, 3, 128, 32}, SynthFill::kNormal), b.f32("a.conv1d.1.norm.weight", {32});
  b.f32("a.input_projection.weight", {1024, D}, SynthFill::kNormal);
  b.linear("a.pre_encode.out", D, n_out, false), b.f32("a.pre_encode.out.bias", {n_out}, SynthFill::kShift);
}

void unified(Builder& b) {
  constexpr int64_t D = 3840, cell = 6912;
  b.f32("v.patch_embd.weight", {cell, D}, SynthFill::kNormal), b.f32("v.patch_embd.bias", {D}, SynthFill::kShift);
  for (int i = 1; i <= 3; ++i) {
    b.f32(fmt::format("v.patch_norm.{}.weight", i), {i == 1 ? cell : D});
    b.f32(fmt::format("v.patch_norm.{}.bias", i), {i == 1 ? cell : D}, SynthFill::kShift);
  }
  b.f32("v.position_embd.weight", {D, 1120, 2}, SynthFill::kNormal);
}

struct Sizes {
  int64_t layers, D, F, heads;
};

void vision_meta(Builder& b, const char* projector, const Sizes& s, int64_t width) {
  b.key("clip.has_vision_encoder", true);
  b.key("clip.vision.projection_dim", width), b.key("clip.vision.image_size", int64_t(224));
  b.key("clip.vision.patch_size", int64_t(16)), b.key("clip.vision.embedding_length", s.D);
  b.key("clip.vision.feed_forward_length", s.F), b.key("clip.vision.block_count", s.layers);
  b.key("clip.vision.attention.head_count", s.heads);
  b.key("clip.vision.image_mean", std::vector<double>{0, 0, 0});
  b.key("clip.vision.image_std", std::vector<double>{1, 1, 1});
  b.key("clip.vision.projector_type", std::string(projector));
  b.key("clip.vision.attention.layer_norm_epsilon", 1e-6);
}
void audio_meta(Builder& b, const char* projector, const Sizes& s, int64_t width) {
  b.key("clip.has_audio_encoder", true);
  b.key("clip.audio.projection_dim", width), b.key("clip.audio.embedding_length", s.D);
  b.key("clip.audio.feed_forward_length", s.F), b.key("clip.audio.block_count", s.layers);
  b.key("clip.audio.attention.head_count", s.heads), b.key("clip.audio.num_mel_bins", int64_t(128));
  b.key("clip.audio.projector_type", std::string(projector));
  b.key("clip.audio.attention.layer_norm_epsilon", 1e-6);
}

}  // namespace

std::span<const std::string_view> synth_mmproj_presets() { return kPresets; }
std::span<const std::string_view> synth_mmproj_types() { return kTypes; }

Result<SynthPlan> synth_mmproj_plan(std::string_view preset, std::string_view type) {
  if (std::ranges::find(kTypes, type) == std::end(kTypes))
    return format_error("synth", "quant", fmt::format("one of {} for an mmproj file", fmt::join(kTypes, ", ")),
                        fmt::format("'{}'", type), "");
  if (std::ranges::find(kPresets, preset) == std::end(kPresets))
    return format_error("synth", "mmproj", fmt::format("one of {}", fmt::join(kPresets, ", ")),
                        fmt::format("'{}'", preset), "");
  Builder b;
  b.type = *dtype_from_name(type);
  b.key("general.architecture", std::string("clip")), b.key("general.type", std::string("mmproj"));
  b.key("general.name", fmt::format("synthetic encoders {} {}", preset, type));
  b.key("general.file_type", int64_t(type == "F32" ? 0 : type == "F16" ? 1 : type == "Q8_0" ? 7 : 32));
  b.key("general.quantization_version", int64_t(2));
  if (preset == "12b") {
    vision_meta(b, "gemma4uv", {0, 3840, 0, 0}, 3840), audio_meta(b, "gemma4ua", {0, 640, 0, 0}, 3840);
    unified(b);
    b.matrix("mm.input_projection.weight", 3840, 3840), b.matrix("mm.a.input_projection.weight", 640, 3840);
  } else if (preset == "26b" || preset == "31b") {
    const int64_t width = preset == "26b" ? 2816 : 5376;
    vision_meta(b, "gemma4v", {27, 1152, 4304, 16}, width);
    tower(b, 27, 1152, 4304, 16, false);
    b.f32("v.std_bias", {1152}, SynthFill::kShift), b.f32("v.std_scale", {1152});
    b.matrix("mm.input_projection.weight", 1152, width);
  } else if (preset == "nano") {
    vision_meta(b, "gemma4v", {2, 128, 256, 2}, 256), audio_meta(b, "gemma4a", {2, 128, 256, 2}, 256);
    tower(b, 2, 128, 256, 2, true);
    b.matrix("mm.input_projection.weight", 128, 256);
    conformer(b, 2, 128, 256, 2, 192);
    b.matrix("mm.a.input_projection.weight", 192, 256);
  } else {
    const int64_t width = preset == "e2b" ? 1536 : 2560;
    vision_meta(b, "gemma4v", {16, 768, 3072, 12}, width), audio_meta(b, "gemma4a", {12, 1024, 4096, 8}, width);
    tower(b, 16, 768, 3072, 12, true);
    b.matrix("mm.input_projection.weight", 768, width);
    conformer(b, 12, 1024, 4096, 8, 1536);
    b.matrix("mm.a.input_projection.weight", 1536, width);
  }
  return b.plan;
}

}  // namespace facet
