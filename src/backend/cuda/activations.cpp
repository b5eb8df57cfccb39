#include "backend/cuda/activations.h"

#include <utility>

#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {

Rows Activations::new_rows(int rows, int cols) {
  Buffer b;
  b.rows = rows, b.cols = cols, b.stride = (cols + 7) / 8 * 8;
  const size_t n = size_t(rows) * size_t(b.stride);
  b.p = static_cast<float*>(device_.allocate(n * sizeof(float), "activations"));
  b.bf = static_cast<__nv_bfloat16*>(device_.allocate(n * sizeof(__nv_bfloat16), "activations"));
  if (b.p) FACET_CUDA_CHECK(cudaMemsetAsync(b.p, 0, n * sizeof(float), stream_));
  buffers_.push_back(b);
  return {&buffers_.back(), rows, cols, 0, 0};
}
void Activations::release(const Rows& x) { device_.release(x.buffer->p), device_.release(x.buffer->bf); }

Mat Activations::raw(const Rows& x, int row, int n, bool bf) const {
  const Buffer& b = *x.buffer;
  const int64_t at = (x.first + row) * b.stride + x.begin;
  return {.p = b.p + at,
          .rows = n,
          .cols = x.cols,
          .stride = b.stride,
          .bf = bf ? b.bf + at : nullptr,
          .bf_stride = b.stride};
}
Mat Activations::mat_at(const Rows& x, int row, int n, bool bf) {
  resolve(x.buffer);
  return raw(x, row, n, bf);
}
Mat Activations::written(const Rows& x, bool bf) {
  Buffer& b = *x.buffer;
  if (int8_of_ == x.buffer) int8_of_ = nullptr;
  bf = bf && x.first == 0;
  if (bf)
    b.fresh_rows = x.rows, b.fresh_begin = x.begin, b.fresh_end = x.begin + x.cols;
  else if (x.begin < b.fresh_end && x.begin + x.cols > b.fresh_begin)
    b.fresh_rows = 0;
  return mat(x, bf);
}
Mat Activations::written_int8(const Rows& x) {
  Mat m = written(x, true);
  if (x.rows < 2 || x.rows > kWideRows || x.first != 0 || x.begin != 0) return m;
  if (skinny_image_bytes(x.cols) > int8_bytes_) return m;
  m.image = int8_;
  int8_of_ = x.buffer, int8_rows_ = x.rows, int8_cols_ = x.cols;
  return m;
}
const __nv_bfloat16* Activations::rounded(const Rows& x) {
  Buffer& b = *x.buffer;
  if (x.first + x.rows > b.fresh_rows || x.begin < b.fresh_begin || x.begin + x.cols > b.fresh_end)
    to_bf16(stream_, x.first == 0 ? written(x, true) : mat(x, true));
  return b.bf + x.first * b.stride + x.begin;
}
void Activations::host_wrote(const Rows& x) {
  x.buffer->fresh_rows = 0;
  if (int8_of_ == x.buffer) int8_of_ = nullptr;
}
void Activations::forget_rounded() {
  for (Buffer& b : buffers_) b.fresh_rows = 0;
  int8_of_ = nullptr;
}
void Activations::reserve_int8(int64_t bytes) {
  int8_bytes_ = bytes;
  if (grow(device_, int8_, size_t(bytes))) FACET_CUDA_CHECK(cudaMemsetAsync(int8_, 0, size_t(bytes), stream_));
}

// --- pending work

void Activations::run(const Pending& pending) {
  if (const auto* p = std::get_if<PartialSums>(&pending))
    sum_partials(stream_, raw(p->of, 0, p->of.rows, false), p->sums);
  else if (const auto* h = std::get_if<QkNormRope>(&pending))
    run_qk_norm_rope(stream_, h->kv, h->q, step_, h->left);
  else if (const auto* e = std::get_if<ExpertOutputs>(&pending))
    moe_small_batch_combine(stream_, raw(e->of, 0, e->of.rows, false), e->slots.out, e->slots.weight, e->slots.n_used);
  else if (const auto* l = std::get_if<ExpertPanels>(&pending))
    moe_combine(stream_, l->rows, raw(l->of, 0, l->of.rows, false));
}
void Activations::defer(Pending p) {
  const size_t kind = p.index();
  resolve_if([&](const Pending& q) { return q.index() == kind; });
  pending_.push_back(std::move(p));
}
void Activations::resolve(const Buffer* b) {
  if (pending_.empty()) return;
  resolve_if([&](const Pending& pending) {
    if (const auto* p = std::get_if<PartialSums>(&pending)) return p->of.buffer == b;
    if (const auto* h = std::get_if<QkNormRope>(&pending)) return h->of_q == b || h->of_k == b || h->of_v == b;
    if (const auto* e = std::get_if<ExpertOutputs>(&pending)) return e->of.buffer == b;
    return std::get<ExpertPanels>(pending).of.buffer == b;
  });
}
void Activations::resolve_all() {
  resolve_if([](const Pending&) { return true; });
}
Partials Activations::take_sums(const Rows& y) {
  for (size_t i = 0; i < pending_.size(); ++i)
    if (const auto* p = std::get_if<PartialSums>(&pending_[i])) {
      const Rows& to = p->of;
      if (to.buffer != y.buffer || to.rows != y.rows || to.cols != y.cols || y.first != to.first || y.begin != to.begin)
        return {};
      const Partials sums = p->sums;
      pending_.erase(pending_.begin() + ptrdiff_t(i));
      return sums;
    }
  return {};
}
std::optional<QkNormRope> Activations::take_qk_norm_rope(const Rows& q, const KvLayer& kv) {
  for (size_t i = 0; i < pending_.size(); ++i)
    if (const auto* h = std::get_if<QkNormRope>(&pending_[i])) {
      const QkNormRope work = *h;
      pending_.erase(pending_.begin() + ptrdiff_t(i));
      const bool is_its = work.of_q == q.buffer && work.q.rows == q.rows && work.q.cols == q.cols &&
                          (!work.left.k.p || work.kv.k == kv.k);
      if (is_its) return work;
      run(work);
      return std::nullopt;
    }
  return std::nullopt;
}
template <class Kind>
Kind Activations::take_of(const Rows& y) {
  for (size_t i = 0; i < pending_.size(); ++i)
    if (const auto* p = std::get_if<Kind>(&pending_[i]); p && p->of.buffer == y.buffer) {
      const Kind work = *p;
      pending_.erase(pending_.begin() + ptrdiff_t(i));
      return work;
    }
  return {};
}
MoeSlots Activations::take_experts(const Rows& y) { return take_of<ExpertOutputs>(y).slots; }
MoePanelRows Activations::take_expert_panels(const Rows& y) { return take_of<ExpertPanels>(y).rows; }

}  // namespace facet::cuda
