// Dialects of drafter files: which names and keys mean what. Everything here comes from strangers; numbers are only
// read, their ranges are checked where they are used (dflash_config.cpp, mtp_config.cpp).
#include "model/drafter_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "formats/format_error.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace facet {

const char* drafter_kind_name(DrafterKind k) { return k == DrafterKind::kDflash ? "dflash" : "mtp"; }

const TensorView* DrafterFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

Result<int> count_blocks(const DrafterFile& f) {
  constexpr int kMax = 64;
  int n = 0;
  while (n <= kMax && f.find(fmt::format("blk.{}.attn_q.weight", n))) ++n;
  if (n == 0 || n > kMax)
    return Error{
        f.path(),
        fmt::format("blk.N.attn_q.weight: expected 1 to {} layers, found {}", kMax, n > kMax ? "more" : "none"),
        "the file is incomplete or no drafter; download or convert it again"};
  if (f.meta().n_layer && *f.meta().n_layer != n && f.meta().exact_counts)
    return Error{
        f.path(),
        fmt::format("number of layers: expected {}, as the metadata says, found tensors of {}", *f.meta().n_layer, n),
        "the file is incomplete; download or convert it again"};
  return n;
}

namespace {

namespace fs = std::filesystem;
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

// "layers.3.rest" or "blk.3.rest" -> 3 and rest.
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

struct Family {
  DrafterKind kind;
  std::string refuse;  // why not, if facet cannot run it
};

// By general.architecture, or a class name of config.json; empty for anything that is no drafter.
std::optional<Family> family_of(std::string_view arch) {
  const std::string wrong_target = "it belongs to a Qwen target";
  if (arch == "dflash" || arch == "dflash-draft" || arch == "gemma4-dflash-draft" || arch == "DFlashDraftModel")
    return Family{DrafterKind::kDflash, ""};
  if (arch == "qwen35-dflash-draft") return Family{DrafterKind::kDflash, wrong_target};
  if (arch == "dspark" || arch.find("DSpark") != arch.npos)
    return Family{DrafterKind::kDflash,
                  "DSpark drafters sample from the anchor through a Markov head, which facet does not have"};
  if (arch == "DFlash2DraftModel")
    return Family{DrafterKind::kDflash,
                  "DFlash2 drafters have convolutions and a candidate selector, which facet does not have"};
  if (arch == "gemma4-assistant" || arch == "gemma4_assistant" || arch == "gemma4_mtp" || arch == "gemma4-mtp" ||
      arch == "Gemma4AssistantForCausalLM" || arch == "Gemma4UnifiedAssistantForCausalLM")
    return Family{DrafterKind::kMtp, ""};
  return std::nullopt;
}
constexpr int64_t kMaxTap =
    1 << 20;  // so that counting from 0 or 1 cannot overflow; whether a target has the layer is checked later
constexpr const char* kKnown =
    "known drafters: GGUF dflash, dflash-draft, gemma4-dflash-draft, gemma4-assistant, gemma4_assistant, gemma4_mtp; "
    "safetensors with a config.json of DFlashDraftModel, "
    "Gemma4AssistantForCausalLM or speculators";

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

// The first key that declares a DSpark or Domino head beside a DFlash backbone; empty if none does. 0 and false mean
// that there is none.
std::string other_head(const GgufFile& f) {
  for (const auto& [key, v] : f.meta()) {
    if (key.find(".dspark.") == key.npos && key.find(".domino.") == key.npos && !key.ends_with(".markov_rank") &&
        !key.ends_with(".sample_from_anchor"))
      continue;
    const auto* i = std::get_if<int64_t>(&v.v);
    const auto* b = std::get_if<bool>(&v.v);
    if (!(i && *i == 0) && !(b && !*b)) return key;
  }
  return "";
}

Result<DrafterMeta> meta_of(const GgufFile& f, const std::string& arch, DrafterKind kind) {
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
  m.other_head = other_head(f);
  m.exact_counts = arch != "gemma4-dflash-draft";
  if (m.exact_counts) m.n_head = g.integer("attention.head_count"), m.d_ff = g.integer("feed_forward_length");
  m.softcap = g.real("final_logit_softcapping");
  m.embed_scale = g.real("embedding_scale");
  m.block = g.integer("dflash.block_size", "block_size");
  m.mask_id = g.integer("dflash.mask_token_id", "mask_token_id");
  const auto known_mask = g.integer("tokenizer.ggml.mask_token_id");
  if (!m.mask_id) m.mask_id = known_mask;
  m.causal = g.boolean("facet.dflash.is_causal");
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

Result<DrafterMeta> dflash_meta_of(const json& root, const std::string& where) {
  JsonMeta top(root, where);
  const bool speculators = top.find("speculators_model_type") != nullptr;
  JsonMeta c = speculators ? top.at("transformer_layer_config") : top;
  JsonMeta d = top.at("dflash_config"), rope = c.at("rope_parameters"), scaling = c.at("rope_scaling");
  DrafterMeta m;
  m.n_layer = c.integer("num_hidden_layers"), m.d_model = c.integer("hidden_size"),
  m.n_head = c.integer("num_attention_heads");
  m.d_ff = c.integer("intermediate_size"), m.n_vocab = c.integer("vocab_size");
  m.eps = c.real("rms_norm_eps");
  m.theta = c.find("rope_theta") ? c.real("rope_theta") : rope.real("rope_theta");
  for (JsonMeta* r : {&rope, &scaling})
    for (const char* key : {"rope_type", "type"})
      if (auto s = r->string(key); s && *s != "default") m.rope_scaling = s;
  for (JsonMeta* r : {&c, &rope})
    if (auto part = r->real("partial_rotary_factor"); part && *part != 1)
      m.rope_scaling = fmt::format("partial_rotary_factor {}", *part);
  if (auto act = c.string("hidden_act"); act && *act != "silu") c.fail("hidden_act", "silu");
  m.softcap =
      top.find("final_logit_softcapping") ? top.real("final_logit_softcapping") : d.real("final_logit_softcapping");
  m.embed_scale = d.real("input_embedding_scale");
  m.block = top.find("block_size") ? top.integer("block_size") : d.integer("block_size");
  m.mask_id = d.find("mask_token_id") ? d.integer("mask_token_id") : top.integer("mask_token_id");
  m.taps = d.integers("target_layer_ids");
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

Result<json> read_config(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(path, ec))
    return Error{path, "expected the configuration of the drafter, found no such file",
                 "keep config.json beside the .safetensors file"};
  const auto text = read_file(path, 1 << 20);
  if (!text) return text.error();
  json j = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!j.is_object()) return Error{path, "expected a JSON object, found something else", "download it again"};
  return j;
}

}  // namespace

class DrafterReader {
 public:
  static Result<DrafterFile> gguf(const std::string& path) {
    auto opened = GgufFile::open(path);
    if (!opened) return opened.error();
    auto file = std::make_shared<GgufFile>(std::move(*opened));
    auto arch = file->get_string("general.architecture");
    if (!arch) return arch.error();
    const auto family = family_of(*arch);
    if (!family)
      return Error{path, fmt::format("general.architecture: expected a drafter, found {}", printable(*arch)),
                   *arch == "gemma4" ? "this is a target: give it with -m" : kKnown};
    DrafterFile d;
    d.kind_ = family->kind;
    d.path_ = path;
    d.dialect_ = "GGUF " + *arch;
    if (!family->refuse.empty())
      return Error{path, fmt::format("expected a drafter for Gemma 4 that facet can run, found {}", d.dialect_),
                   family->refuse};
    auto meta = meta_of(*file, *arch, d.kind_);
    if (!meta) return meta.error();
    d.meta_ = std::move(*meta);
    d.file_bytes_ = file->file_bytes();
    if (auto ok = add(d, file->tensors()); !ok) return ok.error();
    if (auto ok = check_mask(d, *file); !ok) return ok.error();
    if (file->find_meta("tokenizer.ggml.tokens")) {
      auto tokens = file->get_strings("tokenizer.ggml.tokens");
      if (!tokens) return tokens.error();
      d.vocabulary_ = std::move(*tokens);
    }
    d.mapped_ = file;
    return d;
  }

  static Result<DrafterFile> safetensors(const std::string& path) {
    const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
    const std::string where = (folder / "config.json").string();
    auto config = read_config(where);
    if (!config) return config.error();
    std::string cls;
    if (const auto a = config->find("architectures");
        a != config->end() && a->is_array() && !a->empty() && a->front().is_string())
      cls = a->front();
    if (const auto s = config->find("speculators_model_type"); s != config->end() && s->is_string())
      cls = *s == "dflash" ? "DFlashDraftModel" : s->get<std::string>();
    const auto family = family_of(cls);
    if (!family)
      return Error{where,
                   fmt::format("architectures: expected a drafter, found {}", cls.empty() ? "none" : printable(cls)),
                   kKnown};
    if (!family->refuse.empty())
      return Error{where, fmt::format("expected a drafter for Gemma 4 that facet can run, found {}", printable(cls)),
                   family->refuse};
    auto opened = SafetensorsFile::open(path);
    if (!opened) return opened.error();
    auto file = std::make_shared<SafetensorsFile>(std::move(*opened));
    DrafterFile d;
    d.kind_ = family->kind;
    d.path_ = path;
    d.dialect_ = "safetensors " + cls;
    auto meta = d.kind_ == DrafterKind::kDflash ? dflash_meta_of(*config, where) : mtp_meta_of(*config, where);
    if (!meta) return meta.error();
    d.meta_ = std::move(*meta);
    d.file_bytes_ = file->file_bytes();
    if (auto ok = add(d, file->tensors()); !ok) return ok.error();
    d.mapped_ = file;
    return d;
  }

  static Result<DrafterFile> folder(const std::string& path) {
    std::vector<std::string> drafters;
    std::error_code ec;
    for (const auto& e : fs::directory_iterator(path, ec)) {
      if (e.path().extension() != ".gguf") continue;
      auto f = GgufFile::open(e.path());
      if (!f) continue;
      auto arch = f->get_string("general.architecture");
      if (arch && family_of(*arch)) drafters.push_back(e.path());
    }
    if (ec) return Error{path, fmt::format("cannot list the folder: {}", ec.message()), "check its permissions"};
    if (drafters.size() > 1) {
      std::sort(drafters.begin(), drafters.end());
      return Error{path,
                   fmt::format("expected one drafter, found {} ({}, {}{})", drafters.size(),
                               fs::path(drafters[0]).filename().string(), fs::path(drafters[1]).filename().string(),
                               drafters.size() > 2 ? ", ..." : ""),
                   "name the file"};
    }
    const bool weights =
        fs::exists(fs::path(path) / "model.safetensors") || fs::exists(fs::path(path) / "model.safetensors.index.json");
    if (drafters.empty() && !weights)
      return Error{path, "expected a drafter (.gguf, or model.safetensors with config.json), found none",
                   "name the file"};
    if (drafters.empty()) return safetensors(path);
    auto d = gguf(drafters[0]);
    if (d && weights) d->notes.push_back(fmt::format("{} chosen, not the safetensors beside it", drafters[0]));
    return d;
  }

 private:
  static Status add(DrafterFile& d, std::span<const TensorView> tensors) {
    std::map<std::string, std::string> origin;
    for (const TensorView& t : tensors) {
      TensorView v = t;
      v.name = common_name(t.name, d.kind_);
      if (!d.by_name_.emplace(v.name, d.tensors_.size()).second)
        return Error{d.path_,
                     fmt::format("{}: expected one tensor of this meaning, found {} too", printable(t.name),
                                 printable(origin[v.name])),
                     "the file mixes dialects; convert it again"};
      origin[v.name] = t.name;
      d.tensors_.push_back(std::move(v));
    }
    // One dialect of DFlash calls the norm before the FFN by the name that means another norm elsewhere.
    if (d.kind_ == DrafterKind::kDflash && !d.find("blk.0.ffn_norm.weight"))
      for (TensorView& t : d.tensors_)
        if (const auto layer = split_layer(t.name, "blk."); layer && layer->second == "post_attention_norm.weight") {
          const std::string name = fmt::format("blk.{}.ffn_norm.weight", layer->first);
          auto node = d.by_name_.extract(t.name);
          node.key() = t.name = name;
          d.by_name_.insert(std::move(node));
        }
    return Ok{};
  }

  static Status check_mask(const DrafterFile& d, const GgufFile& f) {
    if (d.kind_ != DrafterKind::kDflash || !d.meta_.mask_id || !f.find_meta("tokenizer.ggml.tokens")) return Ok{};
    auto tokens = f.get_strings("tokenizer.ggml.tokens");
    if (!tokens) return tokens.error();
    const auto at = std::find(tokens->begin(), tokens->end(), "<mask>");
    if (at == tokens->end() || at - tokens->begin() == *d.meta_.mask_id) return Ok{};
    return Error{
        d.path_,
        fmt::format("mask token: expected {}, the id of <mask>, found {}", at - tokens->begin(), *d.meta_.mask_id),
        "convert the drafter again"};
  }
};

Result<DrafterFile> DrafterFile::open(const std::string& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return DrafterReader::folder(path);
  if (!fs::exists(path, ec)) return Error{path, "expected a drafter, found no such file", "check the path"};
  const std::string ext = fs::path(path).extension();
  return ext == ".safetensors" || ext == ".json" ? DrafterReader::safetensors(path) : DrafterReader::gguf(path);
}

}  // namespace facet
