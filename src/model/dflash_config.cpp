#include "model/dflash_config.h"

#include <algorithm>
#include <cstring>

#include "formats/format_error.h"
#include "model/drafter_check.h"

namespace facet {
namespace {

Error not_dflash(const DrafterFile& f, const std::string& key, const char* what) {
  return Error{f.path(), fmt::format("{}: expected a plain DFlash drafter, found {}", printable(key), what),
               "facet does not run this kind of drafter"};
}

// Outside the layers. t2d is the inverse of d2t, rope_freqs repeats what rope_theta says, and a verifier is the target.
bool is_known(const std::string& name) {
  for (const char* known :
       {"fc.weight", "enc.output_norm.weight", "output_norm.weight", "token_embd.weight", "output.weight", "d2t", "t2d",
        "rope_freqs.weight", "verifier_norm.weight", "verifier_lm_head.weight"})
    if (name == known) return true;
  return name.ends_with(".input_scale");
}

// Parts of related drafters. Running without them would give bad drafts in silence.
Status refuse_unknown_parts(const DrafterFile& f) {
  struct Part {
    const char *name, *what;
  };
  for (const Part& p : {Part{"selector_hidden.weight", "the candidate selector of DFlash2"},
                        {"candidate_selector.hidden_projection.weight", "the candidate selector of DFlash2"},
                        {"blk.0.attn_conv_base", "the convolutions of DFlash2"},
                        {"blk.0.attention_conv.base_kernel", "the convolutions of DFlash2"},
                        {"markov_w1.weight", "the Markov head of DSpark"},
                        {"blk.0.attn_sinks", "attention sinks"},
                        {"blk.0.post_ffw_norm.weight", "Gemma layers (DSpark)"}})
    if (f.find(p.name)) return not_dflash(f, p.name, p.what);
  const std::string& head = f.meta().other_head;
  if (!head.empty()) return not_dflash(f, head, head.find("domino") != head.npos ? "a Domino head" : "a DSpark head");
  for (const TensorView& t : f.tensors()) {
    auto says = [&](const char* part) { return t.name.find(part) != t.name.npos; };
    if (says("domino")) return not_dflash(f, t.name, "a Domino head");
    if (says("dspark") || says("markov") || says("confidence") || says("conf_proj"))
      return not_dflash(f, t.name, "a DSpark head");
    // Layers are looked at where they are bound.
    if (!t.name.starts_with("blk.") && !is_known(t.name))
      return not_dflash(f, t.name, "a part that facet does not know");
  }
  return Ok{};
}

// Which of the target's layers are tapped. Guessing them would give worthless drafts, so they must be in the file.
void read_taps(DrafterCheck& check, const DrafterMeta& meta, const ModelCfg& target, int64_t n_tap, DflashCfg& c) {
  if (meta.taps.empty())
    return check.fail("target_layer_ids", fmt::format("{} layers of the target", n_tap), "none",
                      "convert the drafter again, with its config.json");
  if (int64_t(meta.taps.size()) != n_tap)
    return check.fail("target_layer_ids", fmt::format("{} layers, as fc.weight has columns for", n_tap),
                      fmt::format("{}", meta.taps.size()), "convert the drafter again");
  for (size_t i = 0; i < meta.taps.size(); ++i) {
    // The last layer's output is never tapped: other engines mean another tensor by it.
    if (meta.taps[i] < 0 || meta.taps[i] >= target.n_layer() - 1 || (i > 0 && meta.taps[i] <= meta.taps[i - 1]))
      return check.fail(
          "target_layer_ids",
          fmt::format("ascending layers in [0, {}) of the target's {}", target.n_layer() - 1, target.n_layer()),
          fmt::format("{} at place {}", meta.taps[i], i), "the drafter was made for another target");
    c.taps.push_back(int(meta.taps[i]));
  }
}

// d2t holds a target id for each row of a smaller head: as it is (I64 in GGUF), or less the row (safetensors).
void read_id_map(DrafterCheck& check, const DrafterFile& f, const ModelCfg& target, DflashCfg& c) {
  const TensorView* t = f.find("d2t");
  if (!t) {
    if (c.body.n_vocab != target.n_vocab) check.fits("vocabulary of output.weight", target.n_vocab, c.body.n_vocab);
    return;
  }
  if (t->type != DType::kI64 || t->n_elements() != c.body.n_vocab)
    return check.fail("d2t", fmt::format("I64 [{}], one for each row of the head", c.body.n_vocab),
                      fmt::format("{} {}", dtype_name(t->type), shape_string(*t)), "convert the drafter again");
  const bool offsets = f.dialect().starts_with("safetensors");
  for (int64_t i = 0; i < c.body.n_vocab; ++i) {
    int64_t id;
    std::memcpy(&id, t->data.data() + 8 * i, 8);
    if (id < -target.n_vocab || id > target.n_vocab || (id += offsets ? i : 0) < 0 || id >= target.n_vocab)
      return check.fail("d2t", fmt::format("tokens in [0, {})", target.n_vocab), fmt::format("{} for row {}", id, i),
                        "the drafter was made for another vocabulary");
    c.id_map.push_back(int32_t(id));
  }
}

}  // namespace

Result<DflashCfg> dflash_config(const DrafterFile& f, const ModelCfg& target, BlockMask mask) {
  if (f.kind() != DrafterKind::kDflash)
    return Error{f.path(), fmt::format("expected a DFlash drafter, found {}", f.dialect()),
                 "open it as an MTP drafter"};
  if (auto ok = refuse_unknown_parts(f); !ok) return ok.error();
  auto blocks = count_blocks(f);
  if (!blocks) return blocks.error();
  const DrafterMeta& meta = f.meta();
  DrafterCheck check(f);
  DflashCfg c;
  ModelCfg& m = c.body;
  const int64_t D = check.dim("fc.weight", 1, 1 << 17), features = check.dim("fc.weight", 0, int64_t(1) << 23);
  check.fits("width (rows of fc.weight)", target.d_model, D);
  const int64_t n_tap = check.ratio("columns of fc.weight", features, D);
  if (n_tap > 64)
    check.fail("fc.weight", "features of at most 64 layers", fmt::format("{}", n_tap),
               "the file is damaged or no drafter");
  const int64_t E = check.dim("blk.0.attn_q_norm.weight", 0, 512);
  if (check && !head_dim_known(E))
    check.fail("blk.0.attn_q_norm.weight", "heads of 32, 64, 128, 256 or 512", fmt::format("{}", E),
               "facet has no kernel for them");
  const int64_t n_q = check.ratio("rows of blk.0.attn_q.weight", check.dim("blk.0.attn_q.weight", 1, 1 << 20), E);
  const int64_t n_kv = check.ratio("rows of blk.0.attn_k.weight", check.dim("blk.0.attn_k.weight", 1, 1 << 20), E);
  const int64_t F = check.dim("blk.0.ffn_gate.weight", 1, 1 << 20);
  check.ratio("query heads", n_q, n_kv);
  if (n_q > 256) check.fail("query heads", "at most 256", fmt::format("{}", n_q), "the file is damaged or no drafter");
  if (meta.exact_counts) {
    check.agrees("width", meta.d_model, D);
    check.agrees("number of heads", meta.n_head, n_q);
    check.agrees("FFN width", meta.d_ff, F);
  }
  if (meta.target_depth) check.fits("layers of the target", target.n_layer(), *meta.target_depth);
  if (meta.rope_scaling)
    check.fail("rope_scaling", "none", *meta.rope_scaling,
               "no published drafter for Gemma 4 has it, and facet does not");
  if (!check) return *check.error();

  m.name = f.path();
  m.d_model = int(D), m.n_q_head = int(n_q), m.n_ctx_train = target.n_ctx_train;
  m.n_vocab = f.find("output.weight") ? int(check.dim("output.weight", 1, 1 << 24)) : target.n_vocab;
  m.act = Act::kSilu;
  m.attn_scale = 1 / std::sqrt(float(E));
  m.eps = float(check.real_in("rms_norm_eps", meta.eps ? meta.eps : 1e-6, 0, 1));
  m.embed_scale = float(
      check.real_in("embedding_scale", meta.embed_scale ? *meta.embed_scale : double(target.embed_scale), 1e-6, 1e6));
  m.softcap =
      float(check.real_in("final_logit_softcapping", meta.softcap ? *meta.softcap : double(target.softcap), 0, 1e6));
  const double theta = check.real_in("rope_theta", meta.theta, 1, 1e12);
  c.freqs = rope_freqs(theta, int(E));
  c.block = int(check.in("block_size", meta.block, 2, 64));
  c.mask_id = int(check.in("mask_token_id", meta.mask_id, 0, target.n_vocab - 1));
  if (meta.n_vocab && f.find("d2t") == nullptr) check.fits("vocabulary", target.n_vocab, *meta.n_vocab);
  read_taps(check, meta, target, n_tap, c);
  read_id_map(check, f, target, c);
  if (!meta.sliding.empty() && meta.sliding.size() != size_t(*blocks))
    check.fail("layer_types", fmt::format("{} layers", *blocks), fmt::format("{}", meta.sliding.size()),
               "convert the drafter again");
  if (!check) return *check.error();

  for (int l = 0; l < *blocks; ++l) {
    LayerCfg layer;
    layer.n_kv_head = int(n_kv), layer.head_dim = int(E), layer.d_ff = int(F);
    const bool sliding = !meta.sliding.empty() && meta.sliding[size_t(l)];
    layer.window = sliding ? int(check.in("sliding_window", meta.window, 1, 1 << 24)) : 0;
    layer.norm_v = false;
    // Undeclared: sliding layers are causal inside the block, full layers are not. Making the sliding layers
    // bidirectional costs published drafters 6 % of their accepted length.
    layer.causal_block =
        mask == BlockMask::kFile ? meta.causal.value_or(sliding) : mask == BlockMask::kCausal && sliding;
    layer.kv_source = layer.settles = l;
    m.layer.push_back(layer);
  }
  if (!check) return *check.error();
  return c;
}

}  // namespace facet
