#pragma once
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/audio.h"
#include "model/encoder_bind.h"
#include "model/vision.h"
#include "support/harness.h"

namespace facet::test {

// Encoders of pictures and sound on a backend, stage by stage.

using Stages = std::map<std::string, std::vector<float>>;

// Largest difference over the largest value; infinite where sizes differ or one is no number.
inline double relative_difference(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size() || want.empty()) return INFINITY;
  double most = 0, top = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(double(got[i]) - double(want[i]));
    if (!(d <= most)) most = d;
    top = std::max(top, std::abs(double(want[i])));
  }
  return std::isnan(most) ? INFINITY : most / top;
}
// Smallest cosine of rows.
inline double least_cosine(std::span<const float> got, std::span<const float> want, int cols) {
  double least = 1;
  for (size_t at = 0; at < want.size(); at += size_t(cols)) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = at; i < at + size_t(cols); ++i)
      ab += double(got[i]) * double(want[i]), aa += double(got[i]) * double(got[i]),
          bb += double(want[i]) * double(want[i]);
    const double c = ab / std::sqrt(aa * bb);
    if (!(c >= least)) least = c;
  }
  return least;
}

struct Picture {
  int width = 0, height = 0;     // in patches of 16 pixels
  std::vector<uint8_t> patches;  // [width height, 768]
  // Cells of 3 x 3 patches, as 12B takes them: [n, 6912].
  std::vector<uint8_t> cells() const {
    std::vector<uint8_t> c;
    for (int Y = 0; Y < height / 3; ++Y)
      for (int X = 0; X < width / 3; ++X)
        for (int row = 0; row < 48; ++row)
          for (int x = 0; x < 3; ++x) {
            const size_t patch = size_t((3 * Y + row / 16) * width + 3 * X + x);
            const auto* from = patches.data() + patch * 768 + size_t(row % 16) * 48;
            c.insert(c.end(), from, from + 48);
          }
    return c;
  }
};
inline Picture flat_picture(int width, int height, uint8_t r, uint8_t g, uint8_t b) {
  Picture p{width, height, {}};
  for (int i = 0; i < width * height * 256; ++i) p.patches.insert(p.patches.end(), {r, g, b});
  return p;
}

template <class B>
struct VisionBench {
  MmprojFile file;  // weights stay where they are mapped
  B b;
  VisionCfg c;
  VisionW<B> W;
  VisionWork<B> w;
  template <class... Args>
  VisionBench(MmprojFile f, int max_patch, Args... args) : file(std::move(f)), b(args...), c(*file.vision()) {
    if (c.is_unified) max_patch /= c.pool * c.pool;
    if constexpr (requires { b.take_file(file.tensors()); }) b.take_file(file.tensors());
    W = must(bind_vision(b, file));
    w = make_vision_work(b, c, max_patch);
    b.reserve(vision_limits(c, max_patch));
  }
  EncoderStep load(std::span<const Picture> pictures) {
    std::vector<EncoderStep::Grid> grids;
    std::vector<uint8_t> bytes;
    for (const Picture& p : pictures) {
      const int n = c.is_unified ? c.pool : 1;
      grids.push_back({p.width / n, p.height / n});
      const auto more = c.is_unified ? p.cells() : p.patches;
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    EncoderStep e = EncoderStep::pictures(grids);
    std::vector<float> pixels(bytes.size());
    vision_pixels(c, bytes, pixels.data());
    b.from_host(w.p.view(e.n_tok(), c.patch_cols()), pixels);
    return e;
  }
  std::vector<float> soft(std::span<const Picture> pictures) {
    const EncoderStep e = load(pictures);
    const Step s = e.step();
    return b.to_host(run_pass(b, s, this, [&] { return vision_forward(b, c, W, s, w); }));
  }
  // As vision_forward, with what each part leaves.
  Stages stages(std::span<const Picture> pictures) {
    const EncoderStep e = load(pictures);
    const Step s = e.step();
    Stages out;
    run_pass(b, s, nullptr, [&] {
      const int T = s.shape.n_tok;
      auto x = w.x.view(T, c.d_model);
      auto keep = [&](const std::string& name, typename B::Rows rows) { out[name] = b.to_host(rows); };
      typename B::Rows rows;
      if (c.is_unified) {
        keep("pos", vision_unified(b, W, c, s, w));
      } else {
        vision_embed(b, W, c, s, w);
        keep("embed", x);
        for (size_t l = 0; l < W.layer.size(); ++l)
          vision_layer(b, W, l, c, s, w), keep("layer" + std::to_string(l), x);
        rows = vision_pool(b, c, s, w);
        keep("pooled", rows);
        if (c.standardizes) b.shift_scale(rows, W.std_bias, W.std_scale);
        keep("tower", rows);
      }
      return x;
    });
    out["soft"] = soft(pictures);
    return out;
  }
};

template <class B>
struct AudioBench {
  MmprojFile file;  // weights stay where they are mapped
  B b;
  AudioCfg c;
  AudioW<B> W;
  AudioWork<B> w;
  template <class... Args>
  AudioBench(MmprojFile f, int max_row, Args... args) : file(std::move(f)), b(args...), c(*file.audio()) {
    W = must(bind_audio(b, file));
    w = make_audio_work(b, c, max_row);
    b.reserve(audio_limits(c, max_row));
  }
  int cols() const { return c.is_unified ? c.frame : c.n_mel; }
  std::vector<float> soft(std::span<const float> rows) {
    const int n = int(rows.size()) / cols();
    const int T[] = {c.n_token(n)};
    const EncoderStep e = EncoderStep::sounds(T);
    const Step s = e.step();
    b.from_host(w.m.view(n, cols()), rows);
    return b.to_host(run_pass(b, s, this, [&] { return audio_forward(b, c, W, s, n, w); }));
  }
  Stages stages(std::span<const float> rows) {
    const int n = int(rows.size()) / cols();
    const int T[] = {c.n_token(n)};
    const EncoderStep e = EncoderStep::sounds(T);
    const Step s = e.step();
    b.from_host(w.m.view(n, cols()), rows);
    Stages out;
    if (!c.is_unified)
      run_pass(b, s, nullptr, [&] {
        auto x = w.x.view(T[0], c.d_model);
        audio_embed(b, W, c, n, w);
        out["conv1"] = b.to_host(w.c1.view(T[0], c.n_mel / 4 * c.conv[1]));
        out["sub"] = b.to_host(x);
        for (size_t l = 0; l < W.layer.size(); ++l)
          conformer_layer(b, W, l, c, s, w), out["layer" + std::to_string(l)] = b.to_host(x);
        auto y = w.e.view(T[0], c.d_project);
        clipped(b, y, x, W.out, w.c);
        b.shift_scale(y, W.out_bias, {});
        out["out"] = b.to_host(y);
        return x;
      });
    out["soft"] = soft(rows);
    return out;
  }
};

// Safetensors with bytes among them, which no model has and SafetensorsFile does not read.
class RawTensors {
 public:
  explicit RawTensors(const std::string& path) : file_(must(MappedFile::open(path))) {
    uint64_t header = 0;
    std::memcpy(&header, file_.bytes().data(), 8);
    names_ = nlohmann::json::parse(std::string(reinterpret_cast<const char*>(file_.bytes().data()) + 8, header));
    begin_ = 8 + header;
  }
  bool has(const std::string& name) const { return names_.contains(name); }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const auto at = names_.at(name).at("data_offsets").get<std::vector<size_t>>();
    std::vector<T> v((at[1] - at[0]) / sizeof(T));
    std::memcpy(v.data(), file_.bytes().data() + begin_ + at[0], at[1] - at[0]);
    return v;
  }

 private:
  MappedFile file_;
  nlohmann::json names_;
  size_t begin_ = 0;
};

// A folder of goldens: tests/data/media/<case>, or the larger ones of the same form (scripts/test.sh --fixtures).
struct MediaCase {
  std::string folder;
  std::string name() const { return std::filesystem::path(folder).filename(); }
  MmprojFile file(const std::string& type = "BF16") const {
    return must(MmprojFile::open(folder + "/mmproj-" + type + ".gguf"));
  }
  RawTensors goldens() const { return RawTensors(folder + "/stages.safetensors"); }
};
inline MediaCase media_case(const std::string& name) { return {data_path("media/" + name)}; }
inline std::vector<uint8_t> patches_of(const std::string& path) { return RawTensors(path).values<uint8_t>("patches"); }
inline Picture grid_picture() { return {9, 6, patches_of(data_path("media/grid.safetensors"))}; }
inline Picture golden_picture(const std::string& name) {
  return name == "grid" ? grid_picture() : flat_picture(6, 3, 120, 121, 119);
}

}  // namespace facet::test
