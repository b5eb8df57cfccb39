# The sources of src/compose, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  full_memory.cpp
  load_model.cpp
  media_encoder.cpp
  open.cpp
  open_lockstep.cpp
  open_traced.cpp
  plan.cpp
  plan_memory.cpp
  prove.cpp
)
set(facet_cuda_sources
  cuda_memory.cpp
  open_cuda.cpp
  open_cuda_shards.cpp
  open_cuda_stages.cpp
  open_media_cuda.cpp
  prove_cuda.cpp
)

# Ask whether there is CUDA (#if FACET_CUDA); compiled with FACET_CUDA=1 where there is.
set(facet_cuda_aware
  open.cpp
  open_lockstep.cpp
  open_traced.cpp
  plan.cpp
  plan_memory.cpp
  prove.cpp
)
