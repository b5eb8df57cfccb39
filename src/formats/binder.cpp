#include "formats/binder.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "formats/format_error.h"

namespace facet {
namespace {

// Whatever dequantize_row reads, in the order of DType.
std::vector<DType> types_of_weights() {
  std::vector<DType> types;
  for (int t = 0; t < int(DType::kCount); ++t)
    if (dtype_info(DType(t)).matmul) types.push_back(DType(t));
  return types;
}

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

std::span<const DType> matmul_dtypes() {
  static const std::vector<DType> types = types_of_weights();
  return types;
}

Result<TensorView> bind(const GgufFile& file, std::string_view name, std::span<const int64_t> ne,
                        std::span<const DType> allowed) {
  return check(file.find(name), file.path(), name, ne, allowed);
}

Result<TensorView> bind(const SafetensorsFile& file, std::string_view name, std::span<const int64_t> ne,
                        std::span<const DType> allowed) {
  return check(file.find(name), file.path(), name, ne, allowed);
}

}  // namespace facet
