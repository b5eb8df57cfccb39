#pragma once
#include <cstdint>

namespace facet {

enum class CpuIsa : uint8_t { kAuto, kScalar, kAvx2, kAvx512, kAmx };  // avx512: with VNNI; amx: with both

// Whether this machine and this program have it; kAuto and kScalar always.
bool has_isa(CpuIsa isa);
const char* isa_name(CpuIsa isa);

}  // namespace facet
