# The sources of src/api, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  cache_stats.cpp
  events.cpp
  media.cpp
  media_load.cpp
  request.cpp
)
