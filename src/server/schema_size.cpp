#include "server/schema_size.h"
#include "tokenizer/json.h"

#include <fmt/format.h>

namespace facet {
namespace {

Error too_large(std::string where, size_t most, size_t found) {
  return {std::move(where), fmt::format("expected at most {} bytes, found {}", most, found),
          "leave out what the model does not need"};
}

}  // namespace

Status check_schema_sizes(const ApiRequest& r) {
  const Constraint& c = r.constraint;
  if (c.kind == Constraint::Kind::kSchema && c.text.size() > kMaxSchema)
    return too_large(c.where, kMaxSchema, c.text.size());
  size_t all = 0;
  for (size_t i = 0; i < r.tools.size(); ++i) {
    if (const auto schema = r.tools[i].find("parameters"); schema != r.tools[i].end())
      if (const size_t n = dump_json(*schema).size(); n > kMaxSchema)
        return too_large(fmt::format("tools[{}].parameters", i), kMaxSchema, n);
    all += dump_json(r.tools[i]).size();
  }
  if (all > kMaxAllTools) return too_large("tools", kMaxAllTools, all);
  return Ok{};
}

}  // namespace facet
