# The sources of src/spec, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  accept.cpp
  admit.cpp
  answer_memory.cpp
  length.cpp
  suffix.cpp
  suffix_drafter.cpp
  suffix_index.cpp
  tree.cpp
)
