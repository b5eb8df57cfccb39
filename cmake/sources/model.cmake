# The sources of src/model, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  dflash_config.cpp
  drafter_check.cpp
  drafter_convert.cpp
  drafter_file.cpp
  drafter_meta.cpp
  drafter_names.cpp
  drafter_rules.cpp
  eagle3_config.cpp
  encoder_bind.cpp
  find_drafter.cpp
  find_mmproj.cpp
  gemma4_bind.cpp
  gemma4_config.cpp
  mmproj.cpp
  mtp_config.cpp
  shards.cpp
  stages.cpp
)
