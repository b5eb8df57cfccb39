#include "media/resample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace facet::media {
namespace {

constexpr int kZeros = 74;         // zero crossings on each side: 92 dB / (2.285 * pi * 0.088) of the transition band
constexpr double kBeta = 10.06;    // Kaiser window for 100 dB: 0.1102 * (100 - 8.7)
constexpr double kMiddle = 0.956;  // of the transition band, of the lower Nyquist frequency
constexpr int kWindowSteps = 8192;
constexpr int64_t kMostPhases = 1024;
constexpr int64_t kInterpolated = 512;

double bessel_i0(double x) {
  double sum = 1, term = 1;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= (x / (2 * k)) * (x / (2 * k));
    sum += term;
  }
  return sum;
}

// The Kaiser window over 0..1, and its last value once more.
const std::vector<double>& kaiser_window() {
  static const std::vector<double> window = [] {
    std::vector<double> w(kWindowSteps + 2);
    for (int i = 0; i < kWindowSteps + 2; ++i) {
      const double x = std::min(1.0, double(i) / kWindowSteps);
      w[size_t(i)] = bessel_i0(kBeta * std::sqrt(1 - x * x)) / bessel_i0(kBeta);
    }
    return w;
  }();
  return window;
}

// Eight sums beside each other, which vectorises, in an order that no cut changes.
float dot(const float* a, const float* b, int n) {
  float s[8] = {};
  for (int i = 0; i < n; i += 8) {
    for (int k = 0; k < 8; ++k) s[k] += a[i + k] * b[i + k];
  }
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

}  // namespace

Resampler::Resampler(int from, int to) : from_(from), to_(to) {
  CHECK(from > 0 && to > 0 && from <= 192'000 && to <= 192'000, "{} to {} Hz", from, to);
  cutoff_ = kMiddle * std::min(1.0, double(to) / from);
  half_ = (int(std::ceil(kZeros / cutoff_)) + 4) & ~3;  // 2 * half_ is a multiple of 8
  const int64_t places = to_ / std::gcd(from, to);
  n_phases_ = places <= kMostPhases ? places : kInterpolated;
  phases_.resize(size_t(n_phases_ + 1) * 2 * size_t(half_));
  known_.resize(size_t(n_phases_ + 1));
  scratch_.resize(2 * size_t(half_));
  held_.resize(size_t(half_) - 1);  // zeros in front of the first sample
  held_at_ = -(half_ - 1);
}

// Weights of input samples base - half_ + 1 .. base + half_ for the place base + fraction.
void Resampler::fill(double fraction, float* to) const {
  const std::vector<double>& kaiser = kaiser_window();
  for (int j = 0; j < 2 * half_; ++j) {
    const double t = j - half_ + 1 - fraction;  // input samples
    const double edge = std::min(1.0, std::abs(t) / half_) * kWindowSteps;
    const int i = int(edge);
    const double window = kaiser[size_t(i)] + (kaiser[size_t(i) + 1] - kaiser[size_t(i)]) * (edge - i);
    const double x = M_PI * cutoff_ * t;
    to[j] = float(cutoff_ * (std::abs(x) < 1e-12 ? 1.0 : std::sin(x) / x) * window);
  }
}

const float* Resampler::phase(int64_t i) {
  float* row = &phases_[size_t(i) * 2 * size_t(half_)];
  if (!known_[size_t(i)]) {
    fill(double(i) / double(n_phases_), row);
    known_[size_t(i)] = 1;
  }
  return row;
}

const float* Resampler::weights(int64_t numerator) {
  const int64_t i = numerator * n_phases_ / to_, rest = numerator * n_phases_ % to_;
  if (rest == 0) return phase(i);
  const float *a = phase(i), *b = phase(i + 1), part = float(rest) / float(to_);
  for (int j = 0; j < 2 * half_; ++j) scratch_[size_t(j)] = a[j] + (b[j] - a[j]) * part;
  return scratch_.data();
}

// Output up to `end`, as far as the input is known.
void Resampler::emit(std::vector<float>& out, int64_t end) {
  const int64_t known = held_at_ + int64_t(held_.size());
  for (; n_out_ < end; ++n_out_) {
    const int64_t place = n_out_ * from_, base = place / to_;
    if (base + half_ >= known) break;
    out.push_back(dot(weights(place % to_), &held_[size_t(base - half_ + 1 - held_at_)], 2 * half_));
  }
  const int64_t first = n_out_ * from_ / to_ - half_ + 1;
  const int64_t drop = std::min(first - held_at_, int64_t(held_.size()));
  if (drop > 0) {
    held_.erase(held_.begin(), held_.begin() + drop);
    held_at_ += drop;
  }
}

void Resampler::add(std::span<const float> in, std::vector<float>& out) {
  if (from_ == to_) {
    out.insert(out.end(), in.begin(), in.end());
    return;
  }
  constexpr size_t kAtOnce = 1 << 14;  // so that what is held stays small
  while (!in.empty()) {
    const auto piece = in.first(std::min(kAtOnce, in.size()));
    in = in.subspan(piece.size());
    held_.insert(held_.end(), piece.begin(), piece.end());
    n_in_ += int64_t(piece.size());
    emit(out, length(n_in_, from_, to_));
  }
}

void Resampler::finish(std::vector<float>& out) {
  if (from_ == to_) return;
  held_.resize(held_.size() + size_t(half_) + 1);  // zeros
  emit(out, length(n_in_, from_, to_));
}

}  // namespace facet::media
