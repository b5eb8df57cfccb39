#pragma once

namespace facet::cuda {

// Columns of narrow models: drafters that go along with a target, and targets of as many.
constexpr int kNarrowCols = 1024;

}  // namespace facet::cuda
