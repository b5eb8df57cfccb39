// Block-sparse prefill: who is served by what.
#include <cstdlib>

#include "api/engine.h"
#include "model/types.h"
#include "support/must.h"
#include "support/sanitized.h"
#include "support/tiny_model.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"

namespace facet::test {
namespace {

struct Answer {
  std::vector<int32_t> tokens;
  Usage usage;
};
Answer ask(Engine& e, std::vector<int32_t> prompt, bool sparse) {
  Answer a;
  must(e.submit(
      {.prompt = std::move(prompt), .max_tokens = 12, .sampling = {.temperature = 0}, .sparse_prefill = sparse},
      {.tokens = [&](RequestId, std::span<const int32_t> t) { a.tokens.insert(a.tokens.end(), t.begin(), t.end()); },
       .done = [&](RequestId, Stop, const Usage& u, const std::string&) { a.usage = u; }}));
  while (e.tick()) {
  }
  return a;
}
EngineConfig config(const std::string& model, float gamma, int n_ctx) {
  EngineConfig c;
  c.model = model, c.backend = "cpu", c.n_ctx = n_ctx, c.n_threads = 2, c.sparse_prefill = gamma, c.cache_ram = 0;
  c.max_seq = 2;
  return c;
}

TEST(SparsePrefill, DenseRequestsAreServedByDenseRowsAlone) {
  const TinyFile file;
  const auto prompt = random_ids(3500, 96, 3);
  auto plain = must(Engine::open(config(file.path(), 0, 4096)));
  const Answer want = ask(*plain, prompt, true);
  EXPECT_FALSE(want.usage.sparse) << "an engine without it";
  auto e = must(Engine::open(config(file.path(), .05f, 4096)));
  const Answer sparse = ask(*e, prompt, true);
  ASSERT_TRUE(sparse.usage.sparse);
  EXPECT_TRUE(sparse.usage.sparse->approximate);
  EXPECT_LT(sparse.usage.sparse->kept, .97);
  EXPECT_GT(sparse.usage.sparse->recall, .3);
  EXPECT_LT(sparse.usage.sparse->recall, 1);
  // What it left serves no request that asks for the exact thing, and the other way round.
  const Answer dense = ask(*e, prompt, false);
  EXPECT_EQ(dense.usage.cached, 0);
  EXPECT_FALSE(dense.usage.sparse);
  EXPECT_EQ(dense.tokens, want.tokens);
  const Answer again = ask(*e, prompt, true);
  EXPECT_EQ(again.usage.cached, 3499);
  EXPECT_TRUE(again.usage.sparse && again.usage.sparse->approximate) << "its beginning is";
  EXPECT_EQ(again.tokens, sparse.tokens);
  EXPECT_EQ(ask(*e, prompt, false).usage.cached, 3499);
}

TEST(SparsePrefill, ReadsAllOfShortPromptsAndWithGammaOne) {
  const TinyFile file;
  auto plain = must(Engine::open(config(file.path(), 0, 4096)));
  auto all = must(Engine::open(config(file.path(), 1, 4096)));
  auto half = must(Engine::open(config(file.path(), .5f, 4096)));
  const auto prompt = random_ids(kSanitized ? 1000 : 2500, 96, 4), brief = random_ids(kSanitized ? 600 : 1200, 96, 5);
  const Answer a = ask(*all, prompt, true), b = ask(*half, brief, true);
  EXPECT_EQ(a.tokens, ask(*plain, prompt, true).tokens);
  EXPECT_EQ(b.tokens, ask(*plain, brief, true).tokens);
  for (const Answer* x : {&a, &b}) EXPECT_TRUE(x->usage.sparse && !x->usage.sparse->approximate);
}

// Facts in texts of the shipped model, read exactly and at several GAMMA: figures, no more. Minutes.
TEST(SparsePrefill, FiguresOfRecall) {
  if (!std::getenv("FACET_TEST_FULL")) GTEST_SKIP() << "minutes of measuring: FACET_TEST_FULL=1";
  const std::string models = FACET_SOURCE_DIR "/models/";
  auto docs = must(read_eval_set(models + "facet-nano-eval.jsonl"));
  std::erase_if(docs, [](const EvalDoc& d) { return d.kind != "retrieval-8192"; });
  ASSERT_GE(docs.size(), 6u);
  for (const float gamma : {0.f, .1f, .3f, .5f, .9f}) {
    EngineConfig c = config(models + "facet-nano-Q8_0.gguf", gamma, 9216);
    c.max_out = 64, c.snapshots = 0;
    auto e = must(Engine::open(c));
    int right = 0;
    for (const EvalScore& s : must(grade(*e, docs, [](int, int) {}))) right += s.right;
    const SparsePrefill told = e->scored_sparse();
    EXPECT_EQ(told.tiles > 0, gamma > 0);
    std::printf(
        "GAMMA %.1f: %d of %zu right; %.1f %% of the blocks read, estimated recall %.4f, %ld of %ld tiles again\n",
        double(gamma), right, docs.size(), 100 * told.kept, told.recall, long(told.repaired), long(told.tiles));
  }
}

}  // namespace
}  // namespace facet::test
