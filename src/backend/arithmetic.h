#pragma once
#include <cstdint>

namespace facet {

// Names the bits that backends give a row and the layout of its K/V, beside the version of the program: raised in the
// commit that changes either, on any backend. Kept states of another number are refused (session/fingerprint.h).
constexpr uint8_t kArithmetic = 5;

}  // namespace facet
