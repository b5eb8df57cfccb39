#include "api/cache_stats.h"

namespace facet {

const char* cache_source_name(CacheUse::Source s) {
  constexpr const char* kNames[] = {"none", "gpu", "ram", "disk"};
  return kNames[size_t(s)];
}

}  // namespace facet
