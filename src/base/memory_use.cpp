#include "base/memory_use.h"

#include <string>

#include "base/files.h"

namespace facet {

int64_t own_memory() {
  // Proportional: memory that is mapped in several places counts once.
  const auto maps = read_file("/proc/self/smaps_rollup", 1 << 16);
  if (!maps) return 0;
  int64_t n = 0;
  for (const char* key : {"Pss_Anon:", "Pss_Shmem:"})
    if (const size_t at = maps->find(key); at != std::string::npos)
      n += std::stoll(maps->substr(at + std::string(key).size(), 24)) * 1024;
  return n;
}

}  // namespace facet
