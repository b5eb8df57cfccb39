#pragma once

namespace facet::cuda {

// Kernels of models with rows of at most this many columns call pdl_trigger() before their own pdl_wait(): they read so
// little that the next kernel's prefetch does not slow them down, and the launch of the next kernel takes as long as
// they run.
constexpr int kSmallModelCols = 1024;
constexpr bool is_small_model(int n_in, int n_out) { return n_in <= kSmallModelCols || n_out <= kSmallModelCols; }

}  // namespace facet::cuda
