// Block-sparse prefill on the CPU: what is chosen, that nothing else is read, and that too much is not left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "backend/cpu/cpu_fast.h"
#include "backend/step_builder.h"
#include "support/sanitized.h"

namespace facet::test {
namespace {

constexpr float kNone = -INFINITY;
bool bitwise_equal(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// ---- the choice of one tile, of scores

struct Scores {
  int n_row, n_block, row0;
  std::vector<float> z;
  Scores(int rows, int blocks) : n_row(rows), n_block(blocks), row0(blocks * kSelectRows - kSelectTokens) {
    z.assign(size_t(rows) * size_t(blocks), 0.f);
  }
  float& at(int r, int b) { return z[size_t(r * n_block + b)]; }
  std::vector<int32_t> choose(const SelectSpec& spec) const {
    std::vector<int32_t> index(size_t(n_block), -1), sample(kSampleBlocks);
    index.resize(size_t(choose_blocks(spec, z.data(), n_row, n_block, n_block, row0, 0, index.data(), sample.data())));
    const int n_out = n_block - int(index.size());
    for (int i = 0; i < kSampleBlocks; ++i) {  // samples are of what is left out, each at most once
      const int32_t b = sample[size_t(i)];
      EXPECT_EQ(b >= 0, i < n_out);
      if (b < 0) continue;
      EXPECT_FALSE(std::binary_search(index.begin(), index.end(), b));
      EXPECT_EQ(std::count(sample.begin(), sample.end(), b), 1);
    }
    return index;
  }
};
bool has(const std::vector<int32_t>& list, int b) { return std::binary_search(list.begin(), list.end(), b); }

// Scores are of means of kMeanRows keys: one key of `nats` over the others moves them by so much.
float of_one_key(float nats) { return nats / kMeanRows; }

TEST(SelectBlocks, OneRowIsHeardAmongMany) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(float(kMeanRows)));
  for (const int rows : {32, 256})
    for (int trial = 0; trial < 40; ++trial) {
      Scores s(rows, 400);
      for (float& z : s.z) z = normal(rng);
      const int block = 1 + int(rng() % 380), row = int(rng() % unsigned(rows));
      s.at(row, block) = of_one_key(22) + normal(rng);
      const auto list = s.choose({.gamma = .5f, .most = .1f});
      EXPECT_TRUE(has(list, block)) << rows << " rows, block " << block;
      EXPECT_LE(list.size(), 40u);
    }
}
TEST(SelectBlocks, EveryRowIsNormalisedByItself) {
  Scores s(2, 400);
  s.at(0, 100) = 12, s.at(1, 200) = 20;
  const auto list = s.choose({.gamma = .9f});
  EXPECT_TRUE(has(list, 100) && has(list, 200));
  EXPECT_LE(list.size(), 12u);
  Scores moved = s;  // what is added to all scores of a row changes nothing
  for (int b = 0; b < 400; ++b) moved.at(0, b) += 16, moved.at(1, b) -= 8;
  EXPECT_EQ(moved.choose({.gamma = .9f}), list);
}
TEST(SelectBlocks, WhatIsAlwaysReadAndHowMuchMore) {
  Scores flat(64, 400);
  EXPECT_EQ(flat.choose({.gamma = 0}).size(), size_t(kSelectLeast));
  const auto least = flat.choose({.gamma = .5f, .most = .05f});
  EXPECT_EQ(least.size(), 20u);
  for (const int b : {0, 397, 398, 399}) EXPECT_TRUE(has(least, b)) << b;
  for (int b = 0; b < 400; ++b)
    EXPECT_EQ(select_always(b, flat.row0), b == 0 || (b + 1) * kSelectRows > flat.row0 - 512);
  EXPECT_EQ(flat.choose({.gamma = 0, .least = .3f, .most = .3f}).size(), 120u);
  // Where attention is flat, its share is that of the blocks; from kSelectDense on all are read.
  EXPECT_NEAR(double(flat.choose({.gamma = .5f}).size()), 200, 1);
  EXPECT_EQ(flat.choose({.gamma = .7f}).size(), 400u);
  std::vector<int32_t> all(400);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(flat.choose({.gamma = 1}), all);
  Scores one(64, 400);
  for (int r = 0; r < 64; ++r) one.at(r, 7) = 40;
  EXPECT_EQ(one.choose({.gamma = .9f}).size(), size_t(kSelectLeast));
  one.at(3, 0) = one.at(3, 399) = kNone;  // blocks without a mean of their own
  EXPECT_TRUE(has(one.choose({.gamma = .9f}), 7));
}

TEST(SelectBlocks, EstimateOfWhatWasLeftOut) {
  const float set[kSampleSets] = {-3, -3, -3, -3}, none[kSampleSets] = {kNone, kNone, kNone, kNone};
  EXPECT_EQ(left_out(0, none, 100).bound, 0);
  EXPECT_EQ(left_out(0, set, 0).bound, 0);
  const float all = 4 * std::exp(-3.f);
  EXPECT_NEAR(left_out(0, set, 16).bound, all / (1 + all), 1e-6f);
  const float more = 8 * std::exp(-3.f);  // sets of four of 32
  EXPECT_NEAR(left_out(0, set, 32).estimate, more / (1 + more), 1e-6f);
  EXPECT_NEAR(left_out(0, set, 32).bound, more / (1 + more), 1e-5f);
  const float uneven[kSampleSets] = {-1, -9, -9, -9};
  EXPECT_GT(left_out(0, uneven, 100).bound, left_out(0, uneven, 100).estimate + .02f);
  EXPECT_EQ(left_out(kNone, set, 100).bound, 1);  // nothing was read
  for (const int n : {1, 7, 16, 17, 400}) {       // samples are blocks left out, each at most once
    std::vector<int> at;
    for (int i = 0; i < kSampleBlocks; ++i)
      if (const int b = select_sample(i, n, 77'777, 3); b >= 0) at.push_back(b);
    EXPECT_EQ(int(at.size()), std::min(n, kSampleBlocks));
    for (size_t i = 0; i < at.size(); ++i) EXPECT_TRUE(at[i] < n && (i == 0 || at[i] > at[i - 1])) << n;
  }
}

// ---- attention over lists

struct Shape {
  int E = 64, n_kv = 2, group = 2;
  KvType k = KvType::kF32, v = KvType::kF32;
  bool shared = false;
  int cap = 4096;
};

// A layer of two slots, filled with rows of whatever make_key says; queries likewise.
struct Layer {
  Shape d;
  std::vector<std::byte> k, v;
  KvLayer l;
  explicit Layer(Shape shape) : d(shape) {
    l.k_type = d.k, l.v_type = d.shared ? d.k : d.v, l.n_head = d.n_kv, l.head_dim = d.E, l.cap = d.cap,
    l.shared = d.shared;
    l.k_row = int64_t(d.shared ? kv_shared_bytes(d.k, d.E) : kv_row_bytes(d.k, d.E)) * d.n_kv;
    l.v_row = d.shared ? l.k_row : int64_t(kv_row_bytes(d.v, d.E)) * d.n_kv;
    l.k_slot = l.k_row * d.cap, l.v_slot = l.v_row * d.cap;
    k.assign(size_t(2 * l.k_slot), std::byte(0xFF)), v.assign(d.shared ? 0 : size_t(2 * l.v_slot), std::byte(0xFF));
    l.k = k.data(), l.v = d.shared ? l.k + kv_shared_v_at(d.k, d.E) : v.data();
  }
  void put(int slot, int64_t row, int head, const float* kx, const float* vx) {
    const KvRow to = kv_ring_row(l, slot, row);
    if (d.shared) return kv_encode_shared(d.k, kx, vx, to.k + head * l.k_head(), d.E);
    kv_encode(d.k, kx, to.k + head * l.k_head(), d.E), kv_encode(d.v, vx, to.v + head * l.v_head(), d.E);
  }
  void fill(int slot, int64_t rows, unsigned seed, float size = 1) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, size);
    std::vector<float> kx(size_t(d.E)), vx(size_t(d.E));
    for (int64_t r = 0; r < rows; ++r)
      for (int h = 0; h < d.n_kv; ++h) {
        for (float& x : kx) x = normal(rng);
        for (float& x : vx) x = normal(rng);
        put(slot, r, h, kx.data(), vx.data());
      }
  }
};

BackendLimits limits(const Shape& d, int max_tok) {
  BackendLimits l;
  l.max_tok = max_tok, l.max_rows = d.cap, l.max_cols = d.n_kv * d.group * d.E, l.n_group = d.group;
  l.n_q_head = d.n_kv * d.group, l.head_dim = d.E, l.n_kv_head = d.n_kv, l.n_select = 2;
  return l;
}

// A step over a layer whose rows are all there, the step's own too.
struct Case {
  Layer& layer;
  StepBuilder steps;
  std::vector<int32_t> ids;
  std::vector<float> q;
  Step step;
  AttnSpec spec;
  int cols;
  Case(Layer& layer_, std::vector<SeqStep> seqs, SelectSpec select, unsigned seed = 5, float size = 1)
      : layer(layer_), steps(2048, 4, 1 << 20), ids(2048), cols(layer.d.n_kv * layer.d.group * layer.d.E) {
    steps.begin();
    for (SeqStep& s : seqs) s.token = std::span(ids).first(size_t(s.pos)), s.pos = -1, steps.add(s);
    steps.select(select);
    step = steps.finish();
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, size);
    q.resize(size_t(step.shape.n_tok) * size_t(cols));
    for (float& x : q) x = normal(rng);
    spec = {.n_q_head = layer.d.n_kv * layer.d.group, .head_dim = layer.d.E, .scale = 1};
  }
  float* query(int token, int head) { return q.data() + token * cols + head * layer.d.E; }
  template <class B>
  std::vector<float> attend(B& b, bool selected) {
    const CpuRef::Rows from{q.data(), step.shape.n_tok, cols, cols};
    std::vector<float> o(q.size(), NAN);
    AttnSpec with = spec;
    with.selected = selected;
    if (selected) b.select_blocks(from, layer.l, step, with);
    b.attend({o.data(), from.rows, cols, cols}, from, layer.l, step, with);
    return o;
  }
};
SeqStep part(int slot, int kv_len, int n, int n_select) {  // pos: the number of tokens, until the step is made
  return {.slot = slot, .kv_len = kv_len, .token = {}, .n_select = n_select, .pos = n};
}

template <class B>
std::unique_ptr<B> made(const Shape& d, int max_tok = 2048) {
  auto b = std::make_unique<B>(2);
  b->reserve(limits(d, max_tok));
  return b;
}

// Lists with everything in them give the bits of attention without lists. Ways to break that which the law must see:
struct OffByOne : CpuFast {
  using CpuFast::CpuFast;
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    CpuFast::select_blocks(q, kv, s, spec);
    for (int32_t& b : lists_.index) ++b;
  }
};
struct LastBlockLeftOut : CpuFast {
  using CpuFast::CpuFast;
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    CpuFast::select_blocks(q, kv, s, spec);
    for (int32_t& n : lists_.count) n -= n > 0;
  }
};
template <class B>
bool full_lists_are_dense(const Shape& d) {
  Layer layer(d);
  layer.fill(0, 1500, 1), layer.fill(1, 700, 2);
  const auto b = made<B>(d);
  Case c(layer, {part(1, 60, 3, 3), part(0, 1100, 140, 128), part(1, 300, 97, 0)}, {.gamma = 1, .check = false});
  const auto dense = c.attend(*b, false);
  const auto full = c.attend(*b, true);
  EXPECT_GT(b->blocks().count_of(select_tile(3, 1, 0), 0), 0);  // a list, in full
  return bitwise_equal(full, dense);
}
TEST(SparseAttend, FullListsAreDense) {
  for (const KvType t : kv_types())
    for (const bool shared : {false, true}) {
      const Shape d{.k = t, .v = t == KvType::kQ8_0 ? KvType::kQ4_0 : t, .shared = shared};
      EXPECT_TRUE(full_lists_are_dense<CpuFast>(d)) << kv_type_name(t) << shared;
      if (t == KvType::kF32 || (t == KvType::kQ8_0 && shared)) {
        EXPECT_TRUE(full_lists_are_dense<CpuRef>(d)) << kv_type_name(t) << shared;
      }
    }
  EXPECT_FALSE(full_lists_are_dense<OffByOne>({}));
  EXPECT_FALSE(full_lists_are_dense<LastBlockLeftOut>({}));
}

// What attention gives is softmax over the rows of the blocks in its lists, in doubles; rows elsewhere are not read.
TEST(SparseAttend, ReadsItsBlocksAndNothingElse) {
  const Shape d{};
  Layer layer(d);
  layer.fill(0, 4000, 3);
  Case c(layer, {part(0, 3900, 70, 64)}, {.gamma = 0, .least = .45f, .most = .45f, .check = false}, 5, .3f);
  auto check = [&](auto& b) {
    const auto got = c.attend(b, true);
    std::vector<float> key(size_t(d.E)), value(size_t(d.E));
    for (int t = 0; t < 70; ++t)
      for (int h = 0; h < d.n_kv * d.group; ++h) {
        const int tile = select_tile(0, 0, t), hk = h / d.group;
        EXPECT_EQ(b.blocks().count_of(tile, hk), t < 64 ? 9 : CpuRef::BlockLists::kAll) << "of 21";
        double sum = 0, most = 0, off = 0;
        std::vector<double> o(size_t(d.E));
        for (int r = 0; r <= 3900 + t; ++r) {
          if (!b.blocks().has(tile, hk, r)) continue;
          kv_decode(d.k, kv_ring_row(layer.l, 0, r).k + hk * layer.l.k_head(), key.data(), d.E);
          kv_decode(d.v, kv_ring_row(layer.l, 0, r).v + hk * layer.l.v_head(), value.data(), d.E);
          double score = 0;
          for (size_t e = 0; e < key.size(); ++e) score += double(c.query(t, h)[e]) * double(key[e]);
          sum += std::exp(score);
          for (size_t e = 0; e < o.size(); ++e) o[e] += std::exp(score) * double(value[e]);
        }
        for (int e = 0; e < d.E; ++e) {
          const double want = o[size_t(e)] / sum, at = double(got[size_t(t * c.cols + h * d.E + e)]);
          most = std::max(most, std::abs(want)), off = std::max(off, std::abs(at - want));
        }
        // Sums of 4,000 rows in f32, exp of scores of up to some tens.
        ASSERT_LE(off, 1e-4 * most) << "token " << t << " head " << h;
      }
  };
  check(*made<CpuRef>(d)), check(*made<CpuFast>(d));
}

// ---- what was left out

// Forced lists of few blocks over flat attention leave most of it out: every tile is done again, and is dense.
TEST(SparseAttend, TilesThatLeaveOutTooMuchAreRepaired) {
  const Shape d{};
  Layer layer(d);
  layer.fill(0, 4000, 3);
  Case c(layer, {part(0, 3900, 96, 96)}, {.gamma = .9f, .most = .4f}, 5, .05f);
  const auto fast = made<CpuFast>(d);
  EXPECT_TRUE(bitwise_equal(c.attend(*fast, true), c.attend(*fast, false)));
  const Selected s = fast->take_selected(0);
  EXPECT_EQ(s.repaired, 6);
  EXPECT_EQ(s.tiles, 6);
  EXPECT_EQ(s.blocks, s.seen);
  EXPECT_EQ(s.recall(), 1);
  EXPECT_EQ(fast->take_selected(0).tiles, 0) << "asked once";
  c.step.select.check = false;
  EXPECT_FALSE(bitwise_equal(c.attend(*fast, true), c.attend(*fast, false)));
  EXPECT_NEAR(fast->take_selected(0).share(), .4, .03);
}

// One row of a tile, wherever it is, whose attention is spread over what the others do not need.
struct IgnoresTheLastRow : CpuFast {
  using CpuFast::CpuFast;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    if (!spec.selected) return CpuFast::attend(o, q, kv, s, spec);
    attend_selected(s, spec, kv, [&](const Over& over) {
      attend_over(o, q, kv, s, spec, over);
      if (!over.writes && over.lse)  // samples: as if nothing had been left out of it
        for (int t = kSelectTokens - 1; t < s.shape.n_tok; t += kSelectTokens)
          over.lse[t * spec.n_q_head + spec.n_q_head - 1] = kNone;
    });
  }
};
template <class B>
int64_t repaired_for(int token, int head) {
  const Shape d{.n_kv = 1};
  Layer layer(d);
  layer.fill(0, 4000, 3, .3f);
  std::vector<float> key(size_t(d.E)), value(size_t(d.E), 1.f);
  key[0] = 8;  // a block that all rows want but one
  for (int64_t r = 2 * kSelectRows; r < 3 * kSelectRows; ++r) layer.put(0, r, 0, key.data(), value.data());
  Case c(layer, {part(0, 3900, 64, 64)}, {.gamma = .9f, .most = .4f}, 5, .1f);
  for (int t = 0; t < 64; ++t)
    for (int h = 0; h < 2; ++h) c.query(t, h)[0] = 2;
  std::fill_n(c.query(token, head), d.E, 0.f);
  const auto b = made<B>(d);
  c.attend(*b, true);
  return b->take_selected(0).repaired;
}
TEST(SparseAttend, EveryRowOfATileCounts) {
  EXPECT_EQ(repaired_for<CpuFast>(0, 0), 1);
  EXPECT_EQ(repaired_for<CpuFast>(17, 1), 1);
  EXPECT_EQ(repaired_for<CpuFast>(31, 1), 1);
  EXPECT_EQ(repaired_for<CpuFast>(63, 1), 1);
  EXPECT_EQ(repaired_for<IgnoresTheLastRow>(17, 1), 1);
  EXPECT_EQ(repaired_for<IgnoresTheLastRow>(31, 1), 0) << "the test sees nothing";
}

// Of the rows of tiles that pass, 95 % at least leave out no more than they may, and the estimate is right on average,
// on keys whose blocks matter unequally.
TEST(SparseAttend, BoundOfWhatWasLeftOutHolds) {
  if (kSanitized) GTEST_SKIP() << "a statistic; other tests touch the same memory";
  struct Told : CpuFast {
    using CpuFast::CpuFast;
    const std::vector<float>& lse() const { return lse_; }
  };
  const int len = 12000;
  const Shape d{.n_kv = 1, .group = 4, .cap = len + 960};
  Layer layer(d);
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  std::vector<float> key(size_t(d.E)), centre(size_t(d.E)), value(size_t(d.E), 1.f);
  for (int64_t r = 0; r < len + 960; ++r) {
    if (r % kSelectRows == 0)
      for (float& x : centre) x = .5f * normal(rng);
    for (size_t e = 0; e < key.size(); ++e) key[e] = centre[e] + normal(rng);
    layer.put(0, r, 0, key.data(), value.data());
  }
  Case c(layer, {part(0, len, 960, 960)}, {.gamma = 0, .least = .4f, .most = .4f}, 5, .1f);
  const auto b = made<Told>(d);
  c.attend(*b, true);
  const size_t n = size_t(c.step.shape.n_tok) * 4;
  auto left = [&](int token, int h) {
    const int first = token / kSelectTokens * kSelectTokens;
    const int n_out =
        select_blocks_to(len + first + kSelectTokens - 1) - b->blocks().count_of(select_tile(0, 0, first), 0);
    float set[kSampleSets];
    for (size_t i = 0; i < kSampleSets; ++i) set[i] = b->lse()[size_t(token * 4 + h) + (i + 1) * n];
    return left_out(b->lse()[size_t(token * 4 + h)], set, n_out);
  };
  double estimate = 0, exact_sum = 0;
  std::vector<std::pair<double, float>> rows;  // what was left out, the largest bound of its tile
  for (int t = 0; t < 960; t += 13)
    for (int h = 0; h < 4; ++h) {
      double in = 0, all = 0;
      for (int r = 0; r <= len + t; ++r) {
        kv_decode(d.k, kv_ring_row(layer.l, 0, r).k, key.data(), d.E);
        double score = 0;
        for (size_t e = 0; e < key.size(); ++e) score += double(c.query(t, h)[e]) * double(key[e]);
        all += std::exp(score);
        if (b->blocks().has(select_tile(0, 0, t), 0, r)) in += std::exp(score);
      }
      ASSERT_NEAR(double(b->lse()[size_t(t * 4 + h)]), std::log(in), 1e-4);
      estimate += double(left(t, h).estimate), exact_sum += 1 - in / all;
      float most = 0;
      for (int i = 0; i < kSelectTokens * 4; ++i)
        most = std::max(most, left(t / kSelectTokens * kSelectTokens + i / 4, i % 4).bound);
      rows.emplace_back(1 - in / all, most);
    }
  EXPECT_NEAR(estimate / exact_sum, 1, .1);
  int passed_at_all = 0;
  for (const double may : {.5, .6, .7, .8, .9}) {
    int passed = 0, beyond = 0;
    for (const auto& [out, bound] : rows) passed += double(bound) <= may, beyond += double(bound) <= may && out > may;
    EXPECT_LE(beyond, .05 * passed) << "of " << passed << " where " << may << " may be left out";
    passed_at_all += passed;
  }
  EXPECT_GT(passed_at_all, 0);
}

// ---- needles

// Random keys, and for every query head of every tile one row whose key is one of them: it lies in a block that is
// read.
int needles_found(int rows, KvType type, bool shared, int n_needle, int* asked) {
  const Shape d{.E = 512, .n_kv = 1, .group = 8, .k = type, .v = type, .shared = shared, .cap = rows + 1024};
  Layer layer(d);
  std::mt19937 rng(17);
  std::normal_distribution<float> normal;
  std::vector<float> table(1'000'003);
  for (float& x : table) x = normal(rng);
  const int tiles = (n_needle + d.group - 1) / d.group;
  Case c(layer, {part(0, rows, tiles * kSelectTokens, tiles * kSelectTokens)},
         {.gamma = .5f, .most = .1f, .check = false}, 5, 1 / std::sqrt(float(d.E)));
  for (int64_t r = 0; r < rows + tiles * kSelectTokens; ++r) {
    const float* x = table.data() + rng() % (table.size() - 512);
    layer.put(0, r, 0, x, x);
  }
  struct Needle {
    int tile, row;
  };
  std::vector<Needle> needles;
  std::vector<float> key(512);
  for (int tile = 0; tile < tiles; ++tile)
    for (int h = 0; h < d.group; ++h) {
      const int row = int(rng() % unsigned(rows - 2048)), token = tile * kSelectTokens + int(rng() % kSelectTokens);
      float* q = c.query(token, h);
      double length = 0;
      for (int e = 0; e < 512; ++e) length += double(q[e]) * double(q[e]);
      for (int e = 0; e < 512; ++e) q[e] /= float(std::sqrt(length));
      for (int e = 0; e < 512; ++e) key[size_t(e)] = q[e] * std::sqrt(512.f);  // as long as the others
      layer.put(0, row, 0, key.data(), key.data());
      needles.push_back({tile, row});
    }
  const auto b = made<CpuFast>(d, tiles * kSelectTokens);
  AttnSpec spec = c.spec;
  spec.selected = true;
  b->select_blocks({c.q.data(), c.step.shape.n_tok, c.cols, c.cols}, layer.l, c.step, spec);
  int found = 0;
  for (const Needle& n : needles) {
    const int tile = select_tile(0, 0, n.tile * kSelectTokens);
    found += b->blocks().has(tile, 0, n.row);
    EXPECT_LE(b->blocks().count_of(tile, 0), .1 * double(select_blocks_to(rows + n.tile * kSelectTokens)) + 1);
  }
  *asked = int(needles.size());
  return found;
}
TEST(SelectBlocks, NeedlesAreFound) {
  int asked = 0;
  const int rows = 65536;
  EXPECT_EQ(needles_found(rows, KvType::kQ8_0, false, 104, &asked), 104);
  EXPECT_EQ(asked, 104);
  if (!std::getenv("FACET_TEST_FULL")) return;
  for (const int n : {65536, 131072, 262144})
    for (const KvType t : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0})
      for (const bool shared : {false, true}) {
        const int found = needles_found(n, t, shared, 104, &asked);
        std::printf("%d rows of %s%s: %d of %d\n", n, kv_type_name(t), shared ? ", shared" : "", found, asked);
        EXPECT_EQ(found, 104);
      }
}

}  // namespace
}  // namespace facet::test
