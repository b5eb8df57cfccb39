// Which type each tensor gets, on the published shapes. synth_test.cpp compares the histograms and sizes of
// the mixtures that synth writes with published files; tests/e2e/quantize_test.cpp compares with files of
// llama-quantize.
#include "formats/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "formats/synth.h"

namespace facet {
namespace {

struct Model {
  SynthPlan plan;
  std::vector<MixtureTensor> tensors;
  MixtureModel facts;
};

// The BF16 file of a published shape.
Model model(std::string_view preset) {
  Model m;
  auto plan = synth_plan(preset, "BF16");
  EXPECT_TRUE(plan) << plan.error().message();
  m.plan = std::move(*plan);
  for (const SynthTensor& t : m.plan.tensors) m.tensors.push_back({t.name, t.ne, t.type});
  const auto key = [&](std::string_view name) {
    for (const SynthMeta& k : m.plan.meta)
      if (k.key == name) {
        const auto* one = std::get_if<int64_t>(&k.v);
        return one ? *one : std::get<std::vector<int64_t>>(k.v)[0];
      }
    ADD_FAILURE() << "no key " << name;
    return int64_t(1);
  };
  m.facts.n_layer = key("gemma4.block_count");
  m.facts.heads_per_kv = key("gemma4.attention.head_count") / key("gemma4.attention.head_count_kv");
  return m;
}

std::vector<DType> types(const Model& m, std::string_view mixture) {
  const Mixture* x = find_mixture(mixture);
  EXPECT_NE(x, nullptr) << mixture;
  return mixture_types(*x, m.tensors, m.facts);
}

std::map<std::string, int> histogram(const Model& m, std::string_view mixture) {
  std::map<std::string, int> h;
  for (DType t : types(m, mixture)) ++h[dtype_name(t)];
  h.erase("F32");
  return h;
}

DType type_of(const Model& m, std::string_view mixture, std::string_view name) {
  const auto all = types(m, mixture);
  for (size_t i = 0; i < all.size(); ++i)
    if (m.tensors[i].name == name) return all[i];
  ADD_FAILURE() << "no tensor " << name;
  return DType::kCount;
}

using Histogram = std::map<std::string, int>;

TEST(Mixture, RowsOf26BThatABlockOf256DoesNotDivide) {
  const Model m = model("26b-a4b");
  const struct {
    const char* mixture;
    Histogram types;
  } table[] = {
      {"Q4_K_M", {{"Q4_K", 192}, {"Q6_K", 14}, {"Q5_0", 32}, {"Q8_0", 28}}},
      {"Q5_K_M", {{"Q5_K", 192}, {"Q6_K", 14}, {"Q5_1", 32}, {"Q8_0", 28}}},
      {"Q4_K_S", {{"Q4_K", 201}, {"Q5_K", 4}, {"Q6_K", 1}, {"Q5_0", 54}, {"Q5_1", 6}}},
      {"Q5_K_S", {{"Q5_K", 205}, {"Q6_K", 1}, {"Q5_1", 60}}},
      {"Q3_K_S", {{"Q3_K", 205}, {"Q6_K", 1}, {"Q4_0", 60}}},
      {"Q3_K_M", {{"Q3_K", 150}, {"Q4_K", 53}, {"Q5_K", 2}, {"Q6_K", 1}, {"Q5_0", 58}, {"Q5_1", 2}}},
      {"Q3_K_L", {{"Q3_K", 150}, {"Q5_K", 55}, {"Q6_K", 1}, {"Q5_1", 60}}},
      {"Q6_K", {{"Q6_K", 206}, {"Q8_0", 60}}},
      {"Q2_K", {{"Q2_K", 150}, {"Q3_K", 55}, {"Q6_K", 1}, {"Q4_0", 60}}},
      {"IQ4_XS", {{"IQ4_XS", 205}, {"Q6_K", 1}, {"IQ4_NL", 54}, {"Q5_1", 6}}},
      {"Q8_0", {{"Q8_0", 266}}},
      {"BF16", {{"BF16", 266}}},
  };
  for (const auto& row : table) EXPECT_EQ(histogram(m, row.mixture), row.types) << row.mixture;
}

TEST(Mixture, OnlyTheSmallModelsShareAKvHeadBetweenFourQueryHeads) {
  for (const char* preset : {"31b", "26b-a4b", "12b"}) {
    EXPECT_EQ(type_of(model(preset), "Q2_K", "blk.0.attn_v.weight"), DType::kQ3_K) << preset;
    EXPECT_EQ(type_of(model(preset), "IQ4_XS", "blk.0.attn_v.weight"), DType::kIQ4_XS) << preset;
  }
  for (const char* preset : {"e4b", "e2b"}) {
    EXPECT_EQ(type_of(model(preset), "Q2_K", "blk.0.attn_v.weight"), DType::kQ4_K) << preset;
    EXPECT_EQ(type_of(model(preset), "IQ4_XS", "blk.0.attn_v.weight"), DType::kQ5_K) << preset;
  }
}

TEST(Mixture, PureGivesNothingMoreBits) {
  const Model m = model("26b-a4b");
  const auto all = mixture_types(pure(*find_mixture("Q4_K_M")), m.tensors, m.facts), mixed = types(m, "Q4_K_M");
  Histogram h;
  for (DType t : all) ++h[dtype_name(t)];
  h.erase("F32");
  EXPECT_EQ(h, (Histogram{{"Q4_K", 206}, {"Q5_0", 60}}));  // Q5_0: rows that a block of 256 does not divide
  for (size_t i = 0; i < all.size(); ++i) {
    if (mixed[i] == DType::kF32) {
      EXPECT_EQ(all[i], DType::kF32) << m.tensors[i].name;  // what is never quantised is not
    }
  }
}

TEST(Mixture, WhatIsNeverQuantised) {
  const Model e = model("e4b"), moe = model("26b-a4b");
  for (const Mixture& m : mixtures()) {
    EXPECT_EQ(type_of(e, m.name, "per_layer_model_proj.weight"), DType::kBF16) << m.name;
    EXPECT_EQ(type_of(e, m.name, "blk.0.attn_norm.weight"), DType::kF32) << m.name;
    EXPECT_EQ(type_of(e, m.name, "blk.0.layer_output_scale.weight"), DType::kF32) << m.name;
    EXPECT_EQ(type_of(e, m.name, "rope_freqs.weight"), DType::kF32) << m.name;
    EXPECT_EQ(type_of(moe, m.name, "blk.0.ffn_gate_inp.weight"), DType::kF32) << m.name;
    EXPECT_EQ(type_of(moe, m.name, "blk.0.ffn_down_exps.scale"), DType::kF32) << m.name;
    EXPECT_EQ(type_of(e, m.name, "per_layer_token_embd.weight"), m.embedding) << m.name;
  }
}

// attn_v counts the tensors there are, ffn_down the layers.
TEST(Mixture, MoreBitsAreSpreadOverTheLayers) {
  const Model m = model("31b");                                            // 50 of 60 layers have an attn_v
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.6.attn_v.weight"), DType::kQ6_K);    // 5 of 50: below 50 / 8
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.7.attn_v.weight"), DType::kQ4_K);    // 6
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.9.attn_v.weight"), DType::kQ6_K);    // 8 = 6 + 2
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.6.ffn_down.weight"), DType::kQ6_K);  // 6 of 60
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.7.ffn_down.weight"), DType::kQ4_K);
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.9.ffn_down.weight"), DType::kQ6_K);
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.52.ffn_down.weight"), DType::kQ6_K);  // 7/8 of 60, rounded down
  EXPECT_EQ(type_of(m, "Q4_K_M", "blk.9.attn_output.weight"), DType::kQ4_K);
}

TEST(Mixture, TheOrderOfTheFileDoesNotMatter) {
  for (const char* preset : {"31b", "26b-a4b", "e2b"}) {
    Model m = model(preset);
    for (const Mixture& x : mixtures()) {
      auto forward = types(m, x.name);
      std::reverse(m.tensors.begin(), m.tensors.end());
      auto backward = types(m, x.name);
      std::reverse(m.tensors.begin(), m.tensors.end());
      std::reverse(backward.begin(), backward.end());
      EXPECT_EQ(forward, backward) << preset << " " << x.name;
    }
  }
}

TEST(Mixture, AnUntiedOutputMatrixTakesTheTypeOfTheTables) {
  const int64_t ne[2] = {256, 1024};
  const MixtureTensor t[2] = {{"token_embd.weight", ne, DType::kBF16}, {"output.weight", ne, DType::kBF16}};
  const Mixture& m = *find_mixture("Q4_K_M");
  EXPECT_EQ(mixture_types(m, t, {1, 1}), (std::vector<DType>{DType::kQ4_K, DType::kQ6_K}));
  EXPECT_EQ(mixture_types(m, {t, 1}, {1, 1}), (std::vector<DType>{DType::kQ6_K}));
}

TEST(Mixture, OddRowsBecomeF16) {
  const int64_t ne[2] = {100, 8};
  const MixtureTensor t[1] = {{"blk.0.attn_q.weight", ne, DType::kBF16}};
  for (const Mixture& m : mixtures()) {
    const DType want = m.base == DType::kBF16 ? DType::kBF16 : DType::kF16;
    EXPECT_EQ(mixture_types(m, t, {1, 1}), std::vector<DType>{want}) << m.name;
  }
}

TEST(Mixture, Names) {
  EXPECT_EQ(find_mixture("q4_k")->name, "Q4_K_M");
  EXPECT_EQ(find_mixture("Q5_K")->name, "Q5_K_M");
  EXPECT_EQ(find_mixture("iq4_xs")->file_type, 30);
  EXPECT_EQ(find_mixture("Q4"), nullptr);
  EXPECT_EQ(find_mixture(""), nullptr);
}

}  // namespace
}  // namespace facet
