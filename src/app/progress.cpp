#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "app/console.h"
#include "base/print.h"

namespace facet {

Progress::Progress(std::string label, Unit unit, uint64_t before)
    : label_(std::move(label)),
      unit_(unit),
      before_(before),
      start_(Clock::now()),
      last_(start_),
      terminal_(takes_escapes(STDERR_FILENO)) {}

Progress::~Progress() {
  if (drawn_) print_err("\r\033[K");
}

std::string Progress::amount(uint64_t done, uint64_t total, double rate) const {
  switch (unit_) {
    case Unit::kBytes:
      return fmt::format("{:.1f}/{:.1f} GB  {:.2f} GB/s", double(done) / 1e9, double(total) / 1e9, rate / 1e9);
    case Unit::kDownload:
      return fmt::format("{:.1f}/{:.1f} MB  {:.1f} MB/s", double(done) / 1e6, double(total) / 1e6, rate / 1e6);
    case Unit::kRuns:
      return fmt::format("{}/{}", done, total);
    default:
      return fmt::format("{}/{} tokens  {:.0f} tok/s", done, total, rate);
  }
}

void Progress::update(uint64_t done, uint64_t total) {
  constexpr auto kQuiet = std::chrono::seconds(1);
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const auto now = Clock::now();
  if (now - start_ < kQuiet || now - last_ < kInterval) return;
  const double part = total ? std::min(1.0, double(done) / double(total)) : 1.0;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = double(done - std::min(before_, done)) / seconds;
  const double left = rate > 0 ? double(total - std::min(done, total)) / rate : 0.0;
  if (!terminal_) {
    const int tenth = int(part * 10);
    if (unit_ == Unit::kDownload && tenth > tenth_)
      print_err("{} {:3.0f}%  {}  {:.0f} s left\n", label_, part * 100, amount(done, total, rate), left);
    tenth_ = std::max(tenth_, tenth);
    return;
  }
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  const int filled = int(part * kWidth);
  print_err("\r\033[K{} [{}{}] {:3.0f}%  {}  {:.0f} s left", label_, std::string(size_t(filled), '#'),
            std::string(size_t(kWidth - filled), '.'), part * 100, amount(done, total, rate), left);
  std::fflush(stderr);
}

}  // namespace facet
