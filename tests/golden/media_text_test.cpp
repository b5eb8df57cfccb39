// Logits of prompts with pictures and sound against the official implementation: which tokens see which, what stands in
// the place of their embeddings, how a conversation goes on. The goldens are those of scripts/test.sh --fixtures:
// media/<case>.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "backend/cpu/cpu_fast.h"
#include "backend/lockstep.h"
#include "compose/media_encoder.h"
#include "support/encoder_bench.h"
#include "support/harness.h"

namespace facet::test {
namespace {

constexpr double kNoticed = 1e-2;
constexpr double kBound = 1e-4;  // of the largest logit; the official ones differ by 9e-6 among themselves

struct Prompt {
  std::vector<int32_t> ids, types;  // 0 text, 1 picture, 3 sound
  std::vector<float> soft;          // rows of all soft tokens, one behind the other
};

// What a prompt is computed with that is not in it; everything else is a planted bug.
struct How {
  bool pictures_ahead = true, sound_ahead = false;
  float scale = 1;        // of soft tokens
  bool own_rows = false;  // a placeholder's per-layer embeddings are those of its id, not of <pad>
};

// The tokens of a picture behind each of its tokens.
std::vector<int32_t> ahead_of(const Prompt& p, const How& how) {
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
INSTANTIATE_TEST_SUITE_P(Cases, MediaTexts, testing::Values("large", "edge", "unified"));

TEST_P(MediaTexts, LogitsAreTheOfficialOnes) {
  Harness<CpuRef> h(model());
  for (const std::string& name : prompts()) {
    const double d = relative_difference(logits_of(h, prompt(name), {}), golden(name));
    std::printf("| %s | %s | %.1e |\n", GetParam(), name.c_str(), d);
    EXPECT_LE(d, kBound) << name;
  }
}

// Planted: pictures that are causal, as on E2B and E4B, and the other way round.
TEST_P(MediaTexts, ACausalPictureIsNoticed) {
  Harness<CpuRef> h(model());
  const Prompt p = prompt("one");
  if (h.cfg.pictures_ahead) {
    EXPECT_GT(relative_difference(logits_of(h, p, {}, {.pictures_ahead = false}), golden("one")), .1);
  } else {
    h.runner().m.pictures_ahead = true;
    EXPECT_GT(relative_difference(logits_of(h, p, {}), golden("one")), .1);
  }
}

template <class Base>
struct FullLayersLookAhead : Base {
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    a.ahead = s.shape.ahead;
    Base::attend(o, q, kv, s, a);
  }
};

// Planted: full layers see a picture's later tokens as sliding ones do, a picture that is longer than the window is
// causal, and so is none of a sound.
TEST_P(MediaTexts, WhatSeesTooMuchOrTooLittleIsNoticed) {
  Harness<CpuRef> h(model());
  const bool ahead = h.cfg.pictures_ahead;
  if (ahead) {
    Harness<FullLayersLookAhead<CpuRef>> full(model());
    EXPECT_GT(relative_difference(logits_of(full, prompt("one"), {}), golden("one")), kNoticed);
  }
  if (GetParam() == std::string("large")) {  // hears nothing
    const How causal{.pictures_ahead = false};
    EXPECT_GT(relative_difference(logits_of(h, prompt("long"), {}, causal), golden("long")), kNoticed);
    return;
  }
  h.runner().m.pictures_ahead = true;
  const How how{.pictures_ahead = ahead, .sound_ahead = true};
  EXPECT_GT(relative_difference(logits_of(h, prompt("sound"), {}, how), golden("sound")), kNoticed);
}

// Planted: soft tokens times the root of the width, as embeddings of text are.
TEST_P(MediaTexts, ScaledSoftTokensAreNoticed) {
  Harness<CpuRef> h(model());
  const How how{.scale = std::sqrt(float(h.cfg.d_model))};
  EXPECT_GT(relative_difference(logits_of(h, prompt("one"), {}, how), golden("one")), kNoticed);
}

// Planted: per-layer embeddings of the placeholder's id in the place of those of <pad>.
TEST_P(MediaTexts, APlaceholdersOwnRowIsNoticed) {
  Harness<CpuRef> h(model());
  for (const std::string name : {"one", GetParam() == std::string("large") ? "two" : "sound"}) {
    const double d = relative_difference(logits_of(h, prompt(name), {}, {.own_rows = true}), golden(name));
    if (h.cfg.d_ple > 0) {
      EXPECT_GT(d, kNoticed) << name;
    } else {
      EXPECT_LE(d, kBound) << name;
    }
  }
}

// A cut before a picture or behind it changes no bit.
TEST_P(MediaTexts, CutsBesidePicturesDoNotMatter) {
  auto law = [&](auto backend) {
    Harness<typename decltype(backend)::type> h(model());
    for (const std::string name : {"one", "two"}) {
      const Prompt p = prompt(name);
      const auto whole = logits_of(h, p, {});
      std::vector<size_t> borders;
      for (size_t i = 1; i < p.ids.size(); ++i)
        if (p.types[i] != 1 || p.types[i - 1] != 1) borders.push_back(i);
      for (const size_t b : borders) EXPECT_TRUE(bitwise_equal(logits_of(h, p, {b}), whole)) << name << " at " << b;
      EXPECT_TRUE(bitwise_equal(logits_of(h, p, borders), whole)) << name;
    }
  };
  law(std::type_identity<CpuRef>{});
  law(std::type_identity<CpuFast>{});
}

TEST_P(MediaTexts, TheCpuBackendAgrees) {
  Harness<CpuFast> h(model());
  for (const std::string& name : prompts()) {
    const Difference d = compare(logits_of(h, prompt(name), {}), golden(name), h.cfg.n_vocab);
    std::printf("| %s | %s | max %.1e rms %.1e top %d/%d |\n", GetParam(), name.c_str(), d.max, d.rms, d.same_top,
                d.rows);
    EXPECT_GE(d.same_top, d.rows - d.rows / 10) << name;
  }
}

}  // namespace
}  // namespace facet::test
