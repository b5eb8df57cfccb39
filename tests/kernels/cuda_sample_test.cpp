// Drawing and the best of all on a GPU against the CPU's definitions: the same tokens, and log-probabilities within a
// bound from the number of terms.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/sampler.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/ops.h"
#include "backend/cuda/kernels/sample.h"
#include "base/half.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

std::vector<float> logits_of(int n_row, int n_vocab, unsigned seed) {
  std::vector<float> l(size_t(n_row) * size_t(n_vocab));
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (float& v : l) v = std::round(normal(rng) * 300) / 100;  // many ties
  return l;
}

// How logits lie: as they come; most of them equal, so that all groups have the same largest; a few that are not minus
// infinity; the largest all in one group.
enum class Lie { kAnyhow, kEqual, kFew, kTogether };
std::vector<float> logits_that_lie(Lie lie, int n_row, int n_vocab, unsigned seed) {
  std::vector<float> l = logits_of(n_row, n_vocab, seed);
  for (size_t i = 0; i < l.size(); ++i) {
    const size_t id = i % size_t(n_vocab);
    if (lie == Lie::kEqual && id % 5 > 0) l[i] = 7.5f;
    if (lie == Lie::kFew && id % 9001 != 6) l[i] = -INFINITY;
    if (lie == Lie::kTogether && id / 100 == 3) l[i] += 20;
  }
  return l;
}

TEST(CudaSample, DrawsWhatTheCpuDraws) {
  NEEDS_GPU();
  Cases cases(5);
  for (const Lie lie : {Lie::kAnyhow, Lie::kEqual, Lie::kFew, Lie::kTogether})
    for (int n_vocab : {7, 4096, 4097, 50000, 65537, 262144, 300000})
      for (int n_row : {1, 3}) {
        const std::vector<float> l = logits_that_lie(lie, n_row, n_vocab, 11);
        OnDevice<float> logits(l);
        OnDevice<uint64_t> candidates(size_t(cuda::draw_candidates(n_vocab)) * size_t(n_row));
        SamplerScratch scratch;
        for (const Sampling& p :
             {Sampling{.temperature = 0.f}, Sampling{.seed = 5}, Sampling{.temperature = .7f, .top_k = 1, .seed = 6},
              Sampling{.top_k = 2, .top_p = 1.f, .seed = 9},
              Sampling{.temperature = 1.3f, .top_k = 256, .top_p = 1.f, .seed = 7},
              Sampling{.temperature = 30.f, .top_k = 256, .seed = 4},
              Sampling{.top_k = 20, .top_p = .5f, .min_p = .1f, .seed = 8}})
          for (int64_t position : {0, 1, 77}) {
            if (cases.leave_out()) continue;
            std::vector<cuda::DrawRow> rows;
            std::vector<int32_t> want;
            for (int r = 0; r < n_row; ++r) {
              rows.push_back({p.temperature, p.top_p, p.min_p, p.temperature <= 0 ? 1 : std::min(p.top_k, n_vocab),
                              p.seed, position + r, 0, 0});
              want.push_back(sample_row(std::span(l).subspan(size_t(r) * size_t(n_vocab), size_t(n_vocab)),
                                        {.sampling = &p, .position = position + r}, scratch));
            }
            OnDevice<cuda::DrawRow> on_device(rows);
            OnDevice<int32_t> ids{size_t(n_row)};
            cuda::draw(nullptr, ids.p(), logits.p(), n_vocab, n_vocab, n_row, on_device.p(), nullptr, 0,
                       p.temperature <= 0, candidates.p());
            EXPECT_EQ(ids.get(), want) << n_vocab << " tokens that lie as " << int(lie) << ", top-k " << p.top_k
                                       << ", position " << position;
          }
      }
}

TEST(CudaSample, ARowThatIsNoDistributionGivesNoToken) {
  NEEDS_GPU();
  constexpr int kVocab = 9000;
  std::vector<float> l = logits_of(2, kVocab, 3);
  l[8500] = NAN;
  std::fill(l.begin() + kVocab, l.end(), -INFINITY);
  OnDevice<float> logits(l);
  OnDevice<uint64_t> candidates(size_t(cuda::draw_candidates(kVocab)) * 2);
  for (const int k : {1, 64}) {
    OnDevice<cuda::DrawRow> rows(std::vector<cuda::DrawRow>(2, {1.f, .95f, 0.f, k, 1, 0, 0, 0}));
    OnDevice<int32_t> ids(2);
    cuda::draw(nullptr, ids.p(), logits.p(), kVocab, kVocab, 2, rows.p(), nullptr, 0, k == 1, candidates.p());
    EXPECT_EQ(ids.get(), std::vector<int32_t>({-1, -1})) << k;
  }
}

TEST(CudaSample, TopKAsTheCpu) {
  NEEDS_GPU();
  constexpr int kRows = 3;
  for (int n_vocab : {5, 4097, 262144}) {
    std::vector<float> l = logits_of(kRows, n_vocab, 23);
    l[2] = -INFINITY;
    OnDevice<float> logits(l);
    OnDevice<uint64_t> candidates(size_t(cuda::draw_candidates(n_vocab)) * kRows);
    OnDevice<float2> sums(size_t(cuda::draw_candidates(n_vocab)) * kRows / cuda::kMaxTopK);
    SamplerScratch scratch;
    for (int k : {1, 2, 7, 256}) {
      OnDevice<int32_t> ids{size_t(kRows * k)};
      OnDevice<float> log_probs{size_t(kRows * k)};
      OnDevice<int32_t> best(kRows);
      cuda::top_k(nullptr, logits.p(), n_vocab, n_vocab,
                  {.ids = ids.p(),
                   .log_probs = log_probs.p(),
                   .best = best.p(),
                   .candidates = candidates.p(),
                   .part_sums = sums.p(),
                   .n_row = kRows,
                   .k = k});
      const std::vector<int32_t> got = ids.get();
      const std::vector<float> got_log = log_probs.get();
      for (int r = 0; r < kRows; ++r) {
        EXPECT_EQ(best.get()[size_t(r)], got[size_t(r * k)]);
        std::vector<int32_t> want(static_cast<size_t>(k));
        std::vector<float> want_log(static_cast<size_t>(k));
        top_k_row(std::span(l).subspan(size_t(r) * size_t(n_vocab), size_t(n_vocab)), want, want_log, scratch);
        // Sums of at most n_vocab positive terms, a tree of some 30 on the GPU and any order on the CPU; exp and log to
        // 2 ulp.
        const double bound = (64 + std::sqrt(double(n_vocab))) * 0x1p-24 + 16 * 0x1p-24;
        for (int i = 0; i < k; ++i) {
          const size_t at = size_t(r * k + i);
          ASSERT_EQ(got[at], want[size_t(i)]) << n_vocab << " tokens, k " << k << ", row " << r << ", place " << i;
          if (want[size_t(i)] < 0)
            EXPECT_EQ(got_log[at], -INFINITY);
          else
            EXPECT_NEAR(got_log[at], want_log[size_t(i)], bound * (1 + std::abs(double(want_log[size_t(i)]))))
                << n_vocab << " tokens, k " << k;
        }
      }
    }
  }
}

// In one launch what top_k and embed_concat do in two.
TEST(CudaSample, TopKThenItsEmbedding) {
  NEEDS_GPU();
  constexpr int kVocab = 5008, kRows = 5, kCols = 320, kBeside = 64;
  std::vector<float> l = logits_of(kRows, kVocab, 29);
  std::fill(l.begin() + kVocab, l.begin() + 2 * kVocab, -INFINITY);  // a row without a best: token 0
  OnDevice<float> logits(l), beside(logits_of(kRows, kBeside, 3));
  std::vector<uint16_t> weights;
  for (float v : logits_of(kVocab, kCols, 7)) weights.push_back(f32_to_bf16(v));
  OnDevice<uint16_t> raw(weights), tiles(weights.size());
  const cuda::TiledMatrix table{
      .p = reinterpret_cast<const uint8_t*>(tiles.p()), .tile = cuda::Tile::kBF16, .n_out = kVocab, .n_in = kCols};
  cuda::repack(nullptr, table, reinterpret_cast<const uint8_t*>(raw.p()), DType::kBF16);
  OnDevice<uint64_t> candidates(size_t(cuda::draw_candidates(kVocab)) * kRows);
  OnDevice<float2> sums(size_t(cuda::draw_candidates(kVocab)) * kRows / cuda::kMaxTopK);
  for (int k : {1, 8})
    for (int n : {1, kRows}) {
      struct Got {
        std::vector<float> y, log_probs;
        std::vector<int32_t> ids, best;
        bool operator==(const Got&) const = default;
      } got[2];
      for (const bool together : {false, true}) {
        OnDevice<float> y(size_t(n) * (kCols + kBeside)), log_probs(size_t(n * k));
        OnDevice<int32_t> ids(size_t(n * k)), best(static_cast<size_t>(n));
        const cuda::Mat to{.p = y.p(), .rows = n, .cols = kCols + kBeside, .stride = kCols + kBeside},
            from{.p = beside.p(), .rows = n, .cols = kBeside, .stride = kBeside};
        cuda::TopK top{.ids = ids.p(),
                       .log_probs = log_probs.p(),
                       .best = best.p(),
                       .candidates = candidates.p(),
                       .part_sums = sums.p(),
                       .n_row = n,
                       .k = k};
        cuda::top_k_parts(nullptr, logits.p(), kVocab, kVocab, top);
        if (together) {
          cuda::top_k_embed(nullptr, top, to, table, 1.5f, from);
        } else {
          cuda::top_k_pick(nullptr, top);
          cuda::embed_concat(nullptr, to, table, best.p(), 1.5f, from);
        }
        got[together] = {y.get(), log_probs.get(), ids.get(), best.get()};
      }
      EXPECT_EQ(got[0], got[1]) << n << " rows, k " << k;
      EXPECT_EQ(got[1].y[0], 1.5f * bf16_to_f32(weights[size_t(got[1].best[0]) * kCols]));
      EXPECT_EQ(got[1].y[kCols], beside.get()[0]);
    }
}

// Rows that end within a half group of 32 columns: nothing is written behind them, where the next row begins.
TEST(CudaSample, EmbeddingsOfAnyWidth) {
  NEEDS_GPU();
  constexpr int kVocab = 40, kRows = 9;
  for (const int cols : {4, 16, 48, 80, 116, 320}) {
    std::vector<uint16_t> weights;
    for (float v : logits_of(kVocab, cols, 7)) weights.push_back(f32_to_bf16(v));
    cuda::TiledMatrix table{.tile = cuda::Tile::kBF16, .n_out = kVocab, .n_in = cols};
    OnDevice<uint16_t> raw(weights);
    OnDevice<uint8_t> tiles(size_t(table.matrix_bytes()));
    table.p = tiles.p();
    cuda::repack(nullptr, table, reinterpret_cast<const uint8_t*>(raw.p()), DType::kBF16);
    std::vector<int32_t> ids(kRows);
    for (int t = 0; t < kRows; ++t) ids[size_t(t)] = t * 17 % kVocab;
    OnDevice<int32_t> token(ids);
    OnDevice<float> x(size_t(kRows + 1) * size_t(cols));  // one row more, which stays poisoned
    cuda::embed(nullptr, {.p = x.p(), .rows = kRows, .cols = cols, .stride = cols}, table, token.p(), 1.5f);
    const auto got = x.get();
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t t = i / size_t(cols), c = i % size_t(cols);
      if (t == kRows)
        EXPECT_TRUE(std::isnan(got[i])) << cols << " columns, " << c << " behind the last row";
      else
        EXPECT_EQ(got[i], 1.5f * bf16_to_f32(weights[size_t(ids[t]) * size_t(cols) + c])) << cols << " columns, " << c;
    }
  }
}

// The host sees results when it is told of them, without waiting for the stream.
TEST(CudaSample, SaysWhenResultsAreThere) {
  NEEDS_GPU();
  constexpr int kVocab = 30000, kRows = 5;
  const std::vector<float> l = logits_of(kRows, kVocab, 17);
  OnDevice<float> logits(l);
  OnDevice<uint64_t> candidates(size_t(cuda::draw_candidates(kVocab)) * kRows);
  OnDevice<float2> sums(size_t(cuda::draw_candidates(kVocab)) * kRows / cuda::kMaxTopK);
  OnDevice<unsigned> n_row(std::vector<unsigned>{0});
  OnDevice<cuda::DrawRow> rows(std::vector<cuda::DrawRow>(kRows, {0.f, 1.f, 0.f, 1, 1, 0, 0, 0}));
  struct Host {
    uint32_t flag;
    int32_t ids[kRows];
    float log_probs[kRows];
  }* host = nullptr;
  ok(cudaMallocHost(&host, sizeof(Host)));
  *host = {};
  std::vector<int32_t> want;
  for (int r = 0; r < kRows; ++r)
    want.push_back(
        int32_t(std::max_element(l.begin() + r * kVocab, l.begin() + (r + 1) * kVocab) - (l.begin() + r * kVocab)));
  for (uint32_t number = 1; number <= 200; ++number) {
    std::fill_n(host->ids, kRows, -2);
    std::fill_n(host->log_probs, kRows, 1.f);
    const cuda::Done done{&host->flag, number, n_row.p()};
    const int n = 1 + int(number) % kRows;
    if (number % 2)
      cuda::draw(nullptr, host->ids, logits.p(), kVocab, kVocab, n, rows.p(), nullptr, 0, true, candidates.p(), done);
    else
      cuda::top_k(nullptr, logits.p(), kVocab, kVocab,
                  {.ids = host->ids,
                   .log_probs = host->log_probs,
                   .candidates = candidates.p(),
                   .part_sums = sums.p(),
                   .n_row = n,
                   .k = 1},
                  done);
    while (std::atomic_ref(host->flag).load(std::memory_order_acquire) != number)
      ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    for (int r = 0; r < n; ++r) {
      ASSERT_EQ(host->ids[r], want[size_t(r)]) << number << ", row " << r;
      ASSERT_LT(host->log_probs[r], number % 2 ? 2.f : 0.f);
    }
  }
  ok(cudaDeviceSynchronize());
  ok(cudaFreeHost(host));
}

TEST(CudaSample, ARowOfNothingHasNoBest) {
  NEEDS_GPU();
  constexpr int kVocab = 5000, kRows = 2;
  std::vector<float> l = logits_of(kRows, kVocab, 4);
  std::fill(l.begin() + kVocab, l.end(), -INFINITY);
  OnDevice<float> logits(l), log_probs(kRows);
  OnDevice<uint64_t> candidates(size_t(cuda::draw_candidates(kVocab)) * kRows);
  OnDevice<float2> sums(size_t(cuda::draw_candidates(kVocab)) * kRows / cuda::kMaxTopK);
  OnDevice<int32_t> ids(kRows), best(kRows);
  cuda::top_k(nullptr, logits.p(), kVocab, kVocab,
              {.ids = ids.p(),
               .log_probs = log_probs.p(),
               .best = best.p(),
               .candidates = candidates.p(),
               .part_sums = sums.p(),
               .n_row = kRows,
               .k = 1});
  const int32_t first = ids.get()[0];
  EXPECT_EQ(ids.get(), std::vector<int32_t>({first, -1}));
  EXPECT_EQ(best.get(), std::vector<int32_t>({first, 0}));
}

}  // namespace
}  // namespace facet::test
