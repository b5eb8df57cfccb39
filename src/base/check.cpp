#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace facet {
void check_failed(const char* file, int line, const char* cond, const std::string& message) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed: %s\n", file, line, cond, message.c_str());
  std::fflush(stderr);
  std::abort();
}
}  // namespace facet
