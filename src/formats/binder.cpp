#include "formats/binder.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "formats/format_error.h"

namespace facet {
namespace {

constexpr std::array kMatmulTypes = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,   DType::kQ4_1,
                                     DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,   DType::kQ3_K,
                                     DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

std::string type_list(std::span<const DType> types) {
  std::string s;
  for (DType t : types) s += (s.empty() ? "" : ", ") + std::string(dtype_name(t));
  return types.size() == 1 ? s : "one of " + s;
}

Result<TensorView> check(const TensorView* t, const std::string& where, std::string_view name,
                         std::span<const int64_t> ne, std::span<const DType> allowed) {
  CHECK(!ne.empty() && ne.size() <= 4, "{} is bound with {} dimensions", name, ne.size());
  TensorView want;
  want.n_dims = int(ne.size());
  std::copy(ne.begin(), ne.end(), want.ne.begin());
  const std::string label = fmt::format("tensor '{}'", name);
  if (!t)
    return format_error(where, label, fmt::format("{} of type {}", shape_string(want), type_list(allowed)),
                        "no such tensor", "download the model again, or convert it again with a current converter");
  if (t->ne != want.ne)
    return format_error(where, label, fmt::format("shape {}", shape_string(want)), shape_string(*t),
                        "the metadata and the tensors of the file disagree: convert it again");
  if (std::find(allowed.begin(), allowed.end(), t->type) == allowed.end())
    return format_error(where, label, fmt::format("type {}", type_list(allowed)), dtype_name(t->type),
                        "quantise the model with other types");
  return *t;
}

}  // namespace

std::span<const DType> matmul_dtypes() { return kMatmulTypes; }

Result<TensorView> bind(const GgufFile& file, std::string_view name, std::span<const int64_t> ne,
                        std::span<const DType> allowed) {
  return check(file.find(name), file.path(), name, ne, allowed);
}

Result<TensorView> bind(const SafetensorsFile& file, std::string_view name, std::span<const int64_t> ne,
                        std::span<const DType> allowed) {
  return check(file.find(name), file.path(), name, ne, allowed);
}

}  // namespace facet
