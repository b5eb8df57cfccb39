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
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.attention_sink_bias", "attn_sinks"},
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

std::string common_name(std::string_view name, DrafterKind kind) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  auto layer = split_layer(name, "layers.");
  if (!layer && name.starts_with("midlayer.")) layer = {0, name.substr(9)};
  if (layer) {
    const auto [l, rest] = *layer;
    // In a DFlash drafter this is the norm before the FFN; in an assistant, the one after attention.
    if (rest == "post_attention_layernorm.weight")
      return fmt::format("blk.{}.{}", l,
                         kind == DrafterKind::kDflash ? "ffn_norm.weight" : "post_attention_norm.weight");
    return fmt::format("blk.{}.{}", l, lookup(kLayerNames, rest));
  }
  return std::string(lookup(kind == DrafterKind::kDflash ? Names(kDflashNames) : Names(kMtpNames), name));
}

std::optional<DrafterFamily> drafter_family(std::string_view arch) {
  const std::string wrong_target = "it belongs to a Qwen target";
  if (arch == "dflash" || arch == "dflash-draft" || arch == "gemma4-dflash-draft" || arch == "DFlashDraftModel")
    return DrafterFamily{DrafterKind::kDflash, ""};
  if (arch == "qwen35-dflash-draft") return DrafterFamily{DrafterKind::kDflash, wrong_target};
  if (arch == "dspark" || arch.find("DSpark") != arch.npos)
    return DrafterFamily{DrafterKind::kDflash,
                         "DSpark drafters sample from the anchor through a Markov head, which facet does not have"};
  if (arch == "DFlash2DraftModel")
    return DrafterFamily{DrafterKind::kDflash,
                         "DFlash2 drafters have convolutions and a candidate selector, which facet does not have"};
  if (arch == "gemma4-assistant" || arch == "gemma4_assistant" || arch == "gemma4_mtp" || arch == "gemma4-mtp" ||
      arch == "Gemma4AssistantForCausalLM" || arch == "Gemma4UnifiedAssistantForCausalLM")
    return DrafterFamily{DrafterKind::kMtp, ""};
  return std::nullopt;
}

}  // namespace facet
