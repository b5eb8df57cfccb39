#pragma once
#include <cuda_fp16.h>

#include "backend/cuda/kernels/attention/device_kv_layout.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"

// One head vector in a warp, lane l with the values l * E / 32 .. : norms, RoPE, cache rows. A kernel of its own
// (qk_norm_rope.cu) and attention's (decode.cuh) give the same bits: what the compiler may fuse or not is written out.
namespace facet::cuda {

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(~0u, v, m);
  return v;
}

// cos and sin of a double angle, to f32 accuracy. The angle is reduced to r in [-pi/4, pi/4] in double; the part of r
// beyond f32 enters to first order. Polynomials of Cephes' sinf and cosf.
__device__ __forceinline__ void cos_sin(double angle, float& cosine, float& sine) {
  const double n = rint(angle * 0.63661977236758134308);
  const double r = fma(-n, 6.12323399573676603587e-17, fma(-n, 1.57079632679489655800, angle));
  const float x = float(r), rest = float(r - double(x)), z = x * x;
  const float s0 = fmaf(fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f) * z, x, x);
  const float c0 = fmaf(fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f), z * z,
                        fmaf(-0.5f, z, 1.f));
  const float s = fmaf(rest, c0, s0), c = fmaf(-rest, s0, c0);
  const int quarter = int(int64_t(n) & 3);
  sine = (quarter & 1) ? c : s;
  cosine = (quarter & 1) ? s : c;
  if (quarter & 2) sine = -sine;
  if (quarter == 1 || quarter == 2) cosine = -cosine;
}

template <int V>
__device__ __forceinline__ void load_values(float (&x)[V], const float* p) {
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int i = 0; i < V / 4; ++i) {
      const float4 f = reinterpret_cast<const float4*>(p)[i];
      x[4 * i] = f.x, x[4 * i + 1] = f.y, x[4 * i + 2] = f.z, x[4 * i + 3] = f.w;
    }
  } else {
    const float2 f = *reinterpret_cast<const float2*>(p);
    x[0] = f.x, x[1] = f.y;
  }
}
template <int V>
__device__ __forceinline__ void store_values(float* p, const float (&x)[V]) {
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int i = 0; i < V / 4; ++i)
      reinterpret_cast<float4*>(p)[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  } else {
    *reinterpret_cast<float2*>(p) = make_float2(x[0], x[1]);
  }
}

// Codes as quantize.cpp's: truncation toward zero, NaN gives 0.
__device__ __forceinline__ int code_of(float v, int most) { return v > 0.f ? (v < float(most) ? int(v) : most) : 0; }

// A row on its way into the cache, x: the values lane * V .. of the vector. Types with scales take before_rotation(),
// warp_rotate() and encode_rotated(), the others encode_plain().
constexpr float kNothing = 1e-10f;  // a norm below which a group is zeros
template <int E>
constexpr int kNormGroup = E < 128 ? E : 128;
// The norm of the lane's group, by which x is divided; other types than TQ3_0 have none.
template <int E>
__device__ __forceinline__ float before_rotation(KvType type, float (&x)[E / 32]) {
  constexpr int V = E / 32, kGroupLanes = kNormGroup<E> / V;
  if (type != KvType::kTQ3_0) return 0;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) sum = __fmaf_rn(x[i], x[i], sum);
#pragma unroll
  for (int m = 1; m < kGroupLanes; m *= 2) sum += __shfl_xor_sync(~0u, sum, m);
  const float norm = __fsqrt_rn(sum);
  const bool zero = norm <= kNothing;
  const float scale = zero ? 0.f : __fdiv_rn(__fsqrt_rn(float(kNormGroup<E>) / 128), norm);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = zero ? 0.f : __fmul_rn(x[i], scale);
  return norm;
}
template <int E>
__device__ __forceinline__ void encode_plain(KvType type, const float (&x)[E / 32], std::byte* dst, int lane) {
  constexpr int V = E / 32;
  if (type == KvType::kF32) return store_values<V>(reinterpret_cast<float*>(dst) + lane * V, x);
#pragma unroll
  for (int i = 0; i < V; i += 2)
    reinterpret_cast<__half2*>(dst)[(lane * V + i) / 2] = __floats2half2_rn(x[i], x[i + 1]);
}
// Codes of a vector, one byte each, and the scales of its blocks; norm: before_rotation()'s. words: codes of Q8_0 go
// there in the order of a row, where they are asked for; true: they did.
template <int E>
__device__ __forceinline__ bool find_codes(KvType type, const float (&x)[E / 32], float norm, uint8_t* code,
                                           __half* scales, std::byte* words, int lane) {
  constexpr int V = E / 32, kBlockLanes = 32 / V, kGroupLanes = kNormGroup<E> / V;
  float id = 0;
  const bool zero = norm <= kNothing;
  if (type == KvType::kTQ3_0) {
    const float mid[7] = {-0.154259f, -0.091775f, -0.043589f, 0.0f, 0.043589f, 0.091775f, 0.154259f};
    const float magnitude[4] = {0.021460f, 0.065717f, 0.117832f, 0.190685f};
    float length = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      int index = 0;
#pragma unroll
      for (float m : mid) index += x[i] >= m ? 1 : 0;
      const int at = index < 4 ? 3 - index : index - 4;
      const float c = at == 0 ? magnitude[0] : at == 1 ? magnitude[1] : at == 2 ? magnitude[2] : magnitude[3];
      length = __fmaf_rn(c, c, length);
      code[lane * V + i] = uint8_t(index);
    }
#pragma unroll
    for (int m = 1; m < kGroupLanes; m *= 2) length += __shfl_xor_sync(~0u, length, m);
    const __half stored = zero ? __half(0.f) : __float2half_rn(__fdiv_rn(norm, __fsqrt_rn(length)));
    if (lane % kBlockLanes == 0) scales[lane / kBlockLanes] = stored;
  } else {
    // The extreme of the block, the first one of equals, with its sign.
    float most = 0, extreme = 0;
#pragma unroll
    for (int i = 0; i < V; ++i)
      if (most < fabsf(x[i])) most = fabsf(x[i]), extreme = x[i];
#pragma unroll
    for (int m = 1; m < kBlockLanes; m *= 2) {
      const float other = __shfl_xor_sync(~0u, extreme, m);
      const bool later = (lane & m) == 0;
      if (later ? fabsf(other) > fabsf(extreme) : fabsf(other) >= fabsf(extreme)) extreme = other;
    }
    const bool q8 = type == KvType::kQ8_0;
    const float d = q8 ? __fdiv_rn(fabsf(extreme), 127.f) : __fdiv_rn(extreme, -8.f);
    id = d != 0.f ? __frcp_rn(d) : 0.f;
    if (lane % kBlockLanes == 0) scales[lane / kBlockLanes] = __float2half_rn(d);
    // Truncated, then away from zero by halves, as quantize.cpp's; NaN gives 0.
    auto q8_of = [&](float x_i) {
      const float v = __fmul_rn(x_i, id);
      const int t = max(-127, min(127, __float2int_rz(v)));
      const float rest = v - float(t);
      return uint32_t(max(1, min(255, t + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0) + 128)));
    };
    if constexpr (V % 4 == 0)
      if (q8 && words) {  // a lane has whole words
#pragma unroll
        for (int i = 0; i < V; i += 4)
          *reinterpret_cast<uint32_t*>(words + q8_at(lane * V + i)) =
              __byte_perm(__byte_perm(q8_of(x[i]), q8_of(x[i + 1]), 0x40),
                          __byte_perm(q8_of(x[i + 2]), q8_of(x[i + 3]), 0x40), 0x5410);
        return true;
      }
#pragma unroll
    for (int i = 0; i < V; ++i)
      code[lane * V + i] = uint8_t(q8 ? q8_of(x[i]) : uint32_t(code_of(__fadd_rn(__fmul_rn(x[i], id), 8.5f), 15)));
  }
  return false;
}
// code: E bytes of shared memory of this warp.
template <int E>
__device__ __forceinline__ void encode_rotated(KvType type, const float (&x)[E / 32], float norm, uint8_t* code,
                                               std::byte* dst, int lane) {
  __half* scales = reinterpret_cast<__half*>(dst + device_kv_code_bytes(type, E));
  if (find_codes<E>(type, x, norm, code, scales, dst, lane)) return;
  __syncwarp();
  const int n_word = device_kv_code_bytes(type, E) / 4;
  for (int w = lane; w < n_word; w += 32) reinterpret_cast<uint32_t*>(dst)[w] = device_kv_word(type, code, w, E);
}
template <int E>
__device__ void encode(KvType type, float (&x)[E / 32], uint8_t* code, std::byte* dst, int lane) {
  if (!device_kv_has_scales(type)) return encode_plain<E>(type, x, dst, lane);
  const float norm = before_rotation<E>(type, x);
  warp_rotate<E / 32>(x, lane, false);
  encode_rotated<E>(type, x, norm, code, dst, lane);
}

// ---- shared rows, of heads of 512

// Values in the order of channels to the order of K's part of a shared row, or of V's.
__device__ __forceinline__ void to_shared_order(float (&x)[16], int lane, bool of_k) {
  const int from = shared_channel(lane * 16, of_k) / 16;
#pragma unroll
  for (float& e : x) e = __shfl_sync(~0u, e, from);
}
// K's own values, lane * 4 .. of them, of values in the order of channels.
__device__ __forceinline__ void take_own(float (&own)[4], const float (&k)[16], int lane) {
  const int from = shared_channel(lane * 4, true) / 16;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float e = __shfl_sync(~0u, k[4 * part + i], from);
      if (lane % 4 == part) own[i] = e;
    }
}
// The row of k and v, both in the order of channels; v is lost. code: 640 bytes of shared memory of this warp.
__device__ __forceinline__ void encode_shared(KvType type, const float (&k)[16], float (&v)[16], uint8_t* code,
                                              std::byte* dst, int lane) {
  constexpr int kOwn = kSharedCols - 512;
  float own[4];
  take_own(own, k, lane);
  to_shared_order(v, lane, false);
  if (!device_kv_has_scales(type)) {
    const int value = type == KvType::kF32 ? 4 : 2;
    encode_plain<kOwn>(type, own, dst, lane);
    encode_plain<512>(type, v, dst + kOwn * value, lane);
    return;
  }
  const float k_norm = before_rotation<kOwn>(type, own), v_norm = before_rotation<512>(type, v);
  warp_rotate<4>(own, lane, false);
  warp_rotate<16>(v, lane, false);
  __half* scales = reinterpret_cast<__half*>(dst + device_kv_code_bytes(type, kSharedCols));
  find_codes<kOwn>(type, own, k_norm, code, scales, nullptr, lane);
  find_codes<512>(type, v, v_norm, code + kOwn, scales + kOwn / 32, nullptr, lane);
  if (lane < 4) scales[kSharedCols / 32 + lane] = __half(0.f);  // up to whole sixteens
  __syncwarp();
  const int n_word = device_kv_code_bytes(type, kSharedCols) / 4;
  for (int w = lane; w < n_word; w += 32)
    reinterpret_cast<uint32_t*>(dst)[w] = device_kv_word(type, code, w, kSharedCols);
}

// x = rms(x), E values of a warp.
template <int E>
__device__ __forceinline__ void norm_head(float (&x)[E / 32], float eps) {
  float sum = 0;
#pragma unroll
  for (float e : x) sum = __fmaf_rn(e, e, sum);
  const float r = __frcp_rn(__fsqrt_rn(__fmaf_rn(warp_sum(sum), 1.f / E, eps)));
#pragma unroll
  for (float& e : x) e *= r;
}

// compute_rope() writes cosine and sine of one pair to rope_cos_sin [E]: E / 2 cosines, then E / 2 sines. Pairs of
// frequency 0, as most of a full layer's, do not rotate.
template <int E>
__device__ __forceinline__ void compute_rope(float* rope_cos_sin, int pair, double freq, int pos) {
  float c = 1, s = 0;
  if (freq != 0) cos_sin(double(pos) * freq, c, s);
  rope_cos_sin[pair] = c, rope_cos_sin[E / 2 + pair] = s;
}
template <int E>
__device__ __forceinline__ void apply_rope(float (&x)[E / 32], const float* rope_cos_sin, int lane) {
  constexpr int V = E / 32;
  float c[V], s[V];
  load_values<V>(c, rope_cos_sin + lane % 16 * V);
  load_values<V>(s, rope_cos_sin + E / 2 + lane % 16 * V);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float turned = __fmul_rn(__shfl_xor_sync(~0u, x[i], 16), lane >= 16 ? s[i] : -s[i]);
    x[i] = __fmaf_rn(x[i], c[i], turned);
  }
}

// x = rope(rms(row) * gain); without the norm if !norm, without gain [E] or rope_cos_sin if they are null.
template <int E>
__device__ __forceinline__ void make_head(float (&x)[E / 32], const float* row, bool norm, float eps, const float* gain,
                                          const float* rope_cos_sin, int lane) {
  constexpr int V = E / 32;
  float g[V];
  load_values<V>(x, row + lane * V);
#pragma unroll
  for (float& e : g) e = 1;
  if (gain) load_values<V>(g, gain + lane * V);
  if (norm) norm_head<E>(x, eps);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] *= g[i];
  if (rope_cos_sin) apply_rope<E>(x, rope_cos_sin, lane);
}

}  // namespace facet::cuda
