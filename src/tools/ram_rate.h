#pragma once
#include <cstdint>
#include <string>

#include "api/config.h"
#include "backend/weights_in_ram.h"
#include "formats/gguf.h"
#include "model/types.h"

namespace facet {

// Bytes of weights that one token of an answer reads at least, where they lie.
struct TokenBytes {
  int64_t in_ram = 0, on_gpu = 0;
};
// usage: by which experts were placed; null: they were not.
TokenBytes token_bytes(const GgufFile& file, const ModelCfg& m, const WeightsInRam& in_ram,
                       const ExpertUsage* usage = nullptr);

// "at most 61 tokens/s: 0.66 GB a token from RAM at 60 GB/s (8 threads), 1.8 GB on the GPU at 4200 GB/s", from rates that
// are measured now; empty where no weights are in RAM.
std::string placement_rate(const GgufFile& file, const ModelCfg& m, const EngineConfig& decided);

}  // namespace facet
