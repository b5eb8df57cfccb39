#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "app/console.h"
#include "base/print.h"

namespace facet {

Progress::Progress(std::string label, Unit unit)
    : label_(std::move(label)),
      unit_(unit),
      start_(Clock::now()),
      last_(start_),
      terminal_(takes_escapes(STDERR_FILENO)) {}

Progress::~Progress() {
  if (drawn_) print_err("\r\033[K");
}

void Progress::update(uint64_t done, uint64_t total) {
  constexpr auto kQuiet = std::chrono::seconds(1);
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const auto now = Clock::now();
  if (!terminal_ || now - start_ < kQuiet || now - last_ < kInterval) return;
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  const double part = total ? std::min(1.0, double(done) / double(total)) : 1.0;
  const double seconds = std::chrono::duration<double>(now - start_).count(), rate = double(done) / seconds;
  const int filled = int(part * kWidth);
  const std::string amount = unit_ == Unit::kBytes  ? fmt::format("{:.1f}/{:.1f} GB  {:.2f} GB/s", double(done) / 1e9,
                                                                  double(total) / 1e9, rate / 1e9)
                             : unit_ == Unit::kRuns ? fmt::format("{}/{}", done, total)
                                                    : fmt::format("{}/{} tokens  {:.0f} tok/s", done, total, rate);
  print_err("\r\033[K{} [{}{}] {:3.0f}%  {}  {:.0f} s left", label_, std::string(size_t(filled), '#'),
            std::string(size_t(kWidth - filled), '.'), part * 100, amount,
            rate > 0 ? double(total - std::min(done, total)) / rate : 0.0);
  std::fflush(stderr);
}

}  // namespace facet
