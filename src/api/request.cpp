#include "api/request.h"

namespace facet {

const char* stop_name(Stop s) {
  switch (s) {
    case Stop::kEos:
      return "eos";
    case Stop::kLength:
      return "length";
    case Stop::kContext:
      return "context";
    case Stop::kCancelled:
      return "cancelled";
    case Stop::kError:
      return "error";
    case Stop::kLoop:
      return "loop";
  }
  return "?";
}

}  // namespace facet
