// The law of weights in RAM, by texts of an engine: the same placement gives the same text, whatever a prompt was cut
// into, found in the cache, computed beside or restored from. Skips without a device.
#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "backend/cuda/cuda.h"
#include "support/answers.h"
#include "support/harness.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"
#include "tools/expert_usage_file.h"

namespace facet::test {
namespace {

#define NEEDS_GPU() \
  if (const Status ok = Cuda::usable(0); !ok) GTEST_SKIP() << ok.error().message()

constexpr int kBlock = 256, kAnswer = 24;
const std::string kMoe = std::string(FACET_SOURCE_DIR) + "/models/facet-nano-moe-Q4_K_M.gguf";

EngineConfig config() {
  EngineConfig c;
  c.model = kMoe;
  c.backend = "cuda", c.n_threads = 4;
  c.n_ctx = 5376, c.max_seq = 8, c.chunk = 2048, c.snapshots = 24, c.max_stall = 0;
  c.experts_on_cpu = 2;
  return c;
}
// Of every layer some experts are on the GPU.
std::shared_ptr<const ExpertUsage> usage() {
  const ModelCfg m = must(gemma4_config(must(GgufFile::open(kMoe))));
  std::mt19937 rng(4);
  auto u = std::make_shared<ExpertUsage>();
  for (int l = 0; l < m.n_layer(); ++l)
    for (auto& of = u->chosen.emplace_back(); int(of.size()) < m.n_expert;) of.push_back(int64_t(rng() % 1000));
  return u;
}
std::vector<EvalDoc> docs() {
  return must(read_eval_set(fmt::format("{}/models/facet-nano-eval.jsonl", FACET_SOURCE_DIR)));
}
std::vector<int32_t> text(const Engine& e, size_t n) {
  std::vector<int32_t> ids;
  for (const EvalDoc& d : docs()) {
    const auto more = e.tokenizer()->encode(d.context + d.answer + "\n", ids.empty(), false);
    ids.insert(ids.end(), more.begin(), more.end());
    if (ids.size() >= n) break;
  }
  ids.resize(n);
  return ids;
}
// A question of n tokens, filled up with sentences in front of it. The model knows the answer: what is rounded
// otherwise does not change it.
std::vector<int32_t> question(const Engine& e, size_t n) {
  constexpr std::string_view kBehind = "Answer in one sentence.";
  const auto filler = text(e, n);
  std::vector<int32_t> best;
  size_t room = n;
  for (const EvalDoc& d : docs()) {
    const size_t at = d.context.find(kBehind);
    if (at == std::string::npos) continue;
    auto ids = e.tokenizer()->encode(d.context.substr(0, at + kBehind.size()), false, true);
    const auto rest = e.tokenizer()->encode(d.context.substr(at + kBehind.size()), false, true);
    if (ids.size() + rest.size() > n || n - ids.size() - rest.size() >= room) continue;
    room = n - ids.size() - rest.size();
    ids.insert(ids.end(), filler.begin() + 1, filler.begin() + 1 + ptrdiff_t(room));
    ids.insert(ids.end(), rest.begin(), rest.end());
    best = std::move(ids);
  }
  return best;
}
Request ask(std::vector<int32_t> prompt, int n = kAnswer) {
  return {.prompt = std::move(prompt), .max_tokens = n, .sampling = {.temperature = 0}};
}

void same_placement_same_text(const EngineConfig& c) {
  auto cold = must(Engine::open(c));
  const auto all = text(*cold, 400);
  for (const int n : {100, 256, 300, 5000}) {
    const std::vector<int32_t> prompt = question(*cold, size_t(n));
    ASSERT_EQ(prompt.size(), size_t(n));
    Request alone = ask(prompt);
    alone.cache = false;
    const auto want = answer_of(*cold, alone).tokens;
    ASSERT_GT(want.size(), 3u);
    EXPECT_EQ(answer_of(*cold, alone).tokens, want) << n << ": again";
    // Warm: what was computed of it before ends at every border of blocks, and beside them.
    auto warm = must(Engine::open(c));
    for (int at = kBlock; at < n + kBlock; at += kBlock)
      for (const int off : {-1, 0, 1}) {
        const int end = std::min(at + off, n - 1);
        Request begin = ask({prompt.begin(), prompt.begin() + end}, 1);
        begin.cache_salt = std::to_string(end);
        answer_of(*warm, begin);
        Request rest = ask(prompt);
        rest.cache_salt = begin.cache_salt;
        const Answer a = answer_of(*warm, rest);
        EXPECT_EQ(a.tokens, want) << n << ", warm to " << end << ", " << a.usage.cached << " cached";
        if (n == 5000 && off != 0 && at % 1024 != 0) break;  // the others are alike
      }
    // Beside seven readers.
    std::vector<Answer> readers(7);
    Answer beside;
    for (size_t i = 0; i < readers.size(); ++i) {
      Request r = ask({all.begin() + ptrdiff_t(40 * i), all.begin() + ptrdiff_t(40 * i + 30)}, 200);
      r.ignore_eos = true;
      must(cold->submit(r, into(readers[i])));
    }
    for (int i = 0; i < 12; ++i) cold->tick();
    Request among = alone;
    must(cold->submit(among, into(beside)));
    while (cold->tick()) {
    }
    EXPECT_EQ(beside.tokens, want) << n << ": beside readers";
    for (const Answer& r : readers) EXPECT_EQ(r.tokens.size(), 200u);
    // With drafts, of which some are wrong.
    for (const char* kind : {"mtp", "dflash"}) {
      EngineConfig d = c;
      d.draft.files = {fmt::format("{}/models/facet-nano-moe-{}-Q8_0.gguf", FACET_SOURCE_DIR, kind)};
      d.draft.min = 3;
      const Answer a = answer_of(*must(Engine::open(d)), ask(prompt));
      EXPECT_EQ(a.tokens, want) << n << ": " << kind;
    }
    // From a file that another engine left.
    const std::string path = (std::filesystem::temp_directory_path() / "facet-placement.state").string();
    auto first = must(Engine::open(c)), second = must(Engine::open(c));
    answer_of(*first, ask({prompt.begin(), prompt.begin() + n - 1}, 1));
    const auto slot = [&](Engine& e, auto&& call) {
      std::string error = "nothing was told";
      call([&](Result<SlotDone> r) { error = r ? "" : r.error().message(); });
      while (e.tick() || error == "nothing was told") {
      }
      EXPECT_EQ(error, "");
    };
    slot(*first, [&](auto told) { first->save_slot(0, path, told); });
    slot(*second, [&](auto told) { second->restore_slot(0, path, told); });
    const Answer a = answer_of(*second, ask(prompt));
    EXPECT_EQ(a.tokens, want) << n << ": restored, " << a.usage.cached << " cached";
    // Of another placement, it is refused.
    EngineConfig other = c;
    other.experts_on_cpu = 3;
    auto third = must(Engine::open(other));
    std::string refused;
    third->restore_slot(0, path, [&](Result<SlotDone> r) { refused = r ? "taken" : r.error().message(); });
    for (int i = 0; i < 1000 && refused.empty(); ++i) third->tick();
    EXPECT_NE(refused, "taken");
    std::filesystem::remove(path);
  }
}

TEST(CudaPlacement, WholeLayersInRam) {
  NEEDS_GPU();
  same_placement_same_text(config());
}
TEST(CudaPlacement, ExpertsInBothPlaces) {
  NEEDS_GPU();
  EngineConfig c = config();
  c.expert_usage = usage();
  same_placement_same_text(c);
}

// The more of the chosen experts are on the GPU, the fewer rows go to the CPU; what is said beforehand is what is found.
TEST(CudaPlacement, AProfileFindsMore) {
  NEEDS_GPU();
  const GgufFile file = must(GgufFile::open(kMoe));
  const ModelCfg m = must(gemma4_config(file));
  EngineConfig c = config();
  c.experts_on_cpu = 0;
  const auto count = [&](size_t from, size_t to) {
    c.count_experts = std::make_shared<ExpertUsage>();
    {
      auto e = must(Engine::open(c));
      const auto ids = text(*e, to);
      for (size_t at = from; at + 500 <= to; at += 500)
        answer_of(*e, ask({ids.begin() + ptrdiff_t(at), ids.begin() + ptrdiff_t(at + 500)}, 20));
    }
    return *c.count_experts;
  };
  const ExpertUsage profile = count(0, 20'000), later = count(20'000, 40'000);
  for (const int quarters : {1, 2, 3}) {
    const int in_ram = m.n_layer() - m.n_layer() * quarters / 4;
    const double hits = place_experts(profile, in_ram).hits(later);
    double whole = double(m.n_layer() - in_ram) / m.n_layer();
    std::printf("%d of %d layers' worth in RAM: %.1f %% of later choices on the GPU, whole layers %.1f %%\n", in_ram,
                m.n_layer(), 100 * hits, 100 * whole);
    EXPECT_GT(hits, whole);
  }
}

}  // namespace
}  // namespace facet::test
