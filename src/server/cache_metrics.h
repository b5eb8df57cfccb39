#pragma once
#include <string>

#include "api/cache_stats.h"
#include "server/health.h"

// What an engine counts of its caches, as metrics and as a reason of /health.
namespace facet {

std::string cache_metrics(const CacheStats& c);  // Prometheus' text format
void note_cache_errors(const CacheStats& c, Health& health);

}  // namespace facet
