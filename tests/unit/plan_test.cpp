#include "engine/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_ref.h"
#include "engine/runner.h"
#include "model/gemma4_bind.h"
#include "model/gemma4_config.h"
#include "support/must.h"

namespace facet::test {
namespace {

const std::string kModels = std::string(FACET_SOURCE_DIR) + "/models/";

EngineConfig config(const GgufFile& file) {
  EngineConfig c;
  c.model = file.path(), c.backend = "cpu", c.n_ctx = 2048;
  return c;
}

TEST(Plan, ChunkFollowsBackendAndContext) {
  EXPECT_EQ(usual_chunk("cpu", 131072), 512);
  EXPECT_EQ(usual_chunk("ref", 100), 512);
  EXPECT_EQ(usual_chunk("cuda", 131072), 4096);
  EXPECT_EQ(usual_chunk("cuda", 1500), 1500);
  EXPECT_EQ(usual_chunk("cuda", 100), 512);
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = config(file);
  EXPECT_EQ(must(resolve_config(file, m, c)).chunk, 512);
  c.max_seq = 700;
  EXPECT_EQ(must(resolve_config(file, m, c)).chunk, 700) << "each running request takes a token of a step";
  c.chunk = 900;
  EXPECT_EQ(must(resolve_config(file, m, c)).chunk, 900);
}

// A prompt's chunk has logits of its last row only: memory for those of a few rows, whatever the chunk.
TEST(Plan, LogitsAreOfAFewRows) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = config(file);
  std::vector<int64_t> work;
  for (const int chunk : {256, 1024}) {
    c.chunk = chunk;
    const EngineConfig decided = must(resolve_config(file, m, c));
    EXPECT_LE(decided.max_out, 64);
    work.push_back(work_elements(m, chunk, decided.max_out));
    EXPECT_LT(work.back() - work_elements(m, chunk, 0), int64_t(65) * (m.n_vocab + m.d_model));
  }
  EXPECT_EQ(work[1] - work[0], work_elements(m, 1024, 0) - work_elements(m, 256, 0));
}

// What a drafter holds and what it adds to the target's scratch are in the plan.
TEST(Plan, CountsDrafters) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = config(file);
  for (const std::string kind : {"dflash", "mtp"}) {
    const std::vector<DrafterFile> drafters{must(DrafterFile::open(kModels + "facet-nano-" + kind + "-Q8_0.gguf"))};
    c.draft.files = {drafters[0].path()};
    c = must(resolve_config(file, m, c, drafters));
    const MemoryPlan plan = plan_memory(file, m, c, drafters);
    auto bytes = [&](const std::string& name) {
      for (const MemoryLine& l : plan.lines)
        if (l.name == name) return l.bytes;
      return int64_t(-1);
    };
    EXPECT_EQ(bytes(kind), int64_t(drafters[0].file_bytes()));
    EXPECT_GT(bytes(kind + " activations"), int64_t(c.chunk) * m.d_model * 4);
    EXPECT_GE(bytes("scratch"), plan_memory(file, m, c, {}).lines.back().bytes);
  }
}

// Full layers whose K is V: 640 values a row instead of 1,024, in the plan as in the cache.
TEST(Plan, SharedRowsTakeFiveEighths) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  auto full = [&](KvLayout layout, KvType k, KvType v, std::string* note) {
    EngineConfig c = config(file);
    c.kv_layout = layout, c.kv_k = k, c.kv_v = v;
    c = must(resolve_config(file, m, c));
    *note = layout_note(m, c);
    const MemoryPlan plan = plan_memory(file, m, c, {});
    const auto at = std::find_if(plan.lines.begin(), plan.lines.end(), [](auto& l) { return l.name == "kv full"; });
    const auto cache = must(HostKvCache::create(m, kv_plan(c)));
    int64_t rows = 0;
    for (size_t l = 0; l < m.layer.size(); ++l)
      if (m.layer[l].window == 0) rows += cache->layers()[l].row_bytes();
    EXPECT_EQ(at->bytes, rows * c.n_ctx * c.max_seq);
    return at->bytes;
  };
  std::string note;
  const int64_t shared = full(KvLayout::kAuto, KvType::kF16, KvType::kF16, &note);
  EXPECT_EQ(8 * shared, 5 * full(KvLayout::kSplit, KvType::kF16, KvType::kF16, &note));
  EXPECT_EQ(note, "");
  const int64_t mixed = full(KvLayout::kShared, KvType::kQ8_0, KvType::kQ4_0, &note);
  EXPECT_NE(note.find("one row of q8_0 values, the type of K: --kv-v q4_0 is for the other layers"), std::string::npos);
  EXPECT_EQ(mixed, full(KvLayout::kShared, KvType::kQ8_0, KvType::kQ8_0, &note));
  EXPECT_EQ(note, "");
  full(KvLayout::kSplit, KvType::kQ8_0, KvType::kQ4_0, &note);
  EXPECT_EQ(note, "");
}

TEST(Loading, TellsOfWeightsAsTheyArrive) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  std::vector<uint64_t> told;
  const RunnerOptions o{.kv = {.max_ctx = 64, .max_step = 8}, .loading = [&](uint64_t done, uint64_t total) {
                          EXPECT_EQ(total, file.file_bytes());
                          told.push_back(done);
                        }};
  must(Runner<CpuRef>::open(file, m, o));
  ASSERT_GT(told.size(), 20u);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  EXPECT_GT(told[told.size() - 2], file.file_bytes() / 2);
  EXPECT_EQ(told.back(), file.file_bytes());
}

}  // namespace
}  // namespace facet::test
