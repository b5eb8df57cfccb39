// Prompts with pictures and sound on a GPU: verbs one by one, the official logits, laws of a picture's bits. The soft
// tokens are the reference's; cuda_encoders_test.cpp compares those of the device.
#include "backend/cuda/cuda.h"
#include "backend/lockstep.h"
#include "cache/cuda_kv_cache.h"
#include "session/kv_config.h"
#include "support/media_texts.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

KvPlan plan(KvType t) {
  return {.k = t, .v = t, .share = kCudaSharedHead, .max_ctx = 512, .max_step = 128, .margin = 16};
}

class CudaMediaTexts : public MediaTexts {
 protected:
  void SetUp() override {
    NEEDS_GPU();
    MediaTexts::SetUp();
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, CudaMediaTexts, testing::Values("large", "edge", "unified"));

TEST_P(CudaMediaTexts, EveryVerbIsInLockstep) {
  for (const KvType t : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0}) {
    Harness<Lockstep<Cuda, CpuRef>> h(model(), plan(t), 0, std::tuple(0), std::tuple(2));
    for (const std::string& name : prompts()) {
      const Prompt p = prompt(name);
      logits_of(h, p, {});
      logits_of(h, p, p.borders());
    }
    EXPECT_GT(h.backend().compared(), 100);
    const auto& over = h.backend().differences();
    EXPECT_TRUE(over.empty()) << GetParam() << " " << kv_type_name(t) << ": " << over.size() << " of "
                              << h.backend().compared();
    for (size_t i = 0; i < std::min<size_t>(over.size(), 8); ++i) ADD_FAILURE() << over[i].message();
  }
}

TEST_P(CudaMediaTexts, LogitsAreNearTheOfficialOnes) {
  Harness<Cuda> h(model(), plan(KvType::kF16), 0, 0);
  for (const std::string& name : prompts()) {
    const auto want = golden(name);
    const Difference d = compare(logits_of(h, prompt(name), {}), want, h.cfg.n_vocab);
    std::printf("| %s | %s | rms %.1e | top %d/%d |\n", GetParam(), name.c_str(), d.rms, d.same_top, d.rows);
    EXPECT_GE(d.same_top, d.rows - d.rows / 10) << name;
  }
}

// A picture's rows have equal bits whenever its chunk begins at the same row, whatever follows it there.
TEST_P(CudaMediaTexts, APicturesRowsDependOnWhereItsChunkBegins) {
  Harness<Cuda> h(model(), plan(KvType::kQ8_0), 0, 0);
  const Prompt p = prompt("one");
  const size_t begin = size_t(std::find(p.types.begin(), p.types.end(), 1) - p.types.begin());
  const size_t end = size_t(std::find(p.types.begin() + ptrdiff_t(begin), p.types.end(), 0) - p.types.begin());
  const auto rows = [&](const std::vector<float>& all) {
    const size_t V = size_t(h.cfg.n_vocab);
    return std::span(all).subspan(begin * V, (end - begin) * V);
  };
  const auto whole = logits_of(h, p, {begin}), cut = logits_of(h, p, {begin, end});
  EXPECT_TRUE(bitwise_equal(rows(whole), rows(cut)));
  EXPECT_TRUE(bitwise_equal(whole, logits_of(h, p, {begin}))) << "of two runs";
}

}  // namespace
}  // namespace facet::test
