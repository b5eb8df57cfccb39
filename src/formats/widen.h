#pragma once
#include "formats/dtype.h"

namespace facet {

// The smallest of Q6_K, Q8_0 and BF16 that loses nothing of a type, or no more than BF16 would. Exactly: Q3_K, IQ3_S,
// IQ1_S and IQ1_M become Q6_K, IQ4_NL and MXFP4 Q8_0 (scales of 2^-24 to 2^15), NVFP4 BF16. With scales rounded to
// f16's 11 bits: IQ4_XS, IQ3_XXS and IQ2_XXS become Q8_0. Others, with a scale for 16 elements, become BF16.
DType wider_type(DType t);

// n elements (a multiple of the block) of type t at src to wider_type(t).
void widen_row(DType t, const std::byte* src, std::byte* dst, int64_t n);
// Times a factor (TensorView::scale), to BF16.
void scale_row(DType t, const std::byte* src, std::byte* dst, int64_t n, float factor);

}  // namespace facet
