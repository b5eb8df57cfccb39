// Grammars are compiled beside the server: who waits for whom, what is made once, and how a job ends.
#include "server/grammar_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/worker.h"

namespace facet {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A recipe that works until the limits end it, or for so long.
GrammarRecipe works_for(std::string key, Clock::duration time, std::atomic<int>* begun = nullptr) {
  return {std::move(key), [time, begun](const CompileLimits& limits) -> Result<GrammarPtr> {
            if (begun) ++*begun;
            const auto end = Clock::now() + time;
            while (Clock::now() < end) {
              if (limits.interrupted()) return Error{"grammar", "interrupted", ""};
              std::this_thread::sleep_for(1ms);
            }
            return compile_regex("a");
          }};
}
struct Client {
  std::atomic<bool> left = false;
  std::promise<GrammarAnswer> answer;
  std::future<GrammarAnswer> future = answer.get_future();
  Clock::time_point at = {};
  void ask(GrammarPool& pool, GrammarRecipe recipe, const std::string& name = "") {
    pool.make(std::move(recipe), name, left, [this](GrammarAnswer a) {
      at = Clock::now();
      answer.set_value(std::move(a));
    });
  }
  GrammarAnswer get() {
    EXPECT_EQ(future.wait_for(30s), std::future_status::ready);
    return future.get();
  }
};
Status nothing(const GrammarPtr&) { return Ok{}; }

TEST(GrammarPool, EqualRequestsCompileOnce) {
  GrammarPool pool(nothing, 2);
  std::atomic<int> begun = 0;
  Client a, b, c;
  a.ask(pool, works_for("x", 50ms, &begun));
  b.ask(pool, works_for("x", 50ms, &begun));
  const GrammarAnswer first = a.get();
  ASSERT_TRUE(first.grammar);
  EXPECT_EQ(b.get().grammar, first.grammar);
  c.ask(pool, works_for("x", 50ms, &begun));  // remembered
  EXPECT_EQ(c.get().grammar, first.grammar);
  EXPECT_EQ(begun, 1);
}

TEST(GrammarPool, RefusalsAreRememberedToo) {
  GrammarPool pool(nothing, 2);
  int begun = 0;
  const auto bad = [&begun](const CompileLimits&) -> Result<GrammarPtr> {
    ++begun;
    return Error{"schema", "too much", ""};
  };
  for (int i = 0; i < 3; ++i) {
    Client c;
    c.ask(pool, {"bad", bad});
    EXPECT_EQ(c.get().error->status, 400);
  }
  EXPECT_EQ(begun, 1);
}

// Grammars that compile fast wait for slow ones no longer than for slices.
TEST(GrammarPool, SlowOnesHoldUpNoFastOne) {
  GrammarPool pool(nothing, 2, {.slice = 20ms, .most = 20s});
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(std::make_unique<Client>());
    slow.back()->ask(pool, works_for("slow" + std::to_string(i), 400ms));
  }
  std::this_thread::sleep_for(250ms);  // their slices are over
  Client fast;
  const auto asked = Clock::now();
  fast.ask(pool, works_for("fast", 1ms));
  EXPECT_TRUE(fast.get().grammar);
  EXPECT_LT(fast.at - asked, 350ms);  // all of the slow ones take 2.4 s
  for (const auto& c : slow) EXPECT_TRUE(c->get().grammar);
}

TEST(GrammarPool, ClientsTakeTurns) {
  GrammarPool pool(nothing, 2, {.slice = 10s, .most = 30s});
  std::vector<std::unique_ptr<Client>> many;
  for (int i = 0; i < 12; ++i) {
    many.push_back(std::make_unique<Client>());
    many.back()->ask(pool, works_for("many" + std::to_string(i), 60ms), "many");
  }
  std::this_thread::sleep_for(20ms);
  Client one;
  one.ask(pool, works_for("one", 1ms), "one");
  EXPECT_TRUE(one.get().grammar);
  for (const auto& c : many) EXPECT_TRUE(c->get().grammar);
  int before = 0;
  for (const auto& c : many) before += c->at < one.at;
  EXPECT_LE(before, 4);
}

TEST(GrammarPool, WhoLeavesStopsTheWork) {
  GrammarPool pool(nothing, 2);
  Client gone;
  const auto begun = Clock::now();
  gone.ask(pool, works_for("long", 20s));
  std::this_thread::sleep_for(20ms);
  gone.left = true;
  pool.look();
  gone.get();
  EXPECT_LT(Clock::now() - begun, 5s);
  // One of two: the other still waits for it.
  Client stays, leaves;
  stays.ask(pool, works_for("both", 300ms));
  leaves.ask(pool, works_for("both", 300ms));
  std::this_thread::sleep_for(20ms);
  leaves.left = true;
  pool.look();
  EXPECT_TRUE(stays.get().grammar);
  leaves.get();
}

TEST(GrammarPool, TimeIsASecondBound) {
  GrammarPool pool(nothing, 2, {.slice = 20ms, .most = 200ms});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>());
    clients.back()->ask(pool, works_for("long" + std::to_string(i), 20s));
  }
  const auto begun = Clock::now();
  for (const auto& c : clients) {
    const GrammarAnswer a = c->get();
    ASSERT_TRUE(a.error);
    EXPECT_EQ(a.error->status, 503);
    EXPECT_EQ(a.error->code, "grammar_timeout");
  }
  EXPECT_LT(Clock::now() - begun, 5s);
  // It is no property of the grammar: asked again, it is tried again.
  Client again;
  again.ask(pool, works_for("long0", 1ms));
  EXPECT_TRUE(again.get().grammar);
}

TEST(GrammarPool, MemoryThatRunsOutEndsOneRequest) {
  GrammarPool pool(nothing, 2);
  Client poor, next;
  poor.ask(pool, {"poor", [](const CompileLimits&) -> Result<GrammarPtr> { throw std::bad_alloc(); }});
  EXPECT_EQ(poor.get().error->status, 503);
  next.ask(pool, works_for("next", 1ms));
  EXPECT_TRUE(next.get().grammar);
}

TEST(GrammarPool, AGrammarThatCannotBeFollowedIsRefused) {
  GrammarPool pool([](const GrammarPtr&) -> Status { return too_ambiguous(); }, 2);
  Client c;
  c.ask(pool, works_for("x", 1ms));
  const GrammarAnswer a = c.get();
  ASSERT_TRUE(a.error);
  EXPECT_EQ(a.error->status, 400);
  EXPECT_NE(a.error->message.find("too ambiguous"), std::string::npos);
}

TEST(GrammarPool, EndsWhileItWorks) {
  Client a, b;
  {
    GrammarPool pool(nothing, 2);
    a.ask(pool, works_for("a", 20s));
    b.ask(pool, works_for("b", 20s));
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(a.future.wait_for(0s), std::future_status::ready);
}

// Whoever waits for work that threw would wait for ever.
TEST(Worker, WorkThatThrowsEndsTheProcess) {
  const auto work_throws = [] {
    Worker worker;
    worker.push([] { throw std::bad_alloc(); });
    std::this_thread::sleep_for(10s);
  };
  EXPECT_DEATH(work_throws(), "bad_alloc");
}

}  // namespace
}  // namespace facet
