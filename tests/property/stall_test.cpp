// What happens between two steps is bounded while answers are read: pages are mapped a few at a time, whatever comes
// back, is forked or kept. On a GPU a page takes some 45 us, and a long conversation has hundreds.
#include <algorithm>
#include <thread>

#include "api/engine.h"
#include "support/must.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

constexpr int kLong = 1900;       // tokens: 30 pages in each of two parts
constexpr int64_t kAStep = 16;    // PagePool::pages_a_step of the host
constexpr int64_t kRest = 2 * 4;  // two forks, each with the last pages of its parts; a sequence that grows

class Stalls : public testing::Test {
 protected:
  Stalls() : file_(TinyModel{.window = 800}) {
    config_.model = file_.path();
    config_.backend = "cpu";
    config_.n_ctx = 2048;
    config_.max_seq = 4;
    config_.snapshots = 2;
    config_.snapshot_every = 0;
    config_.chunk = 256;
    config_.margin = 16;
    config_.n_threads = 1;
    config_.kv_k = config_.kv_v = KvType::kF32;
    config_.cache_ram = 64 << 20;
    config_.stepped = [this](const StepStats& s) {
      if (s.tokens == 0) return;
      if (s.prompt_tokens <= 16) most_ = std::max(most_, s.pages);
      pages_ += s.pages;
      EXPECT_GE(s.since_last() * 1.01 + 1e-4, s.seconds) << step_line(s);
    };
  }
  void open() { engine_ = must(Engine::open(config_)); }
  static Request request(std::vector<int32_t> prompt, int n_out) {
    return {.prompt = std::move(prompt), .max_tokens = n_out, .sampling = {.temperature = 0}};
  }
  struct Answer {
    std::vector<int32_t> tokens;
    Usage usage;
    bool done = false;
  };
  RequestId send(Request r, Answer& a) {
    return must(engine_->submit(
        std::move(r),
        {.tokens = [&a](RequestId, std::span<const int32_t> t) { a.tokens.insert(a.tokens.end(), t.begin(), t.end()); },
         .done =
             [&a](RequestId, Stop, const Usage& u, const std::string& e) {
               EXPECT_EQ(e, "");
               a.usage = u, a.done = true;
             }}));
  }
  Answer ask(Request r) {
    Answer a;
    send(std::move(r), a);
    while (engine_->tick()) {
    }
    return a;
  }
  // Slots that were used keep their rings.
  void take_every_slot() {
    for (unsigned i = 0; i < 8; ++i) ask(request(random_ids(300, 96, 100 + i), 1));
  }
  // One that reads on and on, from its second token.
  void begin_reading() {
    Request r = request(random_ids(40, 96, 3), 1800);
    r.cache = false;
    send(r, reader_);
    while (reader_.tokens.size() < 2) engine_->tick();
    most_ = pages_ = 0;
  }

  TinyFile file_;
  EngineConfig config_;
  std::unique_ptr<Engine> engine_;
  Answer reader_;
  int64_t most_ = 0;   // pages that were mapped before a step with answers and no more than a few tokens of prompts
  int64_t pages_ = 0;  // before all steps with answers
};

TEST_F(Stalls, AConversationComesBackFromHostMemory) {
  config_.max_seq = 2, config_.snapshots = 1;  // what is kept of it goes next, and is copied before
  open();
  const std::vector<int32_t> prompt = random_ids(kLong, 96, 1);
  ask(request(prompt, 1));
  take_every_slot();
  begin_reading();
  Request more = request(prompt, 8);
  for (const int32_t id : random_ids(8, 96, 2)) more.prompt.push_back(id);
  Answer back;
  send(more, back);
  while (!back.done) engine_->tick();
  EXPECT_EQ(back.usage.cache.source, CacheUse::Source::kRam);
  EXPECT_EQ(back.usage.cached, kLong);
  for (int i = 0; i < 40; ++i) engine_->tick();
  EXPECT_FALSE(reader_.done);
  EXPECT_GT(pages_, 4 * kAStep) << "there was little to map";
  EXPECT_LE(most_, kAStep + kRest);
  more.cache = false;
  EXPECT_EQ(back.tokens, ask(more).tokens);
}

// Requests that end together are followed by others that begin together. What these take the places of was copied
// before, and no reader waits.
TEST_F(Stalls, RequestsThatBeginTogetherWaitForNoCopy) {
  constexpr int kReaders = 4;
  config_.max_seq = 2 * kReaders, config_.snapshots = 8;
  engine_ = must(Engine::open(config_, {.slow_copies = std::chrono::milliseconds(2)}));
  for (unsigned i = 0; i < 16; ++i) ask(request(random_ids(300, 96, 100 + i), 1));
  std::vector<Answer> readers(kReaders), answers(kReaders);
  for (unsigned i = 0; i < kReaders; ++i) {
    Request r = request(random_ids(40, 96, 200 + i), 1800);
    r.cache = false;
    send(r, readers[i]);
  }
  for (int i = 0; i < 400; ++i) engine_->tick(), std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const CacheStats before = engine_->cache_stats();
  for (unsigned i = 0; i < kReaders; ++i) send(request(random_ids(300, 96, 300 + i), 4), answers[i]);
  while (!std::ranges::all_of(answers, &Answer::done)) engine_->tick();
  EXPECT_GE(engine_->cache_stats().gpu.evictions, before.gpu.evictions + kReaders);
  EXPECT_EQ(engine_->cache_stats().copies_waited, before.copies_waited);
  EXPECT_TRUE(std::ranges::none_of(readers, &Answer::done));
}

// Of host memory for a few states, no more are copied ahead than stay there, and none twice.
TEST_F(Stalls, CopiesAheadComeToAnEnd) {
  config_.max_seq = 8, config_.snapshots = 8;
  const auto copies_of_idle = [&](int ticks) {
    open();
    for (unsigned i = 0; i < 16; ++i) ask(request(random_ids(300, 96, 100 + i), 8));
    std::vector<Answer> readers(4);
    for (unsigned i = 0; i < 4; ++i) {
      Request r = request(random_ids(40, 96, 200 + i), 1800);
      r.cache = false;
      send(r, readers[i]);
    }
    int64_t half = 0;
    for (int i = 0; i < ticks; ++i) {
      if (i == ticks / 2) half = engine_->cache_stats().copies;
      engine_->tick(), std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(std::ranges::none_of(readers, &Answer::done));
    return engine_->cache_stats().copies - half;
  };
  EXPECT_EQ(copies_of_idle(600), 0);
  const CacheStats::Tier ram = engine_->cache_stats().ram;
  ASSERT_GT(ram.entries, 4);
  config_.cache_ram = 4 * ram.bytes / ram.entries;
  EXPECT_EQ(copies_of_idle(600), 0);
}

// A request may have to wait until another session is copied; those who read do not.
TEST_F(Stalls, ReadersWaitForNoCopy) {
  config_.max_seq = 4, config_.snapshots = 4;
  engine_ = must(Engine::open(config_, {.slow_copies = std::chrono::milliseconds(20)}));
  for (unsigned i = 0; i < 8; ++i) ask(request(random_ids(300, 96, 100 + i), 8));
  begin_reading();
  const CacheStats before = engine_->cache_stats();
  std::vector<Answer> answers(3);
  for (unsigned i = 0; i < 3; ++i) send(request(random_ids(300, 96, 300 + i), 4), answers[i]);
  while (!std::ranges::all_of(answers, &Answer::done)) engine_->tick();
  EXPECT_GE(engine_->cache_stats().gpu.evictions, before.gpu.evictions + 3);
  EXPECT_EQ(engine_->cache_stats().copies_waited, before.copies_waited);
  EXPECT_FALSE(reader_.done);
}

// A request waits for a slot to which its state can come back. What is copied meanwhile, to free that slot, takes the
// state's place in host memory.
TEST_F(Stalls, AStateOutlivesTheCopyForWhoseSlotItWaits) {
  config_.max_seq = 2, config_.snapshots = 0;
  const std::vector<int32_t> prompt = random_ids(kLong, 96, 1);
  Request more = request(prompt, 8);
  for (const int32_t id : random_ids(8, 96, 2)) more.prompt.push_back(id);
  open();
  ask(request(prompt, 1));
  while (engine_->cache_stats().ram.entries == 0) engine_->tick();
  config_.cache_ram = engine_->cache_stats().ram.bytes * 5 / 4;
  engine_ = must(Engine::open(config_, {.slow_copies = std::chrono::milliseconds(2)}));
  ask(request(prompt, 1));
  begin_reading();
  Answer before, back;
  send(request(random_ids(kLong, 96, 4), 8), before);
  while (before.tokens.empty()) engine_->tick();
  send(more, back);
  while (!before.done) engine_->tick();
  EXPECT_EQ(engine_->cache_stats().ram.evictions, 0);
  while (back.tokens.empty()) engine_->tick();
  EXPECT_EQ(engine_->cache_stats().ram.evictions, 1);
  while (!back.done) engine_->tick();
  EXPECT_EQ(back.usage.cache.source, CacheUse::Source::kRam);
  EXPECT_EQ(back.usage.cached, kLong);
  EXPECT_FALSE(reader_.done);
  more.cache = false;
  EXPECT_EQ(back.tokens, ask(more).tokens);
}

// A copy that host memory does not keep, or has no room for, keeps nobody waiting for ever.
TEST_F(Stalls, RequestsBeginWhereNothingIsKept) {
  for (const int64_t ram : {int64_t(1), int64_t(300) << 10}) {  // for none, and for one
    config_.max_seq = 2, config_.snapshots = 2, config_.cache_ram = ram;
    open();
    take_every_slot();
    reader_ = {};
    begin_reading();
    for (unsigned i = 0; i < 6; ++i) {
      Answer a;
      send(request(random_ids(300, 96, 300 + i), 4), a);
      for (int t = 0; t < 200 && !a.done; ++t) engine_->tick();
      EXPECT_TRUE(a.done) << ram << " " << i;
    }
    EXPECT_FALSE(reader_.done);
  }
}

// Several answers to one prompt: each goes on in a fork of it.
TEST_F(Stalls, ForksAreTakenAtOnce) {
  open();
  take_every_slot();
  const std::vector<int32_t> prompt = random_ids(kLong, 96, 1);
  begin_reading();
  std::vector<Answer> answers(3);
  for (Answer& a : answers) send(request(prompt, 20), a);
  while (!answers[0].done || !answers[1].done || !answers[2].done) engine_->tick();
  EXPECT_FALSE(reader_.done);
  EXPECT_EQ(answers[1].usage.cached, kLong - 1);
  EXPECT_EQ(answers[2].usage.cached, kLong - 1);
  EXPECT_LE(most_, kAStep + 2 * kRest);
  Request again = request(prompt, 20);
  again.cache = false;
  const Answer want = ask(again);
  for (const Answer& a : answers) EXPECT_EQ(a.tokens, want.tokens);
}

// One that waits for its pages can be cancelled.
TEST_F(Stalls, ASleeperIsCancelled) {
  open();
  const std::vector<int32_t> prompt = random_ids(kLong, 96, 1);
  begin_reading();
  std::vector<Answer> answers(3);
  std::vector<RequestId> ids;
  for (Answer& a : answers) ids.push_back(send(request(prompt, 20), a));
  while (answers[0].tokens.empty()) engine_->tick();
  engine_->tick();
  EXPECT_TRUE(answers[1].tokens.empty()) << "it did not wait";
  engine_->cancel(ids[1]);
  while (!answers[0].done || !answers[1].done || !answers[2].done) engine_->tick();
  EXPECT_TRUE(answers[1].tokens.empty());
  EXPECT_EQ(answers[2].tokens, answers[0].tokens);
}

// Rings of new slots are there before they are wanted.
TEST_F(Stalls, RequestsBeginInNewSlots) {
  config_.snapshots = 8;
  open();
  begin_reading();
  for (int i = 0; i < 60; ++i) engine_->tick();
  EXPECT_GT(pages_, 3 * kAStep) << "nothing was mapped ahead";
  for (unsigned i = 0; i < 3; ++i) {
    Answer a;
    send(request(random_ids(12, 96, 200 + i), 2), a);
    while (!a.done) engine_->tick();
    for (int t = 0; t < 40; ++t) engine_->tick();
  }
  EXPECT_FALSE(reader_.done);
  EXPECT_LE(most_, kAStep + kRest);
}

TEST(StepLine, TellsWhatTookTheTime) {
  StepStats s{.sequences = 8, .prompt_tokens = 8, .pages = 96};
  s.phase_s[size_t(Phase::kMap)] = .0043, s.phase_s[size_t(Phase::kWait)] = .0119,
  s.phase_s[size_t(Phase::kDraft)] = 1e-5;
  EXPECT_EQ(step_line(s), "16.2 ms to a step of 8 sequences, 8 tokens of prompts, 96 pages mapped: map 4.3, wait 11.9");
}

}  // namespace
}  // namespace facet::test
