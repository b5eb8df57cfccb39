#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace facet {

// What compiling one grammar may cost. The work is counted in units (states, arcs and edges made, bytes compared), so
// that a grammar that is too much is too much on every machine; the time and the flag are for whoever waits: the same
// grammar may compile when asked for again.
struct CompileLimits {
  static constexpr uint64_t kDefaultWork = 40'000'000;  // at most 0.5 s of one core
  uint64_t work = kDefaultWork;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  const std::atomic<bool>* cancelled = nullptr;  // true: nobody waits for the grammar; may change at any time

  // What ends a compilation whatever its work. Work is not looked at.
  bool interrupted() const {
    if (cancelled && cancelled->load(std::memory_order_relaxed)) return true;
    return deadline != std::chrono::steady_clock::time_point::max() && std::chrono::steady_clock::now() >= deadline;
  }
};

}  // namespace facet
