#include "backend/cuda/tensor_map.h"

#include <cuda_runtime.h>

#include "base/check.h"

namespace facet::cuda {
namespace {

// Of the driver, by cudaGetDriverEntryPointByVersion: the program does not link it.
decltype(&::cuTensorMapEncodeTiled) encode() {
  static const auto found = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult how{};
    const bool ok =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &how) == cudaSuccess &&
        how == cudaDriverEntryPointSuccess;
    return reinterpret_cast<decltype(&::cuTensorMapEncodeTiled)>(ok ? p : nullptr);
  }();
  return found;
}

}  // namespace

bool has_tensor_maps() { return encode() != nullptr; }

CUtensorMap tensor_map_bf16(const void* p, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  CHECK(reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0 && box_rows <= 256,
        "[{}, {}] with {} elements a row, in boxes of {} rows", rows, cols, stride, box_rows);
  CUtensorMap map;
  const cuuint64_t size[2] = {cuuint64_t(cols), cuuint64_t(rows)}, bytes[1] = {cuuint64_t(stride) * 2};
  const cuuint32_t box[2] = {64, cuuint32_t(box_rows)}, step[2] = {1, 1};
  const CUresult r = encode()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(p), size, bytes, box, step,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(r == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error {} for [{}, {}]", int(r), rows, cols);
  return map;
}

CUtensorMap tensor_map_words(const WordRows& w) {
  CUtensorMap map;
  const cuuint64_t size[3] = {cuuint64_t(w.row_bytes / 4), cuuint64_t(w.rows), cuuint64_t(w.slots)};
  const cuuint64_t bytes[2] = {cuuint64_t(w.row_bytes), cuuint64_t(w.slot_bytes)};
  const cuuint32_t box[3] = {cuuint32_t(w.box_bytes / 4), cuuint32_t(w.box_rows), 1}, step[3] = {1, 1, 1};
  const CUresult r = encode()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, const_cast<void*>(w.p), size, bytes, box, step,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(r == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error {} for {} rows of {} bytes, {} bytes apart", int(r), w.rows,
        w.row_bytes, w.slot_bytes);
  return map;
}

}  // namespace facet::cuda
