// What is kept of a prompt: its own session while that can go back there, and a snapshot from then on.
#include "api/engine.h"
#include "cache/kv_cache.h"
#include "model/gemma4_config.h"
#include "support/answers.h"
#include "support/must.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

constexpr int kPrompt = 300;

class Snapshots : public testing::Test {
 protected:
  void open(int window, int snapshots = 6) {
    file_.emplace(TinyModel{.window = window});
    config_.model = file_->path();
    config_.backend = "cpu";
    config_.n_ctx = 1024;
    config_.max_seq = 2;
    config_.snapshots = snapshots;
    config_.snapshot_every = 0;
    config_.chunk = 128;
    config_.margin = 16;
    config_.n_threads = 1;
    engine_ = must(Engine::open(config_));
  }
  static Request request(std::vector<int32_t> prompt, int n_out) {
    return {.prompt = std::move(prompt), .max_tokens = n_out, .sampling = {.temperature = 0}};
  }
  Answer ask(const Request& r) { return answer_of(*engine_, r); }
  Answer afresh(Request r) {
    r.cache = false;
    return ask(r);
  }
  int64_t kept() const { return engine_->cache_stats().gpu.entries; }

  std::optional<TinyFile> file_;
  EngineConfig config_;
  std::unique_ptr<Engine> engine_;
};

// Rings that were never full hold every row: nothing is forked for a prompt's end.
TEST_F(Snapshots, NoneWhereTheSessionCanGoBack) {
  open(/*window=*/800);
  for (unsigned i = 0; i < 3; ++i) ask(request(random_ids(kPrompt, 96, i), 40));
  EXPECT_EQ(kept(), 3);
  EXPECT_EQ(engine_->cache_stats().gpu.restores, 0);
  const Request again = request(random_ids(kPrompt, 96, 1), 40);
  const Answer got = ask(again);
  EXPECT_EQ(got.usage.cached, kPrompt - 1);
  EXPECT_EQ(got.tokens, afresh(again).tokens);
}

// Of short answers, and those behind which the rings no longer have what precedes the prompt's end.
TEST_F(Snapshots, OneBeforeTheRingsLoseThePrompt) {
  for (const int n_out : {4, 7, 8, 9, 10, 16, 17, 18, 40}) {
    open(/*window=*/16);
    const std::vector<int32_t> prompt = random_ids(kPrompt, 96, 1);
    ask(request(prompt, n_out));
    EXPECT_EQ(kept(), n_out > config_.margin / 2 ? 2 : 1) << n_out;
    Request again = request(prompt, 9);
    Answer got = ask(again);
    EXPECT_EQ(got.usage.cached, kPrompt - 1) << n_out;
    EXPECT_EQ(got.tokens, afresh(again).tokens) << n_out;
    again.prompt.resize(size_t(kPrompt - config_.margin / 2));
    again.prompt.push_back(prompt[again.prompt.size()] == 5 ? 6 : 5);
    got = ask(again);
    EXPECT_EQ(got.usage.cached, kPrompt - config_.margin / 2) << n_out;
    EXPECT_EQ(got.tokens, afresh(again).tokens) << n_out;
  }
}

// A session that goes on with a further turn leaves the prompt of the one before.
TEST_F(Snapshots, OneBeforeTheNextTurn) {
  open(/*window=*/16);
  Request first = request(random_ids(kPrompt, 96, 1), 5);
  const Answer told = ask(first);
  Request second = first;
  second.prompt.insert(second.prompt.end(), told.tokens.begin(), told.tokens.end());
  for (const int32_t id : random_ids(60, 96, 2)) second.prompt.push_back(id);
  EXPECT_EQ(ask(second).usage.cached, kPrompt + 4);
  Request changed = first;
  changed.prompt.push_back(told.tokens[0] == 5 ? 6 : 5);
  const Answer got = ask(changed);
  EXPECT_EQ(got.usage.cached, kPrompt);
  EXPECT_EQ(got.tokens, afresh(changed).tokens);
}

// Another answer to the prompt of one that is being given.
TEST_F(Snapshots, GoOnBesideTheAnswer) {
  for (const int window : {16, 800})
    for (const int n : {3, 12, 60}) {
      open(window);
      const Request r = request(random_ids(kPrompt, 96, 1), 90);
      const Answer want = afresh(r);
      Answer first, second;
      must(engine_->submit(r, into(first)));
      while (first.tokens.size() < size_t(n)) engine_->tick();
      must(engine_->submit(r, into(second)));
      while (engine_->tick()) {
      }
      EXPECT_EQ(second.usage.cached, kPrompt - 1) << window << " " << n;
      EXPECT_EQ(first.tokens, want.tokens);
      EXPECT_EQ(second.tokens, want.tokens);
    }
}

// Without slots for them nothing is kept but what ran, and no request waits for one.
TEST_F(Snapshots, NoneWithoutSlots) {
  open(/*window=*/16, /*snapshots=*/0);
  const Request r = request(random_ids(kPrompt, 96, 1), 60);
  const Answer want = ask(r);
  Answer first, second, third;
  for (Answer* a : {&first, &second, &third}) {
    must(engine_->submit(r, into(*a)));
    for (int i = 0; i < 8; ++i) engine_->tick();
  }
  while (engine_->tick()) {
  }
  for (const Answer& a : {first, second, third}) EXPECT_EQ(a.tokens, want.tokens);
  EXPECT_LE(kept(), 2);
}

// Slots without rows are mapped a few pages at a time, for prompts that then map nothing; what is mapped counts as free.
TEST(MapAhead, PromptsFindTheirPages) {
  const TinyFile file(TinyModel{.window = 800});
  const GgufFile gguf = must(GgufFile::open(file.path()));
  const KvPlan plan{.max_seq = 2, .max_ctx = 4096, .max_step = 1024, .margin = 64, .snapshots = 2};
  const auto cache = must(HostKvCache::create(must(gemma4_config(gguf)), plan));
  PagePool& pool = cache->pool();
  const int64_t staged = pool.used();
  std::vector<int64_t> most(size_t(plan.resident()));
  for (SlotId s = 0; s < 3; ++s)
    while (const int64_t n = cache->premap(s, 3)) {
      EXPECT_LE(n, 3);
      most[size_t(s)] += n;
    }
  EXPECT_EQ(pool.used(), staged);
  pool.next_step();
  must(cache->prepare(0, 1000));
  EXPECT_EQ(pool.next_step(), 0);
  EXPECT_EQ(pool.used(), staged + most[0]);
  cache->commit(0, 1000);
  EXPECT_EQ(cache->premap(0, 3), 0) << "it has rows";
  EXPECT_EQ(most[1], most[0]);
  must(cache->prepare(3, 1000));
  EXPECT_EQ(pool.next_step(), most[0]) << "it was not asked for";
  cache->commit(3, 1000);
  must(cache->fork(0, 1));  // shared pages take the place of those that were mapped
  EXPECT_EQ(cache->len(1), 1000);
  for (SlotId s = 0; s < plan.resident(); ++s) cache->release(s);
  EXPECT_EQ(pool.used(), staged);
}

}  // namespace
}  // namespace facet::test
