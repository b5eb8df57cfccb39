#pragma once

namespace facet::cuda {

// Kernels of models as narrow as this let the next one start before their own input is there: they read so little that
// what the next one fetches meanwhile comes in nobody's way, and starting it takes as long as they run.
constexpr int kNarrowCols = 1024;
constexpr bool is_narrow(int n_in, int n_out) { return n_in <= kNarrowCols || n_out <= kNarrowCols; }

}  // namespace facet::cuda
