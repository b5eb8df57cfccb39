#pragma once
#include <cstdint>

namespace facet {

// Bytes of memory that this process holds, without what it has mapped from files. 0 if unknown.
int64_t own_memory();

}  // namespace facet
