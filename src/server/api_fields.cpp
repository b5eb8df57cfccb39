#include "server/api_fields.h"

namespace facet {
namespace {

struct Refused {
  const char *name, *neutral;
};
// docs/server.md has the same table.
constexpr Refused kRefused[] = {
    // what is not there at all
    {"functions", ""},
    {"function_call", ""},
    {"audio", ""},
    {"image_data", ""},
    {"multimodal_data", ""},
    {"documents", ""},
    {"web_search_options", ""},
    {"chat_template", ""},
    {"lora", "[]"},
    {"input_prefix", ""},
    {"input_suffix", ""},
    {"input_extra", "[]"},
    // what constrains the text
    {"bad_words", "[]"},
    {"allowed_token_ids", ""},
    {"include_stop_str_in_output", "false"},
    {"skip_special_tokens", "true"},
    {"n_indent", "0"},
    {"t_max_predict_ms", "0"},
    {"thinking_budget", "-1"},
    {"thinking_budget_tokens", "-1"},
    {"reasoning_budget", "-1"},
    {"reasoning_budget_tokens", "-1"},
    {"truncate_prompt_tokens", ""},
    // what is told about it
    {"n_probs", "0"},
    {"post_sampling_probs", "false"},
    {"prompt_logprobs", "0"},
    {"n_cmpl", "1"},
    // how tokens are drawn
    {"samplers", ""},
    {"typical_p", "1"},
    {"top_n_sigma", "-1"},
    {"tfs_z", "1"},
    {"top_a", "0"},
    {"mirostat", "0"},
    {"dynatemp_range", "0"},
    {"adaptive_target", "-1"},
    {"length_penalty", "1"},
    {"use_beam_search", "false"},
};

}  // namespace

const char* refused_field(std::string_view name) {
  for (const Refused& r : kRefused)
    if (name == r.name) return r.neutral;
  return nullptr;
}

std::vector<std::string_view> refused_fields() {
  std::vector<std::string_view> names;
  for (const Refused& r : kRefused) names.emplace_back(r.name);
  return names;
}

}  // namespace facet
