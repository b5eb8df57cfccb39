// Included by simd_*.cpp only, inside their anonymous namespaces: the table of what they define.

template <class T>
constexpr void set_quantised(SimdKernels& k, DType type) {
  k.gemv[int(type)] = gemv<T>;
  k.pack[int(type)] = pack<T>;
  k.gemm[int(type)] = gemm<T>;
}
constexpr SimdKernels make_table(const char* name, int gemv_tok, void (*interleave)(int64_t, const QuantRow*) = nullptr) {
  SimdKernels k{};
  k.name = name;
  k.gemv_tok = gemv_tok;
  k.interleave = interleave;
  k.quantize = quantize;
  set_quantised<Q8_0>(k, DType::kQ8_0);
  set_quantised<Q4_0>(k, DType::kQ4_0);
  set_quantised<Q4_1>(k, DType::kQ4_1);
  set_quantised<Q5_0>(k, DType::kQ5_0);
  set_quantised<Q5_1>(k, DType::kQ5_1);
  set_quantised<IQ4_NL>(k, DType::kIQ4_NL);
  set_quantised<IQ4_XS>(k, DType::kIQ4_XS);
  set_quantised<Q3_K>(k, DType::kQ3_K);
  set_quantised<Q4_K>(k, DType::kQ4_K);
  set_quantised<Q5_K>(k, DType::kQ5_K);
  set_quantised<Q6_K>(k, DType::kQ6_K);
  k.dots[int(DType::kF32)] = dots<LoadF32>;
  k.dots[int(DType::kF16)] = dots<LoadF16>;
  k.dots[int(DType::kBF16)] = dots<LoadBF16>;
  k.attend = attend;
  k.sum_squares = sum_squares;
  k.gelu_mul = gelu_mul;
  k.silu_mul = silu_mul;
  k.softcap = softcap;
  k.to_f16 = to_f16;
  return k;
}
