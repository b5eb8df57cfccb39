#pragma once
#include "app/options.h"

namespace facet {

// -c, -t, --kv-k, --kv-v, --backend, --chunk, --memory: add_engine_options() but for -m.
void add_compute_options(CLI::App* cmd, EngineConfig& c);

}  // namespace facet
