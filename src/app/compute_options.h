#pragma once
#include "app/options.h"

namespace facet {

// -c, -t, --kv and its like, --backend, --chunk, --memory: add_engine_options() but for -m.
void add_compute_options(CLI::App* cmd, EngineConfig& c);
void add_kv_options(CLI::App* cmd, EngineConfig& c);  // --kv, --kv-k, --kv-v, --kv-layers, --kv-layout

}  // namespace facet
