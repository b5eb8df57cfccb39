# The sources of src/router, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  child.cpp
  config.cpp
  dispatch.cpp
  link.cpp
  pool.cpp
  preset.cpp
  report.cpp
  request.cpp
  router.cpp
  upstream.cpp
)
