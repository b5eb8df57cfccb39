// No step allocates: memory is taken at open and between steps. And where it runs out in between, requests end and the
// engine goes on. Counts every operator new of the program.
#include <atomic>
#include <cstdlib>
#include <new>

#include "backend/cpu/cpu_fast.h"
#include "grammar/grammar.h"
#include "support/harness.h"
#include "support/scripted_drafter.h"
#include "support/tiny_model.h"

namespace {
std::atomic<int64_t> g_allocations{0};
thread_local int64_t t_fail_in = -1;  // this thread's allocations until one fails; negative: none does
void count() {
  ++g_allocations;
  if (t_fail_in >= 0 && t_fail_in-- == 0) throw std::bad_alloc();
}
}  // namespace
__attribute__((noinline)) void* operator new(size_t n) {
  count();
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
    // Warm-up: a thread of the pool makes room for itself when it first gets work of a kind, and which work it gets is
    // chance. What a step allocates each time never ends.
    int64_t made = 1;
    for (int round = 0; round < 50 && made > 0; ++round) {
      made = 0;
      h.cache().clear(0), h.cache().clear(1);
      for (int n : {1, 1, 16, 17, 60, 1}) made += step(n);
    }
    EXPECT_EQ(made, 0);
  }
}
TEST(Allocation, TheCounterCounts) {
  const int64_t before = g_allocations;
  std::vector<int> v(10);
  EXPECT_GT(g_allocations + int64_t(v.size()) - 10, before);
}

// --- memory runs out

struct Ends {
  int wrong = 0, failed = 0;  // answers that are neither right nor an error; requests that ended in one
};
// Two requests, one with a grammar; the nth allocation of the engine's thread fails from some tick on.
Ends run_out(Engine& e, const std::vector<Request>& requests, const std::vector<Answer>& want, int from, int nth) {
  std::vector<Answer> got(requests.size());
  std::vector<int> ended(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Sink sink = into(got[i]);
    sink.done = [done = sink.done, &n = ended[i]](RequestId id, Stop s, const Usage& u, const std::string& error) {
      t_fail_in = -1;
      ++n;
      done(id, s, u, error);
    };
    must(e.submit(requests[i], std::move(sink)));
  }
  Ends out;
  bool more = true;
  for (int tick = 0; more; ++tick) {
    if (tick == from) t_fail_in = nth;
    more = e.tick();
    if (tick >= from + 3) t_fail_in = -1;
  }
  t_fail_in = -1;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(ended[i], 1) << "request " << i << ", allocation " << nth << " from tick " << from;
    out.failed += got[i].why == Stop::kError;
    out.wrong += got[i].why != Stop::kError && got[i].tokens != want[i].tokens;
  }
  return out;
}
TEST(Allocation, RunningOutEndsRequestsAndNotTheEngine) {
  EngineConfig c;
  c.model = std::string(FACET_SOURCE_DIR) + "/models/facet-nano-Q8_0.gguf";
  c.n_ctx = 256, c.max_seq = 2, c.n_threads = 1, c.margin = 16;
  c.kv_k = c.kv_v = KvType::kF16;
  const auto e = must(Engine::open(c));
  std::vector<Request> requests;
  for (int i = 0; i < 2; ++i)
    requests.push_back({.prompt = e->tokenizer()->encode("<|turn>user\nHello<turn|>\n<|turn>model\n", true, true),
                        .max_tokens = 24,
                        .sampling = {.temperature = 1, .seed = 3 + uint64_t(i)},
                        .ignore_eos = i == 0,
                        .cache = false});
  requests[1].grammar = *compile_gbnf("root ::= s\ns ::= [a-z ] s s | [a-z ] s | [a-z ]");
  const std::vector<Answer> want = answers(*e, requests);
  int failed = 0;
  for (const int from : {0, 1, 4, 9})
    for (int nth = 0; nth < 240; nth += 1 + nth / 8) {
      const Ends ends = run_out(*e, requests, want, from, nth);
      EXPECT_EQ(ends.wrong, 0) << "allocation " << nth << " from tick " << from;
      failed += ends.failed;
    }
  EXPECT_GT(failed, 20);
  const std::vector<Answer> after = answers(*e, requests);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(after[i].tokens, want[i].tokens);
}

}  // namespace
}  // namespace facet::test
