#pragma once
#include <cstdlib>
#include <filesystem>

#include "compose/media_encoder.h"
#include "support/encoder_bench.h"
#include "support/harness.h"

// Prompts with pictures and sound, and the official logits of them: media/<case> of the fixtures that
// FACET_TEST_FIXTURES names.
namespace facet::test {

struct Prompt {
  std::vector<int32_t> ids, types;  // 0 text, 1 picture, 3 sound
  std::vector<float> soft;          // rows of all soft tokens, one behind the other
  // Places where it may be cut: outside of pictures.
  std::vector<size_t> borders() const {
    std::vector<size_t> all;
    for (size_t i = 1; i < ids.size(); ++i)
      if (types[i] != 1 || types[i - 1] != 1) all.push_back(i);
    return all;
  }
};

// What a prompt is computed with that is not in it; everything else is a planted bug.
struct How {
  bool pictures_ahead = true, sound_ahead = false;
  float scale = 1;        // of soft tokens
  bool own_rows = false;  // a placeholder's per-layer embeddings are those of its id, not of <pad>
};

// The tokens of a picture behind each of its tokens.
inline std::vector<int32_t> ahead_of(const Prompt& p, const How& how) {
  std::vector<int32_t> ahead(p.ids.size(), 0);
  for (size_t i = p.ids.size(); i-- > 1;)
    if (p.types[i] == p.types[i - 1] &&
        ((p.types[i] == 1 && how.pictures_ahead) || (p.types[i] == 3 && how.sound_ahead)))
      ahead[i - 1] = ahead[i] + 1;
  return ahead;
}

// Logits of the prompt, cut at these places: no cut may lie in a picture.
template <class B>
std::vector<float> logits_of(Harness<B>& h, const Prompt& p, std::vector<size_t> cuts, const How& how = {}) {
  h.cache().clear(0);
  std::vector<float> all;
  const auto ahead = ahead_of(p, how);
  const int D = h.cfg.d_model;
  size_t soft_at = 0;
  cuts.push_back(p.ids.size());
  for (size_t at = 0; const size_t end : cuts) {
    const size_t n = end - at;
    std::vector<int32_t> token(n), soft(n, -1), see(n, 0);
    h.begin();
    for (size_t i = 0; i < n; ++i) {
      const bool is_soft = p.types[at + i] != 0;
      token[i] = is_soft && !how.own_rows ? 0 : p.ids[at + i];
      see[i] = ahead[at + i];
      if (!is_soft) continue;
      const auto from = p.soft.begin() + ptrdiff_t(soft_at++) * D;
      std::vector<float> row(from, from + D);
      for (float& x : row) x *= how.scale;
      soft[i] = h.runner().add_soft(row);
    }
    h.add({.slot = 0, .token = token, .out = Out::kAll, .soft = soft, .ahead = see});
    const auto piece = h.forward();
    h.cache().commit(0, int(n));
    all.insert(all.end(), piece.begin(), piece.end());
    at = end;
  }
  return all;
}

class MediaTexts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("FACET_TEST_FIXTURES");
    if (folder) all_ = std::string(folder) + "/media", folder_ = all_ + "/" + GetParam();
    if (!folder || !std::filesystem::exists(folder_)) GTEST_SKIP() << "no larger fixtures";
  }
  static std::vector<std::string> prompts() {
    if (GetParam() == std::string("large")) return {"text", "one", "two", "long"};
    return {"text", "one", "two", "sound", "both"};
  }
  // Soft tokens from files: decoded, resized, encoded. encoders_test.cpp compares what is between.
  Prompt prompt(const std::string& name) const {
    const RawTensors texts(folder_ + "/texts.safetensors");
    Prompt p{texts.values<int32_t>(name + ".ids"), texts.values<int32_t>(name + ".types"), {}};
    const auto encoder = must(MediaEncoderOn<CpuRef>::open(MediaCase{folder_}.file(), 70, 2));
    const RawTensors sounds(all_ + "/mel.safetensors");
    auto add = [&](const std::vector<float>& rows) { p.soft.insert(p.soft.end(), rows.begin(), rows.end()); };
    auto picture = [&](const std::string& of) {
      for (const char* kind : {".png", ".jpg"})
        if (const std::string path = all_ + "/pictures/" + of + kind; std::filesystem::exists(path))
          return add(must(encoder->encode(must(decode_resized(must(MappedFile::open(path)).bytes(), 70, path)))));
      ADD_FAILURE() << "no picture " << of;
    };
    if (name == "one" || name == "two" || name == "both") picture("strip");
    if (name == "two") picture("strip2");
    if (name == "long") picture("square");
    if (name == "sound") add(must(encoder->encode(sounds.values<float>("stereo44k.samples"))));
    if (name == "both") add(must(encoder->encode(sounds.values<float>("eight8k.samples"))));
    return p;
  }
  std::vector<float> golden(const std::string& name) const {
    return RawTensors(folder_ + "/texts.safetensors").values<float>(name + ".logits");
  }
  std::string model() const { return folder_ + "/model-BF16.gguf"; }
  std::string all_, folder_;
};
}  // namespace facet::test
