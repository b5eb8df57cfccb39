# The sources of src/engine, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  admission.cpp
  draft_trees.cpp
  engine_loop.cpp
  finish_step.cpp
  logprobs.cpp
  scheduler.cpp
  speculate.cpp
  step_loop.cpp
)
