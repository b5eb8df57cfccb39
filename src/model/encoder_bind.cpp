#include "model/encoder_bind.h"

#include <algorithm>

#include "base/check.h"
#include "model/audio.h"
#include "model/vision.h"

namespace facet {

bool changes_results(const std::string& name) {
  for (const char* end : {".bias", ".scale", "per_dim_k_scale.weight", "soft_emb_norm.weight"})
    if (name.ends_with(end)) return true;
  return false;
}

void vision_pixels(const VisionCfg& c, std::span<const uint8_t> patches, float* to) {
  float value[256];
  for (int i = 0; i < 256; ++i) {
    const float v = float(i) / 255.f;
    value[i] = c.is_unified ? v : 2.f * (v - .5f);
  }
  const size_t pixels = size_t(c.cell()) * size_t(c.cell()), cols = 3 * pixels;
  CHECK(patches.size() % cols == 0, "{} bytes of patches of {}", patches.size(), cols);
  for (size_t at = 0; at < patches.size(); at += cols)
    for (size_t i = 0; i < pixels; ++i)
      for (size_t channel = 0; channel < 3; ++channel)
        to[at + channel * pixels + i] = value[patches[at + 3 * i + channel]];
}

std::vector<float> audio_distances(const AudioCfg& c) {
  const int half = c.d_model / 2;
  std::vector<float> rows(size_t(c.n_distance) * size_t(c.d_model));
  for (int d = 0; d < c.n_distance; ++d)
    for (int j = 0; j < half; ++j) {
      const double angle = d * std::exp(-double(j) * std::log(1e4) / std::max(half - 1, 1));
      rows[size_t(d) * size_t(c.d_model) + size_t(j)] = float(std::sin(angle));
      rows[size_t(d) * size_t(c.d_model) + size_t(half + j)] = float(std::cos(angle));
    }
  return rows;
}

std::vector<float> conv_kernel(const std::vector<float>& file, int c_in, int c_out) {
  std::vector<float> k(file.size());
  size_t at = 0;
  for (int o = 0; o < c_out; ++o)
    for (int i = 0; i < c_in; ++i)
      for (int place = 0; place < 9; ++place) k[size_t((place * c_in + i) * c_out + o)] = file[at++];
  return k;
}

int64_t vision_work_elements(const VisionCfg& c, int max_patch) {
  const int64_t D = c.d_model, F = c.d_ff, soft = c.is_unified ? max_patch : max_patch / (c.pool * c.pool);
  const int64_t tower = c.is_unified ? 0 : 6 * D + F, clips = c.has_clips ? std::max(D, F) + F : 0;
  return (c.patch_cols() + D + tower + clips) * max_patch + soft * (D + c.d_out);
}
int64_t audio_work_elements(const AudioCfg& c, int max_row) {
  const int64_t D = c.d_model, T = c.n_token(max_row);
  if (c.is_unified) return int64_t(max_row) * c.frame + T * c.d_out;
  return int64_t(max_row) * c.n_mel + int64_t((max_row + 1) / 2) * (c.n_mel / 2) * c.conv[0] + c.n_distance * D +
         T * (int64_t(c.n_mel) / 4 * c.conv[1] + 7 * D + std::max<int64_t>(c.d_ff, 2 * D) +
              std::max<int64_t>(c.d_ff, D) + c.d_project + c.d_out);
}

BackendLimits vision_limits(const VisionCfg& c, int max_patch) {
  BackendLimits l;
  l.max_tok = max_patch, l.max_rows = max_patch;
  l.max_cols = std::max({c.patch_cols(), c.d_model, c.d_ff, c.d_out, 2 * c.d_model});
  l.max_matrix = int64_t(c.d_model) * std::max({c.patch_cols(), c.d_model, c.d_ff, c.d_out});
  l.n_q_head = 1, l.head_dim = 64, l.n_kv_head = 1;  // attention to a cache: none
  l.encoder_head = c.head_dim;
  return l;
}
BackendLimits audio_limits(const AudioCfg& c, int max_row) {
  BackendLimits l;
  l.max_tok = std::max(c.n_token(max_row), c.n_distance), l.max_rows = l.max_tok;
  const int in = c.is_unified ? c.frame : c.n_mel / 4 * c.conv[1];
  l.max_cols = std::max({in, 2 * c.d_model, c.d_ff, c.d_project, c.d_out});
  l.max_matrix = std::max({int64_t(c.d_model) * std::max({in, 2 * c.d_model, c.d_ff, c.d_project}),
                           int64_t(c.d_out) * std::max(c.d_project, c.frame)});
  l.n_q_head = 1, l.head_dim = 64, l.n_kv_head = 1;
  return l;
}

}  // namespace facet
