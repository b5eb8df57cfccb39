#pragma once
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace facet {

// Types a weight matrix may have: whatever dequantize_row reads.
std::span<const DType> matmul_dtypes();

// The tensor of that name if it has exactly these dimensions (ne order; trailing ones may be left out or
// present) and one of these types; otherwise an Error with the tensor, both shapes or types, and what to do.
Result<TensorView> bind(const GgufFile& file, std::string_view name, std::span<const int64_t> ne,
                        std::span<const DType> allowed);
Result<TensorView> bind(const SafetensorsFile& file, std::string_view name, std::span<const int64_t> ne,
                        std::span<const DType> allowed);

inline Result<TensorView> bind(const GgufFile& file, std::string_view name, std::initializer_list<int64_t> ne,
                               std::initializer_list<DType> allowed) {
  return bind(file, name, std::span(ne.begin(), ne.size()), std::span(allowed.begin(), allowed.size()));
}
inline Result<TensorView> bind(const GgufFile& file, std::string_view name, std::initializer_list<int64_t> ne,
                               std::span<const DType> allowed) {
  return bind(file, name, std::span(ne.begin(), ne.size()), allowed);
}

}  // namespace facet
