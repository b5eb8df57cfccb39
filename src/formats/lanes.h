#pragma once
#include <cstdint>
#include <cstring>

// Lanes pass only between functions that are inlined into one another: there is no ABI that could differ.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// W floats worked on at once: one lane for each group of a block, so that every sum over a group stays in its
// lane and no lane waits for another. Elementwise operations only: the bits do not depend on W, nor on the
// instructions that the compiler finds.
namespace facet {

// Everything that handles lanes is inlined into a function compiled for one instruction set, and W is the
// width of that set's registers: compilers split wider vectors badly.
#define FACET_LANES [[gnu::always_inline]] inline

template <int W>
struct LaneTypes;
template <>
struct LaneTypes<4> {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
};
template <>
struct LaneTypes<8> {
  typedef float F __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
};

template <int W>
struct Lanes {
  using F = typename LaneTypes<W>::F;
  using I = typename LaneTypes<W>::I;
  static constexpr int kWidth = W;

  FACET_LANES static F all(float v) { return F{} + v; }
  FACET_LANES static F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  FACET_LANES static void store(float* p, const F& v) { std::memcpy(p, &v, sizeof v); }
  FACET_LANES static F min(const F& a, const F& b) { return a < b ? a : b; }
  FACET_LANES static F max(const F& a, const F& b) { return a > b ? a : b; }
  FACET_LANES static F abs(const F& a) { return a < F{} ? -a : a; }

  // Nearest whole number within [lo, hi], half to even; NaN gives lo. Both bounds are small whole numbers.
  FACET_LANES static F nearest(const F& v, float lo, float hi) {
    constexpr float kRound = 0x1.8p23f;  // adding it leaves no bits for a fraction
    return (min(max(v, all(lo)), all(hi)) + kRound) - kRound;
  }

  // 1 / v, and 0 for 0: an empty scale makes every code 0.
  FACET_LANES static F inverse(const F& v) {
    const F one = all(1.0f), safe = v != F{} ? v : one;
    return v != F{} ? one / safe : F{};
  }
};

}  // namespace facet
