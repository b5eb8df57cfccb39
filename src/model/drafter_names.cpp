#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "model/drafter_dialects.h"

namespace facet {
namespace {

using nlohmann::json;

using Names = std::span<const std::pair<std::string_view, std::string_view>>;

// Names outside the blocks; the right column is how the rest of the program calls them.
constexpr std::pair<std::string_view, std::string_view> kDflashNames[] = {
    {"dflash_fc.weight", "fc.weight"},
    {"dflash.fc.weight", "fc.weight"},
    {"encoder.fc.weight", "fc.weight"},
    {"dflash_hidden_norm.weight", "enc.output_norm.weight"},
    {"dflash.hidden_norm.weight", "enc.output_norm.weight"},
    {"hidden_norm.weight", "enc.output_norm.weight"},
    {"encoder.output_norm_enc.weight", "enc.output_norm.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"markov_head.markov_w1.weight", "markov_w1.weight"},
    {"markov_head.markov_w2.weight", "markov_w2.weight"},
    {"confidence_head.proj.weight", "conf_proj.weight"},
    {"confidence_head.proj.bias", "conf_proj.bias"},
    {"candidate_selector.predecessor_codebook", "selector_predecessor.weight"},
    {"candidate_selector.predecessor_codebook.weight", "selector_predecessor.weight"},
    {"candidate_selector.successor_codebook", "selector_successor.weight"},
    {"candidate_selector.successor_codebook.weight", "selector_successor.weight"},
    {"candidate_selector.hidden_projection.weight", "selector_hidden.weight"},
};
constexpr std::pair<std::string_view, std::string_view> kMtpNames[] = {
    {"mtp.pre_projection.weight", "nextn.pre_projection.weight"},
    {"mtp_pre_proj.weight", "nextn.pre_projection.weight"},
    {"pre_projection.weight", "nextn.pre_projection.weight"},
    {"mtp.post_projection.weight", "nextn.post_projection.weight"},
    {"mtp_post_proj.weight", "nextn.post_projection.weight"},
    {"post_projection.weight", "nextn.post_projection.weight"},
    {"mtp.centroids.weight", "masked_embd_centroids.weight"},
    {"mtp_centroids.weight", "masked_embd_centroids.weight"},
    {"masked_embedding.centroids.weight", "masked_embd_centroids.weight"},
    {"mtp.token_ordering.weight", "masked_embd_ordering"},
    {"mtp_token_ordering.weight", "masked_embd_ordering"},
    {"masked_embd_ordering.weight", "masked_embd_ordering"},
    {"masked_embedding.token_ordering", "masked_embd_ordering"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
};
// Of a safetensors layer, behind layers.N.
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"hidden_norm.weight", "attn_norm_2.weight"},  // EAGLE-3
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.attention_sink_bias", "attn_sinks"},
    {"attention_conv.base_kernel", "attn_conv_base.weight"},
    {"attention_conv.kernel_projection.weight", "attn_conv_proj.weight"},
    {"mlp_conv.base_kernel", "ffn_conv_base.weight"},
    {"mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"},
    {"attn_conv_base", "attn_conv_base.weight"},
    {"attn_conv_proj", "attn_conv_proj.weight"},
    {"ffn_conv_base", "ffn_conv_base.weight"},
    {"ffn_conv_proj", "ffn_conv_proj.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
};

std::string_view lookup(Names names, std::string_view name) {
  for (const auto& [from, to] : names)
    if (from == name) return to;
  return name;
}

}  // namespace

std::optional<std::pair<int, std::string_view>> split_layer(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int l = 0;
  const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), l);
  if (ec != std::errc{} || l < 0 || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return std::pair{l, name.substr(size_t(end - name.data()) + 1)};
}

std::string common_name(std::string_view name, DrafterKind kind, bool gemma_layers) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  auto layer = split_layer(name, "layers.");
  if (!layer && name.starts_with("midlayer.")) layer = {0, name.substr(9)};
  if (layer) {
    const auto [l, rest] = *layer;
    // In a layer of Qwen's form this is the norm before the FFN; in one of Gemma's, the one after attention.
    if (rest == "post_attention_layernorm.weight")
      return fmt::format("blk.{}.{}", l, gemma_layers ? "post_attention_norm.weight" : "ffn_norm.weight");
    return fmt::format("blk.{}.{}", l, lookup(kLayerNames, rest));
  }
  if (const auto gguf = split_layer(name, "blk."); gguf && gguf->second.find("_conv_") != std::string_view::npos)
    return fmt::format("blk.{}.{}", gguf->first, lookup(kLayerNames, gguf->second));
  return std::string(lookup(kind == DrafterKind::kMtp ? Names(kMtpNames) : Names(kDflashNames), name));
}

std::optional<DrafterFamily> drafter_family(std::string_view arch) {
  const std::string wrong_target = "it belongs to a target of another family";
  if (arch == "dflash" || arch == "dflash-draft" || arch == "gemma4-dflash-draft" || arch == "DFlashDraftModel")
    return DrafterFamily{DrafterKind::kDflash, ""};
  if (arch == "qwen35-dflash-draft") return DrafterFamily{DrafterKind::kDflash, wrong_target};
  if (arch == "dspark" || arch == "Gemma4DSparkModel" || arch == "Gemma4DFlashModel" || arch == "DSparkDraftModel")
    return DrafterFamily{DrafterKind::kDflash, ""};
  if (arch.find("DSpark") != arch.npos) return DrafterFamily{DrafterKind::kDflash, wrong_target};
  if (arch == "dflash2" || arch == "DFlash2DraftModel") return DrafterFamily{DrafterKind::kDflash, ""};
  if (arch == "eagle3" || arch == "Eagle3DraftModel" || arch == "Eagle3Speculator" || arch == "LlamaForCausalLMEagle3")
    return DrafterFamily{DrafterKind::kEagle3, arch == "LlamaForCausalLMEagle3"
                                                   ? "facet reads EAGLE-3 drafters of speculators, and as GGUF"
                                                   : ""};
  if (arch == "Gemma4Eagle3Model")
    return DrafterFamily{DrafterKind::kEagle3, "facet does not have EAGLE-3 with layers of Gemma's form"};
  if (arch == "gemma4-assistant" || arch == "gemma4_assistant" || arch == "gemma4_mtp" || arch == "gemma4-mtp" ||
      arch == "Gemma4AssistantForCausalLM" || arch == "Gemma4UnifiedAssistantForCausalLM")
    return DrafterFamily{DrafterKind::kMtp, ""};
  return std::nullopt;
}

}  // namespace facet
