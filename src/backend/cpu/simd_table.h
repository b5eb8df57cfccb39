// Included by simd_*.cpp only, inside their anonymous namespaces: the table of what they define.

#include "backend/cpu/simd_types.h"

constexpr SimdKernels make_table(const char* name, int gemv_tok, void (*interleave)(int64_t, const QuantRow*) = nullptr,
                                 bool records_in_gemm = false) {
  SimdKernels k{};
  k.name = name;
  k.gemv_tok = gemv_tok;
  k.interleave = interleave;
  k.records_in_gemm = records_in_gemm;
  k.quantize = quantize;
  each_quantised([&k]<class T>(DType type) {
    k.gemv[int(type)] = gemv<T>;
    k.pack[int(type)] = pack<T>;
    k.gemm[int(type)] = gemm<T>;
  });
  k.dots[int(DType::kF32)] = dots<LoadF32>;
  k.dots[int(DType::kF16)] = dots<LoadF16>;
  k.dots[int(DType::kBF16)] = dots<LoadBF16>;
  k.attend = attend;
  k.encoder_attend = encoder_attend;
  k.dots_part = dots_part;
  k.widen[int(DType::kF32)] = widen<LoadF32>;
  k.widen[int(DType::kF16)] = widen<LoadF16>;
  k.widen[int(DType::kBF16)] = widen<LoadBF16>;
  k.sum_squares = sum_squares;
  k.gelu_mul = gelu_mul;
  k.silu_mul = silu_mul;
  k.softcap = softcap;
  k.to_f16 = to_f16;
  return k;
}
