#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// Element types of tensors in files. Values are our own; ggml_id in DTypeInfo is the number in GGUF files.
// clang-format off
enum class DType : uint8_t {
  kF32, kF16, kBF16,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0,
  kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K,
  kIQ4_NL, kIQ4_XS,
  kIQ1_S, kIQ1_M, kIQ2_XXS, kIQ2_XS, kIQ2_S, kIQ3_XXS, kIQ3_S,
  kMXFP4, kNVFP4,
  kI8, kI16, kI32, kI64, kF64,
  kCount
};
// clang-format on

struct DTypeInfo {
  const char* name;  // as llama.cpp prints it: "Q4_K"
  uint32_t ggml_id;  // number in GGUF tensor infos
  int block;         // elements per block
  int block_bytes;   // bytes per block
  bool matmul;       // may be the type of a weight matrix (can be dequantised)
};
const DTypeInfo& dtype_info(DType t);
inline const char* dtype_name(DType t) { return dtype_info(t).name; }
std::optional<DType> dtype_from_ggml(uint32_t ggml_id);
std::optional<DType> dtype_from_name(std::string_view name);  // case-insensitive

// Bytes of a row of n elements; n must be a multiple of the block.
inline size_t row_bytes(DType t, int64_t n) {
  const DTypeInfo& i = dtype_info(t);
  return size_t(n / i.block) * size_t(i.block_bytes);
}

void check_whole_blocks(DType t, int64_t n);

// n elements (a multiple of the block) at src to f32. Only for types with matmul = true. src needs no
// alignment.
void dequantize_row(DType t, const std::byte* src, float* dst, int64_t n);

// A tensor in a mapped file. ne[0] is the contiguous dimension; missing dimensions are 1. Never owns.
struct TensorView {
  std::string name;
  DType type = DType::kF32;
  int n_dims = 0;
  std::array<int64_t, 4> ne{1, 1, 1, 1};
  std::span<const std::byte> data;
  // [ne[2]] a factor for each matrix, or empty: the tensor 'x.scale' beside 'x.weight', which files of NVFP4 weights
  // have. Not in what dequantize_row gives.
  std::vector<float> scale = {};

  int64_t n_elements() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
};
std::string shape_string(const TensorView& t);  // "[5376 x 4096]", ne order

}  // namespace facet
