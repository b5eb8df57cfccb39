# The sources of src/engine, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  disk_tier.cpp
  fingerprint.cpp
  host_tier.cpp
  kv_config.cpp
  logprobs.cpp
  mask_tasks.cpp
  scheduler.cpp
  session_image.cpp
  session_store.cpp
  stage_layers.cpp
)
