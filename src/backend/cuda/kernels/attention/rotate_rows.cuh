#pragma once
#include "backend/cuda/kernels/attention/expand_rows.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"

// Rows in f16 rotated back by tensor cores: R^-1 of hadamard.cuh for groups of 128 values, rounded to f16 in the middle
// and at the end.
namespace facet::cuda {

// The value at place `at` of an expanded row: the inverse of place_of.
template <KvType T>
FACET_HD constexpr int value_at(int at) {
  if (T == KvType::kQ8_0) return at / 64 * 64 + at / 4 % 2 * 32 + at / 8 % 2 * 16 + at / 16 % 4 * 4 + at % 4;
  if (T == KvType::kQ4_0) return at / 64 * 64 + at / 4 % 2 * 32 + at / 8 % 8 * 4 + at % 4;
  return at;
}
template <KvType T>
constexpr bool value_at_inverts() {
  for (int d = 0; d < 256; ++d)
    if (value_at<T>(place_of<T>(d)) != d) return false;
  return true;
}

// A group is a matrix X [16][8] in the order of places, and H128 X is H16 X H8: places differ from values by an order
// of their bits, which leaves H128 as it is. A product takes 16 rows and 16 columns, so a warp has two groups at once:
// 256 values.
template <KvType T>
class RotateBack {
  static_assert(device_kv_has_scales(T) && value_at_inverts<T>());

 public:
  __device__ RotateBack(int lane) : lane_(lane) {
    const int g = lane / 4, c = lane % 4 * 2;
    const int row[4] = {g, g + 8, g, g + 8}, col[4] = {c, c, c + 8, c + 8};
#pragma unroll
    for (int i = 0; i < 4; ++i) h16_[i] = pair(row[i], col[i], 0x3400);  // a quarter
    h8_ = pair(g, c, 0x3C00);                                            // one
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      in_[i] = sign(true, (c + 8 * i) * 8 + g) | sign(true, (c + 8 * i + 1) * 8 + g) << 16;
      out_[i] = sign(false, 64 * i + 2 * lane) | sign(false, 64 * i + 2 * lane + 1) << 16;
    }
  }
  // expanded: a row of 256 values in shared memory, in the order of places; to: the row in the order of values.
  __device__ void rotate(const char* expanded, char* to) const {
    uint32_t x[4];
    ldmatrix4_transposed(x, shared_address(expanded) + lane_ * 16);
    float y[2][4] = {}, z[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) mma_f16(y[i], h16_, x[2 * i] ^ in_[0], x[2 * i + 1] ^ in_[1]);
    const auto packed = [](float lo, float hi) { return as_word(__floats2half2_rn(lo, hi)); };
    const uint32_t a[4] = {packed(y[0][0], y[0][1]), packed(y[0][2], y[0][3]), packed(y[1][0], y[1][1]),
                           packed(y[1][2], y[1][3])};
    mma_f16(z[0], a, h8_, 0);
    mma_f16(z[1], a, 0, h8_);
    const float scale = 4 * hadamard_scale(128);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<uint32_t*>(to + value_at<T>(64 * i + 2 * lane_) * 2) =
          packed(z[i / 2][i % 2 * 2] * scale, z[i / 2][i % 2 * 2 + 1] * scale) ^ out_[i % 2];
  }

 private:
  // Elements (row, col) and (row, col + 1) of a Hadamard matrix, as f16 numbers of these bits.
  static __device__ uint32_t pair(int row, int col, uint32_t bits) {
    return (bits | uint32_t(__popc(row & col) & 1) << 15) | (bits | uint32_t(__popc(row & (col + 1)) & 1) << 15) << 16;
  }
  static __device__ uint32_t sign(bool second, int place) {
    const int d = value_at<T>(place);
    return (sign_word(second, d / 32) >> d % 32 & 1) << 15;
  }
  int lane_;
  uint32_t h16_[4], h8_, in_[2], out_[2];
};

}  // namespace facet::cuda
