#include "model/dflash_config.h"

#include <algorithm>
#include <cstring>

#include "formats/format_error.h"
#include "model/drafter_check.h"
#include "model/drafter_rules.h"

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
        "rope_freqs.weight", "verifier_norm.weight", "verifier_lm_head.weight", "markov_w1.weight", "markov_w2.weight",
        "conf_proj.weight", "conf_proj.bias", "selector_predecessor.weight", "selector_successor.weight",
        "selector_hidden.weight"})
    if (name == known) return true;
  return name.ends_with(".input_scale");
}

// Parts of related drafters. Running without them would give bad drafts in silence.
Status refuse_unknown_parts(const DrafterFile& f) {
  if (f.find("blk.0.attn_sinks")) return not_dflash(f, "blk.0.attn_sinks", "attention sinks");
  const std::string& head = f.meta().other_head;
  if (!head.empty()) {
    auto says = [&](const char* part) { return head.find(part) != head.npos; };
    return not_dflash(f, head,
                      says("domino")                                            ? "a Domino head"
                      : says("dspark") || says("_rank") || says("_from_anchor") ? "a DSpark head"
                                                                                : "another head");
  }
  for (const TensorView& t : f.tensors()) {
    auto says = [&](const char* part) { return t.name.find(part) != t.name.npos; };
    if (says("domino")) return not_dflash(f, t.name, "a Domino head");
    if (!is_known(t.name) && (says("dspark") || says("markov") || says("confidence") || says("conf_proj")))
      return not_dflash(f, t.name, "a DSpark head");
    // Layers are looked at where they are bound.
    if (!t.name.starts_with("blk.") && !is_known(t.name))
      return not_dflash(f, t.name, "a part that facet does not know");
  }
  return Ok{};
}

// F32 values of a vector, or of a matrix of one row.
std::vector<float> values_of(const TensorView& t) {
  std::vector<float> v(static_cast<size_t>(t.n_elements()));
  dequantize_row(t.type, t.data.data(), v.data(), t.n_elements());
  return v;
}

// The heads of DSpark: shapes here, matrices where they are bound. A confidence that is no number would end every draft
// in silence.
void read_markov(DrafterCheck& check, const DrafterFile& f, const ModelCfg& target, DflashCfg& c) {
  const bool here = f.find("markov_w1.weight") || f.find("markov_w2.weight");
  const int64_t rank = f.meta().markov_rank.value_or(here ? -1 : 0);
  if (rank == 0 && here)
    check.fail("markov_rank", "a rank, as there is a Markov head", "0",
               "the configuration does not belong to these weights");
  if (rank != 0) {
    const int64_t R = check.dim("markov_w1.weight", 0, 1 << 16);
    if (rank > 0) check.agrees("markov_rank", rank, R);
    check.fits("tokens of markov_w1.weight", target.n_vocab, check.dim("markov_w1.weight", 1, 1 << 24));
    if (check) check.agrees("columns of markov_w2.weight", check.dim("markov_w2.weight", 0, 1 << 16), R);
    if (check) check.agrees("rows of markov_w2.weight", check.dim("markov_w2.weight", 1, 1 << 24), c.body.n_vocab);
    c.markov.rank = int(R), c.markov.n_from = target.n_vocab;
  }
  const TensorView *w = f.find("conf_proj.weight"), *b = f.find("conf_proj.bias");
  if (!w || !check) return;
  if (c.markov.rank == 0)
    return check.fail("conf_proj.weight", "a Markov head beside it", "none", "convert or download the drafter again");
  const int64_t D = c.body.d_model, n = D + c.markov.rank;
  if (w->n_elements() != n || w->ne[0] != n || !dtype_info(w->type).matmul)
    return check.fail("conf_proj.weight", fmt::format("a row of {}: the width and the rank of the Markov head", n),
                      fmt::format("{} {}", dtype_name(w->type), shape_string(*w)), "convert the drafter again");
  if (b && (b->n_elements() != 1 || !dtype_info(b->type).matmul))
    return check.fail("conf_proj.bias", "one number", shape_string(*b), "convert the drafter again");
  const std::vector<float> all = values_of(*w);
  c.markov.bias = b ? values_of(*b)[0] : 0;
  for (const float x : all)
    if (!std::isfinite(x))
      return check.fail("conf_proj.weight", "numbers", fmt::format("{}", x), "the file is damaged; download it again");
  if (!std::isfinite(c.markov.bias))
    return check.fail("conf_proj.bias", "a number", fmt::format("{}", c.markov.bias),
                      "the file is damaged; download it again");
  c.markov.hidden.assign(all.begin(), all.begin() + D);
  c.markov.markov.assign(all.begin() + D, all.end());
  c.markov.has_confidence = true;
}

// The parts of DFlash 2, all of them or none.
void read_selector(DrafterCheck& check, const DrafterFile& f, DflashCfg& c) {
  const DrafterMeta& meta = f.meta();
  const TensorView *p = f.find("selector_predecessor.weight"), *s = f.find("selector_successor.weight");
  const bool convs = f.find("blk.0.attn_conv_base.weight") != nullptr;
  const bool said = f.dialect().ends_with("DFlash2DraftModel") || meta.selector_rank;
  if (!p && !s && !f.find("selector_hidden.weight") && !convs && !said) return;
  const int64_t V = check.dim("selector_predecessor.weight", 1, 1 << 24),
                R = check.dim("selector_predecessor.weight", 0, 1 << 14),
                n_base = check.dim("blk.0.attn_conv_base.weight", 1, 16),
                D = check.dim("blk.0.attn_conv_base.weight", 0, 1 << 17);
  check.agrees("selector_rank", meta.selector_rank, R);
  if (check) check.agrees("rows of selector_successor.weight", check.dim("selector_successor.weight", 1, 1 << 24), V);
  if (check)
    check.agrees("columns of selector_successor.weight", check.dim("selector_successor.weight", 0, 1 << 14), R);
  check.agrees("conv_kernel_size", meta.conv_taps, n_base);
  check.agrees("columns of blk.0.attn_conv_base.weight", D, c.body.d_model);
  check.fits("rows of selector_predecessor.weight", c.body.n_vocab, V);
  if (check && (!dtype_info(p->type).matmul || !dtype_info(s->type).matmul))
    check.fail("selector_predecessor.weight", "numbers", dtype_name(p->type), "convert the drafter again");
  if (!c.id_map.empty() || c.from_anchor)
    check.fail(c.from_anchor ? "sample_from_anchor" : "d2t", "none, as no DFlash 2 drafter has it", "one",
               "facet does not run this kind of drafter");
  if (!check) return;
  c.conv_taps = int(n_base);
  c.conv_group = int(check.in("conv_group_size", meta.conv_group, 4, D));
  check.ratio("width", D, c.conv_group);
  if (c.conv_group % 4 != 0)
    check.fail("conv_group_size", "a multiple of 4", fmt::format("{}", c.conv_group), "facet has no kernel for it");
  c.selector = {.rank = int(R),
                .top_k = int(check.in("selector_top_k", meta.selector_top_k, 1, std::min<int64_t>(64, V))),
                .predecessor = *p,
                .successor = *s};
}

// Gemma's full layers rotate a share of their pairs, and files say which in two ways.
std::vector<double> gemma_freqs(DrafterCheck& check, const DrafterFile& f, bool sliding, int head_dim) {
  const DrafterMeta& meta = f.meta();
  std::vector<double> freqs = rope_freqs(
      check.real_in("rope_theta", sliding && meta.theta_swa ? meta.theta_swa : meta.theta, 1, 1e12), head_dim);
  if (sliding) return freqs;
  const TensorView* t = f.find("rope_freqs.weight");
  if (!t) {
    const double part = check.real_in("partial_rotary_factor", meta.partial, 1e-6, 1);
    for (size_t i = size_t(double(freqs.size()) * part); i < freqs.size(); ++i) freqs[i] = 0;
    return freqs;
  }
  if (t->type != DType::kF32 || t->n_elements() != head_dim / 2)
    return check.fail("rope_freqs.weight", fmt::format("F32 [{}]", head_dim / 2),
                      fmt::format("{} {}", dtype_name(t->type), shape_string(*t)), "convert the drafter again"),
           freqs;
  const std::vector<float> divisor = values_of(*t);
  for (size_t i = 0; i < freqs.size(); ++i) {
    if (!(divisor[i] > 0))
      check.fail("rope_freqs.weight", "positive divisors", fmt::format("{}", divisor[i]), "convert the drafter again");
    freqs[i] = divisor[i] > 1e20f ? 0.0 : freqs[i] / double(divisor[i]);
  }
  return freqs;
}

// Shapes of one layer, from its tensors.
LayerCfg layer_of(DrafterCheck& check, int l, bool gemma, int64_t n_q) {
  auto dim = [&](const char* rest, int d, int64_t max) { return check.dim(fmt::format("blk.{}.{}", l, rest), d, max); };
  const int64_t E = dim("attn_q_norm.weight", 0, 512);
  if (check && !head_dim_known(E))
    check.fail(fmt::format("blk.{}.attn_q_norm.weight", l), "heads of 32, 64, 128, 256 or 512", fmt::format("{}", E),
               "facet has no kernel for them");
  LayerCfg c;
  c.head_dim = int(E), c.d_ff = int(dim("ffn_gate.weight", 1, 1 << 20));
  c.n_kv_head = int(check.ratio(fmt::format("rows of blk.{}.attn_k.weight", l), dim("attn_k.weight", 1, 1 << 20), E));
  check.ratio("query heads", n_q, c.n_kv_head);
  c.norm_v = gemma;
  c.kv_source = c.settles = l;
  return c;
}

}  // namespace

std::vector<int> select_candidates(const SelectorCfg& s, int32_t before, std::span<const float> hidden,
                                   std::span<const int32_t> candidate, std::span<float> score) {
  const size_t bytes = row_bytes(s.predecessor.type, s.rank), other = row_bytes(s.successor.type, s.rank);
  std::vector<float> context(static_cast<size_t>(s.rank)), row(context.size());
  dequantize_row(s.predecessor.type, s.predecessor.data.data() + size_t(before) * bytes, context.data(), s.rank);
  for (size_t r = 0; r < context.size(); ++r) context[r] *= hidden[r];
  std::vector<int> order;
  for (size_t k = 0; k < candidate.size(); ++k) {
    if (candidate[k] < 0) break;  // there are no more
    dequantize_row(s.successor.type, s.successor.data.data() + size_t(candidate[k]) * other, row.data(), s.rank);
    float edge = 0;
    for (size_t r = 0; r < row.size(); ++r) edge += context[r] * row[r];
    score[k] += edge;
    order.push_back(int(k));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[size_t(a)] > score[size_t(b)]; });
  return order;
}

float confidence_of(const MarkovCfg& m, std::span<const float> hidden, std::span<const float> markov) {
  double x = m.bias;
  for (size_t i = 0; i < m.hidden.size(); ++i) x += double(m.hidden[i]) * double(hidden[i]);
  for (size_t i = 0; i < m.markov.size(); ++i) x += double(m.markov[i]) * double(markov[i]);
  return std::isfinite(x) ? float(1 / (1 + std::exp(-x))) : 0.f;
}

bool DflashCfg::whole_block() const {
  if (!from_anchor && markov.rank == 0 && selector.rank == 0) return false;
  return std::any_of(body.layer.begin(), body.layer.end(), [](const LayerCfg& l) { return !l.causal_block; });
}

Result<DflashCfg> dflash_config(const DrafterFile& f, const ModelCfg& target, BlockMask mask) {
  if (f.kind() != DrafterKind::kDflash)
    return Error{f.path(), fmt::format("expected a DFlash drafter, found {}", f.dialect()),
                 "open it as an MTP drafter"};
  if (auto ok = refuse_unknown_parts(f); !ok) return ok.error();
  auto blocks = count_blocks(f);
  if (!blocks) return blocks.error();
  auto rules = block_rules(f);
  if (!rules) return rules.error();
  const DrafterMeta& meta = f.meta();
  DrafterCheck check(f);
  DflashCfg c;
  ModelCfg& m = c.body;
  const bool gemma = f.find("blk.0.post_ffw_norm.weight") != nullptr;
  const int64_t D = check.dim("fc.weight", 1, 1 << 17), features = check.dim("fc.weight", 0, int64_t(1) << 23);
  check.fits("width (rows of fc.weight)", target.d_model, D);
  const int64_t n_tap = check.ratio("columns of fc.weight", features, D);
  if (n_tap > 64)
    check.fail("fc.weight", "features of at most 64 layers", fmt::format("{}", n_tap),
               "the file is damaged or no drafter");
  const int64_t E = check.dim("blk.0.attn_q_norm.weight", 0, 512);
  const int64_t n_q = check.ratio("rows of blk.0.attn_q.weight", check.dim("blk.0.attn_q.weight", 1, 1 << 20), E);
  if (n_q > 256) check.fail("query heads", "at most 256", fmt::format("{}", n_q), "the file is damaged or no drafter");
  for (int l = 0; l < *blocks; ++l) m.layer.push_back(layer_of(check, gemma ? l : 0, gemma, n_q));
  for (int l = 0; l < *blocks; ++l) m.layer[size_t(l)].kv_source = m.layer[size_t(l)].settles = l;
  if (meta.exact_counts) {
    check.agrees("width", meta.d_model, D);
    check.agrees("number of heads", meta.n_head, n_q);
    check.agrees("FFN width", meta.d_ff, m.layer[0].d_ff);
  }
  if (meta.target_depth) check.fits("layers of the target", target.n_layer(), *meta.target_depth);
  if (meta.rope_scaling)
    check.fail("rope_scaling", "none", *meta.rope_scaling,
               "no published drafter for Gemma 4 has it, and facet does not");
  if (!check) return *check.error();

  m.name = f.path();
  m.d_model = int(D), m.n_q_head = int(n_q), m.n_ctx_train = target.n_ctx_train;
  m.n_vocab = f.find("output.weight") ? int(check.dim("output.weight", 1, 1 << 24)) : target.n_vocab;
  m.act = gemma ? Act::kGelu : Act::kSilu;
  m.attn_scale = gemma ? 1.f : 1 / std::sqrt(float(E));
  m.eps = float(check.real_in("rms_norm_eps", meta.eps ? meta.eps : 1e-6, 0, 1));
  m.embed_scale =
      float(check.real_in("embedding_scale", rules->embed_scale.value.value_or(target.embed_scale), 1e-6, 1e6));
  m.softcap = float(check.real_in("final_logit_softcapping", rules->softcap.value.value_or(target.softcap), 0, 1e6));
  c.from_anchor = rules->from_anchor.value;
  c.block = int(check.in("block_size", meta.block, 2, 64));
  c.mask_id = int(check.in("mask_token_id", meta.mask_id, 0, target.n_vocab - 1));
  if (meta.n_vocab && f.find("d2t") == nullptr) check.fits("vocabulary", target.n_vocab, *meta.n_vocab);
  c.taps = read_taps(check, meta, target, n_tap);
  c.id_map = read_id_map(check, f, target, m.n_vocab);
  read_markov(check, f, target, c);
  read_selector(check, f, c);
  c.shares_embedding = !c.id_map.empty() || meta.trainer == DrafterTrainer::kDeepSpec;
  if (!meta.sliding.empty() && meta.sliding.size() != size_t(*blocks))
    check.fail("layer_types", fmt::format("{} layers", *blocks), fmt::format("{}", meta.sliding.size()),
               "convert the drafter again");
  if (!check) return *check.error();

  for (int l = 0; l < *blocks; ++l) {
    LayerCfg& layer = m.layer[size_t(l)];
    const bool sliding = !meta.sliding.empty() && meta.sliding[size_t(l)];
    layer.window = sliding ? int(check.in("sliding_window", meta.window, 1, 1 << 24)) : 0;
    layer.causal_block = mask == BlockMask::kFile ? meta.causal.value_or(sliding && rules->sliding_causal.value)
                                                  : mask == BlockMask::kCausal && sliding;
    c.freqs.push_back(gemma ? gemma_freqs(check, f, sliding, layer.head_dim)
                            : rope_freqs(check.real_in("rope_theta", meta.theta, 1, 1e12), layer.head_dim));
  }
  if (!check) return *check.error();
  return c;
}

}  // namespace facet
