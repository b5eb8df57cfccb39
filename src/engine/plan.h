#pragma once
#include <span>

#include "cache/kv_plan.h"
#include "engine/engine.h"
#include "formats/gguf.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// The cache that `c` asks for.
KvPlan kv_plan(const EngineConfig& c);

// Bytes of the page pool for rows of drafters.
int64_t drafter_pool_bytes(const ModelCfg& m, const EngineConfig& c, std::span<const DrafterFile> drafters);

// Tokens of one step where nobody asked for a number: enough to keep a GPU's multiplications busy, if the context has
// them.
int usual_chunk(const std::string& backend, int n_ctx);

// Every byte the engine will hold, by purpose, before anything is allocated.
MemoryPlan plan_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                       std::span<const DrafterFile> drafters = {});

// "auto" decided; an error when the backend that was asked for cannot run here.
Result<std::string> resolve_backend(const std::string& asked, int gpu);

// Decides what `c` left open (context, chunk, threads, logits rows) and checks that the plan fits in memory. When it
// does not, the error holds the table and the option that would make it fit.
Result<EngineConfig> resolve_config(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                    std::span<const DrafterFile> drafters = {});

}  // namespace facet
