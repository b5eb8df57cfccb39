#pragma once
#include <functional>
#include <span>
#include <string>

#include "backend/backend.h"
#include "cache/kv_plan.h"
#include "engine/engine.h"
#include "formats/gguf.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

inline constexpr int kCudaSharedHead = 512;  // the width of heads that kernels for shared rows are made for

// The cache that `c` asks for.
KvPlan kv_plan(const EngineConfig& c);

// Bytes of the page pool for rows of drafters.
int64_t drafter_pool_bytes(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                           std::span<const DrafterFile> drafters);

// Tokens of one step where nobody asked for a number: enough to keep a GPU's multiplications busy, if the context has
// them.
inline constexpr int kLeastChunk = 512;
int usual_chunk(const std::string& backend, int n_ctx);

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

// Every byte the engine will hold, by purpose, before anything is allocated. lockstep: with the reference beside it.
MemoryPlan plan_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                       std::span<const DrafterFile> drafters = {}, bool lockstep = false);

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
// How many layers each GPU has, where these are divided among several (c.split, which fits the model); else nothing.
std::vector<int> stage_layers(const ModelCfg& m, const EngineConfig& c);

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
