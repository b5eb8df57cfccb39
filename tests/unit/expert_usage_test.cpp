// Experts placed by how often they are chosen, and the file that says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "backend/weights_in_ram.h"
#include "base/files.h"
#include "model/gemma4_config.h"
#include "support/must.h"
#include "support/tiny_model.h"
#include "tools/expert_usage_file.h"

namespace facet::test {
namespace {

ExpertUsage random_usage(int layers, int experts, unsigned seed) {
  std::mt19937 rng(seed);
  ExpertUsage u;
  for (int l = 0; l < layers; ++l) {
    std::vector<int64_t> of;
    for (int e = 0; e < experts; ++e) of.push_back(int64_t(rng() % 7 == 0 ? rng() % 1000 : rng() % 50));
    u.chosen.push_back(l % 4 == 3 ? std::vector<int64_t>() : of);  // a layer without experts
  }
  return u;
}
int in_ram(const ExpertPlacement& p) {
  int n = 0;
  for (size_t l = 0; l < p.slot.size(); ++l) n += p.experts(int(l)) - p.resident(int(l));
  return n;
}

TEST(ExpertUsage, TheLeastChosenAreInRam) {
  for (unsigned seed = 1; seed < 20; ++seed) {
    const int layers = 3 + int(seed % 6), experts = 4 + int(seed % 9), with = layers - layers / 4;
    const ExpertUsage usage = random_usage(layers, experts, seed);
    ExpertPlacement before = place_experts(usage, 0);
    EXPECT_EQ(in_ram(before), 0);
    EXPECT_DOUBLE_EQ(before.hits(usage), 1);
    for (int n = 1; n <= with + 1; ++n) {
      const ExpertPlacement p = place_experts(usage, n);
      EXPECT_EQ(in_ram(p), std::min(n, with) * experts);
      int64_t most_in_ram = 0, least_on_gpu = 1 << 30;
      double here = 0, all = 0;
      for (size_t l = 0; l < p.slot.size(); ++l) {
        int16_t next = 0;  // places in the stack are numbered in order
        for (size_t e = 0; e < p.slot[l].size(); ++e) {
          const int64_t times = usage.chosen[l][e];
          all += double(times);
          if (p.slot[l][e] >= 0) {
            EXPECT_EQ(p.slot[l][e], next++);
            EXPECT_GE(before.slot[l][e], 0) << "what is in RAM for fewer layers is so for more";
            least_on_gpu = std::min(least_on_gpu, times), here += double(times);
          } else {
            most_in_ram = std::max(most_in_ram, times);
          }
        }
        EXPECT_EQ(p.resident(int(l)), next);
      }
      EXPECT_LE(most_in_ram, least_on_gpu);
      EXPECT_DOUBLE_EQ(p.hits(usage), here / all);
      // At least what whole layers would answer.
      double whole = 0;
      for (size_t l = 0, k = 0; l < usage.chosen.size(); ++l)
        if (!usage.chosen[l].empty() && int(k++) >= n)
          for (const int64_t t : usage.chosen[l]) whole += double(t);
      EXPECT_GE(p.hits(usage), whole / all);
      before = p;
    }
  }
}

TEST(ExpertUsage, ATensorKnowsItsPlaces) {
  ExpertUsage usage;
  usage.chosen = {{9, 9, 9}, {1, 5, 1}, {0, 0, 0}};
  const WeightsInRam w{.expert_layers = 2,
                       .placement = std::make_shared<const ExpertPlacement>(place_experts(usage, 2))};
  EXPECT_FALSE(w.holds("blk.0.ffn_down_exps.weight"));  // all on the GPU
  EXPECT_EQ(w.resident("blk.0.ffn_down_exps.weight", 3), 3);
  EXPECT_TRUE(w.holds("blk.1.ffn_down_exps.weight"));
  EXPECT_EQ(w.resident("blk.1.ffn_down_exps.weight", 3), 0);
  EXPECT_TRUE(w.slots("blk.2.ffn_gate_up_exps.weight").empty());  // all in RAM
  const WeightsInRam some{.expert_layers = 1,
                          .placement = std::make_shared<const ExpertPlacement>(place_experts(usage, 1))};
  EXPECT_TRUE(some.slots("blk.1.ffn_gate_up_exps.weight").empty());
  usage.chosen[1][1] = 0, usage.chosen[2][2] = 4;
  const WeightsInRam split{.expert_layers = 1,
                           .placement = std::make_shared<const ExpertPlacement>(place_experts(usage, 1))};
  const auto slots = split.slots("blk.1.ffn_gate_up_exps.weight");
  EXPECT_EQ(std::vector<int16_t>(slots.begin(), slots.end()), (std::vector<int16_t>{0, -1, 1}));
  EXPECT_EQ(split.resident("blk.1.ffn_gate_up_exps.weight", 3), 2);
  EXPECT_EQ(split.resident("blk.1.ffn_gate_up.weight", 1), 1);  // no expert's
}

TEST(ExpertUsage, AFileOfThisModelAndNoOther) {
  const TinyFile tiny({.moe = true}), other({.moe = true, .seed = 2});
  const GgufFile file = must(GgufFile::open(tiny.path())), another = must(GgufFile::open(other.path()));
  const ModelCfg m = must(gemma4_config(file));
  ExpertUsage usage = random_usage(m.n_layer(), m.n_expert, 3);
  for (auto& of : usage.chosen) of.resize(size_t(m.n_expert));
  const std::string path = tiny.path() + ".experts.json";
  must(write_expert_usage(usage, path, file));
  EXPECT_EQ(must(read_expert_usage(path, file, m)).chosen, usage.chosen);
  const auto error = [&](const GgufFile& of) { return read_expert_usage(path, of, m).error().message(); };
  EXPECT_NE(error(another).find("fingerprint: expected"), std::string::npos) << error(another);
  const std::string text = must(read_file(path, 1 << 20));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string s = text;
    s.replace(s.find(from), from.size(), to);
    auto out = must(OutputFile::create(path));
    must(out.write(s));
    must(out.finish());
    return error(file);
  };
  EXPECT_NE(with("[[", "[[-1,").find("chosen: expected lists of"), std::string::npos);
  EXPECT_NE(with("[[", "[[-1],[").find("chosen: expected"), std::string::npos);
  EXPECT_NE(with("facet-experts-1", "facet-experts-2").find("format: expected facet-experts-1"), std::string::npos);
  EXPECT_NE(with("{", "").find(path), std::string::npos);
  const std::string first = text.substr(text.find("[[") + 2, text.find(',', text.find("[[")) - text.find("[[") - 2);
  EXPECT_NE(with("[[" + first, "[[-4").find("whole numbers from 0 on"), std::string::npos);
  EXPECT_NE(with("[[" + first, "[[1.5").find("whole numbers from 0 on"), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace facet::test
