#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace facet {

// A progress line on stderr for work that takes more than a second, if stderr is a terminal that takes escapes.
class Progress {
 public:
  enum class Unit { kBytes, kTokens, kRuns };
  explicit Progress(std::string label, Unit unit = Unit::kBytes);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  Unit unit_;
  Clock::time_point start_, last_;
  bool terminal_, drawn_ = false;
};

}  // namespace facet
