#pragma once
#include "formats/dtype.h"

namespace facet {

// The smallest of Q6_K, Q8_0 and BF16 that loses nothing of a type, or no more than BF16 would: Q3_K becomes Q6_K and
// IQ4_NL Q8_0 exactly; IQ4_XS becomes Q8_0, its scales rounded to 11 bits; others become BF16.
DType wider_type(DType t);

// n elements (a multiple of the block) of type t at src to wider_type(t).
void widen_row(DType t, const std::byte* src, std::byte* dst, int64_t n);

}  // namespace facet
