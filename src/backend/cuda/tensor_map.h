#pragma once
#include <cuda.h>

#include <cstdint>

namespace facet::cuda {

// A matrix [rows, cols] of bf16 in device memory, row-major, as the tensor memory accelerator (TMA) of sm_90 copies it:
// boxes of box_rows x 64 columns, whose rows of 128 bytes come with the 128-byte swizzle that warpgroup products read
// (wgmma.cuh). What lies outside of the matrix comes as zeros. p is aligned to 16 bytes, stride (in elements) is a
// multiple of 8, box_rows is at most 256.
CUtensorMap tensor_map_bf16(const void* p, int64_t rows, int64_t cols, int64_t stride, int box_rows);
// Rows of words of 32 bits, in boxes of box_rows x box_bytes as they lie: [slots][rows][row_bytes]. p and all byte counts
// are multiples of 16; box_rows is at most 256, box_bytes 1,024.
struct WordRows {
  const void* p = nullptr;
  int64_t row_bytes = 0, rows = 0, slot_bytes = 0, slots = 0;
  int box_bytes = 0, box_rows = 0;
};
CUtensorMap tensor_map_words(const WordRows&);
// Whether the driver can make one.
bool has_tensor_maps();

}  // namespace facet::cuda
