#include "compose/plan.h"

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
    // DFlash keeps rows of its own; an MTP head reads the target's.
    EXPECT_EQ(bytes(kind + " kv"), kind == "mtp" ? -1 : drafter_pool_bytes(file, m, c, drafters));
    EXPECT_GE(bytes("scratch"), plan_memory(file, m, c, {}).lines.back().bytes);
  }
}

// A copy of a sequence has pages of its own where it shares one in part and where kernels may read beyond its end: the
// plan has room for them, however long the sequence is. Rows of E4B's full layers in q8_0, pages of 2 MiB.
TEST(Plan, CopiesHaveRoomAtEveryLength) {
  ModelCfg m;
  m.layer.resize(3);
  for (LayerCfg& l : m.layer) l.n_kv_head = 2, l.head_dim = 512;
  KvPlan p{.k = KvType::kQ8_0, .v = KvType::kQ4_0, .max_ctx = 9000};
  p.max_step = p.margin;
  constexpr int64_t kPage = 2 << 20;
  for (const int64_t beyond : {0, 64, 256, 5000}) {
    const int64_t without = pool_bytes(m, p, kPage, beyond);
    KvPlan more = p;
    more.snapshots = 3;
    const int64_t room = (pool_bytes(m, more, kPage, beyond) - without) / kPage;
    int64_t most = 0;
    for (int64_t len = 1; len <= p.max_ctx; ++len) {
      int64_t n = 0;  // as KvCache counts them
      for (size_t l = 0; l < m.layer.size(); ++l)
        for (const int64_t row : {kv_row_bytes(m, l, p).k, kv_row_bytes(m, l, p).v})
          n += ((len + beyond) * row + kPage - 1) / kPage - len * row / kPage;
      most = std::max(most, 3 * n);
    }
    EXPECT_LE(most, room) << beyond;
    EXPECT_LE(room, most + int64_t(3 * 2 * m.layer.size())) << beyond << ": more than a page too many";
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
  EXPECT_EQ(EngineConfig().kv_layout, KvLayout::kShared);
  const int64_t shared = full(KvLayout::kShared, KvType::kF16, KvType::kF16, &note);
  EXPECT_EQ(8 * shared, 5 * full(KvLayout::kSplit, KvType::kF16, KvType::kF16, &note));
  EXPECT_EQ(note, "");
  const int64_t mixed = full(KvLayout::kShared, KvType::kQ8_0, KvType::kQ4_0, &note);
  EXPECT_NE(note.find("one row of q8_0 values, the type of K: --kv-v q4_0 is for the other layers"), std::string::npos);
  EXPECT_EQ(mixed, full(KvLayout::kShared, KvType::kQ8_0, KvType::kQ8_0, &note));
  EXPECT_EQ(note, "");
  full(KvLayout::kSplit, KvType::kQ8_0, KvType::kQ4_0, &note);
  EXPECT_EQ(note, "");
}

// Layers with types of their own take what they take, and the plan says which.
TEST(Plan, LayersOfTheirOwnTypes) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = config(file);
  int full = 0, sliding = 0;
  while (m.layer[size_t(full)].window > 0) ++full;
  while (m.layer[size_t(sliding)].window == 0) ++sliding;
  const auto line = [&](const EngineConfig& decided, const std::string& name) {
    for (const MemoryLine& l : plan_memory(file, m, decided, {}).lines)
      if (l.name == name) return l;
    return MemoryLine{};
  };
  const EngineConfig plain = must(resolve_config(file, m, c));
  c.kv_layers = {{sliding, sliding, {KvType::kQ8_0, KvType::kQ4_0}}};
  const EngineConfig one = must(resolve_config(file, m, c));
  EXPECT_EQ(line(one, "kv full").bytes, line(plain, "kv full").bytes);
  const LayerCfg& l = m.layer[size_t(sliding)];
  EXPECT_EQ(line(plain, "kv rings").bytes - line(one, "kv rings").bytes,
            ring_rows(l, kv_plan(one)) * l.n_kv_head * l.head_dim * (64 + 64 - 34 - 18) / 32);
  EXPECT_NE(line(one, "kv rings").detail.find("1 of q8_0/q4_0"), std::string::npos) << line(one, "kv rings").detail;
  c.kv_layers = {{0, m.n_layer() - 1, {KvType::kQ8_0, KvType::kQ8_0}}};
  const auto cache = must(HostKvCache::create(m, kv_plan(must(resolve_config(file, m, c)))));
  for (const KvLayer& k : cache->layers()) EXPECT_EQ(k.k_type, KvType::kQ8_0);

  const struct {
    KvOfLayers own;
    const char* says;
  } refused[] = {{{0, m.n_layer(), {}}, "expected layers from 0 to "},
                 {{full, full, {KvType::kQ8_0, KvType::kQ4_0}}, "K and V lie in one row, found q8_0/q4_0"}};
  for (const auto& r : refused) {
    c.kv_layers = {r.own};
    const auto decided = resolve_config(file, m, c);
    ASSERT_FALSE(decided) << r.says;
    EXPECT_EQ(decided.error().where, "--kv-layers");
    EXPECT_NE(decided.error().message().find(r.says), std::string::npos) << decided.error().message();
  }
  c.kv_layout = KvLayout::kSplit;
  EXPECT_TRUE(resolve_config(file, m, c)) << "rows that are apart have two types";
}

// --kv auto: the first type that has room for the context, and what was said of those before it.
TEST(Plan, ChoosesTheFirstTypeWithRoom) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = config(file);
  c.n_ctx = 0, c.snapshots = 0, c.kv_layout = KvLayout::kSplit;
  const auto total = [&](KvType t, int n_ctx) {
    EngineConfig x = c;
    x.kv_k = x.kv_v = t, x.n_ctx = n_ctx;
    return plan_memory(file, m, must(resolve_config(file, m, x)), {}).total();
  };
  const int whole = m.n_ctx_train;
  const int64_t f16 = total(KvType::kF16, whole), q8 = total(KvType::kQ8_0, whole), q4 = total(KvType::kQ4_0, whole);
  ASSERT_TRUE(q4 < q8 && q8 < f16);
  const std::vector<KvChoice> choices{{{KvType::kF16, KvType::kF16}, "exact"},
                                      {{KvType::kQ8_0, KvType::kQ8_0}, "as good"},
                                      {{KvType::kQ4_0, KvType::kQ4_0}, "good"}};
  const struct {
    int64_t memory;
    int n_ctx, want_ctx;
    KvType want;
    std::string says;
  } table[] = {{f16 + (1 << 20), 0, whole, KvType::kF16, "takes f16: exact; f16 has room for"},
               {f16 - (1 << 20), 0, whole, KvType::kQ8_0, "takes q8_0: as good; f16 has room for"},
               {q8 - (1 << 20), 0, whole, KvType::kQ4_0, "takes q4_0: good; f16 has room for"},
               {f16 - (1 << 20), whole / 2, whole / 2, KvType::kF16, "takes f16"},
               {q8 - (1 << 20), whole, whole, KvType::kQ4_0, "f16 does not fit, q8_0 does not fit, q4_0 has room"}};
  for (const auto& t : table) {
    EngineConfig x = c;
    x.memory = t.memory, x.n_ctx = t.n_ctx, x.kv_choices = choices, x.kv_reason = "from a report";
    const EngineConfig got = must(resolve_config(file, m, x));
    EXPECT_EQ(*got.kv_k, t.want) << t.says;
    EXPECT_EQ(*got.kv_v, t.want) << t.says;
    EXPECT_EQ(got.n_ctx, t.want_ctx) << t.says;
    EXPECT_NE(got.kv_reason.find(t.says), std::string::npos) << got.kv_reason;
    EXPECT_TRUE(got.kv_reason.ends_with("; from a report") && got.kv_choices.empty());
  }
  // Nothing has room for all: the one with most, the more precise of equals; nothing fits: the last one's error.
  EngineConfig x = c;
  x.kv_choices = {choices[0], choices[0]}, x.kv_choices[1].quality = "again", x.memory = f16 - (1 << 20);
  EXPECT_NE(must(resolve_config(file, m, x)).kv_reason.find("takes f16: exact"), std::string::npos);
  x.memory = 1 << 20;
  EXPECT_FALSE(resolve_config(file, m, x));
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
