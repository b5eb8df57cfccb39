// Golden bytes: computed in double precision and equal to what the CUDA and C quantisers of
// Luce-Org/llama.cpp-dflash-ggml write for these three rows.
#include "formats/kv_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/blocks.h"

namespace facet {
namespace {

constexpr KvType kAll[] = {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0, KvType::kF32};

std::vector<float> gaussian(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> d;
  std::vector<float> x(n);
  for (float& v : x) v = d(rng);
  return x;
}

std::vector<std::byte> encode(KvType t, const std::vector<float>& x) {
  std::vector<std::byte> bytes(kv_row_bytes(t, int(x.size())));
  kv_encode(t, x.data(), bytes.data(), int(x.size()));
  return bytes;
}

std::vector<float> decode(KvType t, const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> y(n);
  kv_decode(t, bytes.data(), y.data(), int(n));
  return y;
}

std::string hex(const std::vector<std::byte>& bytes) {
  std::string s;
  char buf[3];
  for (std::byte b : bytes) {
    std::snprintf(buf, sizeof buf, "%02x", unsigned(b));
    s += buf;
  }
  return s;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  double num = 0, den = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    num += double(x[i] - y[i]) * double(x[i] - y[i]);
    den += double(x[i]) * double(x[i]);
  }
  return std::sqrt(num / den);
}

TEST(KvCodec, Tq3GoldenRows) {
  std::vector<float> a(128), b(128), c(128);
  for (int j = 0; j < 128; ++j) {
    a[size_t(j)] = float((37 * j) % 101 - 50) / 50.0f;
    c[size_t(j)] = float((7 * j * j + 3 * j) % 97 - 48) / 32.0f;
  }
  b[0] = 1.0f;
  EXPECT_EQ(hex(encode(KvType::kTQ3_0, a)),
            "b34682da461e04b284d2369d0daf"
            "b346c84722bb2922b7dd250cab52"
            "b3466abdb56d465b69fe04d0a70d"
            "b3461ffe1ab48154039d11bab207");
  EXPECT_EQ(hex(encode(KvType::kTQ3_0, b)),
            "613daa6956565a6696a990eeac16"
            "613d5a59556aa69655a5dc8f623f"
            "613d669599a5996695657a35a5b7"
            "613da6969996996656656265a5be");
  EXPECT_EQ(hex(encode(KvType::kTQ3_0, c)),
            "36497337570e9d74b121bb5421b2"
            "3649a2d6f67c9e09f68a6291d0c2"
            "3649da1434800d6d96e41f588d3b"
            "364963f56a86c7c648fc1eca6215");
  EXPECT_EQ(hex(encode(KvType::kTQ3_0, std::vector<float>(128, 0.0f))),
            "00000000000000000000ffffffff"
            "00000000000000000000ffffffff"
            "00000000000000000000ffffffff"
            "00000000000000000000ffffffff");
}

TEST(KvCodec, RowSizes) {
  EXPECT_EQ(kv_row_bytes(KvType::kF16, 256), 512u);
  EXPECT_EQ(kv_row_bytes(KvType::kQ8_0, 256), 272u);
  EXPECT_EQ(kv_row_bytes(KvType::kQ4_0, 512), 288u);
  EXPECT_EQ(kv_row_bytes(KvType::kTQ3_0, 256), 112u);
  EXPECT_EQ(kv_row_bytes(KvType::kTQ3_0, 512), 224u);
  EXPECT_EQ(kv_row_bytes(KvType::kTQ3_0, 64), 28u);
}

TEST(KvCodec, RotationIsUndoneAndKeepsDotProducts) {
  for (int n : {32, 64, 128, 256, 512, 1024}) {
    const auto x = gaussian(size_t(n), 1), q = gaussian(size_t(n), 2);
    auto rx = x, rq = q;
    kv_rotate(rx.data(), n);
    kv_rotate(rq.data(), n);
    double dot = 0, rotated = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      dot += double(x[i]) * double(q[i]);
      rotated += double(rx[i]) * double(rq[i]);
    }
    EXPECT_NEAR(dot, rotated, 1e-4) << n;
    EXPECT_GT(relative_error(x, rx), 0.5) << n;  // it does something
    kv_unrotate(rx.data(), n);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(rx[i], x[i], 1e-5) << n;
  }
}

TEST(KvCodec, RotationMatchesItsDefinition) {
  // Row i of S2 H S1: s2_i (-1)^popcount(i & j) s1_j / sqrt(g), read from unit vectors.
  for (int g : {32, 64, 128}) {
    std::vector<float> s1(size_t(g), 0.0f), s2(size_t(g), 0.0f);
    const uint32_t w1[4] = {0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9};
    const uint32_t w2[4] = {0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562};
    for (int i = 0; i < g; ++i) {
      s1[size_t(i)] = (w1[i / 32] >> (i % 32)) & 1 ? -1.0f : 1.0f;
      s2[size_t(i)] = (w2[i / 32] >> (i % 32)) & 1 ? -1.0f : 1.0f;
    }
    for (int j = 0; j < g; ++j) {
      std::vector<float> e(size_t(g), 0.0f);
      e[size_t(j)] = 1.0f;
      kv_rotate(e.data(), g);
      for (int i = 0; i < g; ++i) {
        const float h = __builtin_popcount(unsigned(i & j)) % 2 ? -1.0f : 1.0f;
        ASSERT_NEAR(e[size_t(i)], s2[size_t(i)] * h * s1[size_t(j)] / std::sqrt(float(g)), 1e-6) << g;
      }
    }
  }
}

TEST(KvCodec, ErrorsOnGaussianRows) {
  const struct {
    KvType type;
    double error;
  } table[] = {{KvType::kQ8_0, 0.0053}, {KvType::kQ4_0, 0.086}, {KvType::kTQ3_0, 0.184}};
  for (const auto& row : table) {
    for (int n : {64, 256, 512}) {
      double sum = 0;
      const int rows = 200;
      for (int r = 0; r < rows; ++r) {
        auto x = gaussian(size_t(n), unsigned(r + 1));
        const auto y = decode(row.type, encode(row.type, x), x.size());
        kv_rotate(x.data(), n);
        const double e = relative_error(x, y);
        sum += e * e;
      }
      EXPECT_NEAR(std::sqrt(sum / rows), row.error, row.error * 0.1) << kv_type_name(row.type) << " " << n;
    }
  }
}

TEST(KvCodec, RotationSavesRowsWithOutliers) {
  // 2 % of channels eight times larger: without rotation TQ3_0 would lose half of the vector.
  auto x = gaussian(512, 3);
  for (size_t i = 0; i < x.size(); i += 50) x[i] *= 8;
  const auto y = decode(KvType::kTQ3_0, encode(KvType::kTQ3_0, x), x.size());
  kv_rotate(x.data(), 512);
  EXPECT_LT(relative_error(x, y), 0.21);
}

TEST(KvCodec, Tq3KeepsTheLengthOfEveryGroup) {
  for (int n : {32, 64, 128, 512}) {
    const auto x = gaussian(size_t(n), 9);
    const auto y = decode(KvType::kTQ3_0, encode(KvType::kTQ3_0, x), x.size());
    const int g = std::min(n, 128);
    for (int at = 0; at < n; at += g) {
      double lx = 0, ly = 0;
      for (int i = at; i < at + g; ++i) {
        lx += double(x[size_t(i)]) * double(x[size_t(i)]);
        ly += double(y[size_t(i)]) * double(y[size_t(i)]);
      }
      EXPECT_NEAR(std::sqrt(ly / lx), 1.0, 1e-3);
    }
  }
}

TEST(KvCodec, F16IsPlain) {
  const std::vector<float> x(32, 0.333251953125f);  // exact in f16
  EXPECT_EQ(decode(KvType::kF16, encode(KvType::kF16, x), 32), x);
}

TEST(KvCodec, NonFiniteRowsAreHarmless) {
  for (KvType t : kAll)
    for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f, 3e38f}) {
      auto x = gaussian(128, 4);
      x[17] = bad;
      decode(t, encode(t, x), x.size());
      std::fill(x.begin(), x.end(), bad);
      decode(t, encode(t, x), x.size());
    }
}

TEST(KvCodec, TinyRowsBecomeZeroOrStayFinite) {
  for (KvType t : kAll)
    for (float tiny : {1e-12f, 1e-38f, 1e-44f})
      for (float v : decode(t, encode(t, std::vector<float>(128, tiny)), 128)) EXPECT_TRUE(std::isfinite(v));
}

// ---- shared rows

TEST(KvCodec, SharedRowsTakeFiveEighths) {
  EXPECT_EQ(kv_own(512), 128);
  EXPECT_EQ(kv_own(64), 32);
  EXPECT_EQ(kv_shared_bytes(KvType::kF32, 512), 640u * 4);
  EXPECT_EQ(kv_shared_bytes(KvType::kF16, 512), 640u * 2);
  EXPECT_EQ(kv_shared_bytes(KvType::kQ8_0, 512), 688u);  // 680, whole sixteens
  EXPECT_EQ(kv_shared_bytes(KvType::kQ4_0, 512), 368u);
  EXPECT_EQ(kv_shared_bytes(KvType::kTQ3_0, 512), 288u);
  for (int i = 0; i < 512; ++i) EXPECT_EQ(kv_is_own(i, 512), i < 64 || (i >= 256 && i < 320)) << i;
}

// u of a projection to K and V as a layer makes them, and a query with the gain that shared rows lack.
struct OneProjection {
  std::vector<float> k, v, q, folded;
  OneProjection(int n, unsigned seed) : k(size_t(n)), v(gaussian(size_t(n), seed)), q(gaussian(size_t(n), seed + 1)) {
    const std::vector<float> g = gaussian(size_t(n), seed + 2);
    folded = q;
    for (int i = 0; i < n; ++i) {
      const size_t at = size_t(i);
      k[at] = g[at] * v[at] + (kv_is_own(i, n) ? .3f : 0);  // rotated: not V's any more
      if (!kv_is_own(i, n)) folded[at] *= g[at];
    }
  }
};
double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); ++i) s += double(a[i]) * double(b[i]);
  return s;
}

TEST(KvCodec, SharedRowsHoldBoth) {
  for (const KvType t : kAll)
    for (const int n : {64, 128, 256, 512}) {
      double score = 0, size = 0, together = 0, apart = 0;
      for (unsigned seed = 0; seed < 20; ++seed) {
        const OneProjection x(n, 10 * seed);
        std::vector<std::byte> row(kv_shared_bytes(t, n), std::byte(0xFF));
        kv_encode_shared(t, x.k.data(), x.v.data(), row.data(), n);
        std::vector<float> q(x.q), k(x.q), v(x.q), back(x.q);
        kv_decode(t, row.data(), k.data(), n);
        kv_decode(t, row.data() + kv_shared_v_at(t, n), v.data(), n);
        kv_query(t, true, x.folded.data(), q.data(), n);
        kv_result(t, true, v.data(), back.data(), n);
        std::vector<float> alone = decode(t, encode(t, x.v), size_t(n));
        if (kv_rotated(t)) kv_unrotate(alone.data(), n);
        together += relative_error(x.v, back), apart += relative_error(x.v, alone);
        const double want = dot(x.q, x.k);
        score += (dot(q, k) - want) * (dot(q, k) - want), size += dot(x.q, x.q) * dot(x.k, x.k);
      }
      // As far from V as a row of V alone is.
      EXPECT_LE(together, 1.1 * apart + 1e-6) << kv_type_name(t) << " " << n;
      // An error of K spreads over all directions: of a score it is 1 / sqrt(n) of the lengths.
      const double error = t == KvType::kTQ3_0 ? .2 : t == KvType::kQ4_0 ? .09 : t == KvType::kQ8_0 ? .0055 : 3e-4;
      EXPECT_LE(std::sqrt(score / size), (t == KvType::kF32 ? 1e-6 : 2 * error) / std::sqrt(double(n)))
          << kv_type_name(t) << " " << n;
    }
}

// A group's bytes are those that it has alone, in the order of the header.
TEST(KvCodec, SharedGroupsAreGroups) {
  const int n = 512, own = kv_own(n);
  const OneProjection x(n, 3);
  std::vector<float> values;
  for (const auto& [from, is_own] : {std::pair{&x.k, true}, {&x.v, false}, {&x.v, true}})
    for (int i = 0; i < n; ++i)
      if (kv_is_own(i, n) == is_own) values.push_back((*from)[size_t(i)]);
  ASSERT_EQ(values.size(), size_t(n + own));
  for (const KvType t : kAll) {
    std::vector<std::byte> row(kv_shared_bytes(t, n)), want;
    kv_encode_shared(t, x.k.data(), x.v.data(), row.data(), n);
    for (size_t at = 0; at < values.size(); at += size_t(own)) {
      const auto group = encode(t, {values.begin() + ptrdiff_t(at), values.begin() + ptrdiff_t(at) + own});
      want.insert(want.end(), group.begin(), group.end());
    }
    want.resize(row.size());  // zeros up to whole sixteens
    EXPECT_EQ(row, want) << kv_type_name(t);
  }
}

TEST(KvCodec, NamesBothWays) {
  for (KvType t : kAll) EXPECT_EQ(kv_type_from_name(kv_type_name(t)), t);
  EXPECT_EQ(kv_type_from_name("TQ3_0"), KvType::kTQ3_0);
  EXPECT_EQ(kv_type_from_name("Q8_0"), KvType::kQ8_0);
  EXPECT_EQ(kv_type_from_name("q8"), std::nullopt);
  EXPECT_EQ(kv_type_from_name(""), std::nullopt);
}

}  // namespace
}  // namespace facet
