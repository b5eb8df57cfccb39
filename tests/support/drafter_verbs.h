#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "backend/step.h"

// head_rope and block_conv, verbs that drafters alone have, in double precision: each value with how far a computation
// in f32 may be from it, and what a planted bug would give instead.
namespace facet::test {

struct Bounded {
  double v = 0, err = 0;
};
// n roundings to f32, one on the other.
constexpr double roundings(int n) { return n * 0x1p-24 / (1 - n * 0x1p-24); }

// Values that are not as wanted.
inline int n_wrong(std::span<const float> got, std::span<const Bounded> want) {
  int n = 0;
  for (size_t i = 0; i < want.size(); ++i) n += !(std::abs(double(got[i]) - want[i].v) <= want[i].err);
  return n;
}
inline std::vector<float> drawn(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng) * (rng() % 50 == 0 ? 20.f : 1.f);
  return v;
}

// Blocks of n rows from kv_len on, then rows that pad.
struct Block {
  int kv_len, n;
};
struct StepOfBlocks {
  std::vector<int32_t> pos, seq, q_begin{0};
  explicit StepOfBlocks(const std::vector<Block>& blocks, int n_pad = 0) {
    for (const Block& b : blocks) {
      for (int i = 0; i < b.n; ++i) pos.push_back(b.kv_len + i), seq.push_back(int(q_begin.size()) - 1);
      q_begin.push_back(int(pos.size()));
    }
    for (int i = 0; i < n_pad; ++i) pos.push_back(0), seq.push_back(-1);
  }
  int rows() const { return int(pos.size()); }
  Step step(const int32_t* p, const int32_t* s, const int32_t* q) const {
    Step step;
    step.shape.n_tok = rows(), step.shape.n_seq = int(q_begin.size()) - 1;
    step.pos = p, step.seq = s, step.q_begin = q;
    return step;
  }
  Step host() const { return step(pos.data(), seq.data(), q_begin.data()); }
};
inline const std::vector<std::vector<Block>> kSteps{
    {{1, 1}}, {{0, 7}}, {{8191, 8}, {17, 8}, {999'983, 8}, {0, 8}}, {{5, 1}, {262'143, 3}, {31, 1}}, {{1024, 61}}};

// --- head_rope

enum class RopeBug { kNone, kPairSwapped, kInterleaved, kBackwards, kNextPosition };
struct RopeCase {
  int n_head, width, gap;  // columns between rows, which stay
  StepOfBlocks s;
  std::vector<float> x{};
  std::vector<double> freqs{};
  int cols() const { return n_head * width; }
  int stride() const { return cols() + gap; }
  RopeCase(int heads, int head_width, int gap_cols, const std::vector<Block>& blocks, int n_pad)
      : n_head(heads), width(head_width), gap(gap_cols), s(blocks, n_pad) {
    x = drawn(size_t(s.rows()) * size_t(stride()), unsigned(heads * head_width + s.rows()));
    // Each fourth pair does not turn, as in proportional RoPE.
    for (int i = 0; i < width / 2; ++i) freqs.push_back(i % 4 == 3 ? 0 : std::pow(1e4, -2. * i / width));
  }
  // trig: how far the cosine or the sine of an angle may be.
  std::vector<Bounded> want(double trig, RopeBug bug = RopeBug::kNone) const {
    std::vector<Bounded> y;
    for (const float v : x) y.push_back({v, 0});
    const size_t half = size_t(width / 2);
    for (size_t t = 0; t < size_t(s.rows()); ++t)
      for (size_t h = 0; h < size_t(n_head); ++h)
        for (size_t i = 0; i < half; ++i) {
          const size_t head = t * size_t(stride()) + h * size_t(width);
          const bool beside = bug == RopeBug::kInterleaved;
          size_t at[2] = {head + (beside ? 2 * i : i), head + (beside ? 2 * i + 1 : i + half)};
          const double turn = s.pos[t] + (bug == RopeBug::kNextPosition ? 1 : 0);
          const double angle = turn * freqs[i] * (bug == RopeBug::kBackwards ? -1 : 1);
          const double a = x[at[0]], b = x[at[1]], c = std::cos(angle), sn = std::sin(angle);
          // The angle's own rounding, and this cosine's, in double.
          const double off = trig + std::abs(angle) * 0x1p-53 + 0x1p-52;
          if (bug == RopeBug::kPairSwapped && i == half - 1) std::swap(at[0], at[1]);
          const double x1 = std::abs(a * c) + std::abs(b * sn), x2 = std::abs(b * c) + std::abs(a * sn);
          const double of_trig = (std::abs(a) + std::abs(b)) * off * (1 + roundings(2));
          y[at[0]] = {a * c - b * sn, x1 * roundings(2) + of_trig};
          y[at[1]] = {b * c + a * sn, x2 * roundings(2) + of_trig};
        }
    return y;
  }
};
// The bits of x that the verb leaves, rows of `stride`, for each case of these widths.
template <class Verb>
void check_head_rope(const std::vector<int>& widths, int n_pad, double trig, Verb&& verb) {
  for (const int width : widths)
    for (const int n_head : {1, 3, 16})
      for (const auto& blocks : kSteps) {
        const RopeCase c(n_head, width, n_head == 3 ? 12 : 0, blocks, n_pad);
        SCOPED_TRACE(testing::Message() << n_head << " heads of " << width << ", " << c.s.rows() << " rows");
        std::vector<float> got = verb(c);
        ASSERT_EQ(got.size(), c.x.size());
        EXPECT_EQ(n_wrong(got, c.want(trig)), 0);
        EXPECT_GT(n_wrong(got, c.want(trig, RopeBug::kPairSwapped)), 0);
        EXPECT_GT(n_wrong(got, c.want(trig, RopeBug::kBackwards)), 0);
        EXPECT_GT(n_wrong(got, c.want(trig, RopeBug::kNextPosition)), 0);
        if (width > 2) {
          EXPECT_GT(n_wrong(got, c.want(trig, RopeBug::kInterleaved)), 0);
        }
        for (float& v : got) v *= 1 + 0x1p-16f;
        EXPECT_GT(n_wrong(got, c.want(trig)), int(got.size()) / 2) << "the bound is idle";
      }
}

// --- block_conv

enum class ConvBug { kNone, kTapBefore, kTapsTurned, kOtherBlock, kNextGroup };
struct ConvCase {
  int cols, size, taps;  // size: channels of a group
  StepOfBlocks s;
  std::vector<float> x{}, base{}, delta{};  // delta [T, 2 taps groups], the second half of it
  int groups() const { return cols / size; }
  int width() const { return taps * groups(); }
  ConvCase(int n_col, int group_size, int n_tap, const std::vector<Block>& blocks, int n_pad)
      : cols(n_col), size(group_size), taps(n_tap), s(blocks, n_pad) {
    const size_t T = size_t(s.rows());
    x = drawn(T * size_t(cols), unsigned(cols + taps)), base = drawn(size_t(taps * cols), unsigned(size));
    delta = drawn(T * 2 * size_t(width()), unsigned(taps * 7 + s.rows()));
  }
  std::vector<Bounded> want(ConvBug bug = ConvBug::kNone) const {
    std::vector<Bounded> y(x.size());
    for (int t = 0; t < s.rows(); ++t) {
      int first = s.seq[size_t(t)] < 0 ? t : s.q_begin[size_t(s.seq[size_t(t)])];
      if (bug == ConvBug::kOtherBlock) first = 0;
      for (int c = 0; c < cols; ++c) {
        Bounded& out = y[size_t(t * cols + c)];
        for (int i = 0; i < taps; ++i) {
          const int from = t - i - (bug == ConvBug::kTapBefore ? 1 : 0);
          if (from < first) break;
          const int tap = bug == ConvBug::kTapsTurned ? taps - 1 - i : i;
          const int group = (c / size + (bug == ConvBug::kNextGroup ? 1 : 0)) % groups();
          const double w = double(base[size_t(tap * cols + c)]) +
                           double(delta[size_t(t * 2 * width() + width() + i * groups() + group)]);
          const double term = w * double(x[size_t(from * cols + c)]);
          out.v += term, out.err += std::abs(term);
        }
        out.err *= roundings(taps + 1);  // of the weight, of the product, of taps - 1 sums
      }
    }
    return y;
  }
};
// y [T, cols] for each case of these columns and groups.
template <class Verb>
void check_block_conv(const std::vector<std::pair<int, int>>& shapes, int n_pad, Verb&& verb) {
  for (const auto& [cols, size] : shapes)
    for (const int taps : {1, 2, 3})
      for (const auto& blocks : kSteps) {
        const ConvCase c(cols, size, taps, blocks, n_pad);
        SCOPED_TRACE(testing::Message() << cols << " columns in groups of " << size << ", " << taps << " taps, "
                                        << c.s.rows() << " rows");
        std::vector<float> got = verb(c);
        ASSERT_EQ(got.size(), c.x.size());
        EXPECT_EQ(n_wrong(got, c.want()), 0);
        EXPECT_GT(n_wrong(got, c.want(ConvBug::kTapBefore)), 0);
        if (taps > 1) {
          EXPECT_GT(n_wrong(got, c.want(ConvBug::kTapsTurned)), 0);
        }
        if (taps > 1 && blocks.size() > 1) {
          EXPECT_GT(n_wrong(got, c.want(ConvBug::kOtherBlock)), 0);
        }
        if (c.groups() > 1) {
          EXPECT_GT(n_wrong(got, c.want(ConvBug::kNextGroup)), 0);
        }
        for (float& v : got) v *= 1 + 0x1p-16f;
        EXPECT_GT(n_wrong(got, c.want()), int(got.size()) / 2) << "the bound is idle";
      }
}

}  // namespace facet::test
