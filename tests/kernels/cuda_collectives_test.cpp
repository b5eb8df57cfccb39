// What GPUs tell each other: sums with the bits of the host's, in the order of the GPUs; gathered columns; nothing that
// was sent before is taken for new, and nobody waits for ever. Shards share the first GPU where there are no others.
#include <chrono>
#include <random>
#include <thread>

#include "backend/cuda/cuda_link.h"
#include "support/gpu_lists.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

#define NEEDS_A_GPU() \
  if (!have_gpu()) GTEST_SKIP() << "no CUDA device"

struct Shards {
  std::vector<std::unique_ptr<Cuda>> b;
  CudaLink link;
  explicit Shards(const std::vector<int>& gpus) {
    for (const int gpu : gpus) b.push_back(std::make_unique<Cuda>(gpu));
    link.connect(b);
    for (const auto& x : b) EXPECT_TRUE(x->status());
  }
  ~Shards() {  // the link ends first in a backend, too
    for (const auto& x : b) x->finish();
  }
  int n() const { return int(b.size()); }
  unsigned all() const { return (1u << n()) - 1; }
  std::vector<Cuda::Rows> rows(int n_row, int cols) {
    std::vector<Cuda::Rows> r;
    for (const auto& x : b) x->make_current(), r.push_back(x->new_rows(n_row, cols));
    return r;
  }
  void put(std::span<const Cuda::Rows> to, const std::vector<std::vector<float>>& v) {
    for (size_t i = 0; i < b.size(); ++i) b[i]->make_current(), b[i]->from_host(to[i], v[i]);
  }
  std::vector<float> get(const Cuda::Rows& x, size_t i) {
    b[i]->make_current();
    return b[i]->to_host(x);
  }
};

// Of sizes so unlike that another order gives other bits.
std::vector<std::vector<float>> parts(int n, size_t size, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> v(static_cast<size_t>(n), std::vector<float>(size));
  for (auto& x : v)
    for (float& e : x) e = normal(rng) * std::exp2(normal(rng) * 3);
  return v;
}
std::vector<float> sum_of(const std::vector<std::vector<float>>& v, unsigned has) {
  std::vector<float> sum;
  for (size_t s = 0; s < v.size(); ++s) {
    if (!(has >> s & 1)) continue;
    if (sum.empty())
      sum = v[s];
    else
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += v[s][i];
  }
  return sum;
}

TEST(CudaCollectives, SumsAreTheHostsBitForBit) {
  NEEDS_A_GPU();
  Cases cases(4);
  on_each(gpu_lists({2, 3, 4}), [&](const GpuList& list) {
    Shards s(list.gpus);
    EXPECT_TRUE(list.peers || !s.link.by_peers());
    for (const auto& [n_row, cols] : std::vector<std::pair<int, int>>{
             {1, 2816}, {1, 5376}, {2, 5}, {7, 1027}, {16, 5376}, {64, 2816}, {65, 96}, {300, 1027}, {4096, 260}}) {
      if (cases.leave_out()) continue;
      const auto y = s.rows(n_row, cols);
      for (const unsigned has : {s.all(), s.all() & ~1u, 1u << (s.n() - 1)}) {
        const auto v = parts(s.n(), size_t(n_row) * size_t(cols), unsigned(cols) + has);
        s.put(y, v);
        s.link.sum(y, has);
        const auto want = sum_of(v, has);
        for (size_t i = 0; i < s.b.size(); ++i)
          EXPECT_EQ(s.get(y[i], i), want) << list.name() << " [" << n_row << ", " << cols << "] of " << has;
        EXPECT_EQ(s.link.failure(), "");
      }
      // Some rows and columns of a buffer, and no others.
      if (n_row < 3) continue;
      const auto v = parts(s.n(), size_t(n_row) * size_t(cols), 9);
      s.put(y, v);
      std::vector<Cuda::Rows> piece;
      for (const auto& r : y) piece.push_back(r.rows_at(1, n_row - 2).cols_at(4, cols - 8 > 0 ? cols - 8 : 1));
      s.link.sum(piece, s.all());
      const auto sum = sum_of(v, s.all());
      for (size_t i = 0; i < s.b.size(); ++i) {
        const auto got = s.get(y[i], i);
        bool same = true;
        for (int t = 0; t < n_row; ++t)
          for (int c = 0; c < cols; ++c) {
            const size_t at = size_t(t) * size_t(cols) + size_t(c);
            const bool in = t >= 1 && t < n_row - 1 && c >= 4 && c < 4 + piece[0].cols;
            same = same && got[at] == (in ? sum[at] : v[i][at]);
          }
        EXPECT_TRUE(same) << list.name() << " a piece of [" << n_row << ", " << cols << "]";
      }
    }
  });
}

TEST(CudaCollectives, TwoSumsAtOnceAreBoth) {
  NEEDS_A_GPU();
  on_each(gpu_lists({2, 3}), [&](const GpuList& list) {
    Shards s(list.gpus);
    for (const auto& [n_row, cols, more] : {std::array{1, 2816, 2816}, {5, 96, 33}, {64, 2816, 2816}, {70, 96, 160}}) {
      const auto y = s.rows(n_row, cols), o = s.rows(n_row, more);
      const auto v = parts(s.n(), size_t(n_row * cols), 1), w = parts(s.n(), size_t(n_row * more), 2);
      s.put(y, v), s.put(o, w);
      s.link.sum(y, s.all(), o, s.all() & ~1u);
      for (size_t i = 0; i < s.b.size(); ++i) {
        EXPECT_EQ(s.get(y[i], i), sum_of(v, s.all())) << list.name() << " " << n_row;
        EXPECT_EQ(s.get(o[i], i), sum_of(w, s.all() & ~1u)) << list.name() << " " << n_row;
      }
    }
  });
}

// Values change with every sum, which no host waits for; some go through mailboxes, some are added in place.
TEST(CudaCollectives, AThousandInARow) {
  NEEDS_A_GPU();
  on_each(gpu_lists({2, 4}), [&](const GpuList& list) {
    constexpr int kRows = 80, kCols = 5160, kBank = 7;  // the most rows are added in place
    static_assert(16 * kCols <= CudaLink::kFewFloats && kRows * kCols > CudaLink::kFewFloats);
    const int times = light() ? 50 : 1000;
    Shards s(list.gpus);
    const auto y = s.rows(kRows, kCols), total = s.rows(kRows, kCols);
    std::vector<std::vector<Cuda::Rows>> bank;
    std::vector<std::vector<std::vector<float>>> values;
    std::vector<std::vector<float>> sums;
    for (int k = 0; k < kBank; ++k) {
      bank.push_back(s.rows(kRows, kCols));
      values.push_back(parts(s.n(), size_t(kRows * kCols), unsigned(k)));
      s.put(bank.back(), values.back());
      sums.push_back(sum_of(values.back(), s.all()));
    }
    std::vector<float> want(size_t(kRows * kCols));
    s.put(total, std::vector<std::vector<float>>(s.b.size(), want));
    std::mt19937 rng(3);
    for (int i = 0; i < times; ++i) {
      const size_t k = rng() % kBank;
      const int n_row = std::array{1, 2, 16, kRows}[rng() % 4];
      std::vector<Cuda::Rows> part;
      for (size_t j = 0; j < s.b.size(); ++j) {
        s.b[j]->make_current();
        part.push_back(y[j].rows_at(0, n_row));
        s.b[j]->copy_rows(part[j], bank[k][j].rows_at(0, n_row));
      }
      s.link.sum(part, s.all());
      for (size_t j = 0; j < s.b.size(); ++j) {
        s.b[j]->make_current();
        const Cuda::Rows t = total[j].rows_at(0, n_row);
        s.b[j]->add(t, t, part[j]);
      }
      for (size_t e = 0; e < size_t(n_row * kCols); ++e) want[e] += sums[k][e];
    }
    for (size_t j = 0; j < s.b.size(); ++j) EXPECT_EQ(s.get(total[j], j), want) << list.name() << " shard " << j;
    EXPECT_EQ(s.link.failure(), "");
  });
}

TEST(CudaCollectives, GathersColumns) {
  NEEDS_A_GPU();
  on_each(gpu_lists({2, 3}), [&](const GpuList& list) {
    Shards s(list.gpus);
    // Unequal parts, one of them empty or odd; more than fits mailboxes at once.
    for (const auto& [n_row, sizes] : std::vector<std::pair<int, std::vector<int>>>{
             {1, {48, 32, 16}}, {3, {16, 0, 5}}, {64, {2048, 2064, 1024}}, {40, {40000, 16384, 8}}}) {
      ShardRanges at;
      int64_t cols = 0;
      for (int i = 0; i < s.n(); ++i) at.push_back({cols, cols + sizes[size_t(i)]}), cols += sizes[size_t(i)];
      const auto from = s.rows(n_row, int(cols)), to = s.rows(n_row, int(cols));
      const auto v = parts(s.n(), size_t(n_row) * size_t(cols), 4);
      s.put(from, v);
      std::vector<float> want(size_t(n_row) * size_t(cols));
      std::vector<Cuda::Rows> mine;
      for (size_t i = 0; i < s.b.size(); ++i) {
        mine.push_back(from[i].cols_at(0, int(at[i].size())));
        for (int t = 0; t < n_row; ++t)
          std::copy_n(v[i].begin() + t * cols, at[i].size(), want.begin() + t * cols + at[i].begin);
      }
      for (const size_t wants : {size_t(1), s.b.size()}) {
        s.put(to, parts(s.n(), want.size(), 5));
        const auto before = s.get(to.back(), s.b.size() - 1);
        s.link.gather(std::span(to).first(wants), mine, at);
        for (size_t i = 0; i < wants; ++i) EXPECT_EQ(s.get(to[i], i), want) << list.name() << " to shard " << i;
        if (wants == 1) {
          EXPECT_EQ(s.get(to.back(), s.b.size() - 1), before) << "who wants none";
        }
        EXPECT_EQ(s.link.failure(), "");
      }
    }
  });
}

// Shard `last` comes late, to mailboxes and flags full of what earlier collectives could have left there, whose epoch
// is `behind` less than the one that is waited for.
bool late_sum_is_right(const GpuList& list, int n_row, uint32_t behind) {
  Shards s(list.gpus);
  constexpr int kCols = 5160;
  const auto y = s.rows(n_row, kCols);
  std::vector<std::vector<float>> v;
  uint32_t epoch = 0;
  for (; epoch < 5; ++epoch) {
    v = parts(s.n(), size_t(n_row * kCols), epoch);
    s.put(y, v);
    s.link.sum(y, s.all());
  }
  for (const auto& b : s.b) b->make_current(), b->finish();
  const bool in_place = s.link.by_peers() && n_row * kCols > CudaLink::kFewFloats;
  for (int i = 0; i < s.n(); ++i) {
    const cuda::Communicator& x = s.link.communicator(i);
    s.b[size_t(i)]->make_current();
    if (in_place) {  // two meetings a sum
      const std::vector<uint32_t> flags(cuda::kSumBlocks * kMaxShards, 2 * epoch + 1 - behind);
      ok(cudaMemcpy(x.flag[i], flags.data(), flags.size() * 4, cudaMemcpyDefault));
      continue;
    }
    const std::vector<uint64_t> words(size_t(2 * x.n * x.box_floats), uint64_t(epoch + 1 - behind) << 32 | 0x40000000u);
    ok(cudaMemcpy(x.box[i], words.data(), words.size() * 8, cudaMemcpyDefault));
  }
  v = parts(s.n(), size_t(n_row * kCols), 77);
  s.put(y, v);
  std::vector<cuda::Mat> mat;
  cuda::EachPart all;
  for (size_t i = 0; i < s.b.size(); ++i)
    s.b[i]->make_current(), mat.push_back(s.b[i]->changed(y[i])), all.p[i] = mat[i].p;
  for (size_t i = 0; i < s.b.size(); ++i) {
    s.b[i]->make_current();
    if (i + 1 == s.b.size()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const cudaStream_t stream = s.b[i]->device().stream();
    const cuda::Communicator& x = s.link.communicator(int(i));
    in_place ? cuda::all_reduce_in_place(stream, x, mat[i], all, s.all())
             : cuda::all_reduce(stream, x, {mat[i], {}, {}, s.all()});
  }
  const auto want = sum_of(v, s.all());
  bool same = true;
  for (size_t i = 0; i < s.b.size(); ++i) same = s.get(y[i], i) == want && same;
  return same && s.link.failure().empty();
}
TEST(CudaCollectives, WhatWasSentBeforeIsNotTaken) {
  NEEDS_A_GPU();
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    for (const int n_row : {1, 16, 80})
      for (const uint32_t behind : {1u, 2u, 3u, 6u}) EXPECT_TRUE(late_sum_is_right(list, n_row, behind)) << list.name();
    EXPECT_FALSE(late_sum_is_right(list, 16, 0)) << "a word with the right number is taken";
  });
}

TEST(CudaCollectives, AGpuThatDoesNotComeIsNamed) {
  NEEDS_A_GPU();
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    Shards s(list.gpus);
    s.link.set_spin_timeout(0.3);
    const auto y = s.rows(80, 512);
    s.b[0]->make_current();
    const cuda::Mat m = s.b[0]->changed(y[0]);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 200; ++i) cuda::all_reduce(s.b[0]->device().stream(), s.link.communicator(0), {m, {}, {}, 3});
    cuda::EachPart all;
    all.p[0] = m.p, all.p[1] = m.p;
    cuda::all_reduce_in_place(s.b[0]->device().stream(), s.link.communicator(0), m, all, 3);
    s.b[0]->finish();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3)) << "it waits once";
    const std::string f = s.link.failure();
    EXPECT_EQ(f.find(fmt::format("GPU {} (", list.gpus[0])), 0u) << f;
    EXPECT_NE(f.find(fmt::format("for GPU {} (", list.gpus[1])), std::string::npos) << f;
    EXPECT_NE(f.find("did not come"), std::string::npos) << f;
  });
}

}  // namespace
}  // namespace facet::test
