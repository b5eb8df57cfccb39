// Norms and residuals on the device against the same in double precision; a row's bits do not depend on the rows beside
// it. Everything the kernels write is poisoned with NaN first.
#include "backend/cuda/kernels/ops.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/half.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

constexpr float kEps = 1e-6f;
constexpr int kRanks = 8;

// A value, and how far a computation in f32 may be from it.
struct Near {
  double v = 0, err = 0;
};
constexpr double kUlp = 0x1p-24;
// Additions that a term of a row's sum goes through at most: a thread's values, lanes, warps; half counts for a root.
constexpr double kFactor = (4 + 2 + 5 + 16) / 2.0 + 4;

std::vector<Near> normed(const std::vector<Near>& x, const float* gain) {
  double sum = 0, err = 0;
  for (const Near& e : x) sum += e.v * e.v, err += 2 * std::abs(e.v) * e.err;
  const double n = double(x.size()), f = 1 / std::sqrt(sum / n + kEps),
               relative = kFactor * kUlp + err / std::max(sum, 1e-30);
  std::vector<Near> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double g = gain ? gain[i] : 1;
    y[i].v = x[i].v * f * g;
    y[i].err = x[i].err * f * std::abs(g) + std::abs(y[i].v) * (relative + 3 * kUlp);
  }
  return y;
}
std::vector<Near> sum_of(const std::vector<Near>& a, const std::vector<Near>& b, double scale) {
  std::vector<Near> y(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    y[i].v = (a[i].v + b[i].v) * scale;
    y[i].err = (a[i].err + b[i].err) * std::abs(scale) + 2 * kUlp * std::abs(y[i].v);
  }
  return y;
}

struct Rows {
  int D, T;
  std::vector<float> x, y, o, out, weight, gain[6];  // out [T, ranks, D]
  Rows(int d, int t) : D(d), T(t) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<float>& v, size_t n, float size) {
      v.resize(n);
      for (float& e : v) e = normal(rng) * size;
    };
    const size_t n = size_t(D) * size_t(T);
    fill(x, n, 3.f), fill(y, n, .2f), fill(o, n, 20.f), fill(out, n * kRanks, 1.f),
        fill(weight, size_t(T * kRanks), .3f);
    for (auto& g : gain) fill(g, size_t(D), 1.f);
  }
  std::vector<Near> row(const std::vector<float>& v, int t) const {
    std::vector<Near> r;
    for (int i = 0; i < D; ++i) r.push_back({v[size_t(t) * size_t(D) + size_t(i)], 0});
    return r;
  }
  std::vector<Near> experts(int t) const {
    std::vector<Near> r(static_cast<size_t>(D));
    for (int i = 0; i < D; ++i) {
      double size = 0;
      for (int k = 0; k < kRanks; ++k) {
        const double term =
            double(weight[size_t(t * kRanks + k)]) * out[(size_t(t * kRanks + k)) * size_t(D) + size_t(i)];
        r[size_t(i)].v += term, size += std::abs(term);
      }
      r[size_t(i)].err = size * (kRanks + 1) * kUlp;
    }
    return r;
  }
};

struct Results {
  std::vector<float> x, h, r, e;
  std::vector<uint16_t> h_bf;
};
enum class Verb { kNorm, kResidual, kResidualMoe, kJoin, kJoinOne };

// The verb on rows [first, first + n).
Results run(const Rows& in, Verb verb, int first, int n, cuda::Partials left = {}) {
  const size_t D = size_t(in.D), count = size_t(n) * D;
  auto part = [&](const std::vector<float>& v, size_t per) {
    return std::vector<float>(v.begin() + int64_t(size_t(first) * per), v.begin() + int64_t(size_t(first + n) * per));
  };
  OnDevice<float> x(part(in.x, D)), y(part(in.y, D)), o(part(in.o, D)), out(part(in.out, D * kRanks)),
      weight(part(in.weight, kRanks)), h(count), r(count), e(count);
  OnDevice<uint16_t> h_bf(count), e_bf(count);
  std::vector<std::unique_ptr<OnDevice<float>>> gain;
  for (const auto& g : in.gain) gain.push_back(std::make_unique<OnDevice<float>>(g));
  auto mat = [&](OnDevice<float>& m, OnDevice<uint16_t>* bf = nullptr) {
    return cuda::Mat{.p = m.p(),
                     .rows = n,
                     .cols = in.D,
                     .stride = in.D,
                     .bf = bf ? reinterpret_cast<__nv_bfloat16*>(bf->p()) : nullptr,
                     .bf_stride = in.D};
  };
  if (verb == Verb::kNorm) {
    cuda::rms_norm(nullptr, mat(h, &h_bf), mat(x), left, gain[0]->p(), kEps);
  } else if (verb == Verb::kResidual) {
    cuda::residual_norm(nullptr, mat(x), mat(h, &h_bf), mat(y), left, gain[0]->p(), gain[1]->p(), .7f, kEps);
  } else if (verb == Verb::kResidualMoe) {
    cuda::residual_norm_moe(
        nullptr, mat(x), mat(h, &h_bf), mat(y), left, gain[0]->p(), gain[1]->p(), .7f, kEps,
        {.r = mat(r), .e = mat(e, &e_bf), .router_gain = gain[2]->p(), .expert_gain = gain[3]->p()});
  } else {
    cuda::MoeJoin m{.shared_post = gain[2]->p(),
                    .routed_post = gain[3]->p(),
                    .post = gain[0]->p(),
                    .next = gain[1]->p(),
                    .out_scale = .7f,
                    .eps = kEps,
                    .slots = {},
                    .panels = {}};
    if (verb == Verb::kJoin) m.slots = {.out = out.p(), .weight = weight.p(), .n_used = kRanks};
    cuda::moe_join(nullptr, mat(x), mat(h, &h_bf), mat(y), mat(o), m);
  }
  return {x.get(), h.get(), r.get(), e.get(), h_bf.get()};
}

struct Wanted {
  std::vector<Near> x, h, r, e;
};
Wanted wanted(const Rows& in, Verb verb, int t) {
  Wanted w;
  auto gain = [&](int i) { return in.gain[i].data(); };
  if (verb == Verb::kNorm) return {in.row(in.x, t), normed(in.row(in.x, t), gain(0)), {}, {}};
  std::vector<Near> branch = in.row(in.y, t);
  if (verb >= Verb::kJoin)
    branch = sum_of(normed(branch, gain(2)), normed(verb == Verb::kJoin ? in.experts(t) : in.row(in.o, t), gain(3)), 1);
  w.x = sum_of(in.row(in.x, t), normed(branch, gain(0)), .7f);
  w.h = normed(w.x, gain(1));
  if (verb == Verb::kResidualMoe) w.r = normed(w.x, gain(2)), w.e = normed(w.x, gain(3));
  return w;
}
int wrong(const std::vector<float>& got, const std::vector<Near>& want, int t, int D) {
  int n = 0;
  for (size_t i = 0; i < want.size(); ++i)
    n += !(std::abs(double(got[size_t(t) * size_t(D) + i]) - want[i].v) <= want[i].err);
  return n;
}

class CudaOps : public ::testing::TestWithParam<std::tuple<Verb, int>> {};
INSTANTIATE_TEST_SUITE_P(Norms, CudaOps,
                         ::testing::Combine(::testing::Values(Verb::kNorm, Verb::kResidual, Verb::kResidualMoe,
                                                              Verb::kJoin, Verb::kJoinOne),
                                            ::testing::Values(64, 320, 2816, 4096, 4160, 5376, 8192)));

TEST_P(CudaOps, AsInDoublePrecision) {
  NEEDS_GPU();
  const auto [verb, D] = GetParam();
  for (int T : {1, 5, 70, 300}) {
    const Rows in(D, T);
    const Results got = run(in, verb, 0, T);
    for (int t : {0, T / 2, T - 1}) {
      const Wanted want = wanted(in, verb, t);
      EXPECT_EQ(wrong(got.x, want.x, t, D), 0) << T << " rows, x of " << t;
      EXPECT_EQ(wrong(got.h, want.h, t, D), 0) << T << " rows, h of " << t;
      EXPECT_EQ(wrong(got.r, want.r, t, D), 0) << T << " rows, r of " << t;
      EXPECT_EQ(wrong(got.e, want.e, t, D), 0) << T << " rows, e of " << t;
      for (int i = 0; i < D; ++i) {
        const size_t at = size_t(t) * size_t(D) + size_t(i);
        ASSERT_EQ(got.h_bf[at], f32_to_bf16(got.h[at]));
      }
      // The bound is not idle.
      std::vector<float> moved = got.h;
      for (float& v : moved) v *= 1 + 0x1p-16f;
      EXPECT_GT(wrong(moved, want.h, t, D), D / 2);
    }
  }
}
TEST_P(CudaOps, BitsOfARowAreItsOwn) {
  NEEDS_GPU();
  const auto [verb, D] = GetParam();
  const Rows in(D, 300);
  const Results all = run(in, verb, 0, 300);
  for (auto [first, n] : {std::pair{0, 1}, {3, 16}, {69, 1}, {6, 64}, {20, 280}}) {
    const Results some = run(in, verb, first, n);
    auto equal = [&](const auto& a, const auto& b) {
      return std::memcmp(a.data() + size_t(first) * size_t(D), b.data(), b.size() * sizeof(b[0])) == 0;
    };
    EXPECT_TRUE(equal(all.x, some.x)) << n;
    EXPECT_TRUE(equal(all.h, some.h)) << n;
    EXPECT_TRUE(verb != Verb::kResidualMoe || equal(all.e, some.e)) << n;
  }
}

// A norm that reads what a product has left, and sum_partials: the bits of sums over sets, in order.
TEST(CudaNorms, AddsUpWhatAProductLeft) {
  NEEDS_GPU();
  constexpr int kSets = 3;
  for (int D : {320, 2816, 5376})
    for (int T : {1, 5, 16}) {
      const int width = T == 1 ? 1 : T <= 8 ? 8 : 16, n_job = (D + 15) / 16;
      Rows in(D, T);
      std::vector<float> left(size_t(kSets * n_job * width * 16), NAN);  // columns beyond T are read by nobody
      std::mt19937 rng(3);
      std::normal_distribution<float> normal;
      auto at = [&](int s, int t, int i) -> float& {
        return left[size_t(((s * n_job + i / 16) * width + t) * 16 + i % 16)];
      };
      std::vector<float> turned(size_t(T * D));
      for (int t = 0; t < T; ++t)
        for (int i = 0; i < D; ++i) {
          for (int s = 0; s < kSets; ++s) at(s, t, i) = normal(rng);
          in.y[size_t(t * D + i)] = (at(0, t, i) + at(1, t, i)) + at(2, t, i);
          turned[size_t(t * D + i)] = (at(2, t, i) + at(1, t, i)) + at(0, t, i);
        }
      OnDevice<float> left_d(left), y(size_t(T * D));
      const cuda::Partials partials{.p = left_d.p(), .n_set = kSets, .n_job = n_job, .width = width};
      cuda::sum_partials(nullptr, {.p = y.p(), .rows = T, .cols = D, .stride = D}, partials);
      EXPECT_EQ(y.get(), in.y);
      EXPECT_NE(turned, in.y);  // another order would be seen
      Rows unread = in;
      std::fill(unread.y.begin(), unread.y.end(), NAN);
      Rows sums = in;  // a norm alone keeps them: they are the stream
      sums.x = in.y;
      const Results stream = run(sums, Verb::kNorm, 0, T), kept = run(unread, Verb::kNorm, 0, T, partials);
      EXPECT_EQ(kept.x, in.y) << D << " columns, " << T << " rows";
      EXPECT_EQ(kept.h, stream.h) << D << " columns, " << T << " rows";
      for (Verb verb : {Verb::kResidual, Verb::kResidualMoe}) {
        const Results want = run(in, verb, 0, T), got = run(unread, verb, 0, T, partials);
        EXPECT_EQ(got.x, want.x) << D << " columns, " << T << " rows";
        EXPECT_EQ(got.h, want.h) << D << " columns, " << T << " rows";
        EXPECT_TRUE(verb == Verb::kResidual || got.e == want.e) << D << " columns, " << T << " rows";
      }
    }
}

}  // namespace
}  // namespace facet::test
