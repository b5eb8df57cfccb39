#include "backend/cuda/cpu_ffn.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "base/mmap.h"
#include "base/reserve.h"
#include "base/threads.h"

namespace facet::cuda {

CpuFfn::CpuFfn(Device& device, const WeightsInRam& which)
    : device_(device), cpu_(std::max(1, which.threads), which.isa) {}
CpuFfn::~CpuFfn() {
  stop();
  if (memory_) cudaFreeHost(memory_);
}
void CpuFfn::stop() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  if (maps_.joinable()) maps_.join();
}

void CpuFfn::map_weights() {
  pthread_setname_np(pthread_self(), "facet maps");
  lower_priority();
  size_t all = 0;
  for (const auto& w : bytes_) all += w.size();
  if (all > available_memory()) return;  // what is read last would drive out what was read first
  constexpr size_t kPiece = size_t(8) << 20;
  for (auto w : bytes_)
    for (; !w.empty() && !ending_.load(std::memory_order_relaxed); w = w.subspan(std::min(kPiece, w.size())))
      populate_pages(w.first(std::min(kPiece, w.size())));
}

void CpuFfn::expect() {
  expected_.fetch_add(1, std::memory_order_relaxed);
  step_.notify_one();
}

const CpuFfn::Weight* CpuFfn::add(const TensorView& t) {
  if (t.name.find(".ffn_down") != std::string::npos) cols_ = std::max(cols_, int(t.ne[1]));
  if (t.name.ends_with(".ffn_down.weight")) hidden_cols_ = std::max(hidden_cols_, int(t.ne[0]));
  bytes_.push_back(t.data);
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
  stop();
  if (memory_) cudaFreeHost(memory_);
  const size_t rows = size_t(rows_most_), x = rows * size_t(cols_), n = rows * size_t(used_most_);
  constexpr size_t kWords = 3 * sizeof(MoeHostRows::Word);
  memory_ = static_cast<std::byte*>(device_.pinned(kWords + 2 * (x + n) * sizeof(float), "rows for the CPU"));
  grow(device_, rows_.blocks, 1, "rows for the CPU"), grow(device_, rows_.count, 1, "rows for the CPU");
  if (!device_.status()) return;
  auto* const words = reinterpret_cast<MoeHostRows::Word*>(memory_);
  for (int i = 0; i < 3; ++i) words[i] = {};
  rows_.asked = words, rows_.job = words + 1, rows_.done = words + 2;
  auto* p = reinterpret_cast<float*>(memory_ + kWords);
  auto take = [&](size_t floats) { return std::exchange(p, p + floats); };
  rows_.x = take(x), rows_.y = take(x), rows_.weight = take(n);
  rows_.expert = reinterpret_cast<int32_t*>(take(n));
  FACET_CUDA_CHECK(cudaMemsetAsync(rows_.blocks, 0, sizeof *rows_.blocks, device_.stream()));
  FACET_CUDA_CHECK(cudaMemsetAsync(rows_.count, 0, sizeof *rows_.count, device_.stream()));
  FACET_CUDA_CHECK(cudaStreamSynchronize(device_.stream()));
  ending_ = false;
  thread_ = std::thread([this] { answer(); });
  maps_ = std::thread([this] { map_weights(); });
}

// Looks without sleep for some milliseconds after a step was expected or a job was done; then seldom: a step may be long
// before it asks.
void CpuFfn::answer() {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  pthread_setname_np(pthread_self(), "facet experts");
  auto load = [](uint64_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); };
  uint64_t done = 0, expected = 0;
  for (auto since = Clock::now(); !ending_.load(std::memory_order_relaxed);) {
    if (load(rows_.asked->value) != done) {
      reinterpret_cast<const Job*>(load(rows_.job->value))->run();
      std::atomic_ref(rows_.done->value).store(++done, std::memory_order_release);
      since = Clock::now();
      continue;
    }
    if (const uint64_t now = expected_.load(std::memory_order_relaxed); now != expected) {
      expected = now, since = Clock::now();
      continue;
    }
    const auto idle = Clock::now() - since;
    if (idle <= 5ms) continue;
    std::unique_lock lock(mutex_);
    step_.wait_for(lock, idle > 1s ? std::chrono::microseconds(20ms) : 20us);
  }
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

void CpuFfn::exchange(Job& job, Mat x, const Routing& routing, const int16_t* slots) {
  CHECK(x.rows > 0 && x.rows <= rows_most_ && x.cols <= cols_ && job.n_used <= used_most_, "{} rows of {} columns",
        x.rows, x.cols);
  moe_send(device_.stream(), rows_, x, routing, job.n_used, slots, &job);
}

void CpuFfn::begin(const MoeWeights<const Weight*, int>& w, Mat x, const Routing& routing, int n_used, Act act,
                   const int16_t* slots) {
  Job& job = job_of(w.down, x.rows);
  if (!job.self) {
    job = {.self = this, .w = {.down = *w.down}, .rows = x.rows, .n_used = n_used, .act = act};
    if (w.gate_up) job.w.gate_up = *w.gate_up;
    if (w.gate) job.w.gate = *w.gate, job.w.up = *w.up;
  }
  exchange(job, x, routing, slots);
}
void CpuFfn::begin(const Weight* gate, const Weight* up, const Weight* down, Mat x, Act act) {
  Job& job = job_of(down, x.rows);
  if (!job.self)
    job = {.self = this, .w = {.gate = *gate, .up = *up, .down = *down}, .rows = x.rows, .n_used = 0, .act = act};
  exchange(job, x, {}, nullptr);
}

void CpuFfn::end(Mat y, const MoePart& part) { moe_receive(device_.stream(), y, rows_, part); }

}  // namespace facet::cuda
