// Nobody waits for more than a step of each other job; whoever has gone costs nothing more.
#include "server/turn_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>

namespace facet {
namespace {

struct Log {
  std::mutex mutex;
  std::string text;
  void add(char c) {
    const std::lock_guard lock(mutex);
    text += c;
  }
};

// A job of n steps that write c, and what becomes ready with its end.
struct Steps {
  std::atomic<bool> left = false;
  std::promise<bool> ended;
  TurnPool::Job job(std::string client, Log& log, char c, int n) {
    TurnPool::Job j{.client = std::move(client), .left = &left};
    for (int i = 0; i < n; ++i) j.steps.push_back([&log, c] { log.add(c); });
    j.done = [this](bool out_of_memory) { ended.set_value(out_of_memory); };
    return j;
  }
};

// Holds a pool's only thread until it is let go.
struct Gate {
  std::promise<void> open, begun;
  Steps steps;
  void close(TurnPool& pool, Log& log) {
    TurnPool::Job j = steps.job("gate", log, '.', 0);
    j.steps.push_back([this, f = std::make_shared<std::future<void>>(open.get_future())] {
      begun.set_value();
      f->wait();
    });
    pool.run(std::move(j));
    begun.get_future().wait();
  }
};

TEST(TurnPool, ClientsTakeTurnsAndSoDoTheJobsOfOne) {
  Log log;
  Gate gate;
  Steps many, second, other;
  TurnPool pool(1);
  gate.close(pool, log);
  pool.run(many.job("a", log, 'a', 6));
  pool.run(second.job("a", log, 'A', 2));
  pool.run(other.job("b", log, 'b', 2));
  gate.open.set_value();
  EXPECT_FALSE(many.ended.get_future().get());
  second.ended.get_future().wait(), other.ended.get_future().wait();
  EXPECT_EQ(log.text, "abAbaAaaaa");
}

TEST(TurnPool, WhoHasGoneIsNotServed) {
  Log log;
  Gate gate;
  Steps gone, here;
  TurnPool pool(1);
  gate.close(pool, log);
  pool.run(gone.job("a", log, 'x', 5));
  pool.run(here.job("b", log, 'b', 1));
  gone.left = true;
  gate.open.set_value();
  gone.ended.get_future().wait(), here.ended.get_future().wait();
  EXPECT_EQ(log.text, "b");
}

TEST(TurnPool, AJobThatMayNotBeginHoldsNobodyUp) {
  Log log;
  std::atomic<bool> may = false;
  Steps waits, other;
  TurnPool pool(1);
  TurnPool::Job j = waits.job("a", log, 'w', 2);
  j.may_begin = [&] { return may.load(); };
  pool.run(std::move(j));
  pool.run(other.job("a", log, 'o', 3));
  other.ended.get_future().wait();
  may = true;
  waits.ended.get_future().wait();
  EXPECT_EQ(log.text, "oooww");
}

TEST(TurnPool, MemoryThatRunsOutEndsTheJobAlone) {
  Log log;
  Steps poor, other;
  TurnPool pool(2);
  TurnPool::Job j = poor.job("a", log, 'p', 1);
  j.steps.push_back([] { throw std::bad_alloc(); });
  j.steps.push_back([&] { log.add('!'); });
  pool.run(std::move(j));
  EXPECT_TRUE(poor.ended.get_future().get());
  pool.run(other.job("a", log, 'o', 1));
  EXPECT_FALSE(other.ended.get_future().get());
  EXPECT_EQ(log.text, "po");
}

TEST(TurnPool, StopWaitsForWhatRunsAndDropsTheRest) {
  Log log;
  Gate gate;
  static const std::atomic<bool> kNever = false;
  const auto token = std::make_shared<int>(1);
  TurnPool pool(1);
  gate.close(pool, log);
  pool.run({.client = "a", .left = &kNever, .steps = {[token] { FAIL(); }}, .done = [token](bool) { FAIL(); }});
  std::thread stops([&] { pool.stop(); });
  while (token.use_count() > 1) std::this_thread::yield();  // dropped before the gate is open
  gate.open.set_value();
  stops.join();
  gate.steps.ended.get_future().wait();
  pool.run({.client = "a", .left = &kNever, .steps = {[] { FAIL(); }}, .done = [](bool) { FAIL(); }});
}

}  // namespace
}  // namespace facet
