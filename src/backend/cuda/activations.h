#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/kernels/ops.h"
#include "base/check.h"

namespace facet::cuda {

// An activation buffer [rows, cols]: f32, and bf16 of the region that was rounded last.
struct Buffer {
  float* p = nullptr;
  __nv_bfloat16* bf = nullptr;
  int rows = 0, cols = 0;
  int64_t stride = 0;
  int fresh_rows = 0, fresh_begin = 0, fresh_end = 0;  // the region: rows from 0 on, columns [begin, end)
};
struct Rows {
  Buffer* buffer = nullptr;
  int rows = 0, cols = 0, begin = 0, first = 0;  // columns [begin, begin + cols), rows [first, first + rows)
  Rows view(int r, int c) const {
    CHECK(first + r <= buffer->rows && begin + c <= buffer->cols, "view [{}, {}] of rows [{}, {}]", r, c, buffer->rows,
          buffer->cols);
    return {buffer, r, c, begin, first};
  }
  Rows cols_at(int at, int n) const {
    CHECK(at >= 0 && at + n <= cols, "columns {}..{} of {}", at, at + n, cols);
    return {buffer, rows, n, begin + at, first};
  }
  Rows rows_at(int at, int n) const {
    CHECK(at >= 0 && at + n <= rows, "rows {}..{} of {}", at, at + n, rows);
    return {buffer, n, cols, begin, first + at};
  }
  explicit operator bool() const { return buffer != nullptr; }
};

// Work that a verb deferred to the reader of its output, which does it in its own launch.
struct PartialSums {  // of a product whose columns were split (split-K): `of` is their sum
  Rows of;
  Partials sums;
};
struct QkNormRope {  // norms, RoPE and the append of K/V rows, between projections and attention
  const Buffer *of_q = nullptr, *of_k = nullptr, *of_v = nullptr;  // of_k null: of q alone
  Mat q;
  KvLayer kv;
  PendingQkNormRope left;
};
struct ExpertOutputs {  // `of` is their sum over a token's experts
  Rows of;
  MoeSlots slots;
};
struct ExpertPanels {  // the same of a large batch
  Rows of;
  MoePanelRows rows;
};
using Pending = std::variant<PartialSums, QkNormRope, ExpertOutputs, ExpertPanels>;

// The activations of a backend. Verbs get at memory through mat() and written() alone, which first do what is pending
// of the buffer; so no verb can forget it. A verb that does the pending work itself takes it before.
class Activations {
 public:
  // step: the newest, device pointers.
  Activations(Device& device, const Step& step) : device_(device), stream_(device.stream()), step_(step) {}
  Activations(const Activations&) = delete;

  Rows new_rows(int rows, int cols);
  void release(const Rows& x);  // all of its buffer

  // Rows [row, row + n) of x as kernels take them; bf: the verb will write the bf16 too.
  Mat mat_at(const Rows& x, int row, int n, bool bf);
  Mat mat(const Rows& x, bool bf) { return mat_at(x, 0, x.rows, bf); }
  // The same for an output: its bf16 becomes fresh or stale, its int8 activations stale.
  Mat written(const Rows& x, bool bf);
  // written(x, true) for a kernel that writes int8 activations too, if the rows are few.
  Mat written_int8(const Rows& x);
  const __nv_bfloat16* rounded(const Rows& x);  // the bf16 of x, made if it is stale
  void host_wrote(const Rows& x);
  void forget_rounded();

  // --- pending work
  void defer(Pending p);
  void resolve(const Buffer* b);
  void resolve_all();
  template <class Kind>
  void resolve_kind() {
    resolve_if([](const Pending& p) { return std::holds_alternative<Kind>(p); });
  }
  // The partial sums of exactly y, which the caller adds up; none if y has them all.
  Partials take_sums(const Rows& y);
  // The work on q and its K/V rows, which attention does; what belongs elsewhere is done now.
  std::optional<QkNormRope> take_qk_norm_rope(const Rows& q, const KvLayer& kv);
  MoeSlots take_experts(const Rows& y);
  MoePanelRows take_expert_panels(const Rows& y);

  // --- int8 activations (kernels/matmul/acts.cuh) of the first rows of one buffer
  void reserve_int8(int64_t bytes);
  uint8_t* int8() const { return int8_; }
  bool has_int8(const Rows& x) const {
    return int8_of_ == x.buffer && x.rows == int8_rows_ && x.first == 0 && x.begin == 0 && x.cols == int8_cols_;
  }
  void forget_int8() { int8_of_ = nullptr; }

 private:
  Mat raw(const Rows& x, int row, int n, bool bf) const;
  void run(const Pending& p);
  // What is pending of y's buffer, which is the caller's work from now on.
  template <class Kind>
  Kind take_of(const Rows& y);
  template <class F>
  void resolve_if(F&& which) {
    for (size_t i = 0; i < pending_.size();)
      if (which(pending_[i])) {
        const Pending p = pending_[i];
        pending_.erase(pending_.begin() + ptrdiff_t(i));
        run(p);
      } else {
        ++i;
      }
  }

  Device& device_;
  const cudaStream_t stream_;
  const Step& step_;
  std::deque<Buffer> buffers_;
  std::vector<Pending> pending_;  // at most one of a kind
  uint8_t* int8_ = nullptr;
  int64_t int8_bytes_ = 0;
  const Buffer* int8_of_ = nullptr;  // null: none
  int int8_rows_ = 0, int8_cols_ = 0;
};

}  // namespace facet::cuda
