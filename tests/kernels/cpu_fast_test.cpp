// CpuFast against CpuRef, verb by verb, and the law that a row's bits depend on that row alone.
// Long: a test for each verb, on inputs that they share.
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/cpu_fast.h"
#include "backend/step_builder.h"
#include "base/half.h"
#include "support/guard_page.h"
#include "support/harness.h"
#include "support/sanitized.h"

namespace facet::test {
namespace {

constexpr CpuIsa kIsas[] = {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx};
std::vector<CpuIsa> isas() {
  std::vector<CpuIsa> v;
  for (const CpuIsa i : kIsas)
    if (has_isa(i)) v.push_back(i);
  return v;
}

// What isas() leaves out is said once.
class Isa : public testing::TestWithParam<CpuIsa> {};
TEST_P(Isa, IsOfThisMachine) {
  if (!has_isa(GetParam()))
    GTEST_SKIP() << "this machine has no " << isa_name(GetParam()) << ": its kernels are not tested";
  EXPECT_STREQ(CpuFast(1, GetParam()).isa(), isa_name(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(All, Isa, testing::ValuesIn(kIsas), [](const auto& p) { return isa_name(p.param); });

// A buffer whose neighbourhood is watched: writes beside the rows are found.
class Guarded {
 public:
  Guarded(int rows, int cols) : rows_(rows), cols_(cols), data_(size_t(rows + 2) * size_t(cols + kPad), kMark) {}
  CpuRef::Rows rows() { return {data_.data() + cols_ + kPad, rows_, cols_, cols_ + kPad}; }
  bool intact() const {
    for (size_t i = 0; i < data_.size(); ++i) {
      const int r = int(i / size_t(cols_ + kPad)) - 1, c = int(i % size_t(cols_ + kPad));
      if ((r < 0 || r >= rows_ || c >= cols_) && data_[i] != kMark) return false;
    }
    return true;
  }

 private:
  static constexpr int kPad = 5;
  static constexpr float kMark = 12345.678f;
  int rows_, cols_;
  std::vector<float> data_;
};

BackendLimits limits(int max_tok, int max_cols) {
  BackendLimits l;
  l.max_tok = max_tok, l.max_cols = max_cols, l.max_rows = 4096, l.n_group = 4;
  return l;
}

// Where a block's scales lie.
std::vector<int> half_offsets(DType t) {
  switch (t) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kIQ1_S:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
      return {0};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

// Gives a block a step of d, in each place where one lies. A byte of exponent stands for the power of two below |d|.
void set_steps(DType t, float d, std::byte* block) {
  const uint16_t h = f32_to_f16(d);
  for (const int offset : half_offsets(t)) std::memcpy(block + offset, &h, 2);
  if (t == DType::kIQ1_M)  // in the top nibbles of four words
    for (int k = 0; k < 4; ++k)
      block[49 + 2 * k] = (block[49 + 2 * k] & std::byte(15)) | std::byte((h >> (4 * k) & 15) << 4);
  if (t == DType::kMXFP4) block[0] = std::byte(128 + std::ilogb(d));
  // NVFP4's are bytes of which each is a scale, from 0 to 240.
}

// A matrix of random bytes, so that every code and sub-scale occurs, with scales of a sane size and either sign.
struct Matrix {
  std::vector<std::byte> bytes;
  CpuRef::Weight w;
  std::vector<float> values;
  Matrix(DType t, int n_in, int n_out, unsigned seed) {
    std::mt19937 rng(seed);
    const DTypeInfo& info = dtype_info(t);
    bytes.resize(row_bytes(t, n_in) * size_t(n_out));
    if (info.block == 1) {
      for (int64_t i = 0; i < int64_t(n_in) * n_out; ++i) {
        const float x = std::normal_distribution<float>()(rng);
        const uint16_t h = t == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
        if (t == DType::kF32)
          std::memcpy(bytes.data() + 4 * i, &x, 4);
        else
          std::memcpy(bytes.data() + 2 * i, &h, 2);
      }
    } else {
      for (std::byte& b : bytes) b = std::byte(rng());
      for (size_t at = 0; at < bytes.size(); at += size_t(info.block_bytes))
        set_steps(t, (rng() % 2 ? 1.f : -1.f) * (.5f + float(rng() % 1000) / 1000), bytes.data() + at);
    }
    w = {bytes.data(), t, n_out, n_in, 1, dtype_name(t)};
    values.resize(size_t(n_in) * size_t(n_out));
    for (int o = 0; o < n_out; ++o) dequantize_row(t, w.row(0, o), values.data() + int64_t(o) * n_in, n_in);
  }
};

std::vector<float> random_floats(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng) * (rng() % 50 == 0 ? 20.f : 1.f);
  return v;
}

// The bound: an activation is off by at most half a step of its group, largest / 127 / 2, so an output by at most the
// sum of |w| times that. Sums and products in f32 add a relative 2^-24 each; a lane adds up one term in 256 columns and
// minima come apart from codes, for which the row's largest weight is allowed once more.
void check_matmul(DType type, int n_in, int n_out) {
  const Matrix m(type, n_in, n_out, unsigned(n_in + n_out));
  const bool quantised = dtype_info(type).block > 1 && type != DType::kQ2_K;
  constexpr int kMax = 64;
  const std::vector<float> x = random_floats(size_t(kMax) * size_t(n_in), 5);
  const Matrix floats = [&] {
    Matrix f(DType::kF32, n_in, 1, 1);
    f.bytes.resize(m.values.size() * 4);
    std::memcpy(f.bytes.data(), m.values.data(), f.bytes.size());
    f.w = {f.bytes.data(), DType::kF32, n_out, n_in, 1, "floats"};
    return f;
  }();
  CpuRef ref;
  ref.reserve(limits(kMax, n_in));
  CpuRef::Rows xr = ref.new_rows(kMax, n_in), want = ref.new_rows(kMax, n_out);
  ref.from_host(xr, x);
  ref.matmul(want, xr, floats.w);

  std::vector<float> first;  // the first instruction set's
  for (const CpuIsa isa : isas()) {
    CpuFast fast(2, isa);
    fast.reserve(limits(kMax, n_in));
    std::vector<float> alone;
    for (int t = 0; t < kMax; ++t) {
      Guarded y(1, n_out);
      fast.matmul(y.rows(), {xr.row(t), 1, n_in, n_in}, m.w);
      ASSERT_TRUE(y.intact());
      alone.insert(alone.end(), y.rows().row(0), y.rows().row(0) + n_out);
    }
    for (int t = 0; t < kMax; ++t) {
      std::vector<double> step(size_t(n_in) / 32 + 1);
      for (int i = 0; i < n_in; ++i)
        step[size_t(i / 32)] = std::max(step[size_t(i / 32)], std::abs(double(xr.row(t)[i])) / 254);
      for (int o = 0; o < n_out; ++o) {
        double bound = 0, size = 0, largest = 0;
        for (int i = 0; i < n_in; ++i) {
          const double w = std::abs(double(m.values[size_t(o) * size_t(n_in) + size_t(i)]));
          if (quantised) bound += w * step[size_t(i / 32)];
          size += w * std::abs(double(xr.row(t)[i]));
          largest = std::max(largest, w);
        }
        for (int i = 0; i < n_in && quantised; ++i) size += largest * std::abs(double(xr.row(t)[i]));
        bound += size * 0x1p-24 * (n_in / 32 + 16);
        const float got = alone[size_t(t) * size_t(n_out) + size_t(o)];
        ASSERT_NEAR(got, want.row(t)[o], bound)
            << isa_name(isa) << " [" << n_out << " x " << n_in << "] token " << t << " output " << o;
      }
    }
    for (const int T : {1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 23, 28, 31, 33, 40, 48, 49, 64}) {
      Guarded y(T, n_out);
      fast.matmul(y.rows(), xr.view(T, n_in), m.w);
      ASSERT_TRUE(y.intact()) << isa_name(isa) << " T " << T;
      for (int t = 0; t < T; ++t)
        ASSERT_TRUE(bitwise_equal({y.rows().row(t), size_t(n_out)},
                                  std::span(alone).subspan(size_t(t) * size_t(n_out), size_t(n_out))))
            << isa_name(isa) << " [" << n_out << " x " << n_in << "] row " << t << " of " << T;
    }
    if (first.empty()) first = alone;
    ASSERT_TRUE(bitwise_equal(alone, first)) << isa_name(isa) << ": products are the same everywhere";
  }
}

// Sums of a few products in 16 bits, where a kernel makes them, are as large as they can be: largest codes, largest
// activations. The bound is that of check_matmul without its activations' rounding; with minima apart, terms are up to
// three times the weight.
void check_largest_codes(DType type) {
  constexpr int kCols = 512, kMax = 16;
  Matrix m(type, kCols, 1, 1);
  const DTypeInfo& info = dtype_info(type);
  std::fill(m.bytes.begin(), m.bytes.end(), std::byte(0xFF));
  for (size_t at = 0; at < m.bytes.size(); at += size_t(info.block_bytes)) set_steps(type, 1, m.bytes.data() + at);
  dequantize_row(type, m.w.row(0, 0), m.values.data(), kCols);
  double want = 0, size = 0;
  for (const float w : m.values) want += double(w), size += std::abs(double(w));
  for (const CpuIsa isa : isas())
    for (const float x : {1.f, -1.f}) {  // codes of 127 and -127, without rounding
      CpuFast fast(1, isa);
      fast.reserve(limits(kMax, kCols));
      CpuRef::Rows xr = fast.new_rows(kMax, kCols), y = fast.new_rows(kMax, 1);
      fast.from_host(xr, std::vector<float>(size_t(kMax) * kCols, x));
      for (const int T : {1, 4, 6, 8, 16}) {
        fast.matmul(y.view(T, 1), xr.view(T, kCols), m.w);
        for (int t = 0; t < T; ++t)
          ASSERT_NEAR(y.row(t)[0], double(x) * want, 3 * size * 0x1p-24 * (kCols / 32 + 16))
              << isa_name(isa) << " row " << t << " of " << T;
      }
    }
}

class MatmulTypes : public testing::TestWithParam<DType> {};
TEST_P(MatmulTypes, WithinTheRoundingOfActivations) {
  const int block = dtype_info(GetParam()).block;
  for (const int n_in : {256, 512, 704, 2112, 1280, 32})
    for (const int n_out : {1, 37})
      if (n_in % block == 0) check_matmul(GetParam(), n_in, n_out);
  if (block == 1) check_matmul(GetParam(), 83, 5);
}
TEST_P(MatmulTypes, LargestCodes) {
  if (dtype_info(GetParam()).block > 1) check_largest_codes(GetParam());
}
INSTANTIATE_TEST_SUITE_P(All, MatmulTypes,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                         DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS,
                                         DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS, DType::kIQ2_XS, DType::kIQ2_S,
                                         DType::kIQ3_XXS, DType::kIQ3_S, DType::kMXFP4, DType::kNVFP4),
                         [](const auto& p) { return dtype_name(p.param); });

// The law that every row's bits are its own, and two ways to break it that the check must see.
struct WideStepsSumOtherwise : CpuFast {
  using CpuFast::CpuFast;
  void matmul(Rows y, Rows x, Weight w) {
    CpuFast::matmul(y, x, w);
    for (int t = 16; t < x.rows; ++t)  // as if the 17th row had a kernel that adds in another order
      for (int o = 0; o < y.cols; ++o) y.row(t)[o] = (y.row(t)[o] - y.row(0)[o]) + y.row(0)[o];
  }
};
struct RowsShareAScale : CpuFast {
  using CpuFast::CpuFast;
  void matmul(Rows y, Rows x, Weight w) {
    Rows z = new_rows(x.rows, x.cols);
    float most = 0;
    for (int t = 0; t < x.rows; ++t) most = std::max(most, std::abs(x.row(t)[0]));
    for (int t = 0; t < x.rows; ++t)
      std::copy_n(x.row(t), x.cols, z.row(t)), z.row(t)[0] = std::round(x.row(t)[0] / most * 127) * most / 127;
    CpuFast::matmul(y, z, w);
  }
};
// The first width of a step in which a row differs from that row alone; 0: none.
template <class B>
int first_width_that_differs(CpuIsa isa, int n_threads) {
  constexpr int kIn = 704, kOut = 40, kMax = 64;
  const Matrix m(DType::kQ5_0, kIn, kOut, 3);
  B one(1, isa), b(n_threads, isa);
  one.reserve(limits(kMax, kIn)), b.reserve(limits(kMax, kIn));
  CpuRef::Rows x = one.new_rows(kMax, kIn), alone = one.new_rows(kMax, kOut), y = one.new_rows(kMax, kOut);
  one.from_host(x, random_floats(size_t(kMax) * kIn, 8));
  for (int t = 0; t < kMax; ++t) one.matmul({alone.row(t), 1, kOut, alone.stride}, {x.row(t), 1, kIn, x.stride}, m.w);
  for (int T = 2; T <= kMax; ++T) {
    b.matmul(y.view(T, kOut), x.view(T, kIn), m.w);
    for (int t = 0; t < T; ++t)
      if (!bitwise_equal({y.row(t), kOut}, {alone.row(t), kOut})) return T;
  }
  return 0;
}
TEST(Matmul, ARowIsItsOwnAtEveryWidth) {
  for (const CpuIsa isa : isas())
    for (const int n_threads : {1, 3}) {
      EXPECT_EQ(first_width_that_differs<CpuFast>(isa, n_threads), 0) << isa_name(isa);
      EXPECT_EQ(first_width_that_differs<WideStepsSumOtherwise>(isa, n_threads), 17) << isa_name(isa);
      EXPECT_GT(first_width_that_differs<RowsShareAScale>(isa, n_threads), 0) << isa_name(isa);
    }
}

// Behind the last block is a page that cannot be read.
TEST(Matmul, ReadsNothingBehindItsRows) {
  for (int t = 0; t < int(DType::kCount); ++t) {
    const DType type = DType(t);
    if (!dtype_info(type).matmul) continue;
    const Matrix m(type, 256, 17, 3);
    const BeforeGuardPage weights(m.bytes);
    for (const CpuIsa isa : isas()) {
      CpuFast fast(1, isa);
      fast.reserve(limits(60, 256));
      const std::vector<float> x = random_floats(60 * 256, 1);
      CpuRef::Rows xr = fast.new_rows(60, 256);
      fast.from_host(xr, x);
      for (const int T : {1, 4, 19, 60}) {
        Guarded y(T, 17);
        fast.matmul(y.rows(), xr.view(T, 256), {weights.data(), type, 17, 256, 1, "edge"});
        for (int i = 0; i < T; ++i)
          for (int o = 0; o < 17; ++o) EXPECT_TRUE(std::isfinite(y.rows().row(i)[o]));
      }
    }
  }
}

// What is broken stays visible, in the rows it belongs to.
TEST(Matmul, NotANumberStaysInItsRow) {
  const Matrix m(DType::kQ8_0, 256, 20, 3);
  for (const CpuIsa isa : isas())
    for (const int T : {4, 60})
      for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
        CpuFast fast(1, isa);
        fast.reserve(limits(T, 256));
        std::vector<float> x = random_floats(size_t(T) * 256, 1);
        x[256 + 77] = bad;
        CpuRef::Rows xr = fast.new_rows(T, 256), y = fast.new_rows(T, 20);
        fast.from_host(xr, x);
        fast.matmul(y, xr, m.w);
        for (int o = 0; o < 20; ++o) {
          EXPECT_FALSE(std::isfinite(y.row(1)[o]));
          EXPECT_TRUE(std::isfinite(y.row(0)[o]) && std::isfinite(y.row(2)[o]));
        }
      }
}

// The largest sums of a group that there are, 32 * 127 * 32 * 128 for Q6_K: no kernel may round or wrap one.
TEST(Matmul, LargestSums) {
  constexpr int kIn = 512, kOut = 17, kTok = 50;
  for (const DType type : {DType::kQ8_0, DType::kQ6_K}) {
    Matrix m(type, kIn, kOut, 3);
    const bool k = type == DType::kQ6_K;  // codes -32 from zeros, sub-scales -128; or codes -128
    const size_t block = size_t(dtype_info(type).block_bytes);
    for (size_t i = 0; i < m.bytes.size(); ++i) {
      const size_t at = i % block;
      if (k ? at < 208 : at >= 2) m.bytes[i] = std::byte(k && at < 192 ? 0 : 0x80);
    }
    std::vector<float> first;
    for (const CpuIsa isa : isas()) {
      CpuFast fast(1, isa);
      fast.reserve(limits(kTok, kIn));
      CpuRef::Rows x = fast.new_rows(kTok, kIn), y = fast.new_rows(kTok, kOut);
      for (int t = 0; t < kTok; ++t) std::fill_n(x.row(t), kIn, t % 2 ? -1.f : 1.f);
      fast.matmul(y, x, m.w);
      const std::vector<float> wide(y.row(0), y.row(0) + kTok * kOut);
      for (int t = 0; t < kTok; ++t) fast.matmul({y.row(t), 1, kOut, y.stride}, {x.row(t), 1, kIn, x.stride}, m.w);
      EXPECT_TRUE(bitwise_equal({y.row(0), wide.size()}, wide)) << isa_name(isa);
      if (first.empty()) first = wide;
      EXPECT_TRUE(bitwise_equal(wide, first)) << isa_name(isa);
    }
  }
}

// Experts get from no row to all of them, in order of the experts.
TEST(Moe, ARowIsItsOwnAtEveryWidth) {
  constexpr int D = 288, F = 96, N = 5, kUsed = 2, kMax = 64;
  for (const DType type : {DType::kQ5_0, DType::kQ8_0}) {
    const Matrix gate_up(type, D, N * 2 * F, 1), down(type, F, N * D, 2), router(DType::kF32, D, N, 3);
    MoeWeights<CpuFast::Weight, CpuFast::Vec> w;
    w.router = router.w;
    w.gate_up = gate_up.w, w.gate_up.n_out = 2 * F, w.gate_up.n_stack = N;
    w.down = down.w, w.down.n_out = D, w.down.n_stack = N;
    std::vector<float> x = random_floats(size_t(kMax) * D, 8);
    for (size_t i = 0; i < x.size(); ++i) x[i] += router.values[i % D];  // the first expert is popular
    std::vector<float> first;
    for (const CpuIsa isa : isas())
      for (const int n_threads : {1, 3}) {
        CpuFast fast(n_threads, isa);
        BackendLimits l = limits(kMax, D);
        l.n_expert = N, l.n_expert_used = kUsed, l.d_expert = F, l.d_moe = D;
        fast.reserve(l);
        CpuRef::Rows xr = fast.new_rows(kMax, D), alone = fast.new_rows(kMax, D);
        fast.from_host(xr, x);
        auto row = [](CpuRef::Rows r, int t) { return CpuRef::Rows{r.row(t), 1, r.cols, r.stride}; };
        for (int t = 0; t < kMax; ++t) fast.moe(row(alone, t), row(xr, t), row(xr, t), w, kUsed, Act::kGelu);
        std::vector<float> all;
        for (int t = 0; t < kMax; ++t) all.insert(all.end(), alone.row(t), alone.row(t) + D);
        if (first.empty()) first = all;
        ASSERT_TRUE(bitwise_equal(all, first)) << isa_name(isa);
        for (const int T : {2, 7, 16, 17, 33, 50, 64}) {
          Guarded y(T, D);
          fast.moe(y.rows(), xr.view(T, D), xr.view(T, D), w, kUsed, Act::kGelu);
          ASSERT_TRUE(y.intact());
          for (int t = 0; t < T; ++t)
            ASSERT_TRUE(bitwise_equal({y.rows().row(t), D}, {alone.row(t), D}))
                << isa_name(isa) << " row " << t << " of " << T;
        }
      }
  }
}

// Experts that somebody else chose, as for rows that come from a GPU.
TEST(Moe, RoutedExpertsAreThoseOfMoe) {
  constexpr int D = 288, F = 96, N = 5, kUsed = 2, T = 33;
  const Matrix gate_up(DType::kQ5_0, D, N * 2 * F, 1), down(DType::kQ8_0, F, N * D, 2), router(DType::kF32, D, N, 3);
  const std::vector<float> scale = {1, .5f, 2, 1.25f, .75f};
  MoeWeights<CpuFast::Weight, CpuFast::Vec> w;
  w.router = router.w, w.scale = {scale.data(), N};
  w.gate_up = gate_up.w, w.gate_up.n_out = 2 * F, w.gate_up.n_stack = N;
  w.down = down.w, w.down.n_out = D, w.down.n_stack = N;
  CpuFast fast(2);
  BackendLimits l = limits(T, D);
  l.n_expert = N, l.n_expert_used = kUsed, l.d_expert = F, l.d_moe = D;
  fast.reserve(l);
  CpuRef::Rows x = fast.new_rows(T, D), want = fast.new_rows(T, D), got = fast.new_rows(T, D),
               logits = fast.new_rows(T, N);
  fast.from_host(x, random_floats(size_t(T) * D, 8));
  fast.moe(want, x, x, w, kUsed, Act::kGelu);
  fast.matmul(logits, x, router.w);
  std::vector<int32_t> expert;
  std::vector<float> weight;
  for (int t = 0; t < T; ++t) {
    std::vector<int32_t> order = {0, 1, 2, 3, 4};
    const float* v = logits.row(t);
    std::stable_sort(order.begin(), order.end(), [v](int a, int b) { return v[a] > v[b]; });
    const float second = std::exp(v[order[1]] - v[order[0]]), sum = 1.f + second;
    for (int k = 0; k < kUsed; ++k) {
      expert.push_back(order[size_t(k)]);
      weight.push_back((k == 0 ? 1.f : second) / sum * scale[size_t(order[size_t(k)])]);
    }
  }
  w.router = {}, w.scale = {};
  fast.routed_experts(got, x, expert, weight, w, kUsed, Act::kGelu);
  EXPECT_TRUE(bitwise_equal({got.row(0), size_t(T) * D}, {want.row(0), size_t(T) * D}));
  // Two places that share them: each has none of some rows, and together they are all.
  for (const int last : {-1, 0, 2, 4}) {
    CpuRef::Rows half[2] = {fast.new_rows(T, D), fast.new_rows(T, D)};
    for (const int side : {0, 1}) {
      std::vector<int32_t> own = expert;
      for (int32_t& e : own)
        if ((e <= last) != (side == 0)) e = -1;
      fast.routed_experts(half[side], x, own, weight, w, kUsed, Act::kGelu);
    }
    for (size_t i = 0; i < size_t(T) * D; ++i)
      ASSERT_NEAR(half[0].row(0)[i] + half[1].row(0)[i], want.row(0)[i], 1e-5f * (1 + std::abs(want.row(0)[i]))) << i;
    if (last == -1 || last == 4) {
      ASSERT_TRUE(bitwise_equal({half[last == 4 ? 0 : 1].row(0), size_t(T) * D}, {want.row(0), size_t(T) * D}));
    }
  }
  std::swap(expert[0], expert[1]);  // a row with its experts exchanged
  fast.routed_experts(got, x, expert, weight, w, kUsed, Act::kGelu);
  EXPECT_FALSE(bitwise_equal({got.row(0), size_t(D)}, {want.row(0), size_t(D)}));
}

TEST(Elementwise, ActivationsAndSoftcap) {
  constexpr int kCols = 4099;
  std::vector<float> g(kCols), u(kCols, 1.f);
  for (int i = 0; i < kCols; ++i) g[size_t(i)] = float(i - kCols / 2) * (i % 7 == 0 ? .3f : .005f);
  CpuRef ref;
  ref.reserve(limits(1, kCols));
  CpuRef::Rows gr = ref.new_rows(1, kCols), ur = ref.new_rows(1, kCols), want = ref.new_rows(1, kCols),
               got = ref.new_rows(1, kCols);
  std::vector<float> first;
  for (const CpuIsa isa : isas()) {
    std::vector<float> all;
    CpuFast fast(2, isa);
    fast.reserve(limits(1, kCols));
    for (const Act act : {Act::kGelu, Act::kSilu}) {
      ref.from_host(gr, g), ref.from_host(ur, u);
      ref.act_mul(want, gr, ur, act), fast.act_mul(got, gr, ur, act);
      for (int i = 0; i < kCols; ++i)
        ASSERT_NEAR(got.row(0)[i], want.row(0)[i], 1e-6 + 1e-6 * std::abs(g[size_t(i)]))
            << isa_name(isa) << " at " << g[size_t(i)];
      all.insert(all.end(), got.row(0), got.row(0) + kCols);
    }
    ref.from_host(want, g), ref.from_host(got, g);
    ref.softcap(want, 30.f), fast.softcap(got, 30.f);
    for (int i = 0; i < kCols; ++i)
      ASSERT_NEAR(got.row(0)[i], want.row(0)[i], 1e-5) << isa_name(isa) << " at " << g[size_t(i)];
    all.insert(all.end(), got.row(0), got.row(0) + kCols);
    if (first.empty()) first = all;
    EXPECT_TRUE(bitwise_equal(all, first)) << isa_name(isa);
  }
}

TEST(Norms, AreTheSameEverywhere) {
  for (const int cols : {64, 83, 2112}) {
    std::vector<float> first;
    const std::vector<float> gain = random_floats(size_t(cols), 3), x = random_floats(size_t(4 * cols), 4);
    for (const CpuIsa isa : isas()) {
      CpuFast fast(1, isa);
      fast.reserve(limits(4, cols));
      CpuRef::Rows xr = fast.new_rows(4, cols), y = fast.new_rows(4, cols);
      fast.from_host(xr, x);
      fast.rms_norm(y, xr, CpuFast::Vec{gain.data(), cols}, 1e-6f);
      std::vector<float> all;
      for (int t = 0; t < 4; ++t) all.insert(all.end(), y.row(t), y.row(t) + cols);
      if (first.empty()) first = all;
      EXPECT_TRUE(bitwise_equal(all, first)) << isa_name(isa) << ", " << cols << " columns";
    }
  }
}

// ---- attention

constexpr int kHead = 64, kHeads = 2, kGroup = 4, kQ = kHead * kHeads * kGroup;

// A layer's memory, all NaN until it is written.
struct Layer {
  std::vector<std::byte> k, v, ks, vs;
  KvLayer l;
  Layer(KvType kt, KvType vt, int window, int margin, int max_step, bool shared = false) {
    l.k_type = kt, l.v_type = vt, l.n_head = kHeads, l.head_dim = kHead, l.window = window, l.margin = margin;
    l.cap = window ? window - 1 + margin : 1024;
    l.k_row = int64_t(kv_row_bytes(kt, kHead)) * kHeads, l.v_row = int64_t(kv_row_bytes(vt, kHead)) * kHeads;
    if (shared) l.shared = true, l.v_type = kt, l.v_row = l.k_row = int64_t(kv_shared_bytes(kt, kHead)) * kHeads;
    l.k_slot = l.cap * l.k_row, l.v_slot = l.cap * l.v_row;
    k.assign(size_t(2 * l.k_slot), std::byte(0xFF)), v.assign(size_t(2 * l.v_slot), std::byte(0xFF));
    ks.assign(size_t(max_step * l.k_row), std::byte(0xFF)), vs.assign(size_t(max_step * l.v_row), std::byte(0xFF));
    l.k = k.data(), l.v = v.data(), l.k_stage = ks.data(), l.v_stage = vs.data();
    if (shared) l.v = l.k + kv_shared_v_at(kt, kHead);
  }
};

// Appends what it computed to `all`.
void check_attend(CpuIsa isa, KvType kt, KvType vt, int window, int n_threads, std::vector<float>& all,
                  bool shared = false) {
  SCOPED_TRACE(std::string(isa_name(isa)) + " " + kv_type_name(kt) + "/" + kv_type_name(vt) + " window " +
               std::to_string(window) + (shared ? " shared" : ""));
  constexpr int kStep = 128, kMargin = 16;
  Layer a(kt, vt, window, kMargin, kStep, shared), b(kt, vt, window, kMargin, kStep, shared);
  BackendLimits l = limits(kStep, kQ);
  CpuRef ref;
  CpuFast fast(n_threads, isa);
  ref.reserve(l), fast.reserve(l);
  StepBuilder steps(kStep, 4, kMargin);
  std::mt19937 rng(9);
  int len[2] = {};
  auto run = [&](std::vector<SeqStep> seqs, int padding, std::vector<int> commit) {
    steps.begin();
    for (SeqStep& q : seqs) q.kv_len = len[q.slot], steps.add(q);
    if (padding) steps.pad_to(steps.n_tok() + padding);
    const Step& s = steps.finish();
    const int T = s.shape.n_tok;
    CpuRef::Rows q = ref.new_rows(T, kQ), k = ref.new_rows(T, kHead * kHeads), v = ref.new_rows(T, kHead * kHeads),
                 want = ref.new_rows(T, kQ);
    ref.from_host(q, random_floats(size_t(T) * kQ, unsigned(rng())));
    ref.from_host(k, random_floats(size_t(T) * kHead * kHeads, unsigned(rng())));
    ref.from_host(v, random_floats(size_t(T) * kHead * kHeads, unsigned(rng())));
    const AttnSpec spec{.n_q_head = kHeads * kGroup, .head_dim = kHead, .window = window, .scale = .1f};
    ref.kv_append(a.l, k, v, s), fast.kv_append(b.l, k, v, s);
    ASSERT_TRUE(a.k == b.k && a.v == b.v && a.ks == b.ks && a.vs == b.vs);
    Guarded got(T, kQ);
    ref.attend(want, q, a.l, s, spec);
    fast.attend(got.rows(), q, b.l, s, spec);
    ASSERT_TRUE(got.intact());
    for (int t = 0; t < T; ++t) all.insert(all.end(), got.rows().row(t), got.rows().row(t) + kQ);
    for (int t = 0; t < T; ++t) {
      double diff = 0, size = 0;
      for (int i = 0; i < kQ; ++i)
        diff += std::pow(double(got.rows().row(t)[i]) - double(want.row(t)[i]), 2),
            size += std::pow(double(want.row(t)[i]), 2);
      // Sums of up to 700 rows in f32, exp to a unit in the last place of a score of up to some tens.
      ASSERT_LE(std::sqrt(diff), 3e-5 * std::sqrt(size))
          << "token " << t << " of " << T << " after " << len[0] << " rows";
      ASSERT_TRUE(s.seq[t] >= 0 || size == 0);
    }
    ref.kv_settle(a.l, s), fast.kv_settle(b.l, s);
    for (size_t i = 0; i < seqs.size(); ++i) len[seqs[i].slot] += commit[i];
  };
  const std::vector<int32_t> ids(kStep, 0);
  const std::vector<int16_t> parent{-1, 0, 0, 2, 2, 4, 3, 1};
  auto some = [&](int n) { return std::span(ids).first(size_t(n)); };
  for (int n : {1, 5, 16, 17, 90, 1, 100, 16}) run({{.slot = 0, .token = some(n)}}, 0, {n});
  run({{.slot = 0, .token = some(8), .mask = Mask::kTree, .parent = parent}}, 3, {1});
  run({{.slot = 1, .token = some(40)}, {.slot = 0, .token = some(8), .mask = Mask::kTree, .parent = parent}}, 0,
      {40, 1});
  run({{.slot = 0, .token = some(6), .mask = Mask::kBlock}, {.slot = 1, .token = some(1)}}, 2, {0, 1});
  run({{.slot = 0, .token = some(3), .mask = Mask::kPast, .pos = len[0]}}, 0, {0});
  for (int n : {1, 1, 2, 128, 128, 1, 60, 1}) run({{.slot = 0, .token = some(n)}}, 0, {n});
}

TEST(Attend, EveryTypeEveryMask) {
  const KvType types[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0};
  for (const KvType t : types)
    for (const int window : kSanitized ? std::vector{std::array{0, 24, 300}[size_t(t) % 3]} : std::vector{0, 24, 300}) {
      std::vector<float> first;
      for (const CpuIsa isa : isas()) {
        std::vector<float> all;
        check_attend(isa, t, t, window, 1, all);
        check_attend(isa, t, types[(size_t(t) + 2) % 5], window, 3, all);
        if (window == 0) check_attend(isa, t, t, 0, 2, all, true);
        if (first.empty()) first = all;
        ASSERT_TRUE(bitwise_equal(all, first)) << isa_name(isa) << " " << kv_type_name(t) << " window " << window;
      }
    }
}

// The ranges of a long cache are computed side by side when threads would idle, one after the other when not.
TEST(Attend, ThreadsChangeNoBit) {
  Layer layer(KvType::kF16, KvType::kF16, 0, 16, 128);
  StepBuilder steps(128, 1, 16);
  const std::vector<int32_t> ids(128, 0);
  auto attend = [&](int n_threads, int from, int n, int max_rows = 1024) {
    CpuFast fast(n_threads);
    BackendLimits l = limits(128, kQ);
    l.max_rows = max_rows;
    fast.reserve(l);
    std::vector<float> out;
    const std::vector<float> q = random_floats(900 * kQ, 1), k = random_floats(900 * kHead * kHeads, 2),
                             v = random_floats(900 * kHead * kHeads, 3);
    CpuRef::Rows o = fast.new_rows(128, kQ);
    for (int at = 0, step; at < 900; at += step) {
      step = std::min(at < from ? std::min(128, from - at) : n, 900 - at);
      steps.begin();
      steps.add({.slot = 0, .kv_len = at, .token = std::span(ids).first(size_t(step))});
      const Step& s = steps.finish();
      auto rows = [&](const std::vector<float>& x, int cols) {
        return CpuRef::Rows{const_cast<float*>(x.data()) + at * cols, step, cols, cols};
      };
      fast.kv_append(layer.l, rows(k, kHead * kHeads), rows(v, kHead * kHeads), s);
      fast.attend(o.view(step, kQ), rows(q, kQ), layer.l, s,
                  {.n_q_head = kHeads * kGroup, .head_dim = kHead, .scale = .1f});
      for (int t = 0; t < step; ++t) out.insert(out.end(), o.row(t), o.row(t) + kQ);
    }
    return out;
  };
  const auto one = attend(1, 900, 128);
  EXPECT_TRUE(bitwise_equal(attend(8, 700, 1), one));
  EXPECT_TRUE(bitwise_equal(attend(8, 600, 3), one));
  EXPECT_TRUE(bitwise_equal(attend(2, 0, 37), one));
  EXPECT_TRUE(bitwise_equal(attend(3, 600, 8), one));
  EXPECT_TRUE(bitwise_equal(attend(8, 600, 16, 0), one));  // with room for eleven of the sixteen tokens
}

}  // namespace
}  // namespace facet::test
