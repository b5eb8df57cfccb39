#include "model/gemma4_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "formats/format_error.h"
#include "model/meta_reader.h"

namespace facet {

int ModelCfg::max_q_cols() const {
  int n = 0;
  for (const LayerCfg& c : layer) n = std::max(n, n_q_head * c.head_dim);
  return n;
}
int ModelCfg::max_kv_cols() const {
  int n = 0;
  for (const LayerCfg& c : layer) n = std::max(n, c.n_kv_head * c.head_dim);
  return n;
}
int ModelCfg::max_d_ff() const {
  int n = 0;
  for (const LayerCfg& c : layer) n = std::max(n, c.d_ff);
  return n;
}

namespace {

bool head_dim_ok(int e) { return e == 32 || e == 64 || e == 128 || e == 256 || e == 512; }

void read_layers(MetaReader& r, ModelCfg& m) {
  const size_t n = m.layer.size();
  const std::vector<int> kv = r.integers("attention.head_count_kv", n, 1, 1024),
                         ff = r.integers("feed_forward_length", n, 1, 1 << 20);
  const std::vector<bool> sliding = r.bools("attention.sliding_window_pattern", n);
  const int window = r.integer("attention.sliding_window", 1, 1 << 24);
  const int full = r.integer("attention.key_length", 1, 512),
            swa = r.integer_or("attention.key_length_swa", full, 1, 512);
  const int shared = r.integer_or("attention.shared_kv_layers", 0, 0, int64_t(n));
  for (const auto& [key, value] : {std::pair{"attention.value_length", full},
                                   {"attention.value_length_swa", swa},
                                   {"rope.dimension_count", full},
                                   {"rope.dimension_count_swa", swa}})
    if (const int found = r.integer_or(key, value, 1, 1 << 20); found != value)
      r.fail(fmt::format("gemma4.{}", key), fmt::format("{}, the key length of its layers", value),
             fmt::format("{}", found));

  for (size_t l = 0; l < n; ++l) {
    LayerCfg& c = m.layer[l];
    c.window = sliding[l] ? window : 0;
    c.head_dim = sliding[l] ? swa : full;
    c.n_kv_head = kv[l];
    c.d_ff = ff[l];
    c.moe = m.n_expert > 0;
    c.kv_source = int(l);
    if (!head_dim_ok(c.head_dim))
      r.fail("gemma4.attention.key_length", "32, 64, 128, 256 or 512", fmt::format("{}", c.head_dim));
    if (m.n_q_head % c.n_kv_head != 0)
      r.fail("gemma4.attention.head_count_kv", fmt::format("a divisor of {} query heads", m.n_q_head),
             fmt::format("{} in layer {}", c.n_kv_head, l));
    if (l < n - size_t(shared)) continue;
    c.query_only = true;  // reads the last owner of the same kind, not the last owner
    c.kv_source = -1;
    for (size_t j = 0; j < n - size_t(shared); ++j)
      if ((m.layer[j].window > 0) == (c.window > 0)) c.kv_source = int(j);
    if (c.kv_source < 0) {
      r.fail("gemma4.attention.shared_kv_layers",
             fmt::format("a {} layer with own K/V before layer {}", c.window ? "sliding" : "full", l),
             fmt::format("none, {} layers share", shared));
      c.kv_source = 0;
    }
  }
  for (size_t l = 0; l < n; ++l) {
    bool last = true;
    for (size_t j = l + 1; j < n; ++j) last &= m.layer[j].kv_source != m.layer[l].kv_source;
    if (last) m.layer[l].settles = m.layer[l].kv_source;
  }
}

// Layers without a projection for V, unless they rotate more pairs than a shared row has room for.
void find_k_is_v(const GgufFile& file, ModelCfg& m) {
  for (int l = 0; l < m.n_layer(); ++l) {
    LayerCfg& c = m.layer[size_t(l)];
    if (c.window > 0 || c.query_only || !kv_may_share(c.head_dim) || file.find(fmt::format("blk.{}.attn_v.weight", l)))
      continue;
    const auto freqs = gemma4_freqs(file, m, l);  // whoever binds the layer says what is wrong with them
    c.k_is_v =
        !freqs || std::all_of(freqs->begin() + kv_own(c.head_dim) / 2, freqs->end(), [](double f) { return f == 0; });
  }
}

// A layer that the metadata does not count would be left out in silence.
void check_layer_names(MetaReader& r, const GgufFile& file, int n_layer) {
  for (const TensorView& t : file.tensors()) {
    if (!t.name.starts_with("blk.")) continue;
    int64_t l = -1;
    const char *begin = t.name.data() + 4, *end = t.name.data() + t.name.size();
    const auto [at, ec] = std::from_chars(begin, end, l);
    if (ec == std::errc{} && at != end && *at == '.' && l >= 0 && l < n_layer) continue;
    return r.fail("gemma4.block_count", fmt::format("every layer that has tensors, 0 to {}", n_layer - 1),
                  fmt::format("the tensor {}", printable(t.name)));
  }
}

}  // namespace

Result<GgufFile> open_gemma4(const std::string& path) {
  auto file = GgufFile::open(path);
  if (file)
    file->leave_out([](const TensorView& t) {
      return t.name.starts_with("v.") || t.name.starts_with("a.") || t.name.starts_with("mm.");
    });
  return file;
}

Result<ModelCfg> gemma4_config(const GgufFile& file) {
  auto arch = file.get_string("general.architecture");
  if (!arch) return arch.error();
  if (*arch != "gemma4")
    return Error{file.path(), fmt::format("general.architecture: expected gemma4, found {}", *arch),
                 arch->starts_with("gemma4") || *arch == "dflash"
                     ? "this is a drafter: give it with --draft, beside its target"
                     : "facet runs Gemma 4 text models only"};
  const TensorView* embd = file.find("token_embd.weight");
  if (!embd)
    return Error{file.path(), "token_embd.weight: expected the embedding matrix, found no such tensor",
                 "give the first part of a split model, or download it again"};

  MetaReader r(file, "gemma4.",
               "the file contradicts itself or is not a Gemma 4 text model; convert or download it again");
  ModelCfg m;
  if (auto name = file.get_string("general.name")) m.name = *name;
  m.layer.resize(size_t(r.integer("block_count", 1, 1024)));
  if (!r.error()) check_layer_names(r, file, m.n_layer());
  m.d_model = r.integer("embedding_length", 1, 1 << 17);
  m.n_q_head = r.integer("attention.head_count", 1, 1024);
  m.n_ctx_train = r.integer("context_length", 1, 1 << 30);
  m.n_expert = r.integer_or("expert_count", 0, 0, 4096);
  if (m.n_expert > 0) {
    m.n_expert_used = r.integer("expert_used_count", 1, std::min(m.n_expert, 64));
    m.d_expert = r.integer("expert_feed_forward_length", 1, 1 << 20);
  }
  m.d_ple = r.integer_or("embedding_length_per_layer_input", 0, 0, 1 << 16);
  m.pictures_ahead = m.d_ple == 0;  // files have no key for it; E2B and E4B are causal
  m.eps = r.real("attention.layer_norm_rms_epsilon", 0, 1);
  m.softcap = r.real_or("final_logit_softcapping", 0, 0, 1e6);
  m.embed_scale = std::sqrt(float(m.d_model));
  read_layers(r, m);
  if (embd->n_dims != 2 || embd->ne[0] != m.d_model || embd->ne[1] < 1 || embd->ne[1] > (1 << 24))
    r.fail("token_embd.weight", fmt::format("[{} x vocabulary]", m.d_model), shape_string(*embd));
  m.n_vocab = int(embd->ne[1]);
  if (r.error()) return *r.error();
  find_k_is_v(file, m);
  return m;
}

Result<std::vector<double>> gemma4_freqs(const GgufFile& file, const ModelCfg& m, int l) {
  const LayerCfg& c = m.layer[size_t(l)];
  const char* key = c.window ? "gemma4.rope.freq_base_swa" : "gemma4.rope.freq_base";
  const double usual = c.window ? 1e4 : 1e6;
  double theta = usual;
  if (file.find_meta(key)) {
    auto v = file.get_float(key);
    if (!v) return v.error();
    if (!(*v > 1 && *v < 1e12))
      return Error{file.path(), fmt::format("{}: expected a number in (1, 1e12), found {}", key, *v),
                   "convert the model again"};
    theta = *v;
  }
  const int half = c.head_dim / 2;
  std::vector<double> freqs(static_cast<size_t>(half));
  for (int i = 0; i < half; ++i) freqs[size_t(i)] = std::pow(theta, -2.0 * i / c.head_dim);
  if (c.window) return freqs;

  const TensorView* factor = file.find("rope_freqs.weight");
  if (!factor) {  // "proportional": a quarter of the head rotates
    std::fill(freqs.begin() + half / 4, freqs.end(), 0.0);
    return freqs;
  }
  if (factor->type != DType::kF32 || factor->n_elements() != half)
    return Error{file.path(),
                 fmt::format("rope_freqs.weight: expected F32 [{}], half the key length, found {} {}", half,
                             dtype_name(factor->type), shape_string(*factor)),
                 "convert the model again; a 16-bit copy of this tensor overflows"};
  std::vector<float> f(static_cast<size_t>(half));
  dequantize_row(DType::kF32, factor->data.data(), f.data(), half);
  for (int i = 0; i < half; ++i) {
    if (!(f[size_t(i)] > 0))
      return Error{file.path(),
                   fmt::format("rope_freqs.weight[{}]: expected a positive divisor, found {}", i, f[size_t(i)]),
                   "convert the model again"};
    freqs[size_t(i)] = f[size_t(i)] > 1e20f ? 0.0 : freqs[size_t(i)] / double(f[size_t(i)]);
  }
  return freqs;
}

}  // namespace facet
