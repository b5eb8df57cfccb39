# The sources of src/session, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  disk_tier.cpp
  fingerprint.cpp
  host_tier.cpp
  kv_config.cpp
  mask_tasks.cpp
  session_copy.cpp
  session_image.cpp
  session_rows.cpp
  session_store.cpp
  stage_layers.cpp
  tiers.cpp
)
