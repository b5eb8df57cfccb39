#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "backend/backend.h"

namespace facet {

// What the plan of memory has to know of a backend.
struct BackendMemory {
  std::string weights;                                                // how they are held
  std::function<int64_t(std::span<const TensorView>)> weight_bytes;   // null: as many as the file
  std::function<int64_t(int64_t rows, int64_t cols)> rows_bytes;      // of activations
  std::string scratch;                                                // what it is for
  std::function<int64_t(const BackendLimits&)> scratch_bytes;         // for the target and its drafters
  std::function<int64_t(std::span<const TensorView>)> most_unpacked;  // elements of a panel of weights; null: no matter
  int64_t page_bytes = 0, read_beyond = 0;                            // of the pool of K/V rows (pool_bytes)
  int64_t available = 0;                                              // 0: not known
};

}  // namespace facet
