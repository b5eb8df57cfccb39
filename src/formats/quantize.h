#pragma once
#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"

namespace facet {

// Types that quantize_row can write. Reading (dequantize_row) covers more.
bool can_quantize(DType t);

// n floats (a multiple of the block) to blocks of type t at dst, which needs no alignment. One thread. Types
// with one scale a block (F32 to Q8_0) are bit for bit what ggml's reference quantisers write for finite
// input; the others (quantize_k.h) minimise the squared error. Non-finite input gives unspecified blocks and
// is otherwise harmless.
void quantize_row(DType t, const float* src, std::byte* dst, int64_t n);

}  // namespace facet
