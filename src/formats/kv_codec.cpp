#include "formats/kv_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/half.h"
#include "formats/blocks.h"
#include "formats/dtype.h"
#include "formats/quantize.h"

namespace facet {
namespace {

constexpr int kMaxHeadDim = 1024;
constexpr int kMaxGroup = 128;

// TQ3_0 codebook for values of deviation 1/sqrt(128), and the midpoints that separate its entries.
constexpr float kTq3Values[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f,
                                 0.021460f,  0.065717f,  0.117832f,  0.190685f};
constexpr float kTq3Midpoints[7] = {-0.154259f, -0.091775f, -0.043589f, 0.0f, 0.043589f, 0.091775f, 0.154259f};
constexpr float kTq3Tiny = 1e-10f;  // groups of this norm or less are stored as zero

using Signs = std::array<float, kMaxGroup>;

constexpr Signs signs_of(const std::array<uint32_t, 4>& negative) {
  Signs s{};
  for (size_t i = 0; i < s.size(); ++i) s[i] = (negative[i / 32] >> (i % 32)) & 1 ? -1.0f : 1.0f;
  return s;
}
// Bit i of word k set: element 32 k + i is negative. The same tables as Luce-Org/llama.cpp-dflash-ggml, so
// that the TQ3_0 bytes agree with its CUDA kernels.
constexpr Signs kS1 = signs_of({0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9});
constexpr Signs kS2 = signs_of({0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562});

// One stage of the transform: (a, b) -> (a + b, a - b) at distance Stride.
template <int Stride>
void butterflies(float* x, int n) {
  for (int i = 0; i < n; i += 2 * Stride) {
    for (int j = i; j < i + Stride; ++j) {
      const float a = x[j], b = x[j + Stride];
      x[j] = a + b;
      x[j + Stride] = a - b;
    }
  }
}

void hadamard(float* x, int n) {
  butterflies<1>(x, n);
  butterflies<2>(x, n);
  butterflies<4>(x, n);
  butterflies<8>(x, n);
  butterflies<16>(x, n);
  if (n >= 64) butterflies<32>(x, n);
  if (n >= 128) butterflies<64>(x, n);
  const float scale = n == 128 ? 0.08838834764831845f : n == 64 ? 0.125f : 0.17677669529663687f;
  for (int i = 0; i < n; ++i) x[i] *= scale;
}

int group_of(int n) {
  CHECK(n >= 32 && n <= kMaxHeadDim && std::has_single_bit(unsigned(n)),
        "a K/V row has {} values, not a power of two of 32..{}", n, kMaxHeadDim);
  return std::min(n, kMaxGroup);
}

void apply(const Signs& s, float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] *= s[size_t(i)];
}

void sandwich(const Signs& first, const Signs& last, float* x, int n) {
  const int g = group_of(n);
  for (int i = 0; i < n; i += g) {
    apply(first, x + i, g);
    hadamard(x + i, g);
    apply(last, x + i, g);
  }
}

int tq3_index(float v) {
  int i = 0;
  for (float m : kTq3Midpoints) i += v >= m ? 1 : 0;
  return i;
}

// One rotation group, given unrotated. All its blocks carry one norm, chosen so that the decoded vector has
// the length of the original: the codebook alone would shrink it.
void encode_tq3_group(const float* x, std::byte* dst, int g) {
  float y[kMaxGroup];
  float sum = 0.0f;
  for (int i = 0; i < g; ++i) sum += x[i] * x[i];
  const float norm = std::sqrt(sum);
  const bool zero = norm <= kTq3Tiny;
  // Unit vectors of g values have deviation 1/sqrt(g); the codebook is for 1/sqrt(128).
  const float scale = zero ? 0.0f : std::sqrt(float(g) / kMaxGroup) / norm;
  for (int i = 0; i < g; ++i) y[i] = zero ? 0.0f : x[i] * scale;
  sandwich(kS1, kS2, y, g);
  int idx[kMaxGroup];
  float length = 0.0f;
  for (int i = 0; i < g; ++i) {
    idx[i] = tq3_index(y[i]);
    length += kTq3Values[idx[i]] * kTq3Values[idx[i]];
  }
  const uint16_t stored = zero ? uint16_t(0) : f32_to_f16(norm / std::sqrt(length));
  for (int at = 0; at < g; at += BlockTQ3_0::kElems) {
    BlockTQ3_0 b{};
    b.norm = stored;
    for (int j = 0; j < BlockTQ3_0::kElems; ++j) {
      b.low[j / 4] |= uint8_t((idx[at + j] & 3) << (2 * (j % 4)));
      b.high[j / 8] |= uint8_t((idx[at + j] >> 2) << (j % 8));
    }
    std::memcpy(dst + size_t(at / BlockTQ3_0::kElems) * sizeof b, &b, sizeof b);
  }
}

void decode_tq3(const std::byte* src, float* y, int n) {
  for (int at = 0; at < n; at += BlockTQ3_0::kElems) {
    BlockTQ3_0 b;
    std::memcpy(&b, src + size_t(at / BlockTQ3_0::kElems) * sizeof b, sizeof b);
    const float norm = f16_to_f32(b.norm);
    for (int j = 0; j < BlockTQ3_0::kElems; ++j) {
      const int index = ((b.low[j / 4] >> (2 * (j % 4))) & 3) | (((b.high[j / 8] >> (j % 8)) & 1) << 2);
      y[at + j] = kTq3Values[index] * norm;
    }
  }
}

struct KvInfo {
  KvType type;
  const char* name;
  DType block;  // of the types that are also tensor types
};
constexpr KvInfo kInfos[] = {{KvType::kF16, "f16", DType::kF16},
                             {KvType::kQ8_0, "q8_0", DType::kQ8_0},
                             {KvType::kQ4_0, "q4_0", DType::kQ4_0},
                             {KvType::kTQ3_0, "tq3_0", DType::kCount},
                             {KvType::kF32, "f32", DType::kF32}};

}  // namespace

std::span<const KvType> kv_types() {
  static const auto types = [] {
    std::array<KvType, std::size(kInfos)> t{};
    for (size_t i = 0; i < t.size(); ++i) t[i] = kInfos[i].type;
    return t;
  }();
  return types;
}
std::string kv_type_names() {
  std::string names;
  for (const KvInfo& k : kInfos)
    names += (names.empty() ? "" : &k == std::end(kInfos) - 1 ? " or " : ", ") + std::string(k.name);
  return names;
}
const char* kv_type_name(KvType t) { return kInfos[size_t(t)].name; }

std::optional<KvType> kv_type_from_name(std::string_view name) {
  for (const KvInfo& k : kInfos) {
    const std::string_view have = k.name;
    if (std::equal(have.begin(), have.end(), name.begin(), name.end(),
                   [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? char(b - 'A' + 'a') : b); }))
      return k.type;
  }
  return std::nullopt;
}

std::string KvPair::name() const {
  return k == v ? kv_type_name(k) : std::string(kv_type_name(k)) + "/" + kv_type_name(v);
}
std::optional<KvPair> kv_pair_from_name(std::string_view name) {
  const size_t slash = name.find('/');
  const auto k = kv_type_from_name(name.substr(0, slash));
  const auto v = slash == std::string_view::npos ? k : kv_type_from_name(name.substr(slash + 1));
  if (k && v) return KvPair{*k, *v};
  return std::nullopt;
}

size_t kv_row_bytes(KvType t, int head_dim) {
  group_of(head_dim);
  if (t == KvType::kTQ3_0) return size_t(head_dim / BlockTQ3_0::kElems) * sizeof(BlockTQ3_0);
  return row_bytes(kInfos[size_t(t)].block, head_dim);
}

void kv_rotate(float* x, int n) { sandwich(kS1, kS2, x, n); }
void kv_unrotate(float* x, int n) { sandwich(kS2, kS1, x, n); }

void kv_encode(KvType t, const float* x, std::byte* dst, int head_dim) {
  const int g = group_of(head_dim);
  if (t == KvType::kTQ3_0) {
    for (int i = 0; i < head_dim; i += g) encode_tq3_group(x + i, dst + kv_row_bytes(t, g) * size_t(i / g), g);
    return;
  }
  if (!kv_rotated(t)) return quantize_row(kInfos[size_t(t)].block, x, dst, head_dim);
  float y[kMaxHeadDim];
  std::copy(x, x + head_dim, y);
  kv_rotate(y, head_dim);
  quantize_row(kInfos[size_t(t)].block, y, dst, head_dim);
}

void kv_decode(KvType t, const std::byte* src, float* y, int head_dim) {
  group_of(head_dim);
  if (t == KvType::kTQ3_0) return decode_tq3(src, y, head_dim);
  dequantize_row(kInfos[size_t(t)].block, src, y, head_dim);
}

int kv_own(int head_dim) { return std::max(32, head_dim / 4); }

size_t kv_shared_v_at(KvType t, int head_dim) { return kv_row_bytes(t, kv_own(head_dim)); }
size_t kv_shared_bytes(KvType t, int head_dim) {
  return (kv_row_bytes(t, head_dim) + kv_shared_v_at(t, head_dim) + 15) / 16 * 16;
}

namespace {
// f(place in [own | rest], channel) for all channels.
template <class F>
void each_own_first(int head_dim, F f) {
  const int own = kv_own(head_dim) / 2, half = head_dim / 2, rest = half - own;
  for (int i = 0; i < own; ++i) f(i, i), f(own + i, half + i);
  for (int i = 0; i < rest; ++i) f(2 * own + i, own + i), f(2 * own + rest + i, half + own + i);
}
// The same place in [rest | own].
int rest_first(int place, int head_dim) {
  const int own = kv_own(head_dim);
  return place < own ? head_dim - own + place : place - own;
}
}  // namespace

void kv_encode_shared(KvType t, const float* k, const float* v, std::byte* dst, int head_dim) {
  float row[kMaxHeadDim + kMaxHeadDim / 2];
  const int own = kv_own(head_dim);
  each_own_first(head_dim, [&](int at, int channel) {
    if (at < own) row[at] = k[channel];
    row[own + rest_first(at, head_dim)] = v[channel];
  });
  const size_t piece = kv_row_bytes(t, own), used = piece * size_t((head_dim + own) / own);
  for (int i = 0; i < (head_dim + own) / own; ++i) kv_encode(t, row + i * own, dst + size_t(i) * piece, own);
  std::memset(dst + used, 0, kv_shared_bytes(t, head_dim) - used);
}

void kv_query(KvType t, bool shared, const float* x, float* y, int head_dim) {
  if (!shared) {
    std::copy(x, x + head_dim, y);
    if (kv_rotated(t)) kv_rotate(y, head_dim);
    return;
  }
  each_own_first(head_dim, [&](int at, int channel) { y[at] = x[channel]; });
  if (!kv_rotated(t)) return;
  for (int i = 0; i < head_dim; i += kv_own(head_dim)) kv_rotate(y + i, kv_own(head_dim));
}

void kv_result(KvType t, bool shared, const float* x, float* y, int head_dim) {
  if (!shared) {
    std::copy(x, x + head_dim, y);
    if (kv_rotated(t)) kv_unrotate(y, head_dim);
    return;
  }
  float sum[kMaxHeadDim];
  std::copy(x, x + head_dim, sum);
  if (kv_rotated(t))
    for (int i = 0; i < head_dim; i += kv_own(head_dim)) kv_unrotate(sum + i, kv_own(head_dim));
  each_own_first(head_dim, [&](int at, int channel) { y[channel] = sum[rest_first(at, head_dim)]; });
}

}  // namespace facet
