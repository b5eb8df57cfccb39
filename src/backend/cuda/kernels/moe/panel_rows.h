#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace facet::cuda {

// Experts' outputs of a large batch by token and rank, before they are added up: rows of its panels (moe.h).
struct MoePanelRows {
  const __nv_bfloat16* rows = nullptr;
  const int2* place = nullptr;    // [slot] N tile, row in it
  const int4* tile = nullptr;     // [N tile] expert, first row of all, rows, 0
  const float* weight = nullptr;  // [slot]
  int n_used = 0, n_block = 0;    // n_block: of 64 columns
};

}  // namespace facet::cuda
