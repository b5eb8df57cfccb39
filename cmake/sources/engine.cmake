# The sources of src/engine, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  cache_stats.cpp
  disk_tier.cpp
  engine.cpp
  engine_lockstep.cpp
  engine_traced.cpp
  fingerprint.cpp
  host_tier.cpp
  logprobs.cpp
  media.cpp
  mask_tasks.cpp
  plan.cpp
  plan_memory.cpp
  prove.cpp
  scheduler.cpp
  session_image.cpp
  session_store.cpp
)

# With FACET_CUDA only.
set(facet_cuda_sources
  engine_cuda.cpp
  engine_cuda_shards.cpp
  engine_cuda_stages.cpp
  prove_cuda.cpp
)

# Ask whether there is CUDA (#if FACET_CUDA); compiled with FACET_CUDA=1 where there is.
set(facet_cuda_aware
  engine.cpp
  engine_lockstep.cpp
  engine_traced.cpp
  plan.cpp
  plan_memory.cpp
  prove.cpp
)
