#pragma once
#include <string>

#include "backend/expert_usage.h"
#include "base/result.h"
#include "formats/gguf.h"
#include "model/types.h"

// How often experts were chosen, as a file: JSON with the model's fingerprint, so that it is not taken for another's.
namespace facet {

// Of a file that anybody may have written: of this model, with a number for each of its experts.
Result<ExpertUsage> read_expert_usage(const std::string& path, const GgufFile& file, const ModelCfg& m);
Status write_expert_usage(const ExpertUsage& usage, const std::string& path, const GgufFile& file);

// "the most chosen 1,920 of 3,840 experts answer 81.2 % of choices" for a quarter, a half and three quarters.
std::string usage_lines(const ExpertUsage& usage);

}  // namespace facet
