// A pipeline's stages: which layers and weights each has, and the plan of each one's memory.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "backend/stage_of.h"
#include "backend/weights_in_ram.h"
#include "compose/plan.h"
#include "model/gemma4_config.h"
#include "model/stages.h"
#include "session/fingerprint.h"
#include "support/must.h"

namespace facet::test {
namespace {

const std::string kModels = std::string(FACET_SOURCE_DIR) + "/models/";

TEST(Stages, WhatIsWhere) {
  const std::vector<int> layers{36, 24};
  for (const auto& [layer, stage] : {std::pair{0, 0u}, {35, 0u}, {36, 1u}, {59, 1u}, {60, 1u}})
    EXPECT_EQ(stage_of(layers, layer), stage) << layer;
  for (const auto& [name, stage] : {std::pair{"blk.3.attn_q.weight", 0u},
                                    {"blk.36.ffn_up.weight", 1u},
                                    {"token_embd.weight", 0u},
                                    {"per_layer_token_embd.weight", 0u},
                                    {"output.weight", 1u},
                                    {"output_norm.weight", 0u}})
    EXPECT_EQ(stage_of(layers, std::string_view(name)), stage) << name;
  ModelCfg m;
  m.layer.resize(5);
  m.layer[3].query_only = m.layer[4].query_only = true, m.layer[3].kv_source = 1, m.layer[4].kv_source = 2;
  const ModelCfg own = rows_of_stage(m, [](int layer) { return layer >= 2; });
  for (const int elsewhere : {0, 1, 3}) EXPECT_TRUE(own.layer[size_t(elsewhere)].query_only) << elsewhere;
  EXPECT_FALSE(own.layer[2].query_only);
  EXPECT_EQ(own.layer[4].kv_source, 2) << "it reads rows that are there";
}

TEST(WeightsInRam, WhichTensors) {
  const WeightsInRam experts{.expert_layers = 2}, dense{.ffn_layers = 11}, table{.tables = true};
  for (const char* name : {"blk.0.ffn_gate_up_exps.weight", "blk.1.ffn_down_exps.weight", "blk.1.ffn_up_exps.weight"})
    EXPECT_TRUE(experts.holds(name)) << name;
  for (const char* name :
       {"blk.2.ffn_gate_exps.weight", "blk.12.ffn_down_exps.weight", "blk.0.ffn_down_exps.scale",
        "blk.0.ffn_down.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_q.weight", "ffn_down_exps.weight",
        "blk.x.ffn_down_exps.weight", "blk..ffn_down_exps.weight", "per_layer_token_embd.weight", "token_embd.weight"})
    EXPECT_FALSE(experts.holds(name)) << name;
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.9.ffn_up.weight", "blk.10.ffn_down.weight"})
    EXPECT_TRUE(dense.holds(name)) << name;
  for (const char* name : {"blk.11.ffn_gate.weight", "blk.0.ffn_norm.weight", "blk.0.ffn_down_exps.weight"})
    EXPECT_FALSE(dense.holds(name)) << name;
  EXPECT_TRUE(table.holds("per_layer_token_embd.weight"));
  EXPECT_FALSE(table.holds("blk.0.ffn_up.weight"));
}

TEST(Stages, AShareForEachGpu) {
  EngineConfig c;
  const auto error = [&](std::vector<int> gpus, std::vector<double> split) {
    c.gpus = std::move(gpus), c.split = std::move(split), c.backend = "cpu";
    const Status ok = resolve_gpus(c);
    return ok ? std::string() : ok.error().message();
  };
  EXPECT_EQ(error({0, 1}, {3, 2, 1}),
            "--split: expected 2 shares, one for each GPU, found 3 (3,2,1) (give one for each GPU of --gpus, such as "
            "the gigabytes of each)");
  EXPECT_EQ(error({0}, {3, 2}),
            "--split: expected 1 share, one for each GPU, found 2 (3,2) (give several GPUs (--gpus 2))");
  EXPECT_EQ(error({0, 1}, {3, 2}), "");
  EXPECT_TRUE(c.gpus.empty() && c.split.empty()) << "not on the CPU";
}

// --- Plans, of devices like the host

EngineConfig staged(const GgufFile& file, std::vector<double> split) {
  EngineConfig c;
  c.model = file.path(), c.backend = "ref", c.n_ctx = 2048, c.n_threads = 1, c.split = std::move(split);
  for (int i = 0; i < int(c.split.size()); ++i) c.gpus.push_back(i);
  return c;
}
int64_t bytes(const MemoryPlan& p, const std::string& name) {
  for (const MemoryLine& l : p.lines)
    if (l.name == name) return l.bytes;
  return -1;
}

TEST(Stages, PlansAreOfEachGpu) {
  for (const char* name : {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"}) {
    const GgufFile file = must(GgufFile::open(kModels + name));
    const ModelCfg m = must(gemma4_config(file));
    const EngineConfig c = must(fit_memory(file, m, staged(file, {2, 1})));
    EngineConfig one = c;
    one.gpus = {}, one.split = {};
    const MemoryPlan all = plan_memory(file, m, c), whole = plan_memory(file, m, one);
    ASSERT_EQ(all.parts.size(), 2u);
    EXPECT_TRUE(all.lines.empty());
    EXPECT_EQ(all.parts[0].name, "GPU 0, layers 0 to 3");
    EXPECT_EQ(all.parts[1].name, "GPU 1, layers 4 to 5");
    const auto sum = [&](const char* line) { return bytes(all.parts[0], line) + bytes(all.parts[1], line); };
    for (const char* line : {"kv full", "kv rings", "kv snapshots"}) EXPECT_EQ(sum(line), bytes(whole, line)) << line;
    for (const char* line : {"activations", "logits"}) EXPECT_EQ(sum(line), 2 * bytes(whole, line)) << line;
    int64_t weights = 0;
    for (const TensorView& t : file.tensors()) weights += int64_t(t.data.size());
    EXPECT_EQ(sum("weights"), weights);
    EXPECT_EQ(all.total(), all.parts[0].total() + all.parts[1].total());
    for (const char* part : {"GPU 0, layers 0 to 3\n", "GPU 1, layers 4 to 5\n", "together, "})
      EXPECT_NE(all.table().find(part), std::string::npos) << all.table();
    EXPECT_EQ(all.line().find(human_bytes(all.total())), 0u) << all.line();
  }
}

// Drafters are on the last GPU; activations of theirs on all.
TEST(Stages, DraftersAreOnTheLast) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  for (const std::string kind : {"dflash", "mtp"}) {
    const std::vector<DrafterFile> drafters{must(DrafterFile::open(kModels + "facet-nano-" + kind + "-Q8_0.gguf"))};
    EngineConfig c = staged(file, {1, 1});
    c.draft.files = {drafters[0].path()};
    c = must(fit_memory(file, m, c, drafters));
    const MemoryPlan p = plan_memory(file, m, c, drafters);
    EXPECT_EQ(bytes(p.parts[0], kind), -1);
    EXPECT_EQ(bytes(p.parts[1], kind), int64_t(drafters[0].file_bytes()));
    EXPECT_EQ(bytes(p.parts[0], kind + " kv"), -1);
    EXPECT_EQ(bytes(p.parts[1], kind + " kv") > 0, kind == "dflash");
    EXPECT_EQ(bytes(p.parts[0], kind + " activations"), bytes(p.parts[1], kind + " activations"));
  }
}

// Each GPU must have room for its own; what does not fit is named, with a split that would.
TEST(Stages, FitsWhereEachPartDoes) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = staged(file, {1, 5});
  c.snapshots = 0, c.chunk = 512, c.kv_k = c.kv_v = KvType::kF16, c.max_out = 1, c.n_ctx = 8192;
  c.kv_layout = KvLayout::kSplit;
  const auto total = [&](std::vector<double> split, size_t part) {
    c.split = std::move(split);
    return plan_memory(file, m, c).parts[part].total();
  };
  const int64_t even = std::max(total({1, 1}, 0), total({1, 1}, 1));
  const int64_t uneven = std::max(total({1, 5}, 0), total({1, 5}, 1));
  ASSERT_LT(even, uneven);
  c.split = {1, 5}, c.memory = even;
  const auto refused = fit_memory(file, m, c);
  ASSERT_FALSE(refused) << "one sequence: rows cannot be fewer";
  const std::string why = refused.error().message();
  EXPECT_NE(why.find(" on GPU "), std::string::npos) << why;
  EXPECT_NE(why.find("--split "), std::string::npos) << why;
  EXPECT_NE(why.find(" would fit"), std::string::npos) << why;
  EXPECT_FALSE(plan_memory(file, m, c).fits());
  c.split = {1, 1};
  EXPECT_TRUE(plan_memory(file, m, c).fits());
  EXPECT_TRUE(fit_memory(file, m, c));
}

// Rows that are fewer than all sequences could need are divided as the layers' rows are, and every GPU has enough for
// the longest sequence.
TEST(Stages, SharedRowsOfAllGpus) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = staged(file, {2, 1});
  c.max_seq = 8, c.snapshots = 0, c.chunk = 512, c.kv_k = c.kv_v = KvType::kF16, c.n_ctx = 8192;
  const MemoryPlan roomy = plan_memory(file, m, must(fit_memory(file, m, c)));
  c.memory = std::max(roomy.parts[0].total(), roomy.parts[1].total()) - (1 << 20);
  const EngineConfig decided = must(fit_memory(file, m, c));
  EXPECT_GT(decided.kv_memory, 0);
  const MemoryPlan p = plan_memory(file, m, decided);
  EXPECT_TRUE(p.fits()) << p.table();
  int64_t pools = 0;
  for (const MemoryPlan& part : p.parts) {
    EXPECT_GT(bytes(part, "kv pool"), 0);
    pools += bytes(part, "kv pool");
  }
  EXPECT_LE(pools, decided.kv_memory + 2);
  EXPECT_GE(pools, decided.kv_memory - 2);
}

TEST(Stages, StatesAreOfTheirSplit) {
  const GgufFile file = must(GgufFile::open(kModels + "facet-nano-Q8_0.gguf"));
  const ModelCfg m = must(gemma4_config(file));
  std::set<SessionHeader::Fingerprint> all;
  for (const std::vector<double>& split : {std::vector<double>{}, {1, 1}, {2, 1}, {1, 2}}) {
    EngineConfig c = staged(file, split);
    c.kv_k = c.kv_v = KvType::kF16;
    EXPECT_TRUE(all.insert(session_fingerprint(file, m, c, {})).second) << split.size();
  }
}

}  // namespace
}  // namespace facet::test
