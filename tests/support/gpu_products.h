#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "backend/cuda/kernels/matmul/matmul.h"
#include "formats/dtype.h"
#include "formats/quantize.h"
#include "support/on_device.h"

// What the tests of matrix products on the GPU share: weights of every type, rows as kernels round them, and products
// in f64 with how far f32 sums may be from them.
namespace facet::test {

using cuda::Input, cuda::Tile;

// Device memory with the bytes of v, freed at the end.
struct Arena {
  std::vector<std::shared_ptr<void>> owned;
  template <class T>
  T* poisoned(size_t n) {
    auto p = std::make_shared<OnDevice<T>>(n);
    owned.push_back(p);
    return p->p();
  }
  template <class T>
  T* of(const std::vector<T>& v) {
    auto p = std::make_shared<OnDevice<T>>(v);
    owned.push_back(p);
    return p->p();
  }
  template <class T>
  std::vector<T> get(const T* p, size_t n) {
    std::vector<T> v(n);
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
};

struct Type {
  const char* name;
  DType type;
  Tile tile;
};
inline const Type kTypes[] = {{"Q4_K", DType::kQ4_K, Tile::kQ4_K}, {"Q5_K", DType::kQ5_K, Tile::kQ5_K},
                              {"Q6_K", DType::kQ6_K, Tile::kQ6_K}, {"Q4_0", DType::kQ4_0, Tile::kQ4_0},
                              {"Q5_0", DType::kQ5_0, Tile::kQ5_0}, {"Q8_0", DType::kQ8_0, Tile::kQ8_0},
                              {"BF16", DType::kBF16, Tile::kBF16}, {"F16", DType::kF16, Tile::kF16}};

// A random matrix in a file's bytes, its values, and its tiles on the device.
struct Weights {
  cuda::TiledMatrix m;
  std::vector<float> value, minimum;  // minimum: what Q4_K and Q5_K take from scale * code; else empty
  std::vector<float> code_scale;      // of types of codes, of every 16 columns
  Weights(Arena& a, const Type& t, int n_out, int n_in, std::mt19937& rng, float size = 1) {
    std::normal_distribution<float> normal(0.02f, 1.f);
    std::vector<float> row(static_cast<size_t>(n_in));
    const size_t bytes = size_t(row_bytes(t.type, n_in));
    std::vector<uint8_t> raw(bytes * size_t(n_out));
    value.resize(size_t(n_out) * size_t(n_in));
    for (int r = 0; r < n_out; ++r) {
      const float scale = std::exp2(float(rng() % 5) - 2) * size;
      for (float& v : row) v = normal(rng) * scale;
      auto* to = reinterpret_cast<std::byte*>(raw.data() + size_t(r) * bytes);
      quantize_row(t.type, row.data(), to, n_in);
      dequantize_row(t.type, to, value.data() + size_t(r) * size_t(n_in), n_in);
      if (!cuda::is_float(t.tile)) add_scales(t, {to, to + bytes}, n_in);
      if (t.tile != Tile::kQ4_K && t.tile != Tile::kQ5_K) continue;
      std::vector<std::byte> codes(to, to + bytes);
      for (size_t at = 0; at < bytes; at += t.tile == Tile::kQ4_K ? 144 : 176)
        codes[at + 2] = codes[at + 3] = std::byte{0};  // dmin
      dequantize_row(t.type, codes.data(), row.data(), n_in);
      for (int c = 0; c < n_in; ++c) minimum.push_back(row[size_t(c)] - value[size_t(r) * size_t(n_in) + size_t(c)]);
    }
    m = {.p = nullptr, .tile = t.tile, .n_out = n_out, .n_in = n_in, .n_stack = 1};
    m.p = a.poisoned<uint8_t>(size_t(m.matrix_bytes()));
    cuda::repack(nullptr, m, a.of(raw), t.type);
    ok(cudaDeviceSynchronize());
  }
  // What a row's values are with codes of one, less those with codes of zero.
  void add_scales(const Type& t, std::vector<std::byte> row, int n_in) {
    struct Codes {
      size_t block, high, low, end;  // bytes of a block; where upper bits, the others begin, and end
    };
    const Codes at = t.type == DType::kQ4_K   ? Codes{144, 16, 16, 144}
                     : t.type == DType::kQ5_K ? Codes{176, 16, 48, 176}
                     : t.type == DType::kQ6_K ? Codes{210, 128, 0, 128}
                     : t.type == DType::kQ4_0 ? Codes{18, 2, 2, 18}
                     : t.type == DType::kQ5_0 ? Codes{22, 2, 6, 22}
                                              : Codes{34, 2, 2, 34};
    std::vector<float> v[2];
    for (int one = 0; one < 2; ++one) {
      const auto code = std::byte(one == 0 ? 0 : t.type == DType::kQ8_0 ? 0x01 : 0x11);
      for (size_t b = 0; b < row.size(); b += at.block) {
        const size_t high_end = at.high < at.low ? at.low : at.high == at.low ? at.high : at.high + 64;
        for (size_t i = at.high; i < high_end; ++i) row[b + i] = std::byte{0};
        for (size_t i = at.low; i < at.end; ++i) row[b + i] = code;
      }
      v[one].resize(size_t(n_in));
      dequantize_row(t.type, row.data(), v[one].data(), n_in);
    }
    for (size_t c = 0; c < size_t(n_in); c += 16) code_scale.push_back(v[1][c] - v[0][c]);
  }
};

// Of every type the ways in which products read their input.
inline std::vector<bool> fineness(Tile t) {
  return cuda::may_be_fine(t) ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

inline float bf16(float v) { return __bfloat162float(__float2bfloat16(v)); }

// x as the kernels multiply it: rounded to bf16, and for quantised weights to one or two codes of 8 bits with a scale
// for 64 columns.
inline std::vector<float> rounded(const std::vector<float>& x, int n_in, Input in) {
  std::vector<float> y = x;
  if (in == Input::kBf16) return y;
  for (size_t row = 0; row < x.size(); row += size_t(n_in))
    for (int c = 0; c < n_in; c += 64) {
      const int n = std::min(64, n_in - c);
      float* v = y.data() + row + c;
      float most = 0;
      for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(v[i]));
      const float inverse = 127.f / most, scale = most * (1.f / 127.f);
      auto code = [](float a, float b) { return std::fmaf(a, b, 12582912.f) - 12582912.f; };
      for (int i = 0; i < n; ++i) {
        const float first = code(v[i], inverse), rest = std::fmaf(v[i], inverse, -first);
        v[i] = scale * (in == Input::kByte ? first : first + code(rest, 128.f) / 128);
      }
    }
  return y;
}

struct Rows {
  std::vector<float> value;
  const __nv_bfloat16* p;
  Rows(Arena& a, int n, int n_in, std::mt19937& rng) {
    std::normal_distribution<float> normal;
    std::vector<__nv_bfloat16> b;
    for (int i = 0; i < n * n_in; ++i) {
      value.push_back(bf16(normal(rng) * (i % 97 == 0 ? 8.f : 1.f)));
      b.push_back(__float2bfloat16(value.back()));
    }
    p = a.of(b);
  }
};

struct Exact {
  double value = 0, bound = 0;
};
// Row r of W times x in f64, and how far f32 sums may be from it: 2^-24 per addition of partial sums, over n_in / 32
// additions and a few more at the most, of terms that sum to `sum`. Minima are summed apart from codes, for 32 columns
// at a time, their activations' sum as two bf16 that miss 2^-18 of it.
struct Product : Exact {
  Product(const Weights& w, int r, const float* x, int n_in) {
    double sum = 0, minima = 0;
    for (int c0 = 0; c0 < n_in; c0 += 32) {
      double block = 0;
      for (int c = c0; c < std::min(c0 + 32, n_in); ++c) {
        const size_t at = size_t(r) * size_t(n_in) + size_t(c);
        value += double(w.value[at]) * double(x[c]);
        sum += std::fabs((double(w.value[at]) + (w.minimum.empty() ? 0. : double(w.minimum[at]))) * double(x[c]));
        block += double(x[c]);
      }
      if (!w.minimum.empty()) minima += std::fabs(double(w.minimum[size_t(r) * size_t(n_in) + size_t(c0)]) * block);
    }
    bound = (double(n_in) / 32 + 16) * 0x1p-24 * (sum + minima) + 0x1p-17 * minima;
  }
};

// gelu(gate) times up. The slope of gelu is below 1.13; its own arithmetic rounds a few times.
struct Gated {
  double value, bound;
  Gated(const Exact& gate, const Exact& up) {
    const double g = gate.value, u = up.value;
    const double gelu = 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
    const double dg = 1.13 * gate.bound + 0x1p-20 * (1 + std::fabs(g)), du = up.bound;
    value = gelu * u, bound = dg * std::fabs(u) + du * std::fabs(gelu) + dg * du;
  }
};

}  // namespace facet::test
