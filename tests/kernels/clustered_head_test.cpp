// Heads that score only the tokens of the best clusters: a dense product with the rest at -inf.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "backend/cpu/cpu_fast.h"
#include "formats/quantize.h"
#include "support/harness.h"

namespace facet::test {
namespace {

struct Head {
  static constexpr int V = 96, N = 12, D = 256;
  std::vector<std::byte> head, centroid;
  std::vector<int32_t> order;
  DType type;

  explicit Head(DType t) : order(V), type(t) {
    std::mt19937 rng(3);
    auto matrix = [&](DType to, int rows) {
      std::vector<float> v(size_t(rows) * D);
      for (float& x : v) x = std::normal_distribution<float>()(rng) / 16;
      std::vector<std::byte> out(row_bytes(to, D) * size_t(rows));
      if (to == DType::kF32)
        std::memcpy(out.data(), v.data(), out.size());
      else
        quantize_row(to, v.data(), out.data(), int64_t(v.size()));
      return out;
    };
    head = matrix(t, V), centroid = matrix(DType::kF32, N);
    for (int i = 0; i < V; ++i) order[size_t(i)] = i;
    std::shuffle(order.begin(), order.end(), rng);
  }
  template <class B>
  ClusteredHead<typename B::Weight, typename B::Table> on(B& b, int top_k) const {
    TensorView h{.name = "head", .type = type, .n_dims = 2, .ne = {D, V, 1, 1}, .data = head},
        c{.name = "centroid", .type = DType::kF32, .n_dims = 2, .ne = {D, N, 1, 1}, .data = centroid};
    return {b.upload(h), b.upload(c), b.upload(std::span<const int32_t>(order)), top_k};
  }
};

BackendLimits limits(int max_tok) {
  BackendLimits l;
  l.max_tok = max_tok, l.max_cols = Head::D, l.max_rows = 16, l.n_cluster = Head::N;
  return l;
}

template <class B>
std::vector<float> run(B& b, const Head& h, int top_k, std::span<const float> x) {
  const int T = int(x.size()) / Head::D;
  auto in = b.new_rows(T, Head::D), out = b.new_rows(T, Head::V);
  b.from_host(in, x);
  b.clustered_head(out, in, h.on(b, top_k));
  return b.to_host(out);
}
template <class B>
std::vector<float> dense(B& b, const Head& h, std::span<const float> x) {
  const int T = int(x.size()) / Head::D;
  auto in = b.new_rows(T, Head::D), out = b.new_rows(T, Head::V);
  b.from_host(in, x);
  b.matmul(out, in, h.on(b, 1).head);
  return b.to_host(out);
}

class ClusteredHeads : public testing::TestWithParam<DType> {};

TEST_P(ClusteredHeads, AreTheDenseHeadWhereTheyScore) {
  const Head h(GetParam());
  std::mt19937 rng(4);
  std::vector<float> x(17 * Head::D);
  for (float& v : x) v = std::normal_distribution<float>()(rng);
  auto check = [&](auto& b) {
    b.reserve(limits(17));
    const auto full = dense(b, h, x);
    for (const int top_k : {1, 3, 12}) {
      const auto got = run(b, h, top_k, x);
      for (int t = 0; t < 17; ++t) {
        int scored = 0;
        for (int v = 0; v < Head::V; ++v) {
          const float y = got[size_t(t * Head::V + v)];
          if (std::isinf(y)) continue;
          ++scored;
          EXPECT_EQ(y, full[size_t(t * Head::V + v)]) << "the same bits, token " << t << " id " << v;
        }
        EXPECT_EQ(scored, top_k * Head::V / Head::N);
        const auto alone = run(b, h, top_k, std::span(x).subspan(size_t(t) * Head::D, Head::D));
        EXPECT_TRUE(bitwise_equal(alone, std::span(got).subspan(size_t(t) * Head::V, Head::V))) << "row " << t;
      }
    }
    EXPECT_TRUE(bitwise_equal(run(b, h, 12, x), full));
  };
  CpuRef ref;
  check(ref);
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (has_isa(isa)) {
      CpuFast fast(2, isa);
      check(fast);
    }
}
INSTANTIATE_TEST_SUITE_P(All, ClusteredHeads,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_K,
                                         DType::kQ6_K),
                         [](const auto& p) { return dtype_name(p.param); });

// The clusters are those whose centroids score best, the first of equals.
TEST(ClusteredHead, ChoosesByCentroid) {
  Head h(DType::kF32);
  std::vector<float> centroid(size_t(Head::N) * Head::D);
  for (int n = 0; n < Head::N; ++n) centroid[size_t(n) * Head::D] = n == 7 ? 3.f : n == 2 || n == 9 ? 2.f : 1.f;
  std::memcpy(h.centroid.data(), centroid.data(), h.centroid.size());
  std::vector<float> x(Head::D);
  x[0] = 1;
  CpuRef b;
  b.reserve(limits(1));
  const auto got = run(b, h, 2, x);
  std::set<int32_t> want, scored;
  for (const int n : {7, 2})
    for (int i = 0; i < 8; ++i) want.insert(h.order[size_t(8 * n + i)]);
  for (int v = 0; v < Head::V; ++v)
    if (!std::isinf(got[size_t(v)])) scored.insert(v);
  EXPECT_EQ(scored, want);
}

}  // namespace
}  // namespace facet::test
