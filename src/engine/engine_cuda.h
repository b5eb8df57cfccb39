#pragma once
#if FACET_CUDA
#include <functional>
#include <memory>

#include "backend/backend.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "engine/plan.h"

// What the engine does differently on a GPU; only programs built with the CUDA backend have it.
namespace facet {

struct LoadedModel;
Result<std::unique_ptr<Engine>> open_cuda_engine(LoadedModel model, const EngineConfig& decided);

// The target's part of plan_memory: GPU memory. Scratch is that of `limits`.
MemoryPlan plan_cuda_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c, const KvPlan& kv, const KvBytes& b, const BackendLimits& limits);

// As run_bench. Times are of the GPU, sampling included in decoding; caches are filled with random rows.
Status bench_cuda(const GgufFile& file, const ModelCfg& m, const EngineConfig& decided, const BenchOptions& o,
                  const std::function<void(const BenchMachine&, const EngineConfig&)>& machine, const std::function<void(const BenchLine&)>& line);

}  // namespace facet
#endif
