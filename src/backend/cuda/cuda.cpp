// The verbs. Where a verb's output is used before its kernel has run: activations.h.
#include "backend/cuda/cuda.h"

#include <bit>
#include <optional>

#include "backend/cuda/kernels/collectives.h"
#include "backend/cuda/kernels/encoder/encoder.h"
#include "backend/cuda/kernels/ops.h"

namespace facet {

using cuda::Mat;

// --- steps

void Cuda::begin_step(const Step& s) { take_step(s, false); }
void Cuda::next_step(const Step& s) {
  CHECK(s.shape.n_tok <= step_.shape.n_tok, "{} rows after {}", s.shape.n_tok, step_.shape.n_tok);
  if (s.shape.n_tok < step_.shape.n_tok) take_step(s, true);
}
void Cuda::take_step(const Step& s, bool keep_tokens) {
  resolve_pending();  // that is of the step before
  acts_.forget_rounded();
  step_ = arrays_.upload(s, keep_tokens, [&] { finish(); });
  step_.shape.longest = int(cuda::row_bucket(s.shape.longest));
  if (host_table_) host_table_->bring(s);
  if (cpu_ffn_) cpu_ffn_->expect();
  if (weight_stream_ && streamed_rows(s.shape.n_tok) > 0) weight_stream_->prefetch_first();
  // Powers of two: few graphs serve many trees.
  if (s.shape.n_path > 0) step_.shape.n_path = int(std::bit_ceil(unsigned(s.shape.n_path)));
}

// --- attention

void Cuda::head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step&, float eps) {
  acts_.resolve_kind<cuda::QkNormRope>();
  acts_.defer(cuda::QkNormRope{
      .of_q = x.buffer,
      .q = acts_.written(x, false),
      .kv = {},
      .left = {.k = {}, .v = {}, .work = {.q_gain = gain.p, .freqs = {freqs.p, freqs.n}, .eps = eps}}});
}
void Cuda::head_norm(Rows x, int head_dim, float eps) {
  if (head_dim >= 64 && (head_dim & (head_dim - 1)) == 0)
    return cuda::head_norm(stream_, acts_.written(x, false), head_dim, eps);
  acts_.mat(x, false);
  cuda::grid_norm_rope(stream_, acts_.written(x, true), head_dim, nullptr, nullptr, step_, eps);  // of an encoder
}
void Cuda::head_rope(Rows x, Freqs freqs, const Step&) {
  cuda::head_rope(stream_, acts_.written(x, false), {freqs.p, freqs.n}, step_);
}
void Cuda::kv_append(KvLayer kv, Rows k, Rows v, const Step&) {
  cuda::kv_append(stream_, kv, acts_.mat(k, false), acts_.mat(v, false), step_);
}
void Cuda::norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs freqs, bool norm_v,
                            const Step&, float eps) {
  acts_.resolve_kind<cuda::QkNormRope>();
  const Mat mq = acts_.written(q, false), mk = acts_.written(k, false), mv = acts_.written(v, false);
  acts_.defer(cuda::QkNormRope{
      .of_q = q.buffer,
      .of_k = k.buffer,
      .of_v = v.buffer,
      .q = mq,
      .kv = kv,
      .left = {
          .k = mk,
          .v = mv,
          .work = {
              .q_gain = q_gain.p, .k_gain = k_gain.p, .freqs = {freqs.p, freqs.n}, .norm_v = norm_v, .eps = eps}}});
}
void Cuda::kv_settle(KvLayer kv, const Step&) {
  acts_.resolve_kind<cuda::QkNormRope>();
  cuda::kv_settle(stream_, kv, step_);
}
void Cuda::attend(Rows o, Rows q, KvLayer kv, const Step& host, AttnSpec spec) {
  const Mat to = acts_.written_int8(o);
  const std::optional<cuda::QkNormRope> heads = acts_.take_qk_norm_rope(q, kv);
  const Mat from = acts_.mat(q, false);
  const cuda::Selection selection{spec.selected && selected_ ? &select_ : nullptr, &host};
  if (!cuda::attend(stream_, to, from, kv, step_, spec, attend_, heads ? &heads->left : nullptr, selection))
    acts_.forget_int8();
}
void Cuda::select_blocks(Rows q, KvLayer kv, const Step& host, AttnSpec spec) {
  acts_.resolve_kind<cuda::QkNormRope>();
  selected_ = cuda::select_blocks(stream_, select_, acts_.mat(q, false), kv, host, spec);
}

// --- light verbs

void Cuda::embed(Rows x, Weight table, const Step&, float scale) {
  sampler_.resolve_pending_topk();
  if (table.is_host_table)
    return cuda::embed(stream_, acts_.written(x, true), host_table_->rows(), host_table_->numbers(), scale);
  cuda::embed(stream_, acts_.written(x, true), table.m, step_.token, scale);
}
void Cuda::embed_soft(Rows x, Rows soft, const Step&) {
  const Mat rows = acts_.mat(soft, false);
  acts_.mat(x, false);
  cuda::embed_soft(stream_, acts_.written(x, true), rows, step_.soft);
}
void Cuda::embed_own(Rows x, Weight table, float scale, int first) {
  sampler_.resolve_pending_topk();
  cuda::embed_own(stream_, acts_.written(x, false), table.m, step_.token, first, scale);
}
void Cuda::embed_concat(Rows y, Weight table, const Step&, float scale, Rows x) {
  CHECK(y.cols == int(table.n_in) + x.cols && y.rows == x.rows, "[{}, {}] beside {} columns into [{}, {}]", x.rows,
        x.cols, table.n_in, y.rows, y.cols);
  const Mat beside = acts_.mat(x, false);
  if (const cuda::TopK pick = sampler_.take_pending_topk(y.rows, step_.token); pick.n_row > 0)
    return cuda::top_k_embed(stream_, pick, acts_.written(y, true), table.m, scale, beside);
  sampler_.resolve_pending_topk();
  cuda::embed_concat(stream_, acts_.written(y, true), table.m, step_.token, scale, beside);
}
void Cuda::rms_norm(Rows y, Rows x, Vec gain, float eps) {
  const cuda::Partials left = acts_.take_sums(x);
  const Mat in = acts_.mat(x, false);
  cuda::rms_norm(stream_, acts_.written(y, true), in, left, gain.p, eps);
}
void Cuda::residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec) {
  const cuda::Partials left = acts_.take_sums(y);
  const Mat in = acts_.mat(y, false);
  cuda::residual_norm(stream_, acts_.written(x, false), spec.next ? acts_.written_int8(h) : acts_.mat(h, false), in,
                      left, spec.post.p, spec.next.p, spec.out_scale, spec.eps);
}
void Cuda::residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec, Rows r, Rows e, Vec router_gain,
                             Vec expert_gain) {
  const cuda::Partials left = acts_.take_sums(y);
  const Mat in = acts_.mat(y, false);
  cuda::residual_norm_moe(stream_, acts_.written(x, false), acts_.written_int8(h), in, left, spec.post.p, spec.next.p,
                          spec.out_scale, spec.eps,
                          {.r = acts_.written(r, false),
                           .e = acts_.written(e, true),
                           .router_gain = router_gain.p,
                           .expert_gain = expert_gain.p});
}
void Cuda::join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain, ResidualSpec<Vec> spec) {
  const cuda::MoeSlots slots = acts_.take_experts(o);
  const cuda::MoePanelRows panels = acts_.take_expert_panels(o);
  cuda::moe_join(stream_, acts_.written(x, false), spec.next ? acts_.written_int8(h) : acts_.mat(h, false),
                 acts_.mat(y, false), acts_.mat(o, false),
                 {.shared_post = y_gain.p,
                  .routed_post = o_gain.p,
                  .post = spec.post.p,
                  .next = spec.next.p,
                  .out_scale = spec.out_scale,
                  .eps = spec.eps,
                  .slots = slots,
                  .panels = panels});
}
void Cuda::act_mul(Rows y, Rows g, Rows u, Act act) {
  const Mat a = acts_.mat(g, false), b = acts_.mat(u, false);
  cuda::act_mul(stream_, acts_.written(y, true), a, b, act);
}
void Cuda::ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps) {
  cuda::ple_combine(stream_, acts_.written(p, false), acts_.mat(c, false), gain.p, gain.n, in_scale, out_scale, eps);
}
void Cuda::block_conv(Rows y, Rows x, Rows delta, Vec base, const Step&) {
  const Mat in = acts_.mat(x, false), d = acts_.mat(delta, false);
  cuda::block_conv(stream_, acts_.written(y, false), in, d, base.p, base.n / x.cols, step_);
}
void Cuda::add(Rows y, Rows a, Rows b) {
  const Mat u = acts_.mat(a, false), v = acts_.mat(b, false);
  cuda::add(stream_, acts_.written(y, false), u, v);
}
void Cuda::gather(Rows y, Rows x, const Step&) {
  const Mat in = acts_.mat(x, false);
  cuda::gather(stream_, acts_.written(y, true), in, step_.out_row);
}
void Cuda::copy_rows(Rows y, Rows x) {
  const Mat in = acts_.mat_at(x, 0, y.rows, false);
  cuda::copy_cols(stream_, acts_.written(y, true), 0, {.p = in.p, .rows = y.rows, .cols = y.cols, .stride = in.stride});
}
void Cuda::softcap(Rows x, float cap) {
  if (cap > 0 && x.rows > 0) cuda::softcap(stream_, acts_.written(x, false), cap);
}

// --- logits

void Cuda::sample(Ids ids, Rows logits, std::span<const SampleRow> rows) {
  sampler_.sample(ids, acts_.mat(logits, false), rows);
}
void Cuda::top_k(Ids ids, Scores log_probs, Rows logits, int k) {
  sampler_.top_k(ids, log_probs, nullptr, acts_.mat(logits, false), k, in_pass_);
}
void Cuda::next_tokens(Ids ids, Scores log_probs, Rows logits, int k) {
  CHECK(logits.rows == step_.shape.n_tok, "{} rows for a step of {} tokens", logits.rows, step_.shape.n_tok);
  sampler_.top_k(ids, log_probs, arrays_.token(), acts_.mat(logits, false), k, in_pass_);
}
void Cuda::clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w) {
  const int n = int(w.centroid.n_out);
  const Rows scores = cluster_score_.view(h.rows, n);
  matmul(scores, h, w.centroid);
  matmul(logits, h, w.head);
  const Mat s = acts_.mat(scores, false), l = acts_.mat(logits, false);
  cuda::keep_clusters(stream_, l.p, l.stride, logits.cols, logits.rows, s.p, s.stride, n, w.top_k, w.order.p,
                      cluster_chosen_);
}

static_assert(Backend<Cuda>);

}  // namespace facet
