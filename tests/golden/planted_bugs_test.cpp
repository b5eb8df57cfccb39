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
  Harness<B> h(dir + (folder == "dense" ? "/model-BF16.gguf" : "/model-Q4_K_M.gguf"));
  if (spoil) spoil(h);
  return compare(h.logits(ids, {32}), tensor_values<float>(golden, "logits"), h.cfg.n_vocab);
}

TEST(PlantedBug, MaskOffByOne) {
  EXPECT_LE(against_golden<CpuRef>("dense").max, 2e-3);
  EXPECT_GT(against_golden<WindowOneTooWide>("dense").max, .1);
}
TEST(PlantedBug, WrongRotaryCount) { EXPECT_GT(against_golden<RotatesEverything>("dense").max, .1); }

TEST(PlantedBug, WrongDonorLayer) {
  const double right = against_golden<CpuRef>("edge").rms;  // what quantising the weights costs
  const auto wrong = against_golden<CpuRef>("edge", [](Harness<CpuRef>& h) {
    for (size_t l = 0; l < h.cfg.layer.size(); ++l)
      if (h.cfg.layer[l].query_only && h.cfg.layer[l].window) h.runner().m.layer[l].kv_source -= 1;  // an earlier owner of the same kind
  });
  EXPECT_GT(wrong.rms, 2 * right);
}

}  // namespace
}  // namespace facet::test
