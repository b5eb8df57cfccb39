#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace facet {

Progress::Progress(std::string label)
    : label_(std::move(label)),
      start_(Clock::now()),
      last_(start_),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

void Progress::update(uint64_t done_bytes, uint64_t total_bytes) {
  constexpr auto kQuiet = std::chrono::seconds(1);
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const auto now = Clock::now();
  if (!terminal_ || now - start_ < kQuiet || now - last_ < kInterval) return;
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  const double part = total_bytes ? std::min(1.0, double(done_bytes) / double(total_bytes)) : 1.0;
  const double seconds = std::chrono::duration<double>(now - start_).count(),
               rate = double(done_bytes) / seconds;
  const int filled = int(part * kWidth);
  fmt::print(stderr, "\r\033[K{} [{}{}] {:3.0f}%  {:.1f}/{:.1f} GB  {:.2f} GB/s  {:.0f} s left", label_,
             std::string(size_t(filled), '#'), std::string(size_t(kWidth - filled), '.'), part * 100,
             double(done_bytes) / 1e9, double(total_bytes) / 1e9, rate / 1e9,
             rate > 0 ? double(total_bytes - std::min(done_bytes, total_bytes)) / rate : 0.0);
  std::fflush(stderr);
}

}  // namespace facet
