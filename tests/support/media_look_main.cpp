// One line for each file that is named: what facet sees in it, or the error. For tools/check_media.py and by hand.
//   facet_media_look [--budget N] [--threads N] [--repeat N] FILE...
// Picture: FILE picture KIND WIDTH HEIGHT SHA256(rgb) WIDTH HEIGHT TOKENS SHA256(resized rgb)
// Sound: FILE sound KIND RATE CHANNELS SAMPLES SHA256(samples)
// With --repeat, the milliseconds of decoding and resizing in the best of N runs, and the memory that it took at most.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/files.h"
#include "base/sha.h"
#include "media/picture.h"
#include "media/sound.h"

namespace {
using namespace facet;

std::string sha256(std::span<const std::byte> bytes) {
  Sha sha;
  sha.add(bytes);
  return sha.hex();
}

struct Options {
  int budget = 280, threads = 1, repeat = 0;
};

template <class F>
double best_ms(int repeat, F f) {
  double best = 1e9;
  for (int i = 0; i < repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

std::string look_at_picture(std::span<const std::byte> bytes, const std::string& name, const Options& o) {
  auto small = decode_resized(bytes, o.budget, name, {}, o.threads);
  if (!small) return small.error().message();
  const std::string resized =
      fmt::format("{} {} {} {}", small->width, small->height, small->width / 48 * (small->height / 48),
                  sha256(std::as_bytes(std::span(small->rgb))));
  if (o.repeat > 0) {
    const double ms = best_ms(o.repeat, [&] { (void)decode_resized(bytes, o.budget, name, {}, o.threads); });
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return fmt::format("{} picture {} {:.1f} ms, {} KiB at most", name, resized, ms, use.ru_maxrss);
  }
  auto whole = decode_picture(bytes, name);
  if (!whole) return whole.error().message();
  return fmt::format("{} picture {} {} {} {} {}", name, picture_kind(bytes), whole->width, whole->height,
                     sha256(std::as_bytes(std::span(whole->rgb))), resized);
}

std::string look_at_sound(std::span<const std::byte> bytes, const std::string& name, const Options& o) {
  auto sound = decode_sound(bytes, name);
  if (!sound) return sound.error().message();
  if (o.repeat > 0) {
    const double ms = best_ms(o.repeat, [&] { (void)decode_sound(bytes, name); });
    const double mel = best_ms(o.repeat, [&] { (void)log_mel(sound->samples); });
    return fmt::format("{} sound {:.1f} s: {:.1f} ms, its features {:.1f} ms", name,
                       double(sound->samples.size()) / kSampleRate, ms, mel);
  }
  return fmt::format("{} sound {} {} {} {} {}", name, sound->kind, sound->rate, sound->channels, sound->samples.size(),
                     sha256(std::as_bytes(std::span(sound->samples))));
}
}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name.starts_with("--") && i + 1 < argc) {
      int& to = name == "--budget" ? o.budget : name == "--threads" ? o.threads : o.repeat;
      to = std::atoi(argv[++i]);
      continue;
    }
    auto file = read_file(name, uint64_t{1} << 30);
    if (!file) {
      fmt::print("{}\n", file.error().message());
      continue;
    }
    const auto bytes = std::as_bytes(std::span(*file));
    fmt::print("{}\n", sound_kind(bytes).empty() ? look_at_picture(bytes, name, o) : look_at_sound(bytes, name, o));
  }
}
