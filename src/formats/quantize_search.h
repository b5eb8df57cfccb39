#pragma once
#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "formats/blocks.h"
#include "formats/lanes.h"

// What a block of a two-level type should hold so that the sum of squared errors is small: a step, and for
// each group a scale (and a minimum) that counts such steps. In both families
//  1. every group is fitted alone: codes for a series of trial scales, for each the least-squares scale, the
//     best refined by coding again with it;
//  2. the step is taken from the largest group scale, each group tries the integers around its own, and the
//     step is solved again by least squares over the whole block, as long as that helps.
// A block of zeros is the fit to beat: it stays one if nothing is better, or if it holds a NaN or infinity.
namespace facet {

// A block is searched with its largest magnitude in [1, 2), where no square overflows; steps are rounded to
// f16 at the magnitude of the file.
struct BlockUnit {
  float down = 0.0f, up = 0.0f;  // powers of two: x * down is in the unit, step * up is in the file
  bool zero() const { return down == 0.0f; }

  static BlockUnit of(const float* x, int n) {
    float amax = 0.0f;
    for (int j = 0; j < n; ++j) amax = std::fabs(x[j]) > amax ? std::fabs(x[j]) : amax;
    // The least step is 2^-24, so smaller values than half of it have code 0.
    if (!(amax >= 0x1p-30f)) return {};
    const int e = std::isfinite(amax) ? std::ilogb(amax) : 127;
    return {std::ldexp(1.0f, -e), std::ldexp(1.0f, e)};
  }
  // The nearest step that an f16 can hold, never zero or infinite for a step that is neither.
  float storable(float step) const {
    constexpr float kLeast = 0x1p-24f, kMost = 65504.0f;
    if (step == 0.0f || std::isnan(step)) return 0.0f;
    const float magnitude = std::clamp(std::fabs(step) * up, kLeast, kMost);
    return std::copysign(f16_to_f32(f32_to_f16(magnitude)), step) * down;
  }
  uint16_t stored(float step) const { return f32_to_f16(step * up); }
};

// G groups of E elements in parts of W lanes: x[part][i] holds element i of the groups part * W...
template <int W, int G, int E>
struct Grouped {
  using L = Lanes<W>;
  using F = typename L::F;
  static constexpr int kParts = G / W, kGroups = G, kElems = E;
  F x[kParts][E];
  BlockUnit unit;

  FACET_LANES explicit Grouped(const float* src) : unit(BlockUnit::of(src, G * E)) {
    for (int p = 0; p < kParts; ++p)
      for (int i = 0; i < E; ++i)
        for (int g = 0; g < W; ++g) x[p][i][g] = src[(p * W + g) * E + i] * unit.down;
  }
  // Added up group by group, whatever W is.
  FACET_LANES float sum_squares() const {
    float sum = 0.0f;
    for (int p = 0; p < kParts; ++p) {
      F s{};
      for (int i = 0; i < E; ++i) s += x[p][i] * x[p][i];
      for (int g = 0; g < W; ++g) sum += s[g];
    }
    return sum;
  }
};

template <int G>
float sum_groups(const float (&a)[G]) {
  float s = 0.0f;
  for (float v : a) s += v;
  return s;
}
template <int G>
float sum_groups(const float (&a)[G], const float (&b)[G]) {
  float s = 0.0f;
  for (int g = 0; g < G; ++g) s += a[g] * b[g];
  return s;
}
template <int G>
float sum_groups(const float (&a)[G], const float (&b)[G], const float (&c)[G]) {
  float s = 0.0f;
  for (int g = 0; g < G; ++g) s += a[g] * b[g] * c[g];
  return s;
}

// Levels that codes stand for: the whole numbers Lo..Hi.
template <int Lo, int Hi>
struct WholeLevels {
  template <class L>
  FACET_LANES static typename L::F nearest(const typename L::F& v) {
    return L::nearest(v, Lo, Hi);
  }
  template <class L>
  FACET_LANES static typename L::F code(const typename L::F& level) {
    return level - float(Lo);
  }
};

// Levels of IQ4_NL and IQ4_XS: kIQ4Values.
struct Iq4Levels {
  template <class L>
  FACET_LANES static typename L::F nearest(const typename L::F& v) {
    typename L::F level = L::all(kIQ4Values[0]);
    for (int k = 1; k < 16; ++k)
      level = v > L::all(0.5f * float(kIQ4Values[k - 1] + kIQ4Values[k])) ? L::all(kIQ4Values[k]) : level;
    return level;
  }
  template <class L>
  FACET_LANES static typename L::F code(const typename L::F& level) {
    typename L::F c{};
    for (int k = 1; k < 16; ++k) c += level >= L::all(kIQ4Values[k]) ? L::all(1.0f) : L::all(0.0f);
    return c;
  }
};

// ---- x ~ scale * level

// Step 1. Trials put the largest magnitude of the group at first, first + by, ... and at the negatives:
// levels are not symmetric. Then the best is coded again with its least-squares scale, refine times.
struct Trials {
  float first, by;
  int count, refine;
};

template <class L, int E, class Levels>
FACET_LANES typename L::F fit_scale(const typename L::F* x, const Trials& trials) {
  using F = typename L::F;
  F amax{};
  for (int i = 0; i < E; ++i) amax = L::max(L::abs(x[i]), amax);
  const F unit = L::inverse(amax);
  F scale{}, gain{};  // the gain of a trial is what it takes off the sum of x^2: lx^2 / ll
  for (int k = 0; k < 2 * trials.count + trials.refine; ++k) {
    const int step = k / 2;  // each at both signs
    const float at = trials.first + trials.by * float(step);
    const F id = k < 2 * trials.count ? unit * (k % 2 ? -at : at) : L::inverse(scale);
    F ll{}, lx{};
    for (int i = 0; i < E; ++i) {
      const F level = Levels::template nearest<L>(x[i] * id);
      ll += level * level;
      lx += level * x[i];
    }
    const F fitted = lx * L::inverse(ll);
    const auto better = fitted * lx > gain;
    gain = better ? fitted * lx : gain;
    scale = better ? fitted : scale;
  }
  return scale;
}

// The scale, once it is rounded; 0 where that is better, as it can be near the least step.
template <class L, int E, class Levels>
FACET_LANES typename L::F scale_or_zero(const typename L::F* x, const typename L::F& scale) {
  using F = typename L::F;
  const F id = L::inverse(scale);
  F error{}, xx{};
  for (int i = 0; i < E; ++i) {
    const F rest = x[i] - scale * Levels::template nearest<L>(x[i] * id);
    error += rest * rest;
    xx += x[i] * x[i];
  }
  return error < xx ? scale : F{};
}

template <int G>
struct ScaleFit {
  float d = 0.0f;       // step, in the block's unit; a value that f16 holds
  float scale[G] = {};  // whole numbers
};

// Lane by lane: the first trial, or one with a smaller error than the best so far.
template <class L>
FACET_LANES auto is_better(const typename L::F& error, const float* best, bool first) {
  const typename L::F old = L::load(best);
  return first ? old == old : error < old;
}
template <class L, class Mask>
FACET_LANES void keep(const Mask& better, float* to, const typename L::F& v) {
  L::store(to, better ? v : L::load(to));
}

// One scale for each group, with the sums that say how good it is and which step would suit it.
template <int G>
struct ScaleTrial {
  float scale[G], error[G], ll[G], lx[G];  // sums of (x - d scale level)^2, level^2, level * x
};

template <class L, int E, class Levels, int G>
FACET_LANES void try_scale(const typename L::F* x, const typename L::F& scale, float d, bool first, int at,
                           ScaleTrial<G>& best) {
  using F = typename L::F;
  const F ds = scale * d, id = L::inverse(ds);
  F ll{}, lx{}, error{};
  for (int i = 0; i < E; ++i) {
    const F level = Levels::template nearest<L>(x[i] * id), rest = x[i] - ds * level;
    ll += level * level;
    lx += level * x[i];
    error += rest * rest;
  }
  const auto better = is_better<L>(error, best.error + at, first);
  keep<L>(better, best.scale + at, scale);
  keep<L>(better, best.ll + at, ll);
  keep<L>(better, best.lx + at, lx);
  keep<L>(better, best.error + at, error);
}

// Step 2, for group scales in [Lo, -Lo - 1].
template <class Levels, int Lo, int W, int G, int E>
FACET_LANES ScaleFit<G> fit_scales(const Grouped<W, G, E>& b, const Trials& trials) {
  using L = Lanes<W>;
  using F = typename L::F;
  float wanted[G], extreme = 0.0f;
  for (int p = 0; p < G / W; ++p) L::store(wanted + p * W, fit_scale<L, E, Levels>(b.x[p], trials));
  for (float w : wanted)
    if (std::fabs(w) > std::fabs(extreme)) extreme = w;
  ScaleFit<G> best;
  float best_error = b.sum_squares(), d = b.unit.storable(extreme / float(Lo));
  for (int round = 0; round < 3 && d != 0.0f; ++round) {
    ScaleTrial<G> t = {};
    for (int p = 0; p < G / W; ++p) {
      const F target = L::load(wanted + p * W) * (1.0f / d), near = L::nearest(target, Lo, -Lo - 1);
      const F other = near + (target > near ? L::all(1.0f) : L::all(-1.0f));
      for (int second = 0; second < 2; ++second)
        try_scale<L, E, Levels>(b.x[p], second ? L::nearest(other, Lo, -Lo - 1) : near, d, !second, p * W, t);
    }
    const float error = sum_groups(t.error);
    if (!(error < best_error)) break;
    best_error = error;
    best.d = d;
    std::copy_n(t.scale, G, best.scale);
    const float den = sum_groups(t.scale, t.scale, t.ll);
    d = den > 0.0f ? b.unit.storable(sum_groups(t.scale, t.lx) / den) : 0.0f;
  }
  return best;
}

// ---- x ~ scale * code - minimum, codes 0..Most, neither scale nor minimum negative

// Step 1. Trials spread the range of a group over first, first + by, ... code steps, each with the lower end
// moved up by 0, lift, ... of the range.
struct RangeTrials {
  float first, by;
  int count;
  float lift;
  int lifts, refine;
};

template <class L>
struct ScaleMin {
  typename L::F scale{}, min{};
};

template <class L, int E, int Most>
FACET_LANES ScaleMin<L> fit_scale_min(const typename L::F* x, const RangeTrials& trials) {
  using F = typename L::F;
  constexpr float kN = E;
  F low{}, high = x[0], sx{}, xx{};
  for (int i = 0; i < E; ++i) {
    low = L::min(x[i], low);
    high = L::max(x[i], high);
    sx += x[i];
    xx += x[i] * x[i];
  }
  const F range = L::max(high - low, F{}), unit = L::inverse(range);
  // Codes all 0 are the fit to beat: the minimum alone, if the mean is below 0.
  ScaleMin<L> best;
  best.min = L::max(sx * (-1.0f / kN), F{});
  F best_error = xx + best.min * (2.0f * sx + kN * best.min);
  const int searched = trials.count * trials.lifts;
  for (int k = 0; k < searched + trials.refine; ++k) {
    const int step = k % trials.count, lift = k / trials.count;
    const float at = trials.first + trials.by * float(step);
    const bool refine = k >= searched;
    const F id = refine ? L::inverse(best.scale) : unit * at;
    const F from = refine ? best.min : -low - range * (trials.lift * float(lift));
    F q1{}, qq{}, qx{};
    for (int i = 0; i < E; ++i) {
      const F q = L::nearest((x[i] + from) * id, 0, Most);
      q1 += q;
      qq += q * q;
      qx += q * x[i];
    }
    F scale = (kN * qx - q1 * sx) * L::inverse(kN * qq - q1 * q1);
    F m = (scale * q1 - sx) * (1.0f / kN);
    // A minimum below 0 cannot be stored, nor a negative scale; then the scale alone is fitted.
    const auto bounded = (m < F{}) | (scale < F{});
    scale = bounded ? L::max(qx * L::inverse(qq), F{}) : scale;
    m = bounded ? F{} : m;
    const F error = xx - 2.0f * scale * qx + 2.0f * m * sx + scale * scale * qq - 2.0f * scale * m * q1 + kN * m * m;
    const auto better = error < best_error;
    best_error = better ? error : best_error;
    best.scale = better ? scale : best.scale;
    best.min = better ? m : best.min;
  }
  return best;
}

template <int G>
struct ScaleMinFit {
  float d = 0.0f, dmin = 0.0f;       // steps, in the block's unit; values that f16 holds
  float scale[G] = {}, min[G] = {};  // whole numbers
};

// One scale and minimum for each group; sums of code, code^2, code * x.
template <int G>
struct ScaleMinTrial {
  float scale[G], min[G], error[G], q1[G], qq[G], qx[G];
};

// A group scale with the best minimum for it, which follows from the codes that the wanted minimum gives.
template <class L, int E, int Most, int MostScale, int G>
FACET_LANES void try_scale_min(const typename L::F* x, const typename L::F& scale, const typename L::F& wanted_min,
                               float d, float dmin, const typename L::F& sx, bool first, int at,
                               ScaleMinTrial<G>& best) {
  using F = typename L::F;
  const F ds = scale * d, id = L::inverse(ds);
  F q0{};
  for (int i = 0; i < E; ++i) q0 += L::nearest((x[i] + wanted_min) * id, 0, Most);
  const float per_min = dmin > 0.0f ? 1.0f / dmin : 0.0f;
  const F min = L::nearest((ds * q0 - sx) * (per_min / float(E)), 0, MostScale), m = min * dmin;
  F q1{}, qq{}, qx{}, error{};
  for (int i = 0; i < E; ++i) {
    const F q = L::nearest((x[i] + m) * id, 0, Most), rest = x[i] - (ds * q - m);
    q1 += q;
    qq += q * q;
    qx += q * x[i];
    error += rest * rest;
  }
  const auto better = is_better<L>(error, best.error + at, first);
  keep<L>(better, best.scale + at, scale);
  keep<L>(better, best.min + at, min);
  keep<L>(better, best.q1 + at, q1);
  keep<L>(better, best.qq + at, qq);
  keep<L>(better, best.qx + at, qx);
  keep<L>(better, best.error + at, error);
}

// Step 2, for group scales and minima in [0, MostScale].
template <int Most, int MostScale, int W, int G, int E>
FACET_LANES ScaleMinFit<G> fit_scales_mins(const Grouped<W, G, E>& b, const RangeTrials& trials) {
  using L = Lanes<W>;
  using F = typename L::F;
  float wanted[G], wanted_min[G], sx[G];
  for (int p = 0; p < G / W; ++p) {
    const auto fit = fit_scale_min<L, E, Most>(b.x[p], trials);
    F s{};
    for (int i = 0; i < E; ++i) s += b.x[p][i];
    L::store(wanted + p * W, fit.scale);
    L::store(wanted_min + p * W, fit.min);
    L::store(sx + p * W, s);
  }
  ScaleMinFit<G> best;
  float best_error = b.sum_squares();
  float d = b.unit.storable(*std::max_element(wanted, wanted + G) / MostScale);
  float dmin = b.unit.storable(*std::max_element(wanted_min, wanted_min + G) / MostScale);
  for (int round = 0; round < 3; ++round) {
    ScaleMinTrial<G> t = {};
    const float per_step = d > 0.0f ? 1.0f / d : 0.0f;
    for (int p = 0; p < G / W; ++p) {
      const F target = L::load(wanted + p * W) * per_step, near = L::nearest(target, 0, MostScale);
      const F other = near + (target > near ? L::all(1.0f) : L::all(-1.0f));
      for (int second = 0; second < 2; ++second)
        try_scale_min<L, E, Most, MostScale>(b.x[p], second ? L::nearest(other, 0, MostScale) : near,
                                             L::load(wanted_min + p * W), d, dmin, L::load(sx + p * W), !second, p * W,
                                             t);
    }
    const float error = sum_groups(t.error);
    if (!(error < best_error)) break;
    best_error = error;
    best.d = d;
    best.dmin = dmin;
    std::copy_n(t.scale, G, best.scale);
    std::copy_n(t.min, G, best.min);
    // Both steps at once: x ~ d a - dmin b with a = scale * code and b = minimum.
    const float aa = sum_groups(t.scale, t.scale, t.qq), ab = sum_groups(t.scale, t.min, t.q1);
    const float bb = float(E) * sum_groups(t.min, t.min), xa = sum_groups(t.scale, t.qx), xb = sum_groups(t.min, sx);
    const float det = aa * bb - ab * ab;
    if (det > 1e-6f * aa * bb) {
      d = b.unit.storable(std::max((xa * bb - ab * xb) / det, 0.0f));
      dmin = b.unit.storable(std::max((ab * xa - aa * xb) / det, 0.0f));
    } else if (aa > 0.0f) {
      d = b.unit.storable(std::max(xa / aa, 0.0f));
    } else {
      break;
    }
  }
  return best;
}

}  // namespace facet
