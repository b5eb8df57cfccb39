# The sources of src/engine, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  logprobs.cpp
  scheduler.cpp
)
