#include "model/drafter_rules.h"

#include <fmt/format.h>

namespace facet {
namespace {

constexpr const char* kSpeculatorsSays = "trained by speculators";

Ruled<std::optional<double>> embed_scale_rule(const DrafterMeta& m) {
  if (m.asked_embed_scale) return {m.asked_embed_scale, "--draft-embedding-scale"};
  if (m.embed_scale) return {m.embed_scale, "the file's own key"};
  // Its models look tokens up in a plain table of the verifier's rows.
  if (m.trainer == DrafterTrainer::kSpeculators) return {1.0, kSpeculatorsSays};
  return {std::nullopt, m.trainer == DrafterTrainer::kDeepSpec ? "trained by DeepSpec" : "nothing says otherwise"};
}

Ruled<std::optional<double>> softcap_rule(const DrafterMeta& m) {
  if (m.softcap) return {m.softcap, "the file's own key"};
  if (m.trainer == DrafterTrainer::kSpeculators) return {0.0, kSpeculatorsSays};
  return {std::nullopt, "nothing says otherwise"};
}

Result<Ruled<bool>> anchor_rule(const DrafterFile& f) {
  const DrafterMeta& m = f.meta();
  std::optional<bool> by_count;
  if (m.block && m.n_speculative && *m.block - *m.n_speculative >= 0 && *m.block - *m.n_speculative <= 1)
    by_count = *m.block == *m.n_speculative;
  if (by_count && m.sample_from_anchor && *by_count != *m.sample_from_anchor)
    return Error{f.path(),
                 fmt::format("sample_from_anchor: expected {}, as a block of {} with {} drafts has, found {}",
                             *by_count, *m.block, *m.n_speculative, *m.sample_from_anchor),
                 "one of the two keys is wrong; download or convert the drafter again"};
  if (by_count) return Ruled<bool>{*by_count, fmt::format("{} drafts from a block of {}", *m.n_speculative, *m.block)};
  if (m.sample_from_anchor) return Ruled<bool>{*m.sample_from_anchor, "sample_from_anchor"};
  if (m.trainer == DrafterTrainer::kDeepSpec) return Ruled<bool>{true, "trained by DeepSpec"};
  if (f.dialect().starts_with("GGUF") && f.find("markov_w1.weight"))
    return Ruled<bool>{true, "a GGUF with a Markov head"};
  return Ruled<bool>{false, m.trainer == DrafterTrainer::kSpeculators ? kSpeculatorsSays : "nothing says otherwise"};
}

Ruled<bool> sliding_rule(const DrafterMeta& m) {
  if (m.causal) return {*m.causal, "is_causal"};
  if (m.sliding_non_causal) return {!*m.sliding_non_causal, "sliding_window_non_causal"};
  if (m.trainer == DrafterTrainer::kDeepSpec) return {false, "trained by DeepSpec"};
  if (m.selector_rank) return {false, "DFlash 2"};
  // Making them bidirectional costs published drafters 6 % of their accepted length.
  return {true, "nothing says otherwise"};
}

const char* family_text(const DrafterFile& f) {
  if (f.kind() == DrafterKind::kMtp) return "MTP";
  if (f.kind() == DrafterKind::kEagle3) return "EAGLE-3";
  return f.find("markov_w1.weight") ? "DSpark" : f.find("selector_hidden.weight") ? "DFlash 2" : "DFlash";
}

}  // namespace

Result<BlockRules> block_rules(const DrafterFile& f) {
  auto anchor = anchor_rule(f);
  if (!anchor) return anchor.error();
  return BlockRules{.embed_scale = embed_scale_rule(f.meta()),
                    .softcap = softcap_rule(f.meta()),
                    .from_anchor = std::move(*anchor),
                    .sliding_causal = sliding_rule(f.meta())};
}

std::vector<std::string> describe_drafter(const DrafterFile& f) {
  const DrafterMeta& m = f.meta();
  std::vector<std::string> lines{fmt::format("drafter: {} ({})", family_text(f), f.dialect())};
  if (f.kind() != DrafterKind::kDflash) return lines;
  auto rules = block_rules(f);
  if (!rules) return lines.push_back(rules.error().message()), lines;
  const auto& [scale, softcap, anchor, causal] = *rules;
  const int64_t block = m.block.value_or(0);
  lines.push_back(fmt::format("drafts: {} from a block of {}: slot i is about the token {} ({})",
                              anchor.value ? block : block - 1, block,
                              anchor.value ? "behind its position" : "at its position", anchor.why));
  lines.push_back(fmt::format("embedding scale: {} ({}); --draft-embedding-scale overrules it",
                              scale.value ? fmt::format("{:g}", *scale.value) : "the model's", scale.why));
  lines.push_back(fmt::format("softcap of its head: {} ({})",
                              !softcap.value       ? "the model's"
                              : *softcap.value > 0 ? fmt::format("{:g}", *softcap.value)
                                                   : "none",
                              softcap.why));
  bool sliding = m.causal.has_value();
  for (const bool s : m.sliding) sliding |= s;
  if (sliding)
    lines.push_back(
        fmt::format("sliding layers: {} inside the block ({})", causal.value ? "causal" : "bidirectional", causal.why));
  if (f.find("markov_w1.weight"))
    lines.push_back(fmt::format("Markov head of rank {}{}", f.find("markov_w1.weight")->ne[0],
                                f.find("conf_proj.weight") ? ", with a confidence head" : ""));
  return lines;
}

}  // namespace facet
