# The sources of src/cache, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  kv_cache.cpp
  kv_fork.cpp
  kv_plan.cpp
  page_pool.cpp
  row_copier.cpp
)

# With FACET_CUDA only.
set(facet_cuda_sources
  cuda_kv_cache.cpp
  cuda_page_pool.cpp
)
