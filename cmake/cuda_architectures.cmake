# Kernels use cp.async, mma of bf16 and what came with them: 8.0 and newer. Other architectures would fail somewhere
# inside a kernel. Included where FACET_CUDA is on; cmake -DCMAKE_CUDA_ARCHITECTURES=... -P runs the check alone.
foreach(arch ${CMAKE_CUDA_ARCHITECTURES})
  if(NOT arch MATCHES "^([0-9]+)[af]?(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS 80)
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES: expected 80 or newer, as 80, 86, 89, 90a or 120, found ${arch}; build for the card "
                        "with another program, or without FACET_CUDA")
  endif()
endforeach()
