// A text does not depend on the number of threads, nor on what else wants their cores.
#include "base/threads.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "api/engine.h"
#include "support/must.h"
#include "support/sanitized.h"

namespace facet::test {
namespace {

// Threads of this process that never rest, as other programs would.
class Busy {
 public:
  explicit Busy(int n) {
    for (int i = 0; i < n; ++i)
      threads_.emplace_back([this] {
        while (!over_.load(std::memory_order_relaxed)) continue;
      });
  }
  ~Busy() {
    over_ = true;
    for (std::thread& t : threads_) t.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

// Two answers side by side, one greedy, one drawn: their tokens, one after the other.
std::vector<int32_t> text(const std::string& model, int n_threads, int n) {
  EngineConfig c;
  c.model = fmt::format("{}/models/{}", FACET_SOURCE_DIR, model);
  c.backend = "cpu", c.n_ctx = 512, c.max_seq = 2, c.chunk = 64, c.n_threads = n_threads, c.cache_ram = 0;
  const auto engine = must(Engine::open(c));
  std::vector<std::vector<int32_t>> got(2);
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<int32_t> prompt(100);
    std::iota(prompt.begin(), prompt.end(), int32_t(300 + 100 * i));
    Request r{.prompt = std::move(prompt), .max_tokens = n, .ignore_eos = true};
    r.sampling.temperature = float(i), r.sampling.seed = 7;
    Sink sink;
    sink.tokens = [&, i](RequestId, std::span<const int32_t> t) { got[i].insert(got[i].end(), t.begin(), t.end()); };
    must(engine->submit(std::move(r), std::move(sink)));
  }
  while (engine->tick()) continue;
  got[0].insert(got[0].end(), got[1].begin(), got[1].end());
  return got[0];
}

TEST(Threads, ATextIsTheSameForEveryNumberOfThreadsBesideBusyPrograms) {
  const int n = kSanitized ? 8 : 60;
  for (const std::string model : {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"}) {
    const std::vector<int32_t> alone = text(model, 1, n);
    ASSERT_EQ(int(alone.size()), 2 * n);
    const Busy busy(4);
    pretend_cpus(4);  // a team of four, on any machine
    for (const int n_threads : {1, 2, 4}) EXPECT_EQ(text(model, n_threads, n), alone) << model << ", -t " << n_threads;
    pretend_cpus(0);
  }
}

}  // namespace
}  // namespace facet::test
