#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "formats/dtype.h"

namespace facet {

// Blocks of the types that facet reads and never writes (IQ1_S to IQ4_NL, MXFP4, NVFP4), for models of random weights:
// every bit random but the steps, which give values of deviation sigma.
bool has_random_blocks(DType t);
void random_blocks(DType t, float sigma, const std::function<uint64_t()>& draw, std::span<std::byte> to);

}  // namespace facet
