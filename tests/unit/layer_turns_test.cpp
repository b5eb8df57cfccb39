// Turns at one place: what is acquired is there and stays, in any timing, and nobody waits for ever.
#include "backend/layer_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <stdexcept>

namespace facet {
namespace {

void pause(std::mt19937& rng) {
  if (const int us = int(rng() % 60); us > 20) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

TEST(LayerTurns, WhatIsAcquiredIsThereAndStays) {
  constexpr int kLayers = 7, kSteps = 300;
  std::mt19937 slow(1), rng(2);
  std::atomic<int> place = -1, brought = 0;
  std::atomic<bool> in_use = false, overwritten = false, begun = false;
  LayerTurns turns([&] { begun = true; },
                   [&](int layer) {
                     overwritten = overwritten || in_use || !begun;
                     place = -2;
                     pause(slow);
                     place = layer, ++brought;
                   });
  // On a thread of its own: with who waits forgotten, this never ends.
  std::promise<void> ended;
  std::thread steps([&] {
    for (int step = 0; step < kSteps; ++step) {
      turns.ask(0);
      pause(rng);
      for (int layer = 0; layer < kLayers; ++layer) {
        turns.acquire(layer, layer + 1 < kLayers ? layer + 1 : -1);
        in_use = true;
        EXPECT_EQ(place, layer) << step;
        pause(rng);
        EXPECT_EQ(place, layer) << step;
        in_use = false;
        turns.release(layer);
        pause(rng);
      }
    }
    ended.set_value();
  });
  ASSERT_EQ(ended.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready) << brought << " brought";
  steps.join();
  EXPECT_FALSE(overwritten);
  EXPECT_EQ(brought, kLayers * kSteps) << "each once a step";
}

// What ends the thread ends the program: whoever waits for its layer does not wait for ever.
TEST(LayerTurns, ALayerThatCannotBeBroughtEndsAll) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [] {
    LayerTurns turns([] {},
                     [](int layer) {
                       if (layer == 1) throw std::runtime_error("layer 1 is lost");
                     });
    turns.acquire(0, 1);
    turns.release(0);
    turns.acquire(1, -1);
  };
  EXPECT_DEATH(fail(), "layer 1 is lost");
}

TEST(LayerTurns, AnOnlyLayerIsBroughtOnce) {
  int brought = 0;
  LayerTurns turns([] {}, [&](int) { ++brought; });
  for (int step = 0; step < 5; ++step) {
    turns.ask(3);
    turns.acquire(3, -1);
    EXPECT_EQ(brought, 1);
    turns.release(3);
  }
}

}  // namespace
}  // namespace facet
