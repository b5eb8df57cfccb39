// Logits of prompts with pictures and sound against the official implementation: which tokens see which, what stands in
// the place of their embeddings, how a conversation goes on. The goldens are those of scripts/test.sh --fixtures:
// media/<case>.
#include <cmath>

#include "backend/cpu/cpu_fast.h"
#include "support/media_texts.h"

namespace facet::test {
namespace {

constexpr double kNoticed = 1e-2;
constexpr double kBound = 1e-4;  // of the largest logit; the official ones differ by 9e-6 among themselves

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
      const auto borders = p.borders();
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
