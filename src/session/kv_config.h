#pragma once
#include "api/config.h"
#include "cache/kv_plan.h"

namespace facet {

inline constexpr int kCudaSharedHead = 512;  // the width of heads that kernels for shared rows are made for

// The cache that a decided configuration asks for: its types, context and number of sequences must be set.
KvPlan kv_plan(const EngineConfig& c);

}  // namespace facet
