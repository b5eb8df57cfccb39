#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "backend/pass.h"
#include "model/encoder_types.h"
#include "model/gemma4_bind.h"

namespace facet {

// Brings the tensors of an encoder to a backend, each checked for shape and type; remembers the first error.
template <EncoderBackend B>
class EncoderBinder {
 public:
  EncoderBinder(B& b, const MmprojFile& file) : b_(b), file_(file), find_(file.path(), file.tensors()), up_(b, find_) {}

  typename B::Weight weight(const std::string& name, int64_t n_in, int64_t n_out) {
    return up_.weight(name, n_in, n_out);
  }
  typename B::Vec gain(const std::string& name, int64_t n, bool optional = false) {
    return up_.gain(name, n, optional);
  }
  // Each element times a factor.
  typename B::Vec gain_times(const std::string& name, int64_t n, float factor, bool positive = false) {
    std::vector<float> v = find_.vector(name, n);
    if (const auto at = std::find_if(v.begin(), v.end(), [](float e) { return !(e > 0); }); positive && at != v.end())
      fail({file_.path(), fmt::format("{}[{}]: expected a value above 0, found {}", name, at - v.begin(), *at),
            "convert the mmproj file again"});
    for (float& e : v) e *= factor;
    return upload(v);
  }
  ClippedLinear<B> linear(const std::string& base, int64_t n_in, int64_t n_out) {
    ClippedLinear<B> l{weight(base + ".weight", n_in, n_out), {}};
    if (auto c = file_.clip(base))
      l.clip = *c;
    else if (!error_)
      error_ = c.error();
    for (const char* end : {".input_min", ".input_max", ".output_min", ".output_max"}) find_.ignore(base + end);
    return l;
  }
  // A tensor of floats in its file's order, with these dimensions.
  std::vector<float> floats(const std::string& name, std::initializer_list<int64_t> ne) {
    find_.ignore(name);
    const TensorView* t = find_.peek(name);
    std::array<int64_t, 4> want{1, 1, 1, 1};
    std::copy(ne.begin(), ne.end(), want.begin());
    if (!t || t->ne != want || !dtype_info(t->type).matmul || dtype_info(t->type).block != 1) {
      if (!error_)
        error_ = Error{file_.path(),
                       fmt::format("{}: expected F32 [{}], found {}", name, fmt::join(ne, " x "),
                                   t ? fmt::format("{} {}", dtype_name(t->type), shape_string(*t)) : "no such tensor"),
                       "the file is incomplete; download or convert it again"};
      return {};
    }
    std::vector<float> v(size_t(t->n_elements()));
    dequantize_row(t->type, t->data.data(), v.data(), t->n_elements());
    return v;
  }
  typename B::Vec upload(const std::vector<float>& v) {
    return v.empty() ? typename B::Vec{} : b_.upload(std::span<const float>(v));
  }
  TensorFinder& find() { return find_; }
  void fail(Error e) {
    if (!error_) error_ = std::move(e);
  }
  // prefixes: of the encoder's tensors. What it would leave out and what is known to change its results is an error; of
  // others the caller is told.
  Status finish(std::initializer_list<const char*> prefixes, std::vector<std::string>* left_out);

 private:
  B& b_;
  const MmprojFile& file_;
  TensorFinder find_;
  Uploader<B> up_;
  std::optional<Error> error_;
};

// Whether a tensor that an encoder does not read would change what it computes: a bias, say.
bool changes_results(const std::string& name);

template <EncoderBackend B>
Status EncoderBinder<B>::finish(std::initializer_list<const char*> prefixes, std::vector<std::string>* left_out) {
  if (auto ok = find_.finish(); !ok) return ok;
  if (error_) return *error_;
  for (const std::string& name : find_.untaken()) {
    if (std::none_of(prefixes.begin(), prefixes.end(), [&](const char* p) { return name.starts_with(p); })) continue;
    if (changes_results(name))
      return Error{file_.path(), fmt::format("{}: expected only the tensors of a known encoder, found this one", name),
                   "facet would leave it out and see or hear wrongly; convert the mmproj file again"};
    if (left_out) left_out->push_back(name);
  }
  return Ok{};
}

// Weights of the encoder of pictures. left_out: names of tensors that nothing reads.
template <EncoderBackend B>
Result<VisionW<B>> bind_vision(B& b, const MmprojFile& file, std::vector<std::string>* left_out = nullptr) {
  const VisionCfg& c = *file.vision();
  EncoderBinder<B> bind(b, file);
  const int64_t D = c.d_model, F = c.d_ff;
  VisionW<B> W;
  W.patch_embd = bind.weight("v.patch_embd.weight", c.patch_cols(), D);
  W.position = bind.weight("v.position_embd.weight", D, 2 * int64_t(c.n_pos));
  W.project = bind.linear("mm.input_projection", D, c.d_out);
  if (c.is_unified) {
    W.patch_bias = bind.gain_times("v.patch_embd.bias", D, -1.f);
    for (int i = 0; i < 3; ++i) {
      const int64_t n = i == 0 ? c.patch_cols() : D;
      W.norm_gain[i] = bind.gain(fmt::format("v.patch_norm.{}.weight", i + 1), n);
      W.norm_bias[i] = bind.gain(fmt::format("v.patch_norm.{}.bias", i + 1), n);
    }
  } else {
    std::vector<double> freqs(size_t(c.head_dim / 4));
    for (size_t i = 0; i < freqs.size(); ++i) freqs[i] = std::pow(100.0, -4.0 * double(i) / c.head_dim);
    W.freqs = b.upload(std::span<const double>(freqs));
  }
  if (c.standardizes) W.std_bias = bind.gain("v.std_bias", D), W.std_scale = bind.gain("v.std_scale", D);
  for (int l = 0; l < c.n_layer; ++l) {
    auto name = [&](const char* rest) { return fmt::format("v.blk.{}.{}", l, rest); };
    VisionLayerW<B>& w = W.layer.emplace_back();
    w.ln1 = bind.gain(name("ln1.weight"), D), w.ln2 = bind.gain(name("ln2.weight"), D);
    w.attn_post = bind.gain(name("attn_post_norm.weight"), D), w.ffn_post = bind.gain(name("ffn_post_norm.weight"), D);
    w.q_norm = bind.gain(name("attn_q_norm.weight"), c.head_dim);
    w.k_norm = bind.gain(name("attn_k_norm.weight"), c.head_dim);
    w.wq = bind.linear(name("attn_q"), D, D), w.wk = bind.linear(name("attn_k"), D, D);
    w.wv = bind.linear(name("attn_v"), D, D), w.wo = bind.linear(name("attn_out"), D, D);
    w.gate = bind.linear(name("ffn_gate"), D, F), w.up = bind.linear(name("ffn_up"), D, F);
    w.down = bind.linear(name("ffn_down"), F, D);
    if (const std::vector<float> s = bind.find().vector(name("out_scale.weight"), 1, true); !s.empty())
      w.out_scale = s[0];
  }
  bind.find().ignore("v.clamp_data");
  if (auto ok = bind.finish({"v.", "mm.input_projection"}, left_out); !ok) return ok.error();
  return W;
}

// Rows [distances, D] for a conformer's attention: sines of distance times falling frequencies, then cosines.
std::vector<float> audio_distances(const AudioCfg& c);
// A convolution's kernel of a file, [C_out][C_in][3 time][3 mel], as the verb conv2d takes it.
std::vector<float> conv_kernel(const std::vector<float>& file, int c_in, int c_out);

// Weights of the encoder of sound.
template <EncoderBackend B>
Result<AudioW<B>> bind_audio(B& b, const MmprojFile& file, std::vector<std::string>* left_out = nullptr) {
  const AudioCfg& c = *file.audio();
  EncoderBinder<B> bind(b, file);
  const int64_t D = c.d_model, F = c.d_ff, E = c.head_dim;
  AudioW<B> W;
  W.project = bind.linear("mm.a.input_projection", c.is_unified ? c.frame : c.d_project, c.d_out);
  if (!c.is_unified) {
    for (int i = 0, c_in = 1; i < 2; c_in = c.conv[i++]) {
      const std::vector<float> k = bind.floats(fmt::format("a.conv1d.{}.weight", i), {3, 3, c_in, c.conv[i]});
      if (!k.empty()) W.conv[i] = bind.upload(conv_kernel(k, c_in, c.conv[i]));
      W.conv_norm[i] = bind.gain(fmt::format("a.conv1d.{}.norm.weight", i), c.conv[i]);
    }
    W.in = bind.weight("a.input_projection.weight", int64_t(c.n_mel) / 4 * c.conv[1], D);
    W.out = bind.linear("a.pre_encode.out", D, c.d_project);
    W.out_bias = bind.gain_times("a.pre_encode.out.bias", c.d_project, -1.f);
    const std::vector<float> distances = audio_distances(c);
    W.distance = b.new_rows(c.n_distance, c.d_model);
    if (memory_status(b)) b.from_host(W.distance, distances);
  }
  const float q_scale = 1.f / (std::sqrt(float(E)) * std::log(2.f)),
              k_scale = std::log1p(std::exp(1.f)) / std::log(2.f);
  for (int l = 0; l < c.n_layer; ++l) {
    auto name = [&](const char* rest) { return fmt::format("a.blk.{}.{}", l, rest); };
    AudioLayerW<B>& w = W.layer.emplace_back();
    for (int i = 0; i < 2; ++i) {
      const char* end = i == 0 ? "" : "_1";
      w.ffn[i].pre = bind.gain(name("ffn_norm") + end + ".weight", D);
      w.ffn[i].post = bind.gain_times(name("ffn_post_norm") + end + ".weight", D, .5f);
      w.ffn[i].up = bind.linear(name("ffn_up") + end, D, F), w.ffn[i].down = bind.linear(name("ffn_down") + end, F, D);
    }
    w.attn_pre = bind.gain(name("attn_pre_norm.weight"), D), w.attn_post = bind.gain(name("attn_post_norm.weight"), D);
    w.q_scale = bind.gain_times(name("per_dim_scale.weight"), E, q_scale, /*positive=*/true);  // softplus is in it
    w.k_scale = bind.upload(std::vector<float>(size_t(E), k_scale));
    w.wq = bind.linear(name("attn_q"), D, D), w.wk = bind.linear(name("attn_k"), D, D);
    w.wv = bind.linear(name("attn_v"), D, D), w.wo = bind.linear(name("attn_out"), D, D);
    w.rel = bind.weight(name("attn_k_rel.weight"), D, D);
    // Files call the norm before the branch conv_norm, and the one after the convolution norm_conv.
    w.conv_pre = bind.gain(name("conv_norm.weight"), D), w.conv_post = bind.gain(name("norm_conv.weight"), D);
    w.conv_in = bind.linear(name("conv_pw1"), D, 2 * D), w.conv_out = bind.linear(name("conv_pw2"), D, D);
    w.conv = bind.upload(bind.floats(name("conv_dw.weight"), {c.kernel, D}));
    w.out_norm = bind.gain(name("ln2.weight"), D);
  }
  if (auto ok = bind.finish({"a.", "mm.a."}, left_out); !ok) return ok.error();
  return W;
}

// Scratch for batches of at most max_patch rows of input.
template <EncoderBackend B>
VisionWork<B> make_vision_work(B& b, const VisionCfg& c, int max_patch) {
  VisionWork<B> w;
  const int D = c.d_model, soft = c.is_unified ? max_patch : max_patch / (c.pool * c.pool);
  w.p = b.new_rows(max_patch, c.patch_cols());
  w.x = b.new_rows(max_patch, D);
  w.s = b.new_rows(soft, D), w.out = b.new_rows(soft, c.d_out);
  if (c.has_clips) w.c = b.new_rows(max_patch, std::max(D, c.d_ff)), w.u = b.new_rows(max_patch, c.d_ff);
  if (c.is_unified) return w;
  w.h = b.new_rows(max_patch, D), w.y = b.new_rows(max_patch, D);
  w.q = b.new_rows(max_patch, D), w.k = b.new_rows(max_patch, D);
  w.v = b.new_rows(max_patch, D), w.a = b.new_rows(max_patch, D);
  w.g = b.new_rows(max_patch, c.d_ff);
  return w;
}
// Scratch for max_row rows of input: mel frames of one sound, or 12B's frames of samples.
template <EncoderBackend B>
AudioWork<B> make_audio_work(B& b, const AudioCfg& c, int max_row) {
  AudioWork<B> w;
  const int D = c.d_model, T = c.n_token(max_row);
  w.m = b.new_rows(max_row, c.is_unified ? c.frame : c.n_mel);
  w.out = b.new_rows(T, c.d_out);
  if (c.is_unified) return w;
  w.c0 = b.new_rows((max_row + 1) / 2, c.n_mel / 2 * c.conv[0]), w.c1 = b.new_rows(T, c.n_mel / 4 * c.conv[1]);
  w.x = b.new_rows(T, D), w.h = b.new_rows(T, D), w.y = b.new_rows(T, D);
  w.q = b.new_rows(T, D), w.k = b.new_rows(T, D), w.v = b.new_rows(T, D), w.a = b.new_rows(T, D);
  w.r = b.new_rows(c.n_distance, D);
  w.g = b.new_rows(T, std::max(c.d_ff, 2 * D)), w.c = b.new_rows(T, std::max(c.d_ff, D));
  w.e = b.new_rows(T, c.d_project);
  return w;
}
// Elements that they ask for, and the sizes that a backend is asked for.
int64_t vision_work_elements(const VisionCfg& c, int max_patch);
int64_t audio_work_elements(const AudioCfg& c, int max_row);
BackendLimits vision_limits(const VisionCfg& c, int max_patch);
BackendLimits audio_limits(const AudioCfg& c, int max_row);

}  // namespace facet
