// Engines and GPUs: any thread may tick, several engines run side by side, each on its own GPU or on one. Skips what
// needs more GPUs than there are.
#include <cuda_runtime.h>

#include <cstdlib>
#include <thread>

#include "api/engine.h"
#include "backend/cuda/cuda.h"
#include "support/harness.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

int n_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}
#define NEEDS_GPUS(n) \
  if (n_gpu() < (n)) GTEST_SKIP() << "needs " << (n) << " CUDA devices, found " << n_gpu()

using Answers = std::vector<std::vector<int32_t>>;

EngineConfig config(int gpu, const std::string& model, const std::string& drafter = "") {
  const std::string models = FACET_SOURCE_DIR "/models/";
  EngineConfig c;
  c.model = models + model;
  c.backend = "cuda";
  c.gpu = gpu;
  c.n_ctx = 1024, c.max_seq = 3, c.chunk = 128;
  c.max_stall = 0;  // pieces of prompts do not depend on the time that steps take
  if (!drafter.empty()) c.draft.files = {models + drafter}, c.draft.max = c.draft.min = 4;
  return c;
}
EngineConfig dense(int gpu) { return config(gpu, "facet-nano-Q8_0.gguf", "facet-nano-dflash-Q8_0.gguf"); }
EngineConfig moe(int gpu) { return config(gpu, "facet-nano-moe-Q4_K_M.gguf"); }

// Greedy and drawn answers to prompts of a chunk and more, all at once; then again, from prefixes in the cache.
void ask(Engine& e, Answers& all) {
  const size_t first = all.size();
  all.resize(first + 3);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(e.submit(
        {.prompt = random_ids(40 + 90 * int(i), e.model().n_vocab, uint32_t(60 + i)),
         .max_tokens = 60,
         .sampling = {.temperature = i == 1 ? 0.8f : 0.f},
         .ignore_eos = true},
        {.tokens = [&all, at = first + i](
                       RequestId, std::span<const int32_t> t) { all[at].insert(all[at].end(), t.begin(), t.end()); },
         .done = {}}));
}
Answers answers(Engine& e, int rounds = 2) {
  Answers all;
  for (int i = 0; i < rounds; ++i) {
    ask(e, all);
    while (e.tick()) {
    }
  }
  return all;
}
Answers alone(const EngineConfig& c, int rounds = 2) { return answers(*must(Engine::open(c)), rounds); }

// Opened on this thread, ticked on another and on this one, scored and destroyed on others.
void expect_any_thread(int gpu) {
  const Answers want = alone(dense(0), 3);
  auto e = must(Engine::open(dense(gpu)));
  Answers got;
  std::thread([&] { got = answers(*e); }).join();
  for (const auto& a : answers(*e, 1)) got.push_back(a);
  EXPECT_EQ(got, want);
  size_t scored = 0;
  std::thread([&] {
    const auto ids = random_ids(200, e->model().n_vocab, 3);
    must(e->score(ids, 100, [&](int, std::span<const float> rows) { scored += rows.size(); }));
  }).join();
  EXPECT_EQ(scored, size_t(100) * size_t(e->model().n_vocab));
  std::thread([&] { e.reset(); }).join();
}
TEST(CudaDevices, AnyThreadTicks) {
  NEEDS_GPUS(1);
  expect_any_thread(0);
}
TEST(CudaDevices, AnyThreadTicksOnTheSecondGpu) {
  NEEDS_GPUS(2);
  expect_any_thread(1);
}

// Each engine on a thread of its own, from opening to the end; the tokens of each are those of its run alone.
void expect_side_by_side(const std::vector<EngineConfig>& configs) {
  constexpr int kRounds = 6;
  std::vector<Answers> want, got(configs.size());
  for (const EngineConfig& c : configs) want.push_back(alone(c, kRounds));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < configs.size(); ++i) threads.emplace_back([&, i] { got[i] = alone(configs[i], kRounds); });
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < configs.size(); ++i) EXPECT_EQ(got[i], want[i]) << "engine " << i;
}
TEST(CudaDevices, TwoEnginesOnOneGpuSideBySide) {
  NEEDS_GPUS(1);
  expect_side_by_side({dense(0), moe(0)});
}
TEST(CudaDevices, TwoEnginesOnTwoGpusSideBySide) {
  NEEDS_GPUS(2);
  expect_side_by_side({dense(0), dense(1)});
  expect_side_by_side({moe(0), dense(1), moe(1)});
}

// Engines that one thread ticks in turn, step by step, and that end in either order.
void expect_in_turn(const EngineConfig& a, const EngineConfig& b) {
  const Answers want_a = alone(a), want_b = alone(b);
  for (const bool first_ends_first : {true, false}) {
    auto e = must(Engine::open(a)), f = must(Engine::open(b));
    Answers got_a, got_b;
    for (int round = 0; round < 2; ++round) {
      ask(*e, got_a), ask(*f, got_b);
      for (bool more = true; more;) {
        more = e->tick();
        more |= f->tick();
      }
    }
    EXPECT_EQ(got_a, want_a);
    EXPECT_EQ(got_b, want_b);
    (first_ends_first ? e : f).reset();
    Engine& left = first_ends_first ? *f : *e;
    EXPECT_EQ(answers(left, 1).size(), 3u) << "the other goes on";
  }
}
TEST(CudaDevices, TwoEnginesOnOneGpuInTurn) {
  NEEDS_GPUS(1);
  expect_in_turn(dense(0), moe(0));
}
TEST(CudaDevices, TwoEnginesOnTwoGpusInTurn) {
  NEEDS_GPUS(2);
  expect_in_turn(dense(0), dense(1));
}

TEST(CudaDevices, SaysWhatACardCanDo) {
  NEEDS_GPUS(1);
  for (int id = 0; id < n_gpu(); ++id) {
    const cuda::DeviceInfo d = must(cuda::device_info(id));
    EXPECT_EQ(d.id, id);
    EXPECT_FALSE(d.name.empty());
    EXPECT_GT(d.n_sm, 0);
    EXPECT_GE(d.major, 8);
    EXPECT_GE(d.shared, 99 * 1024);
    EXPECT_GT(d.shared_sm, d.shared);
    EXPECT_GT(d.l2, 0);
    EXPECT_GT(d.memory, must(Cuda::free_memory(id)));
  }
  EXPECT_FALSE(cuda::device_info(n_gpu()));
}

// Kernels are told what they may take per device: a second one of the same GPU, after the first has ended, runs.
TEST(CudaDevices, ADeviceAfterAnother) {
  NEEDS_GPUS(1);
  const Answers want = alone(dense(0), 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(alone(dense(i % n_gpu()), 1), want);
}

// What FACET_CUDA_LIMITS says while it lives, before as well as after.
class Limits {
 public:
  explicit Limits(const char* value) {
    if (const char* was = std::getenv(kName)) was_ = was;
    ::setenv(kName, value, 1);
  }
  ~Limits() { was_.empty() ? ::unsetenv(kName) : ::setenv(kName, was_.c_str(), 1); }

 private:
  static constexpr const char* kName = "FACET_CUDA_LIMITS";
  std::string was_;
};
TEST(CudaDevices, TheLimitsOfAnotherCard) {
  NEEDS_GPUS(1);
  {
    const Limits limits("86");
    const cuda::DeviceInfo d = must(cuda::device_info(0));
    EXPECT_EQ(d.major, 8);
    EXPECT_EQ(d.minor, 6);
    EXPECT_EQ(d.shared, 101376);
    EXPECT_EQ(d.shared_sm, 102400);
    EXPECT_FALSE(d.bulk_copies || d.wgmma || d.pdl || d.clusters || d.gemm || d.cublaslt);
    // Products in 8 bits, experts and attention with the kernels of such a card. Text may round differently.
    for (const EngineConfig& c : {dense(0), moe(0)})
      for (const auto& a : alone(c, 1)) EXPECT_EQ(a.size(), 60u);
  }
  {
    const cuda::DeviceInfo d = must(cuda::device_info(0));
    EXPECT_FALSE(d.gemm && (d.cublaslt || d.int8_prompts)) << "540 MB that nobody needs are not opened";
  }
  const Limits limits("sm_86");
  const auto d = cuda::device_info(0);
  ASSERT_FALSE(d);
  EXPECT_NE(d.error().message().find("FACET_CUDA_LIMITS: expected 86, found sm_86"), std::string::npos);
}

}  // namespace
}  // namespace facet::test
