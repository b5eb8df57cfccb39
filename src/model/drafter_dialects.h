#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/gguf.h"
#include "model/drafter_file.h"

// Dialects of drafter files: which names and keys mean what. Everything here comes from strangers; numbers are only
// read, their ranges are checked where they are used (dflash_config.cpp, mtp_config.cpp).
namespace facet {

struct DrafterFamily {
  DrafterKind kind;
  std::string refuse;  // why not, if facet cannot run it
};
// By general.architecture, or a class name of config.json; empty for anything that is no drafter.
std::optional<DrafterFamily> drafter_family(std::string_view arch);
constexpr const char* kKnownDrafters =
    "known drafters: GGUF dflash, eagle3, dflash-draft, gemma4-dflash-draft, gemma4-assistant, gemma4_assistant, "
    "gemma4_mtp; "
    "safetensors with a config.json of DFlashDraftModel, Gemma4DSparkModel, "
    "Gemma4AssistantForCausalLM or speculators (dflash, dspark, dflash2, eagle3)";

// What the rest of the program calls a tensor. gemma_layers: with norms after attention and FFN as well.
std::string common_name(std::string_view name, DrafterKind kind, bool gemma_layers);
// "layers.3.rest" or "blk.3.rest" -> 3 and rest.
std::optional<std::pair<int, std::string_view>> split_layer(std::string_view name, std::string_view prefix);

// The metadata of a GGUF, and of the config.json `where`.
Result<DrafterMeta> drafter_meta(const GgufFile& f, const std::string& arch, DrafterKind kind);
Result<DrafterMeta> drafter_meta(const nlohmann::json& config, const std::string& where, DrafterKind kind);

}  // namespace facet
