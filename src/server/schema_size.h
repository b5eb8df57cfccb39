#pragma once
#include <cstddef>

#include "server/openai.h"

// How large the schemas of a request may be, the same in every dialect and wherever they stand: work that grows with
// them comes after this. In bytes of JSON without white space.
namespace facet {

inline constexpr size_t kMaxSchema = 256 << 10;  // of an answer's form, and of each tool's arguments
inline constexpr size_t kMaxAllTools = 1 << 20;  // of a request's declarations together

Status check_schema_sizes(const ApiRequest& r);

}  // namespace facet
