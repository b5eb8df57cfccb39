#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/drafter_dialects.h"

namespace facet {
namespace {

using nlohmann::json;

// Counting from 0 or 1 cannot overflow below it; whether a target has the layer is checked later.
constexpr int64_t kMaxTap = 1 << 20;

// Reads values and remembers the first that has the wrong type, so that a list of reads needs one test at its end.
class GgufMeta {
 public:
  GgufMeta(const GgufFile& f, std::string prefix) : f_(f), prefix_(std::move(prefix) + ".") {}
  std::optional<int64_t> integer(const std::string& key) {
    return read(full(key), [&](const std::string& k) { return f_.get_int(k); });
  }
  std::optional<double> real(const std::string& key) {
    return read(full(key), [&](const std::string& k) { return f_.get_float(k); });
  }
  std::optional<bool> boolean(const std::string& key) {
    return read(full(key), [&](const std::string& k) { return f_.get_bool(k); });
  }
  std::optional<std::string> string(const std::string& key) {
    return read(full(key), [&](const std::string& k) { return f_.get_string(k); });
  }
  std::vector<int64_t> integers(const std::string& key) {
    return read(full(key), [&](const std::string& k) { return f_.get_ints(k, 0); }).value_or(std::vector<int64_t>{});
  }
  std::vector<bool> bools(const std::string& key) {
    return read(full(key), [&](const std::string& k) { return f_.get_bools(k, 0); }).value_or(std::vector<bool>{});
  }
  // Either of two keys: dialects moved some.
  std::optional<int64_t> integer(const std::string& key, const std::string& other) {
    auto v = integer(key);
    return v ? v : integer(other);
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::string full(const std::string& key) const {
    return key.starts_with("tokenizer.") || key.starts_with("general.") || key.starts_with("facet.") ? key
                                                                                                     : prefix_ + key;
  }
  template <class F>
  auto read(const std::string& key, F&& get) -> std::optional<std::remove_cvref_t<decltype(*get(key))>> {
    if (!f_.find_meta(key)) return std::nullopt;
    auto v = get(key);
    if (v) return *v;
    if (!error_) error_ = v.error();
    return std::nullopt;
  }
  const GgufFile& f_;
  std::string prefix_;
  std::optional<Error> error_;
};

// As GgufMeta, for an object of a config.json.
class JsonMeta {
 public:
  JsonMeta(const json& j, std::string where) : j_(&j), where_(std::move(where)) {}
  const json* find(const char* key) const {
    const auto at = j_->is_object() ? j_->find(key) : j_->end();
    return at == j_->end() || at->is_null() ? nullptr : &*at;
  }
  std::optional<int64_t> integer(const char* key) {
    return read<int64_t>(key, "an integer", [](const json& v) {
      return v.is_number_integer() && !(v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX);
    });
  }
  std::optional<double> real(const char* key) {
    return read<double>(key, "a number", [](const json& v) { return v.is_number(); });
  }
  std::optional<bool> boolean(const char* key) {
    return read<bool>(key, "true or false", [](const json& v) { return v.is_boolean(); });
  }
  std::optional<std::string> string(const char* key) {
    return read<std::string>(key, "a string", [](const json& v) { return v.is_string(); });
  }
  std::vector<int64_t> integers(const char* key) {
    std::vector<int64_t> out;
    if (const json* v = list(key))
      for (const json& x : *v) {
        if (!x.is_number_integer()) return fail(key, "a list of integers"), std::vector<int64_t>{};
        out.push_back(x.get<int64_t>());
      }
    return out;
  }
  std::vector<std::string> strings(const char* key) {
    std::vector<std::string> out;
    if (const json* v = list(key))
      for (const json& x : *v) {
        if (!x.is_string()) return fail(key, "a list of strings"), std::vector<std::string>{};
        out.push_back(x.get<std::string>());
      }
    return out;
  }
  // An object inside, empty when absent.
  JsonMeta at(const char* key) {
    static const json none = json::object();
    const json* v = find(key);
    if (v && !v->is_object()) fail(key, "an object"), v = nullptr;
    JsonMeta m(v ? *v : none, where_);
    m.error_ = error_;
    return m;
  }
  void fail(const char* key, const char* expected) {
    if (!error_)
      error_ = Error{where_, fmt::format("{}: expected {}", key, expected),
                     "the configuration does not belong to these weights; download it again"};
  }
  void fail(const Error& e) {
    if (!error_) error_ = e;
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  const json* list(const char* key) {
    const json* v = find(key);
    if (v && (!v->is_array() || v->size() > 4096)) fail(key, "a list of at most 4096"), v = nullptr;
    return v;
  }
  template <class T, class F>
  std::optional<T> read(const char* key, const char* expected, F&& good) {
    const json* v = find(key);
    if (!v) return std::nullopt;
    if (!good(*v)) return fail(key, expected), std::nullopt;
    return v->get<T>();
  }
  const json* j_;
  std::string where_;
  std::optional<Error> error_;
};

// The first key that declares another head than those which facet has; empty if none does. 0 and false mean that there
// is none.
std::string other_head(const GgufFile& f, const std::string& arch) {
  for (const auto& [key, v] : f.meta()) {
    if (key.find(".dspark.") == key.npos && key.find(".domino.") == key.npos &&
        (arch == "dflash" || (!key.ends_with(".markov_rank") && !key.ends_with(".sample_from_anchor"))))
      continue;
    const auto* i = std::get_if<int64_t>(&v.v);
    const auto* b = std::get_if<bool>(&v.v);
    if (!(i && *i == 0) && !(b && !*b)) return key;
  }
  return "";
}

// No key of a GGUF names the trainer, but what only one of them makes tells.
DrafterTrainer trainer_of(const GgufFile& f) {
  DrafterTrainer t = DrafterTrainer::kAuthors;
  for (const TensorView& v : f.tensors()) {
    if (v.name.ends_with(".post_ffw_norm.weight")) return DrafterTrainer::kDeepSpec;  // Gemma's layers
    if (v.name == "d2t" || v.name == "markov_w1.weight") t = DrafterTrainer::kSpeculators;
  }
  return t;
}

}  // namespace

Result<DrafterMeta> drafter_meta(const GgufFile& f, const std::string& arch, DrafterKind kind) {
  GgufMeta g(f, arch);
  DrafterMeta m;
  m.n_layer = g.integer("block_count"), m.d_model = g.integer("embedding_length");
  m.window = g.integer("attention.sliding_window");
  m.sliding = g.bools("attention.sliding_window_pattern");
  m.eps = g.real("attention.layer_norm_rms_epsilon");
  m.theta = g.real("rope.freq_base"), m.theta_swa = g.real("rope.freq_base_swa");
  if (auto s = g.string("rope.scaling.type"); s && *s != "none") m.rope_scaling = s;
  if (kind == DrafterKind::kMtp) {
    m.n_head = g.integer("attention.head_count"), m.d_ff = g.integer("feed_forward_length");
    m.d_target = g.integer("embedding_length_out", "n_embd_backbone");
    if (!m.d_target) m.d_target = g.integer("backbone_embedding_length");
    m.top_k = g.integer("centroid_top_k");
    m.clustered = g.boolean("use_ordered_embeddings");
    m.kv_heads = g.integers("attention.head_count_kv");
    m.softcap = g.real("final_logit_softcapping");
    if (g.error()) return *g.error();
    return m;
  }
  if (kind == DrafterKind::kEagle3) {
    m.n_head = g.integer("attention.head_count"), m.d_ff = g.integer("feed_forward_length");
    m.head_dim = g.integer("attention.key_length");
    m.d_target = g.integer("target_hidden_size");
    m.taps = g.integers("target_layers");
    if (m.taps.empty()) m.taps = g.integers("extract_layers");
    for (int64_t& t : m.taps) t = std::clamp<int64_t>(t, 0, kMaxTap) - 1;
    m.norm_before_residual = g.boolean("norm_before_residual").value_or(false);
    m.trainer = DrafterTrainer::kSpeculators;
    if (g.error()) return *g.error();
    return m;
  }
  m.other_head = other_head(f, arch);
  m.trainer = trainer_of(f);
  m.exact_counts = arch != "gemma4-dflash-draft";
  if (m.exact_counts) m.n_head = g.integer("attention.head_count"), m.d_ff = g.integer("feed_forward_length");
  m.softcap = g.real("final_logit_softcapping");
  m.embed_scale = g.real("embedding_scale");
  m.block = g.integer("dflash.block_size", "block_size");
  m.mask_id = g.integer("dflash.mask_token_id", "mask_token_id");
  const auto known_mask = g.integer("tokenizer.ggml.mask_token_id");
  if (!m.mask_id) m.mask_id = known_mask;
  m.causal = g.boolean("facet.dflash.is_causal");
  m.sliding_non_causal = g.boolean("facet.dflash.sliding_window_non_causal");
  m.sample_from_anchor = g.boolean("sample_from_anchor");
  m.markov_rank = g.integer("markov_rank");
  m.conv_taps = g.integer("conv_kernel_size"), m.conv_group = g.integer("conv_group_size");
  m.selector_rank = g.integer("selector_rank"), m.selector_top_k = g.integer("selector_top_k");
  if (auto scale = g.real("logit_scale"); scale && *scale != 1) m.other_head = fmt::format("logit_scale {}", *scale);
  m.taps = g.integers("dflash.target_layer_ids");
  m.target_depth =
      arch == "gemma4-dflash-draft" ? g.integer("dflash.n_target_layers") : g.integer("facet.dflash.target_depth");
  if (arch == "dflash") {  // numbers the layer whose input is captured
    m.taps = g.integers("target_layers");
    for (int64_t& t : m.taps) t = std::clamp<int64_t>(t, 0, kMaxTap) - 1;
  }
  if (arch == "gemma4-dflash-draft" && m.sliding.empty() && m.n_layer == 5) {  // all published files of the dialect
    m.sliding = {true, true, true, true, false};
    if (!m.window) m.window = 2048;
  }
  for (int64_t& t : m.taps) t = std::clamp<int64_t>(t, -1, kMaxTap);
  if (g.error()) return *g.error();
  return m;
}

namespace {

// DeepSeek's trainer: the target's own layers, and keys of its text model.
bool is_deep_spec(const json& root) {
  const auto a = root.find("architectures");
  return a != root.end() && a->is_array() && !a->empty() && a->front().is_string() &&
         a->front().get<std::string>().starts_with("Gemma4D");
}

// RoPE of Gemma's layers, by their kind.
void read_gemma_rope(JsonMeta& rope, DrafterMeta& m) {
  JsonMeta full = rope.at("full_attention"), swa = rope.at("sliding_attention");
  m.theta = full.real("rope_theta"), m.theta_swa = swa.real("rope_theta");
  m.partial = full.real("partial_rotary_factor");
  if (auto s = full.string("rope_type"); s && *s != "proportional" && *s != "default")
    m.rope_scaling = *s + " on full layers";
  if (auto s = swa.string("rope_type"); s && *s != "default") m.rope_scaling = *s + " on sliding layers";
  for (const JsonMeta* j : {&full, &swa})
    if (j->error()) rope.fail(*j->error());
}

// RoPE of Qwen's layers: all pairs, one base.
void read_rope(JsonMeta& c, JsonMeta& rope, JsonMeta& scaling, DrafterMeta& m) {
  m.theta = c.find("rope_theta") ? c.real("rope_theta") : rope.real("rope_theta");
  for (JsonMeta* r : {&rope, &scaling})
    for (const char* key : {"rope_type", "type"})
      if (auto s = r->string(key); s && *s != "default") m.rope_scaling = s;
  for (JsonMeta* r : {&c, &rope})
    if (auto part = r->real("partial_rotary_factor"); part && *part != 1)
      m.rope_scaling = fmt::format("partial_rotary_factor {}", *part);
}

// The heads behind the layers that DSpark has.
void read_heads(JsonMeta& top, DrafterMeta& m) {
  m.markov_rank = top.integer("markov_rank");
  if (auto kind = top.string("markov_head_type"); kind && *kind != "vanilla" && m.markov_rank.value_or(0) > 0)
    m.other_head = fmt::format("markov_head_type {}", *kind);
  if (top.boolean("enable_confidence_head").value_or(false) &&
      !top.boolean("confidence_head_with_markov").value_or(true))
    m.other_head = "confidence_head_with_markov false";
  m.sample_from_anchor = top.boolean("sample_from_anchor");
  m.sliding_non_causal = top.boolean("sliding_window_non_causal");
}

// The drafts of a block that the file's first proposal method names.
std::optional<int64_t> speculative_tokens(JsonMeta& top) {
  JsonMeta spec = top.at("speculators_config");
  const json* methods = spec.find("proposal_methods");
  if (!methods || !methods->is_array() || methods->empty() || !methods->front().is_object()) return std::nullopt;
  JsonMeta first(methods->front(), "");
  return first.integer("speculative_tokens");
}

Result<DrafterMeta> dflash_meta_of(const json& root, const std::string& where) {
  JsonMeta top(root, where);
  const bool speculators = top.find("speculators_model_type") != nullptr,
             deep_spec = !speculators && is_deep_spec(root);
  JsonMeta c = speculators ? top.at("transformer_layer_config") : top;
  JsonMeta d = top.at("dflash_config"), rope = c.at("rope_parameters"), scaling = c.at("rope_scaling");
  DrafterMeta m;
  m.n_layer = c.integer("num_hidden_layers"), m.d_model = c.integer("hidden_size"),
  m.n_head = c.integer("num_attention_heads");
  m.d_ff = c.integer("intermediate_size"), m.n_vocab = c.integer("vocab_size");
  m.eps = c.real("rms_norm_eps");
  m.trainer = speculators ? DrafterTrainer::kSpeculators
              : deep_spec ? DrafterTrainer::kDeepSpec
                          : DrafterTrainer::kAuthors;
  if (deep_spec)
    read_gemma_rope(rope, m);
  else
    read_rope(c, rope, scaling, m);
  const char* act_key = deep_spec ? "hidden_activation" : "hidden_act";
  const char* act_known = deep_spec ? "gelu_pytorch_tanh" : "silu";
  if (auto act = c.string(act_key); act && *act != act_known) c.fail(act_key, act_known);
  read_heads(top, m);
  for (const auto& [to, key] : {std::pair{&m.conv_taps, "conv_kernel_size"},
                                {&m.conv_group, "conv_group_size"},
                                {&m.selector_rank, "selector_rank"},
                                {&m.selector_top_k, "selector_top_k"}})
    *to = d.find(key) ? d.integer(key) : top.integer(key);
  m.n_speculative = speculative_tokens(top);
  m.softcap =
      top.find("final_logit_softcapping") ? top.real("final_logit_softcapping") : d.real("final_logit_softcapping");
  m.embed_scale =
      top.find("input_embedding_scale") ? top.real("input_embedding_scale") : d.real("input_embedding_scale");
  m.block = top.find("block_size") ? top.integer("block_size") : d.integer("block_size");
  m.mask_id = d.find("mask_token_id") ? d.integer("mask_token_id") : top.integer("mask_token_id");
  m.taps = d.find("target_layer_ids") ? d.integers("target_layer_ids") : top.integers("target_layer_ids");
  if (speculators) {  // numbers hidden states, of which the first is the embedding
    m.taps = top.integers("aux_hidden_state_layer_ids");
    for (int64_t& t : m.taps) t = std::clamp<int64_t>(t, 0, kMaxTap) - 1;
  }
  for (int64_t& t : m.taps) t = std::clamp<int64_t>(t, -1, kMaxTap);
  m.target_depth = top.integer("num_target_layers");
  m.causal = top.find("is_causal") ? top.boolean("is_causal") : d.boolean("causal");
  m.window = d.find("swa_window_size") ? d.integer("swa_window_size") : c.integer("sliding_window");
  for (const std::string& t : c.strings("layer_types")) {
    if (t != "sliding_attention" && t != "full_attention") c.fail("layer_types", "sliding_attention or full_attention");
    m.sliding.push_back(t == "sliding_attention");
  }
  if (d.boolean("use_swa").value_or(false))
    m.sliding.assign(size_t(std::clamp<int64_t>(m.n_layer.value_or(0), 0, 64)), true);
  for (const JsonMeta* j : {&top, &c, &d, &rope, &scaling})
    if (j->error()) return *j->error();
  return m;
}

Result<DrafterMeta> eagle3_meta_of(const json& root, const std::string& where) {
  JsonMeta top(root, where);
  JsonMeta c = top.at("transformer_layer_config"), rope = c.at("rope_parameters"), scaling = c.at("rope_scaling");
  DrafterMeta m;
  m.trainer = DrafterTrainer::kSpeculators;
  m.n_layer = c.integer("num_hidden_layers"), m.d_model = c.integer("hidden_size");
  m.n_head = c.integer("num_attention_heads"), m.d_ff = c.integer("intermediate_size");
  m.head_dim = c.integer("head_dim"), m.n_vocab = c.integer("vocab_size");
  m.d_target = top.integer("target_hidden_size");
  m.eps = c.real("rms_norm_eps");
  read_rope(c, rope, scaling, m);
  if (auto act = c.string("hidden_act"); act && *act != "silu") c.fail("hidden_act", "silu");
  for (const std::string& t : c.strings("layer_types"))
    if (t != "full_attention") c.fail("layer_types", "full_attention");
  m.taps = top.integers("eagle_aux_hidden_state_layer_ids");
  for (int64_t& t : m.taps) t = std::clamp<int64_t>(t, 0, kMaxTap) - 1;  // numbers hidden states
  m.n_speculative = speculative_tokens(top);
  for (const auto& [to, key] : {std::pair{&m.norm_before_residual, "norm_before_residual"},
                                {&m.norm_before_fc, "norm_before_fc"},
                                {&m.fc_norm, "fc_norm"},
                                {&m.norm_output, "norm_output"},
                                {&m.own_embedding, "embed_requires_grad"}})
    *to = top.boolean(key).value_or(false);
  for (const JsonMeta* j : {&top, &c, &rope, &scaling})
    if (j->error()) return *j->error();
  return m;
}

Result<DrafterMeta> mtp_meta_of(const json& root, const std::string& where) {
  JsonMeta top(root, where);
  JsonMeta c = top.at("text_config"), rope = c.at("rope_parameters");
  JsonMeta full = rope.at("full_attention"), swa = rope.at("sliding_attention");
  DrafterMeta m;
  m.n_layer = c.integer("num_hidden_layers"), m.d_model = c.integer("hidden_size"),
  m.n_head = c.integer("num_attention_heads");
  m.d_ff = c.integer("intermediate_size"), m.n_vocab = c.integer("vocab_size");
  m.window = c.integer("sliding_window");
  m.eps = c.real("rms_norm_eps");
  m.theta = full.real("rope_theta"), m.theta_swa = swa.real("rope_theta");
  if (auto s = full.string("rope_type"); s && *s != "proportional") m.rope_scaling = *s + " on full layers";
  if (auto s = swa.string("rope_type"); s && *s != "default") m.rope_scaling = *s + " on sliding layers";
  if (auto part = full.real("partial_rotary_factor"); part && *part != .25)
    m.rope_scaling = fmt::format("partial_rotary_factor {}", *part);
  m.softcap = c.real("final_logit_softcapping");
  m.d_target = top.integer("backbone_hidden_size");
  m.clustered = top.boolean("use_ordered_embeddings");
  m.top_k = top.integer("centroid_intermediate_top_k");
  const auto kv = c.integer("num_key_value_heads"), kv_full = c.integer("num_global_key_value_heads");
  for (const std::string& t : c.strings("layer_types")) {
    if (t != "sliding_attention" && t != "full_attention") c.fail("layer_types", "sliding_attention or full_attention");
    m.sliding.push_back(t == "sliding_attention");
    m.kv_heads.push_back(m.sliding.back() ? kv.value_or(0) : kv_full.value_or(0));
    // Newer files say what differs from layer to layer in an object of its own.
    JsonMeta layer = c.at("per_layer_config").at(std::to_string(m.kv_heads.size() - 1).c_str());
    if (auto n = layer.integer("num_key_value_heads")) m.kv_heads.back() = *n;
    if (layer.error()) return *layer.error();
  }
  for (const JsonMeta* j : {&top, &c, &rope, &full, &swa})
    if (j->error()) return *j->error();
  return m;
}

}  // namespace

Result<DrafterMeta> drafter_meta(const json& config, const std::string& where, DrafterKind kind) {
  return kind == DrafterKind::kDflash   ? dflash_meta_of(config, where)
         : kind == DrafterKind::kEagle3 ? eagle3_meta_of(config, where)
                                        : mtp_meta_of(config, where);
}

}  // namespace facet
