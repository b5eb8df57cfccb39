// No step allocates: memory is taken at open and between steps. Counts every operator new of the program.
#include <atomic>
#include <cstdlib>
#include <new>

#include "support/harness.h"
#include "support/tiny_model.h"

namespace {
std::atomic<int64_t> g_allocations{0};
}
__attribute__((noinline)) void* operator new(size_t n) {
  ++g_allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(size_t n,
                                             const std::nothrow_t&) noexcept {  // the library's temporary buffers
  ++g_allocations;
  return std::malloc(n);
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace facet::test {
namespace {

TEST(Allocation, NoStepAllocates) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(m);
    Harness<CpuRef> h(
        file.path(),
        {.k = KvType::kTQ3_0, .v = KvType::kTQ3_0, .max_seq = 2, .max_ctx = 512, .max_step = 64, .margin = 16}, 0, 2);
    const auto ids = random_ids(64, 96, 3);
    const Sampling sampling{.repeat_penalty = 1.1f};
    auto step = [&](int n) {
      h.begin();
      h.add({.slot = 0, .token = std::span(ids).first(size_t(n)), .out = Out::kLast});
      h.add({.slot = 1, .token = std::span(ids).first(1), .out = Out::kLast});
      const int64_t before = g_allocations;
      const auto logits = h.runner().forward();
      const SampleRow rows[] = {{.sampling = &sampling, .position = 1, .history = ids},
                                {.sampling = &sampling, .position = 2, .history = ids}};
      h.backend().sample(h.runner().ids, logits, rows);
      const int64_t made = g_allocations - before;
      h.cache().commit(0, n);
      h.cache().commit(1, 1);
      return made;
    };
    step(60);  // warm-up: the thread pool starts
    for (int n : {1, 1, 16, 17, 60, 1}) EXPECT_EQ(step(n), 0) << n << " tokens";
  }
}
TEST(Allocation, TheCounterCounts) {
  const int64_t before = g_allocations;
  std::vector<int> v(10);
  EXPECT_GT(g_allocations + int64_t(v.size()) - 10, before);
}

}  // namespace
}  // namespace facet::test
