#include "base/memory_use.h"

#include <string>

#include "base/files.h"

namespace facet {

int64_t own_memory() {
  const auto status = read_file("/proc/self/status", 1 << 16);
  if (!status) return 0;
  int64_t n = 0;
  for (const char* key : {"RssAnon:", "RssShmem:"})
    if (const size_t at = status->find(key); at != std::string::npos)
      n += std::stoll(status->substr(at + std::string(key).size(), 24)) * 1024;
  return n;
}

}  // namespace facet
