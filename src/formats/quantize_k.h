#pragma once
#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"

namespace facet {

// Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL and IQ4_XS: the types whose blocks are found by a search.
bool is_searched(DType t);

// As quantize_row (quantize.h), which calls this. Minimises the sum of squared errors of each block
// (quantize_search.h says how); the result depends on the block alone and is the same on every processor.
void quantize_searched_row(DType t, const float* src, std::byte* dst, int64_t n);

}  // namespace facet
