#include "model/eagle3_config.h"

#include <set>

#include "formats/format_error.h"
#include "model/drafter_check.h"

namespace facet {
namespace {

// Every tensor must be known: a norm that is left out gives bad drafts in silence.
Status refuse_unknown(const DrafterFile& f, const Eagle3Cfg& c) {
  std::set<std::string> known{
      "fc.weight", "output_norm.weight", "token_embd.weight",    "output.weight",          "d2t",
      "t2d",       "rope_freqs.weight",  "verifier_norm.weight", "verifier_lm_head.weight"};
  if (c.norm_before_fc) known.insert("input_norm.weight");
  for (size_t i = 0; c.fc_norm && i < c.taps.size(); ++i) known.insert(fmt::format("fc_norm.{}.weight", i));
  for (const char* part : {"attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm",
                           "ffn_gate", "ffn_up", "ffn_down"})
    known.insert(fmt::format("blk.0.{}.weight", part));
  if (c.norm_qk) known.insert({"blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"});
  for (const TensorView& t : f.tensors())
    if (!known.contains(t.name))
      return Error{f.path(),
                   fmt::format("{}: expected the parts of an EAGLE-3 drafter with these flags, found another",
                               printable(t.name)),
                   "facet does not run this kind of drafter, or its configuration belongs to other weights"};
  return Ok{};
}

}  // namespace

Result<Eagle3Cfg> eagle3_config(const DrafterFile& f, const ModelCfg& target) {
  if (f.kind() != DrafterKind::kEagle3)
    return Error{f.path(), fmt::format("expected an EAGLE-3 drafter, found {}", f.dialect()), "open it as what it is"};
  auto blocks = count_blocks(f);
  if (!blocks) return blocks.error();
  const DrafterMeta& meta = f.meta();
  DrafterCheck check(f);
  Eagle3Cfg c;
  ModelCfg& m = c.body;
  if (*blocks != 1)
    check.fail("number of layers", "1", fmt::format("{}", *blocks), "facet does not run EAGLE-3 with more of them");
  const int64_t D = check.dim("fc.weight", 1, 1 << 17);
  check.fits("width (rows of fc.weight)", target.d_model, D);
  if (meta.d_target) check.fits("target_hidden_size", target.d_model, *meta.d_target);
  const int64_t n_tap = check.ratio("columns of fc.weight", check.dim("fc.weight", 0, int64_t(1) << 23), D);
  if (n_tap > 64)
    check.fail("fc.weight", "features of at most 64 layers", fmt::format("{}", n_tap),
               "the file is damaged or no drafter");
  const int64_t Q = check.dim("blk.0.attn_q.weight", 1, 1 << 20), KV = check.dim("blk.0.attn_k.weight", 1, 1 << 20);
  const int64_t E = check.in("head_dim", meta.head_dim, 1, 512);
  if (check && !head_dim_known(E))
    check.fail("head_dim", "heads of 32, 64, 128, 256 or 512", fmt::format("{}", E), "facet has no kernel for them");
  const int64_t n_q = check.ratio("rows of blk.0.attn_q.weight", Q, E),
                n_kv = check.ratio("rows of blk.0.attn_k.weight", KV, E),
                F = check.dim("blk.0.ffn_gate.weight", 1, 1 << 20);
  check.ratio("query heads", n_q, n_kv);
  if (n_q > 256) check.fail("query heads", "at most 256", fmt::format("{}", n_q), "the file is damaged or no drafter");
  check.agrees("width", meta.d_model, D);
  check.agrees("number of heads", meta.n_head, n_q);
  check.agrees("FFN width", meta.d_ff, F);
  if (meta.rope_scaling)
    check.fail("rope_scaling", "none", *meta.rope_scaling,
               "no published drafter for Gemma 4 has it, and facet does not");
  if (!check) return *check.error();

  m.name = f.path();
  m.d_model = int(D), m.n_q_head = int(n_q), m.n_ctx_train = target.n_ctx_train;
  m.n_vocab = f.find("output.weight") ? int(check.dim("output.weight", 1, 1 << 24)) : target.n_vocab;
  m.act = Act::kSilu, m.attn_scale = 1 / std::sqrt(float(E));
  m.eps = float(check.real_in("rms_norm_eps", meta.eps ? meta.eps : 1e-6, 0, 1));
  LayerCfg layer{.n_kv_head = int(n_kv), .head_dim = int(E), .d_ff = int(F), .norm_v = false};
  layer.kv_source = layer.settles = 0;
  m.layer.push_back(layer);
  c.freqs = rope_freqs(check.real_in("rope_theta", meta.theta, 1, 1e12), int(E));
  c.taps = read_taps(check, meta, target, n_tap);
  c.id_map = read_id_map(check, f, target, m.n_vocab);
  c.trained = int(check.in("speculative_tokens", meta.n_speculative.value_or(3), 1, 64));
  c.norm_before_residual = meta.norm_before_residual, c.norm_output = meta.norm_output;
  c.norm_before_fc = meta.norm_before_fc, c.fc_norm = meta.fc_norm;
  c.norm_qk = f.find("blk.0.attn_q_norm.weight") != nullptr;
  c.own_embedding = meta.own_embedding;
  if (c.norm_before_fc && c.fc_norm)
    check.fail("fc_norm", "one of norm_before_fc and fc_norm", "both",
               "the configuration does not belong to these weights");
  if (!check) return *check.error();
  if (auto ok = refuse_unknown(f, c); !ok) return ok.error();
  return c;
}

}  // namespace facet
