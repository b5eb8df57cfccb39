// Included by simd_*.cpp only, inside their anonymous namespaces: the types whose rows are multiplied as they
// are.

template <class F>
constexpr void each_quantised(F f) {
  f.template operator()<Q8_0>(DType::kQ8_0);
  f.template operator()<Q4_0>(DType::kQ4_0);
  f.template operator()<Q4_1>(DType::kQ4_1);
  f.template operator()<Q5_0>(DType::kQ5_0);
  f.template operator()<Q5_1>(DType::kQ5_1);
  f.template operator()<IQ4_NL>(DType::kIQ4_NL);
  f.template operator()<IQ4_XS>(DType::kIQ4_XS);
  f.template operator()<Q3_K>(DType::kQ3_K);
  f.template operator()<Q4_K>(DType::kQ4_K);
  f.template operator()<Q5_K>(DType::kQ5_K);
  f.template operator()<Q6_K>(DType::kQ6_K);
}
