#include "backend/cuda/cpu_ffn.h"

#include <algorithm>

namespace facet::cuda {

CpuFfn::CpuFfn(Device& device, const WeightsInRam& which)
    : device_(device), cpu_(std::max(1, which.threads), which.isa) {
  FACET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t* e : {&begun_, &done_}) FACET_CUDA_CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
}
CpuFfn::~CpuFfn() {
  cudaStreamSynchronize(stream_);
  cudaEventDestroy(begun_), cudaEventDestroy(done_);
  cudaStreamDestroy(stream_);
  if (memory_) cudaFreeHost(memory_);
}

const CpuFfn::Weight* CpuFfn::add(const TensorView& t) {
  if (t.name.find(".ffn_down") != std::string::npos) cols_ = std::max(cols_, int(t.ne[1]));
  if (t.name.ends_with(".ffn_down.weight")) hidden_cols_ = std::max(hidden_cols_, int(t.ne[0]));
  return &weights_.emplace_back(cpu_.upload(t));
}

void CpuFfn::reserve(const BackendLimits& l) {
  BackendLimits own;
  own.max_tok = std::min(l.max_tok, kRows);
  own.max_cols = std::max({cols_, hidden_cols_, 2 * l.d_expert, l.n_expert});
  own.n_expert = l.n_expert, own.n_expert_used = l.n_expert_used, own.d_expert = l.d_expert, own.d_moe = l.d_moe;
  cpu_.reserve(own);
  if (own.max_tok <= rows_most_ && l.n_expert_used <= used_most_) return;
  rows_most_ = std::max(rows_most_, own.max_tok), used_most_ = std::max(used_most_, l.n_expert_used);
  if (hidden_cols_ > 0) hidden_ = cpu_.new_rows(rows_most_, hidden_cols_);
  if (memory_) cudaFreeHost(memory_);
  const size_t rows = size_t(rows_most_), x = rows * size_t(cols_), n = rows * size_t(used_most_);
  memory_ = static_cast<std::byte*>(device_.pinned(2 * (x + n) * sizeof(float), "rows for the CPU"));
  auto* p = reinterpret_cast<float*>(memory_);
  auto take = [&](size_t floats) { return std::exchange(p, p + floats); };
  rows_.x = take(x), rows_.y = take(x), rows_.weight = take(n);
  rows_.expert = reinterpret_cast<int32_t*>(take(n));
}

// No call of CUDA is allowed here.
void CpuFfn::Job::run() const {
  const MoeHostRows& r = self->rows_;
  const int d = int(w.down.n_out);
  const CpuFast::Rows x{r.x, rows, d, d}, y{r.y, rows, d, d};
  if (n_used > 0) {
    const size_t n = size_t(rows) * size_t(n_used);
    return self->cpu_.routed_experts(y, x, {r.expert, n}, {r.weight, n}, w, n_used, act);
  }
  const CpuFast::Rows hidden = self->hidden_.view(rows, int(w.down.n_in));
  self->cpu_.gate_up(hidden, x, w.gate, w.up, act);
  self->cpu_.matmul(y, hidden, w.down);
}

void CpuFfn::exchange(Job& job, Mat x, const Routing& routing) {
  CHECK(x.rows > 0 && x.rows <= rows_most_ && x.cols <= cols_ && job.n_used <= used_most_, "{} rows of {} columns",
        x.rows, x.cols);
  moe_send(device_.stream(), rows_, x, routing, job.n_used);
  FACET_CUDA_CHECK(cudaEventRecord(begun_, device_.stream()));
  FACET_CUDA_CHECK(cudaStreamWaitEvent(stream_, begun_, 0));
  FACET_CUDA_CHECK(cudaLaunchHostFunc(
      stream_, [](void* j) { static_cast<const Job*>(j)->run(); }, &job));
  FACET_CUDA_CHECK(cudaEventRecord(done_, stream_));
}

void CpuFfn::begin(const MoeWeights<const Weight*, int>& w, Mat x, const Routing& routing, int n_used, Act act) {
  Job& job = job_of(w.down, x.rows);
  if (!job.self) {
    job = {.self = this, .w = {.down = *w.down}, .rows = x.rows, .n_used = n_used, .act = act};
    if (w.gate_up) job.w.gate_up = *w.gate_up;
    if (w.gate) job.w.gate = *w.gate, job.w.up = *w.up;
  }
  exchange(job, x, routing);
}
void CpuFfn::begin(const Weight* gate, const Weight* up, const Weight* down, Mat x, Act act) {
  Job& job = job_of(down, x.rows);
  if (!job.self)
    job = {.self = this, .w = {.gate = *gate, .up = *up, .down = *down}, .rows = x.rows, .n_used = 0, .act = act};
  exchange(job, x, {});
}

void CpuFfn::end(Mat y) {
  FACET_CUDA_CHECK(cudaStreamWaitEvent(device_.stream(), done_, 0));
  moe_receive(device_.stream(), y, rows_);
}

}  // namespace facet::cuda
