#include <algorithm>
#include <array>
#include <cmath>
#include <complex>

#include "media/sound.h"

namespace facet {
namespace {

constexpr int kWindow = 320, kHop = 160, kFft = 512, kBins = kFft / 2 + 1;
constexpr double kFloor = 1e-3;  // added, not the least that counts

// Twiddle factors, the window and the triangles, computed once.
struct Tables {
  std::array<double, kWindow> window;
  std::array<std::complex<double>, kFft / 2> roots;
  std::array<int, kFft> reversed;
  struct Triangle {
    int first = 0;
    std::vector<double> weights;
  };
  std::array<Triangle, kMelBins> triangles;

  Tables() {
    for (int k = 0; k < kWindow; ++k)
      window[size_t(k)] = 0.5 - 0.5 * std::cos(2 * M_PI * k / kWindow);  // periodic Hann
    for (int k = 0; k < kFft / 2; ++k) roots[size_t(k)] = std::polar(1.0, -2 * M_PI * k / kFft);
    for (int i = 0; i < kFft; ++i) {
      int r = 0;
      for (int bit = 1; bit < kFft; bit <<= 1) r = r << 1 | ((i & bit) != 0);
      reversed[size_t(i)] = r;
    }
    // HTK's scale from 0 to 8000 Hz, kMelBins + 2 corners; triangles over Hz without a norm.
    std::array<double, kMelBins + 2> corner;
    const double top = 2595 * std::log10(1 + 8000 / 700.0);
    for (int i = 0; i < kMelBins + 2; ++i)
      corner[size_t(i)] = 700 * (std::pow(10, top * i / (kMelBins + 1) / 2595) - 1);
    for (size_t m = 0; m < kMelBins; ++m) {
      for (int b = 0; b < kBins; ++b) {
        const double hz = double(kSampleRate) / kFft * b;
        const double up = (hz - corner[m]) / (corner[m + 1] - corner[m]),
                     down = (corner[m + 2] - hz) / (corner[m + 2] - corner[m + 1]);
        const double w = std::min(up, down);
        if (w <= 0) continue;
        if (triangles[m].weights.empty()) triangles[m].first = b;
        triangles[m].weights.push_back(w);
      }
    }
  }
};

const Tables& tables() {
  static const Tables t;
  return t;
}

// In place, decimation in time; the input is in bit-reversed order.
void fft(const Tables& t, std::array<std::complex<double>, kFft>& x) {
  for (int half = 1; half < kFft; half *= 2) {
    const int stride = kFft / 2 / half;
    for (int begin = 0; begin < kFft; begin += 2 * half) {
      for (int k = 0; k < half; ++k) {
        const std::complex<double> w = t.roots[size_t(k * stride)], b = x[size_t(begin + half + k)],
                                   a = x[size_t(begin + k)];
        // Spelled out: the operator asks about infinities.
        const std::complex<double> wb(w.real() * b.real() - w.imag() * b.imag(),
                                      w.real() * b.imag() + w.imag() * b.real());
        x[size_t(begin + k)] = a + wb;
        x[size_t(begin + half + k)] = a - wb;
      }
    }
  }
}

}  // namespace

// A frame takes 320 samples, and is there only if one more follows; 160 zeros stand in front of the first sample.
int64_t mel_frames(int64_t samples) {
  return samples + kHop < kWindow + 1 ? 0 : (samples + kHop - (kWindow + 1)) / kHop + 1;
}

int64_t conformer_tokens(int64_t samples) { return (mel_frames(samples) + 3) / 4; }

int64_t raw_frame_tokens(int64_t samples) { return (samples + kRawFrameSamples - 1) / kRawFrameSamples; }

std::vector<float> log_mel(std::span<const float> samples) {
  const Tables& t = tables();
  const int64_t n = int64_t(samples.size()), frames = mel_frames(n);
  std::vector<float> out(size_t(frames) * kMelBins);
  std::array<std::complex<double>, kFft> x;
  std::array<double, kBins> magnitude;
  for (int64_t f = 0; f < frames; ++f) {
    for (int i = 0; i < kFft; ++i) {
      const int64_t at = f * kHop - kHop + i;
      const double v = i < kWindow && at >= 0 && at < n ? double(samples[size_t(at)]) * t.window[size_t(i)] : 0.0;
      x[size_t(t.reversed[size_t(i)])] = v;
    }
    fft(t, x);
    for (size_t b = 0; b < kBins; ++b) magnitude[b] = std::sqrt(x[b].real() * x[b].real() + x[b].imag() * x[b].imag());
    for (size_t m = 0; m < kMelBins; ++m) {
      const Tables::Triangle& triangle = t.triangles[m];
      double sum = 0;
      for (size_t k = 0; k < triangle.weights.size(); ++k)
        sum += triangle.weights[k] * magnitude[size_t(triangle.first) + k];
      out[size_t(f) * kMelBins + m] = float(std::log(sum + kFloor));
    }
  }
  return out;
}

std::vector<float> raw_frames(std::span<const float> samples) {
  std::vector<float> out(size_t(raw_frame_tokens(int64_t(samples.size()))) * kRawFrameSamples);
  std::copy(samples.begin(), samples.end(), out.begin());
  return out;
}

}  // namespace facet
