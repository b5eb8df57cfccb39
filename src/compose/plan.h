#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "compose/backend_memory.h"
#include "formats/gguf.h"
#include "model/drafter_file.h"
#include "model/types.h"
#include "session/kv_config.h"
#include "session/stage_layers.h"

namespace facet {

// Bytes of the page pool for rows of drafters.
int64_t drafter_pool_bytes(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                           std::span<const DrafterFile> drafters);

// Tokens of one step where nobody asked for a number: enough to keep a GPU's multiplications busy, if the context has
// them.
inline constexpr int kLeastChunk = 512;
int usual_chunk(const std::string& backend, int n_ctx);

// Every byte the engine will hold, by purpose, before anything is allocated. lockstep: with the reference beside it.
MemoryPlan plan_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                       std::span<const DrafterFile> drafters = {}, bool lockstep = false);

// What suffix decoding takes of the host's memory as texts come; on a GPU no plan has it.
std::vector<MemoryLine> suffix_lines(const EngineConfig& c);

// Bytes for the rows of all sequences that `p`, which does not fit, leaves: less than they could need and enough for
// the longest; 0: they are not enough.
int64_t left_for_rows(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                      std::span<const DrafterFile> drafters, const MemoryPlan& p);

// "auto" decided; an error when the backend that was asked for cannot run here.
Result<std::string> resolve_backend(const std::string& asked, int gpu);
// The same for c's backend and GPUs; one of several that is missing is an error. c.gpus has at least two afterwards, or
// none.
Status resolve_gpus(EngineConfig& c);
// What is on one GPU, where each layer is divided among several: a part of its heads.
ModelCfg on_a_gpu(const ModelCfg& m, const EngineConfig& c);

// What the layout does to a type that was asked for, or nothing.
std::string layout_note(const ModelCfg& m, const EngineConfig& decided);

// Decides what `c` left open (context, chunk, threads, logits rows) and checks that the plan fits in memory. When it
// does not, the error holds the table and the option that would make it fit. fit_memory: of a c whose backend, GPUs and
// types are decided.
Result<EngineConfig> fit_memory(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                std::span<const DrafterFile> drafters = {}, bool lockstep = false);
Result<EngineConfig> resolve_config(const GgufFile& file, const ModelCfg& m, EngineConfig c,
                                    std::span<const DrafterFile> drafters = {}, bool lockstep = false);

}  // namespace facet
