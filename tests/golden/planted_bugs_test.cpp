// Bugs that the goldens must catch, because no invariance can: the model would still agree with itself.
#include "support/broken.h"
#include "support/harness.h"

namespace facet::test {
namespace {

template <class B>
Difference against_golden(const std::string& folder, const std::function<void(Harness<B>&)>& spoil = {}) {
  const std::string dir = data_path("fixtures/" + folder);
  const auto golden = must(SafetensorsFile::open(dir + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  Harness<B> h(dir + "/model.gguf");
  if (spoil) spoil(h);
  return compare(h.logits(ids, {27}), tensor_values<float>(golden, "logits"), h.cfg.n_vocab);
}

TEST(PlantedBug, MaskOffByOne) {
  EXPECT_LE(against_golden<CpuRef>("dense").max, 2e-3);
  EXPECT_GT(against_golden<WindowOneTooWide<CpuRef>>("dense").max, .1);
}
TEST(PlantedBug, WrongRotaryCount) { EXPECT_GT(against_golden<RotatesEverything<CpuRef>>("dense").max, .1); }

// Shared rows of K and V.
TEST(PlantedBug, GainFoldedTwice) {
  const auto twice = [](Harness<CpuRef>& h) {
    for (size_t l = 0; l < h.cfg.layer.size(); ++l) {
      LayerW<CpuRef>& w = h.runner().w.layer[l];
      std::vector<float> q(w.q_norm.p, w.q_norm.p + w.q_norm.n);
      for (size_t i = 0; i < w.k_gain.size(); ++i)
        if (!kv_is_own(int(i), int(q.size()))) q[i] *= w.k_gain[i];
      w.q_norm = h.backend().upload(std::span<const float>(q));
    }
  };
  EXPECT_GT(against_golden<CpuRef>("dense", twice).max, .1);
}
TEST(PlantedBug, RotatedPartOfTheWrongHalf) { EXPECT_GT(against_golden<RotatesWrongHalf<CpuRef>>("dense").max, .1); }
TEST(PlantedBug, ValuesOfANeighboursRow) { EXPECT_GT(against_golden<ValuesOfNextRow<CpuRef>>("dense").max, .1); }
TEST(PlantedBug, LastPartialBlockLeftOut) { EXPECT_GT(against_golden<LeavesLastBlockOut<CpuRef>>("dense").max, .1); }

TEST(PlantedBug, WrongDonorLayer) {
  EXPECT_LE(against_golden<CpuRef>("edge").max, 2e-3);
  const auto wrong = against_golden<CpuRef>("edge", [](Harness<CpuRef>& h) {
    auto& layers = h.runner().m.layer;
    for (LayerCfg& c : layers)
      if (c.query_only && c.window) c.kv_source -= 1;  // an earlier owner of the same kind
  });
  EXPECT_GT(wrong.max, .1);
}

}  // namespace
}  // namespace facet::test
