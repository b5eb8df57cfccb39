# The sources of src/spec, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  accept.cpp
  length.cpp
  suffix.cpp
  tree.cpp
)
