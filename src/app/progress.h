#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace facet {

// A progress line on stderr for work that takes more than a second, if stderr is a terminal that takes escapes. Of
// downloads, elsewhere, a line for each tenth.
class Progress {
 public:
  enum class Unit { kBytes, kTokens, kRuns, kDownload };
  // before: done by an earlier run, and no part of the rate.
  explicit Progress(std::string label, Unit unit = Unit::kBytes, uint64_t before = 0);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(uint64_t done, uint64_t total);

 private:
  std::string amount(uint64_t done, uint64_t total, double rate) const;
  using Clock = std::chrono::steady_clock;
  std::string label_;
  Unit unit_;
  uint64_t before_;
  int tenth_ = 0;  // that was told in a line
  Clock::time_point start_, last_;
  bool terminal_, drawn_ = false;
};

}  // namespace facet
