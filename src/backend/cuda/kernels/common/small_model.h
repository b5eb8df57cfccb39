#pragma once

namespace facet::cuda {

// Kernels of models as narrow as this let the next one start before their own input is there: they read so little that
// what the next one fetches meanwhile comes in nobody's way, and starting it takes as long as they run.
constexpr int kSmallModelCols = 1024;
constexpr bool is_small_model(int n_in, int n_out) { return n_in <= kSmallModelCols || n_out <= kSmallModelCols; }

}  // namespace facet::cuda
