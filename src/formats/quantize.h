#pragma once
#include <cstddef>
#include <cstdint>

#include "formats/dtype.h"

namespace facet {

// Types that quantize_row can write. Reading (dequantize_row) covers more.
bool can_quantize(DType t);

// n floats (a multiple of the block) to blocks of type t at dst, which needs no alignment. One thread, plain
// loops: the truth for every faster implementation, and bit for bit what ggml's reference quantisers write
// for finite input. Non-finite input gives unspecified blocks and is otherwise harmless.
void quantize_row(DType t, const float* src, std::byte* dst, int64_t n);

}  // namespace facet
