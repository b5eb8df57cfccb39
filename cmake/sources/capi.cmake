# The sources of src/capi, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  capi.cpp
  host.cpp
  open.cpp
  session.cpp
)
