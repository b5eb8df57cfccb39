#pragma once
#include <string>
#include <string_view>

#include "server/writer.h"

namespace facet {

// What a router has to know of a body; the model's process reads the rest.
struct RoutedFields {
  std::string model = {};                 // empty: it names none
  bool stream = false, progress = false;  // progress: return_progress
  bool wait = false, autoload = true;     // of /models/load and /models/unload
};

// Members of a JSON object, without building the rest of it. Of members with the same name the last one counts, as for
// the process. An empty body is an empty object.
Result<RoutedFields> read_routed_fields(std::string_view body);

// The value of a key in a query string, percent-decoded; empty: it is not there.
std::string query_field(std::string_view query, std::string_view key);

// An error as the last event of a stream that has begun.
std::string stream_error(Dialect dialect, const ApiError& e);

}  // namespace facet
