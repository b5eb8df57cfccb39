#include "model/mtp_config.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/drafter_check.h"

namespace facet {
namespace {

// The last layer of the same kind that owns its K/V, or -1. Never a number of the file: indices of one target are
// wrong for the next.
int donor_of(const ModelCfg& target, bool sliding) {
  int donor = -1;
  for (int l = 0; l < target.n_layer(); ++l)
    if (const LayerCfg& c = target.layer[size_t(l)]; !c.query_only && (c.window > 0) == sliding) donor = l;
  return donor;
}

int64_t integer_at(const TensorView& t, int64_t i) {
  if (t.type == DType::kI64) {
    int64_t v;
    std::memcpy(&v, t.data.data() + 8 * i, 8);
    return v;
  }
  int32_t v;
  std::memcpy(&v, t.data.data() + 4 * i, 4);
  return v;
}

// Tokens cluster after cluster. Files hold either that (a permutation) or the cluster of each token.
void read_order(DrafterCheck& check, const TensorView& t, int n_vocab, MtpCfg& c) {
  const char* key = "masked_embd_ordering";
  if ((t.type != DType::kI32 && t.type != DType::kI64) || t.n_elements() != n_vocab)
    return check.fail(key, fmt::format("I32 or I64 [{}]", n_vocab),
                      fmt::format("{} {}", dtype_name(t.type), shape_string(t)),
                      "convert the drafter again: 16-bit floats cannot hold token ids");
  std::vector<char> seen(static_cast<size_t>(n_vocab));
  std::vector<int32_t> count(static_cast<size_t>(c.n_cluster));
  bool permutation = true, clusters = true;
  for (int64_t i = 0; i < n_vocab; ++i) {
    const int64_t v = integer_at(t, i);
    permutation &= v >= 0 && v < n_vocab && !std::exchange(seen[size_t(std::clamp<int64_t>(v, 0, n_vocab - 1))], 1);
    if (v < 0 || v >= c.n_cluster)
      clusters = false;
    else
      ++count[size_t(v)];
  }
  const int32_t size = n_vocab / c.n_cluster;
  for (int32_t n : count) clusters &= n == size;
  if (!permutation && !clusters)
    return check.fail(key, fmt::format("every token once, or {} tokens in each of {} clusters", size, c.n_cluster),
                      "neither", "the tensor was not converted rightly; convert the drafter again");
  c.order.resize(size_t(n_vocab));
  std::vector<int32_t> next(static_cast<size_t>(c.n_cluster));
  for (int32_t i = 0; i < c.n_cluster; ++i) next[size_t(i)] = i * size;
  for (int64_t i = 0; i < n_vocab; ++i) {
    const int64_t v = integer_at(t, i);
    if (permutation)
      c.order[size_t(i)] = int32_t(v);
    else
      c.order[size_t(next[size_t(v)]++)] = int32_t(i);
  }
}

void read_head(DrafterCheck& check, const DrafterFile& f, MtpCfg& c) {
  const DrafterMeta& meta = f.meta();
  const TensorView *centroids = f.find("masked_embd_centroids.weight"), *order = f.find("masked_embd_ordering");
  if (!centroids || !order) {  // llama.cpp's converter drops them and leaves no trace in the metadata; only `false`
                               // says that there were none
    if (meta.clustered == true || (!meta.clustered && f.dialect().starts_with("GGUF")))
      c.notes.push_back("no centroids in the file: the head scores every token");
    return;
  }
  if (meta.clustered == false) return;
  const int V = c.body.n_vocab;
  c.n_cluster = int(check.dim("masked_embd_centroids.weight", 1, 1 << 20));
  check.ratio(fmt::format("{} tokens in {} clusters", V, c.n_cluster), V, c.n_cluster);
  c.top_k = int(check.in("centroid_top_k", meta.top_k ? *meta.top_k : 32, 1, std::min(c.n_cluster, kMaxClusters)));
  if (check) read_order(check, *order, V, c);
}

// A full layer rotates a quarter of its pairs; the file's own divisors, if it has them, say the same.
std::vector<double> layer_freqs(DrafterCheck& check, const DrafterFile& f, bool sliding, int head_dim) {
  const auto& theta = sliding ? f.meta().theta_swa : f.meta().theta;
  std::vector<double> freqs = rope_freqs(check.real_in("rope_theta",
                                                       theta     ? *theta
                                                       : sliding ? 1e4
                                                                 : 1e6,
                                                       1, 1e12),
                                         head_dim);
  if (sliding) return freqs;
  const TensorView* t = f.find("rope_freqs.weight");
  if (!t) {
    std::fill(freqs.begin() + head_dim / 8, freqs.end(), 0.0);
    return freqs;
  }
  if (t->type != DType::kF32 || t->n_elements() != head_dim / 2) {
    check.fail("rope_freqs.weight", fmt::format("F32 [{}]", head_dim / 2),
               fmt::format("{} {}", dtype_name(t->type), shape_string(*t)), "convert the drafter again");
    return freqs;
  }
  std::vector<float> divisor(freqs.size());
  std::memcpy(divisor.data(), t->data.data(), divisor.size() * sizeof(float));
  for (size_t i = 0; i < freqs.size(); ++i) {
    if (!(divisor[i] > 0))
      check.fail("rope_freqs.weight", "positive divisors", fmt::format("{}", divisor[i]), "convert the drafter again");
    freqs[i] = divisor[i] > 1e20f ? 0.0 : freqs[i] / double(divisor[i]);
  }
  return freqs;
}

}  // namespace

Result<MtpCfg> mtp_config(const DrafterFile& f, const ModelCfg& target, int window_extra) {
  if (f.kind() != DrafterKind::kMtp)
    return Error{f.path(), fmt::format("expected an MTP drafter, found {}", f.dialect()),
                 "open it as a DFlash drafter"};
  auto blocks = count_blocks(f);
  if (!blocks) return blocks.error();
  const DrafterMeta& meta = f.meta();
  DrafterCheck check(f);
  MtpCfg c;
  ModelCfg& m = c.body;
  const int64_t in = check.dim("nextn.pre_projection.weight", 0, 1 << 18),
                D = check.dim("nextn.pre_projection.weight", 1, 1 << 17);
  check.fits("width of the target (half the columns of the pre-projection)", 2 * target.d_model, in);
  check.fits("width of the target (rows of the post-projection)", target.d_model,
             check.dim("nextn.post_projection.weight", 1, 1 << 17));
  check.agrees("width", meta.d_model, D);
  if (meta.d_target) check.fits("width of the target", target.d_model, *meta.d_target);
  if (!f.find("token_embd.weight") && !f.find("output.weight"))
    check.fail("token_embd.weight", "the head", "no such tensor", "the file is incomplete; convert the drafter again");
  m.n_vocab = int(check.dim(f.find("token_embd.weight") ? "token_embd.weight" : "output.weight", 1, 1 << 24));
  check.fits("vocabulary", target.n_vocab, m.n_vocab);
  if (!meta.sliding.empty() && meta.sliding.size() != size_t(*blocks))
    check.fail("sliding_window_pattern", fmt::format("{} layers", *blocks), fmt::format("{}", meta.sliding.size()),
               "convert the drafter again");
  if (meta.rope_scaling)
    check.fail("rope_parameters", "proportional with a quarter of the pairs on full layers, default on sliding ones",
               *meta.rope_scaling, "this is no assistant of Gemma 4");
  if (!check) return *check.error();

  m.name = f.path();
  m.d_model = int(D), m.n_ctx_train = target.n_ctx_train;
  m.eps = float(check.real_in("rms_norm_eps", meta.eps ? meta.eps : 1e-6, 0, 1));
  m.attn_scale = 1, m.act = Act::kGelu;
  m.softcap = float(check.real_in("final_logit_softcapping", meta.softcap ? meta.softcap : 0, 0, 1e6));
  c.d_target = target.d_model;
  for (int l = 0; l < *blocks && check; ++l) {
    auto name = [&](const char* rest) { return fmt::format("blk.{}.{}", l, rest); };
    LayerCfg layer;
    layer.head_dim = int(check.dim(name("attn_q_norm.weight"), 0, 512));
    layer.d_ff = int(check.dim(name("ffn_gate.weight"), 1, 1 << 20));
    const int n_q =
        int(check.ratio(name("attn_q.weight"), check.dim(name("attn_q.weight"), 1, 1 << 20), layer.head_dim));
    if (l == 0) m.n_q_head = n_q;
    if (n_q != m.n_q_head || n_q > 256)
      check.fail(name("attn_q.weight"), fmt::format("{} heads, at most 256", m.n_q_head), fmt::format("{}", n_q),
                 "the file is damaged or no drafter");
    // Without a pattern in the file the width of the heads tells the kind, which then must differ.
    const int swa = donor_of(target, true), full = donor_of(target, false);
    const bool sliding = !meta.sliding.empty() ? meta.sliding[size_t(l)]
                                               : swa >= 0 && target.layer[size_t(swa)].head_dim == layer.head_dim;
    const int donor = sliding ? swa : full;
    if (donor < 0) {
      check.fail(name("attn_q.weight"), fmt::format("a {} layer of the target to read", sliding ? "sliding" : "full"),
                 "none", "the drafter was made for another target");
      break;
    }
    const LayerCfg& from = target.layer[size_t(donor)];
    check.fits(fmt::format("head width of layer {}, which reads layer {} of the target", l, donor), from.head_dim,
               layer.head_dim);
    check.ratio(fmt::format("query heads of layer {} over the {} K/V heads of layer {} of the target", l,
                            from.n_kv_head, donor),
                n_q, from.n_kv_head);
    if (meta.kv_heads.size() == size_t(*blocks) && meta.kv_heads[size_t(l)] != 0)
      check.fits(fmt::format("K/V heads of layer {}", l), from.n_kv_head, meta.kv_heads[size_t(l)]);
    layer.n_kv_head = from.n_kv_head;
    layer.window = from.window > 0 ? from.window + window_extra : 0;  // the target's window: its cache holds the keys
    layer.query_only = true;
    layer.kv_source = donor;
    m.layer.push_back(layer);
    c.freqs.push_back(layer_freqs(check, f, sliding, layer.head_dim));
    if (sliding && meta.window && *meta.window != from.window && l == 0)
      c.notes.push_back(
          fmt::format("its window of {} is not the target's {}, which is used", *meta.window, from.window));
  }
  if (check)
    check.agrees("number of heads", meta.n_head, m.n_q_head), check.agrees("FFN width", meta.d_ff, m.layer[0].d_ff);
  if (check) read_head(check, f, c);
  if (!check) return *check.error();
  return c;
}

}  // namespace facet
