#pragma once
#include <string>

#include "api/config.h"
#include "formats/gguf.h"

namespace CLI {
class App;
}

namespace facet {

// --expert-usage.
void add_expert_usage_option(CLI::App* cmd, EngineConfig& c);
// The file that it means, read into c.expert_usage: a path, "auto" (beside the model, or what serve --count-experts left)
// or "none". For models with experts.
Status find_expert_usage(EngineConfig& c, const GgufFile& file);
// Where serve --count-experts keeps what it counted; empty: there is no folder for it.
std::string counted_experts_path(const GgufFile& file);
// Adds what was counted to what is there.
Status keep_counted_experts(const ExpertUsage& counted, const std::string& model);

}  // namespace facet
