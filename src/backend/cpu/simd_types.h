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
  f.template operator()<IQ1_S>(DType::kIQ1_S);
  f.template operator()<IQ1_M>(DType::kIQ1_M);
  f.template operator()<IQ2_XXS>(DType::kIQ2_XXS);
  f.template operator()<IQ2_XS>(DType::kIQ2_XS);
  f.template operator()<IQ2_S>(DType::kIQ2_S);
  f.template operator()<IQ3_XXS>(DType::kIQ3_XXS);
  f.template operator()<IQ3_S>(DType::kIQ3_S);
  f.template operator()<MXFP4>(DType::kMXFP4);
  f.template operator()<NVFP4>(DType::kNVFP4);
}
