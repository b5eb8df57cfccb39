#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

// Within src/media: one rate to another, band-limited.
namespace facet::media {

// A sinc under a Kaiser window, 100 dB down from the lower Nyquist frequency on, flat to 91 % of it. Sample n of the
// output stands at the time of input sample n * from / to; outside of the input there are zeros. Pieces may be given in
// any cut: the output's bits do not depend on it. From 1 to 192,000 Hz each.
class Resampler {
 public:
  Resampler(int from, int to);
  void add(std::span<const float> in, std::vector<float>& out);  // appends what can be computed already
  void finish(std::vector<float>& out);                          // the rest: ceil(n * to / from) in all
  static int64_t length(int64_t n, int from, int to) { return (n * to + from - 1) / from; }

 private:
  void emit(std::vector<float>& out, int64_t end);
  const float* weights(int64_t numerator);  // for a place numerator / to behind an input sample
  const float* phase(int64_t i);
  void fill(double fraction, float* to) const;
  int from_, to_, half_;     // half_: input samples on each side
  double cutoff_;            // of the input's rate, cycles a sample times 2
  std::vector<float> held_;  // input from held_at_ on
  int64_t held_at_, n_in_ = 0, n_out_ = 0;
  // Weights for places behind an input sample, [n_phases_ + 1][2 * half_], filled when they are first asked for. Where
  // the rates have more places than kMostPhases, weights between two of them are interpolated, which is right to -105 dB.
  std::vector<float> phases_;
  std::vector<uint8_t> known_;
  int64_t n_phases_;
  std::vector<float> scratch_;
};

}  // namespace facet::media
