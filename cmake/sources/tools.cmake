# The sources of src/tools, sorted; headers need no line (tools/check_sources.py).

set(facet_sources
  bench.cpp
  bench_groups.cpp
  bench_matrix.cpp
  bench_spec.cpp
  bench_spec_batch.cpp
  bench_spec_replay.cpp
  draft_logits.cpp
  energy.cpp
  eval.cpp
  expert_usage_file.cpp
  matrix_file.cpp
  matrix_prompts.cpp
  matrix_report.cpp
  paths.cpp
  quality.cpp
  ram_rate.cpp
  statistics.cpp
  video_file.cpp
)

# With FACET_CUDA only.
set(facet_cuda_sources
  bench_cuda.cpp
)

# Ask whether there is CUDA (#if FACET_CUDA); compiled with FACET_CUDA=1 where there is.
set(facet_cuda_aware
  bench.cpp
  energy.cpp
  ram_rate.cpp
)
