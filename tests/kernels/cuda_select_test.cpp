// Block-sparse prefill on the device: lists against the reference's choice on the device's own scores, attention over
// lists against attention without, and what is left out. Outputs are poisoned with NaN first.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/cpu/cpu_ref.h"
#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/attention/select.h"
#include "backend/step_builder.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

struct Dims {
  int E = 512, n_kv = 2, group = 8;
  KvType k = KvType::kF16, v = KvType::kF16;
  bool shared = false;
};
constexpr Dims kDims[] = {{.k = KvType::kQ8_0, .v = KvType::kQ8_0, .shared = true},
                          {.group = 4, .shared = true},
                          {.n_kv = 1, .group = 16, .k = KvType::kQ4_0, .v = KvType::kQ4_0, .shared = true},
                          {.k = KvType::kTQ3_0, .v = KvType::kTQ3_0, .shared = true},
                          {.group = 2},
                          {.k = KvType::kQ8_0, .v = KvType::kQ4_0},
                          {.k = KvType::kTQ3_0, .v = KvType::kTQ3_0},
                          {.E = 256, .group = 4},
                          {.E = 256, .group = 8, .k = KvType::kQ8_0, .v = KvType::kTQ3_0},
                          {.E = 256, .k = KvType::kQ4_0, .v = KvType::kQ4_0}};

// A cache of one slot with all rows of the step, on the host in f32-decodable blocks and on the device.
struct Case {
  Dims d;
  int len, n, n_select, cols;
  StepBuilder steps{8192, 2, 64};
  std::vector<int32_t> ids;
  Step host, dev;
  KvLayer kv_host, kv_dev;
  std::vector<std::byte> k, v;
  std::vector<float> q;
  AttnSpec spec;
  BackendLimits limits;
  std::unique_ptr<OnDevice<std::byte>> dk, dv, memory, scratch;
  std::unique_ptr<OnDevice<float>> dq;
  std::vector<std::unique_ptr<OnDevice<int32_t>>> ints;
  std::unique_ptr<OnDevice<Mask>> mask;
  std::unique_ptr<OnDevice<uint64_t>> ancestor;
  cuda::SelectBuffers lists;

  int row_cols() const { return d.shared ? 640 : d.E; }
  size_t row(KvType t) const { return d.shared ? kv_shared_bytes(t, d.E) : kv_row_bytes(t, d.E); }

  // spread: deviation of scores.
  Case(Dims dims, int len_, int n_, int n_select_, SelectSpec select, float spread)
      : d(dims), len(len_), n(n_), n_select(n_select_), cols(d.n_kv * d.group * d.E), ids(size_t(n_)) {
    steps.begin();
    steps.select(select);
    steps.add({.slot = 0, .kv_len = len, .token = ids, .n_select = n_select});
    host = steps.finish();
    kv_host.k_type = d.k, kv_host.v_type = d.v, kv_host.n_head = d.n_kv, kv_host.head_dim = d.E,
    kv_host.shared = d.shared, kv_host.cap = len + n;
    kv_host.k_row = int64_t(row(d.k)) * d.n_kv, kv_host.v_row = d.shared ? kv_host.k_row : int64_t(row(d.v)) * d.n_kv;
    kv_host.k_slot = kv_host.k_row * kv_host.cap, kv_host.v_slot = kv_host.v_row * kv_host.cap;
    k.resize(size_t(kv_host.k_slot)), v.resize(d.shared ? 0 : size_t(kv_host.v_slot));
    kv_host.k = k.data(), kv_host.v = d.shared ? k.data() + kv_shared_v_at(d.k, d.E) : v.data();
    std::mt19937 rng(7);
    std::vector<float> table(100'003), centre(size_t(d.E)), x(size_t(d.E));
    std::normal_distribution<float> normal;
    for (float& f : table) f = normal(rng);
    auto some = [&] { return table[rng() % table.size()]; };
    for (int h = 0; h < d.n_kv; ++h)
      for (int64_t r = 0; r < len + n; ++r) {
        if (r % kSelectRows == 0)
          for (float& f : centre) f = .7f * some();
        const float* from = table.data() + rng() % (table.size() - size_t(d.E));
        for (int e = 0; e < d.E; ++e) x[size_t(e)] = from[e] + centre[size_t(e)];
        const KvRow to = kv_ring_row(kv_host, 0, r);
        if (d.shared) {
          kv_encode_shared(d.k, x.data(), x.data(), to.k + h * kv_host.k_head(), d.E);
        } else {
          kv_encode(d.k, x.data(), to.k + h * kv_host.k_head(), d.E);
          kv_encode(d.v, x.data(), to.v + h * kv_host.v_head(), d.E);
        }
      }
    q.resize(size_t(n) * size_t(cols));
    for (float& f : q) f = some();
    spec = {.n_q_head = d.n_kv * d.group, .head_dim = d.E, .scale = spread / std::sqrt(float(d.E)), .selected = true};
    limits.max_tok = n, limits.max_rows = len + n, limits.max_cols = cols, limits.n_group = d.group;
    limits.n_q_head = spec.n_q_head, limits.head_dim = d.E, limits.n_kv_head = d.n_kv, limits.n_select = 1;
    upload();
  }
  std::vector<std::byte> device_row(KvType t, const std::vector<std::byte>& in) const {
    std::vector<std::byte> out(in.size());
    for (size_t at = 0; at < in.size(); at += row(t))
      cuda::kv_device_from_blocks(t, in.data() + at, out.data() + at, row_cols());
    return out;
  }
  void upload() {
    dk = std::make_unique<OnDevice<std::byte>>(device_row(d.k, k)),
    dv = std::make_unique<OnDevice<std::byte>>(device_row(d.v, v));
    kv_dev = kv_host;
    kv_dev.k = dk->p(), kv_dev.v = dv->p();
    dq = std::make_unique<OnDevice<float>>(q);
    dev = host;
    auto put = [&](const int32_t* from, size_t many) {
      ints.push_back(std::make_unique<OnDevice<int32_t>>(std::vector<int32_t>(from, from + many)));
      return ints.back()->p();
    };
    const size_t T = size_t(n);
    dev.token = put(host.token, T), dev.pos = put(host.pos, T), dev.seq = put(host.seq, T),
    dev.q_begin = put(host.q_begin, 2), dev.kv_len = put(host.kv_len, 1), dev.slot = put(host.slot, 1);
    mask = std::make_unique<OnDevice<Mask>>(std::vector<Mask>(host.mask, host.mask + 1)), dev.mask = mask->p();
    ancestor = std::make_unique<OnDevice<uint64_t>>(std::vector<uint64_t>(host.ancestor, host.ancestor + T));
    dev.ancestor = ancestor->p();
    const size_t bytes = cuda::select_bytes(limits);
    memory = std::make_unique<OnDevice<std::byte>>(bytes);
    lists = cuda::select_buffers(memory->p(), limits);
    ok(cudaMemset(lists.sum, 0, sizeof(Selected)));
    scratch = std::make_unique<OnDevice<std::byte>>(cuda::attend_scratch_bytes(limits, spec.n_q_head, d.E, len + n));
  }
  cuda::Mat mat(float* p) const { return {.p = p, .rows = n, .cols = cols, .stride = cols}; }
  bool select() {
    const bool made = cuda::select_blocks(nullptr, lists, mat(dq->p()), kv_dev, host, spec);
    ok(cudaDeviceSynchronize());
    return made;
  }
  std::vector<float> attend(bool with_lists) {
    OnDevice<float> o(q.size());
    const cuda::Selection selection{with_lists ? &lists : nullptr, &host};
    cuda::attend(nullptr, mat(o.p()), mat(dq->p()), kv_dev, dev, spec,
                 {scratch->p(), cuda::attend_scratch_bytes(limits, spec.n_q_head, d.E, len + n)}, nullptr, selection);
    ok(cudaGetLastError());
    return o.get();
  }
  template <class T>
  std::vector<T> copied(const T* p, size_t many) const {
    std::vector<T> x(many);
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy(x.data(), p, many * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
  }
  int tiles() const { return (n + kSelectTokens - 1) / kSelectTokens; }
  int end(int tile) const { return std::min(n, (tile + 1) * kSelectTokens); }
  std::vector<int32_t> list(int tile, int head) const {
    const int at = tile * d.n_kv + head, count = copied(lists.count + at, 1)[0];
    if (count < 0) return {count};
    return copied(lists.index + int64_t(at) * lists.cap, size_t(count));
  }
  Selected sums() const { return copied(lists.sum, 1)[0]; }
};

// The scores are those of means of the decoded rows, to what f16 rounds of them and of the queries; the lists and
// samples are the reference's choice on these scores, but for blocks of nearly equal weight.
TEST(CudaSelect, ChoosesAsTheReference) {
  NEEDS_GPU();
  for (const Dims& d : kDims) {
    Case c(d, 9'977, 200, 192, {.gamma = .6f}, 1.5f);
    ASSERT_TRUE(c.select());
    const int n_row = 192 * d.group;
    const auto score = c.copied(c.lists.score, size_t(d.n_kv) * size_t(n_row) * size_t(c.lists.cap));
    std::vector<float> x(size_t(d.E)), query(size_t(d.E)), mean(size_t(d.E));
    const auto samples =
        c.copied(c.lists.sample_index, size_t(kSampleBlocks) * size_t(c.lists.most_tile) * size_t(d.n_kv));
    for (int h = 0; h < d.n_kv; ++h)
      for (int tile = 0; tile < 6; ++tile) {
        const int row0 = c.len + tile * kSelectTokens, n_block = select_blocks_to(c.len + c.end(tile) - 1);
        for (const int r : {0, kSelectTokens * d.group - 1}) {  // a few scores
          const int token = tile * kSelectTokens + r / d.group;
          kv_query(d.k, d.shared, c.q.data() + size_t(token * c.cols + (h * d.group + r % d.group) * d.E), query.data(),
                   d.E);
          for (const int b : {0, 7, row0 / kSelectRows - 1, row0 / kSelectRows}) {
            float best = -INFINITY, size = 0;
            for (int m = b * kBlockMeans; m < std::min((b + 1) * kBlockMeans, select_means_before(row0)); ++m) {
              std::fill(mean.begin(), mean.end(), 0.f);
              for (int i = m * kMeanRows; i < (m + 1) * kMeanRows; ++i) {
                kv_decode(d.k, kv_ring_row(c.kv_host, 0, i).k + h * c.kv_host.k_head(), x.data(), d.E);
                for (size_t e = 0; e < x.size(); ++e) mean[e] += x[e] / kMeanRows;
              }
              double dot = 0, squares = 0;
              for (size_t e = 0; e < x.size(); ++e)
                dot += double(mean[e]) * double(query[e]), squares += std::pow(double(mean[e]) * double(query[e]), 2);
              best = std::max(best, float(dot) * c.spec.scale);
              size = std::max(size, float(std::sqrt(squares)));
            }
            const float got =
                score[(size_t(h) * size_t(n_row) + size_t(tile * kSelectTokens * d.group + r)) * size_t(c.lists.cap) +
                      size_t(b)];
            if (best == -INFINITY) {
              EXPECT_EQ(got, best) << "block " << b;
            } else {  // both factors to 2^-11 each, six deviations
              ASSERT_NEAR(got, best, 6 * 0x1p-11f * 1.5f * size * c.spec.scale + 1e-5f)
                  << kv_type_name(d.k) << " E " << d.E << " tile " << tile << " row " << r << " block " << b;
            }
          }
        }
        std::vector<int32_t> want(static_cast<size_t>(n_block)), sample(kSampleBlocks);
        want.resize(size_t(choose_blocks(
            c.host.select,
            score.data() + (size_t(h) * size_t(n_row) + size_t(tile * kSelectTokens * d.group)) * size_t(c.lists.cap),
            kSelectTokens * d.group, c.lists.cap, n_block, row0, h, want.data(), sample.data())));
        const auto got = c.list(tile, h);
        ASSERT_TRUE(std::is_sorted(got.begin(), got.end()));
        ASSERT_NEAR(double(got.size()), double(want.size()), 1);
        std::vector<int32_t> both;
        std::set_intersection(got.begin(), got.end(), want.begin(), want.end(), std::back_inserter(both));
        EXPECT_GE(both.size() + 1, std::min(got.size(), want.size())) << kv_type_name(d.k) << " tile " << tile;
        if (got != want) continue;
        int sampled = 0;
        for (int set = 0; set < kSampleSets; ++set) {
          const size_t at = size_t(set * c.lists.most_tile + tile) * size_t(d.n_kv) + size_t(h);
          const int m = c.copied(c.lists.sample_count + at, 1)[0];
          for (int i = 0; i < m; ++i, ++sampled) {
            const int32_t b = samples[at * (kSampleBlocks / kSampleSets) + size_t(i)];
            EXPECT_FALSE(std::binary_search(got.begin(), got.end(), b));
            EXPECT_TRUE(b >= 0 && b < n_block);
          }
        }
        EXPECT_EQ(sampled, std::min(kSampleBlocks, n_block - int(got.size())));
      }
    EXPECT_EQ(c.list(6, 0), std::vector<int32_t>{-1}) << "behind n_select";
  }
}

// Lists with all blocks give the bits of the kernel without lists; and ways to break that which are seen.
TEST(CudaSelect, FullListsAreDense) {
  NEEDS_GPU();
  for (const Dims& d : kDims)
    for (const auto& [len, n] : {std::pair(0, 97), {2'000, 321}, {3'833, 64}}) {
      Case c(d, len, n, n, {.gamma = 1}, 1.f);
      const auto dense = c.attend(false);
      for (const float x : dense) ASSERT_TRUE(std::isfinite(x));
      ASSERT_TRUE(c.select());
      EXPECT_EQ(int(c.list(0, 0).size()), select_blocks_to(len + c.end(0) - 1));
      EXPECT_EQ(c.attend(true), dense) << kv_type_name(d.k) << " E " << d.E << " shared " << d.shared << " len " << len;
      const Selected s = c.sums();
      EXPECT_EQ(s.blocks, s.seen);
      EXPECT_EQ(s.tiles, c.tiles() * d.n_kv);
      EXPECT_EQ(s.rows, int64_t(n) * c.spec.n_q_head);
      if (len < 2'000) continue;
      c.host.select.check = false;
      const auto count = c.copied(c.lists.count, size_t(c.tiles() * d.n_kv));
      auto less = count;
      for (int32_t& m : less) --m;
      ok(cudaMemcpy(c.lists.count, less.data(), less.size() * 4, cudaMemcpyHostToDevice));
      EXPECT_NE(c.attend(true), dense) << "the last block left out";
      ok(cudaMemcpy(c.lists.count, count.data(), count.size() * 4, cudaMemcpyHostToDevice));
      auto index = c.copied(c.lists.index, size_t(c.lists.cap));
      for (size_t i = 0; i + 1 < size_t(count[0]); ++i) index[i] = int32_t(i) + 1;
      ok(cudaMemcpy(c.lists.index, index.data(), index.size() * 4, cudaMemcpyHostToDevice));
      EXPECT_NE(c.attend(true), dense) << "off by one";
    }
}

// Attention over lists is softmax over the rows of their blocks; lse is that of their scores.
TEST(CudaSelect, ReadsItsBlocksAndNothingElse) {
  NEEDS_GPU();
  for (const Dims& d : kDims) {
    Case c(d, 5'000, 96, 96, {.gamma = 0, .least = .4f, .most = .4f, .check = false}, .7f);
    ASSERT_TRUE(c.select());
    const auto got = c.attend(true);
    std::vector<float> key(size_t(d.E)), value(size_t(d.E)), query(size_t(d.E)), sums(size_t(d.E)), want(size_t(d.E));
    for (const int t : {0, 31, 50, 95})
      for (const int h : {0, c.spec.n_q_head - 1}) {
        const int hk = h / d.group;
        const auto list = c.list(t / kSelectTokens, hk);
        EXPECT_NEAR(double(list.size()), .4 * select_blocks_to(5'000 + c.end(t / kSelectTokens) - 1), 1);
        kv_query(d.k, d.shared, c.q.data() + size_t(t * c.cols + h * d.E), query.data(), d.E);
        std::vector<double> o(size_t(d.E));
        double sum = 0, most = 0;
        for (int r = 0; r <= 5'000 + t; ++r) {
          if (!std::binary_search(list.begin(), list.end(), r / kSelectRows)) continue;
          const KvRow row = kv_ring_row(c.kv_host, 0, r);
          kv_decode(d.k, row.k + hk * c.kv_host.k_head(), key.data(), d.E);
          kv_decode(d.v, row.v + hk * c.kv_host.v_head(), value.data(), d.E);
          double dot = 0;
          for (size_t e = 0; e < key.size(); ++e) dot += double(query[e]) * double(key[e]);
          const double p = std::exp(dot * double(c.spec.scale));
          sum += p;
          for (size_t e = 0; e < o.size(); ++e)
            o[e] += p * double(value[e]), most = std::max(most, std::abs(double(value[e])));
        }
        for (size_t e = 0; e < o.size(); ++e) sums[e] = float(o[e] / sum);
        kv_result(d.v, d.shared, sums.data(), want.data(), d.E);
        for (int e = 0; e < d.E; ++e)  // q, probabilities and values in f16: cuda_attention_test's bound of such scores
          ASSERT_NEAR(got[size_t(t * c.cols + h * d.E + e)], want[size_t(e)], 0x1p-7 * most)
              << kv_type_name(d.k) << " E " << d.E << " token " << t << " head " << h << " value " << e;
      }
  }
}

// Lists that leave out too much of flat attention: every tile is done again and dense. Where little is left out none
// is.
TEST(CudaSelect, RepairsWhatLeavesOutTooMuch) {
  NEEDS_GPU();
  for (const Dims& d : kDims) {
    Case flat(d, 6'000, 128, 128, {.gamma = .9f, .most = .3f}, .05f);
    const auto dense = flat.attend(false);
    ASSERT_TRUE(flat.select());
    EXPECT_EQ(flat.attend(true), dense) << kv_type_name(d.k) << " E " << d.E;
    Selected s = flat.sums();
    EXPECT_EQ(s.repaired, s.tiles);
    EXPECT_EQ(s.left_out, 0);
    Case some(d, 6'000, 128, 128, {.gamma = .1f, .least = .3f, .most = .3f}, .05f);
    ASSERT_TRUE(some.select());
    const auto sparse = some.attend(true);
    for (const float x : sparse) ASSERT_TRUE(std::isfinite(x));
    s = some.sums();
    EXPECT_EQ(s.repaired, 0);
    EXPECT_NEAR(s.share(), .3, .03);
    EXPECT_NEAR(s.recall(), .3, .06) << "flat: as much as is read";
  }
}

}  // namespace
}  // namespace facet::test
