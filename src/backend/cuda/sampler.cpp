#include "backend/cuda/sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

namespace facet::cuda {

Sampler::~Sampler() {
  for (void* p : pinned_) cudaFreeHost(p);
}

// --- results

void Sampler::finish() {
  FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
  arrays_.results_asked_for();
  results_there();
}
void Sampler::results_there() {
  arrays_.results_there();
  pending_ = drawing_ = false;
}
// The kernel that writes results says when they are there, which is sooner than the end of the stream is known.
void Sampler::wait() {
  if (!pending_) return;
  constexpr int kLooks = 1 << 14;  // between questions whether the device still works
  for (int i = 1; std::atomic_ref(*done_.flag).load(std::memory_order_acquire) != done_.number; ++i) {
    if (i % kLooks == 0 && cudaStreamQuery(stream_) != cudaErrorNotReady) return finish();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  results_there();
}
// For the launch that comes next.
Done Sampler::next_results() {
  arrays_.results_asked_for();
  pending_ = true;
  ++done_.number;
  return done_;
}

// --- top_k

void Sampler::resolve_pending_topk() {
  if (pending_topk_.n_row > 0) top_k_pick(stream_, std::exchange(pending_topk_, {}));
}
TopK Sampler::take_pending_topk(int n_row, const int32_t* best) {
  return pending_topk_.n_row == n_row && pending_topk_.best == best ? std::exchange(pending_topk_, {}) : TopK{};
}
void Sampler::top_k(const Results<int32_t>& ids, const Results<float>& log_probs, int32_t* best, Mat logits, int k,
                    bool in_pass) {
  const size_t need = size_t(logits.rows) * size_t(k);
  CHECK(k > 0 && k <= kMaxTopK && ids.size() >= need && log_probs.size() >= need, "{} candidates for {} rows", k,
        logits.rows);
  resolve_pending_topk();
  reserve(logits.rows, 0, logits.cols);
  TopK to{.ids = ids.host_,
          .log_probs = log_probs.host_,
          .best = best,
          .candidates = candidates_,
          .part_sums = part_sums_,
          .n_row = logits.rows,
          .k = k};
  top_k_parts(stream_, logits.p, logits.stride, logits.cols, to);
  if (in_pass && best)
    pending_topk_ = to;
  else
    top_k_pick(stream_, to, in_pass ? Done{} : next_results());
}

// --- sample

namespace {
// What suppression, bias and penalties do to single logits, in sample_row's order.
void collect_adjust(const SampleRow& row, std::vector<Adjust>& to, std::vector<int32_t>& recent) {
  const Sampling& s = *row.sampling;
  const size_t first = to.size();
  const float none = -INFINITY;
  for (int32_t id : row.suppressed) to.push_back({id, none, 1.f, 0.f});
  for (const auto& [id, bias] : s.logit_bias) to.push_back({id, bias, 1.f, 0.f});
  if (s.repeat_penalty != 1.f || s.presence_penalty != 0.f || s.frequency_penalty != 0.f) {
    recent.clear();
    const size_t total = row.history.size() + row.draft.size();
    for (size_t i = s.repeat_last_n < 0 ? 0 : total - std::min(total, size_t(s.repeat_last_n)); i < total; ++i)
      recent.push_back(i < row.history.size() ? row.history[i] : row.draft[i - row.history.size()]);
    std::sort(recent.begin(), recent.end());
    for (size_t i = 0; i < recent.size();) {
      size_t end = i;
      while (end < recent.size() && recent[end] == recent[i]) ++end;
      to.push_back({recent[i], 0.f, s.repeat_penalty, float(end - i) * s.frequency_penalty + s.presence_penalty});
      i = end;
    }
  }
  // One change an id: a thread applies each.
  std::stable_sort(to.begin() + ptrdiff_t(first), to.end(),
                   [](const Adjust& a, const Adjust& b) { return a.id < b.id; });
  size_t n = first;
  for (size_t i = first; i < to.size(); ++i) {
    if (n > first && to[n - 1].id == to[i].id) {
      to[n - 1].bias += to[i].bias;
      if (to[i].penalty != 1.f) to[n - 1].penalty = to[i].penalty;
      to[n - 1].minus += to[i].minus;
    } else {
      to[n++] = to[i];
    }
  }
  to.resize(n);
}
}  // namespace

void Sampler::reserve(int n_row, int n_adjust, int n_vocab) {
  const int64_t need = draw_candidates(n_vocab) * n_row;
  if (n_row <= max_row_ && n_adjust <= max_adjust_ && need <= n_candidate_) return;
  finish();
  graphs_.forget();  // they hold addresses of what may move
  max_row_ = std::max({max_row_, n_row, 16}), max_adjust_ = std::max(max_adjust_, 2 * n_adjust + 4096);
  const size_t bytes = size_t(max_row_) * sizeof(DrawRow) + size_t(max_adjust_) * sizeof(Adjust);
  host_ = static_cast<std::byte*>(device_.pinned(bytes, "sampling"));
  if (host_) pinned_.push_back(host_);
  grow(device_, on_device_, bytes, "sampling");
  n_candidate_ = std::max(n_candidate_, draw_candidates(n_vocab) * max_row_);
  grow(device_, candidates_, size_t(n_candidate_), "sampling");
  grow(device_, part_sums_, size_t(n_candidate_) / kMaxTopK, "sampling");
  if (grow(device_, done_.n_row, 1, "sampling"))
    FACET_CUDA_CHECK(cudaMemsetAsync(done_.n_row, 0, sizeof(unsigned), stream_));
  if (const Status had = device_.status(); !had) CHECK(false, "{}", had.error().message());
}
// The last draw is over: its masks have been read.
int Sampler::send_masks(std::span<const SampleRow> rows, int n_vocab) {
  const size_t words = (size_t(n_vocab) + 31) / 32;
  size_t n = 0;
  for (const SampleRow& r : rows) n += !r.allowed.empty();
  if (n == 0) return 0;
  if (n * words > max_mask_) {
    finish();
    max_mask_ = std::max(2 * n, size_t(8)) * words;
    host_masks_ = static_cast<uint32_t*>(device_.pinned(max_mask_ * sizeof(uint32_t), "masks"));
    if (host_masks_) pinned_.push_back(host_masks_);
    grow(device_, masks_, max_mask_, "masks");
    if (const Status had = device_.status(); !had) CHECK(false, "{}", had.error().message());
  }
  n = 0;
  for (const SampleRow& r : rows) {
    if (r.allowed.empty()) continue;
    CHECK(r.allowed.size() == words, "a mask of {} words for {} logits", r.allowed.size(), n_vocab);
    std::memcpy(host_masks_ + words * n++, r.allowed.data(), words * sizeof(uint32_t));
  }
  FACET_CUDA_CHECK(cudaMemcpyAsync(masks_, host_masks_, n * words * sizeof(uint32_t), cudaMemcpyHostToDevice, stream_));
  return int(n);
}

// What the device draws from, row by row. True: the best of every row is wanted.
bool Sampler::collect_rows(std::span<const SampleRow> rows, int n_vocab) {
  draw_.resize(rows.size()), adjust_.clear(), on_host_.clear();
  bool greedy = true;
  int n_masked = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sampling& p = *rows[i].sampling;
    const bool best = p.temperature <= 0.f;
    // More candidates than the device keeps, or all tokens before them.
    const bool wide = p.uses_dry() || p.uses_xtc() || (!best && (p.top_k <= 0 || p.top_k > kMaxTopK));
    greedy &= best || wide;
    const int first = int(adjust_.size());
    if (wide)
      on_host_.push_back(i);
    else
      collect_adjust(rows[i], adjust_, recent_);
    draw_[i] = {.temperature = p.temperature,
                .top_p = p.top_p,
                .min_p = p.min_p,
                .top_k = best || wide ? 1 : std::min(p.top_k, n_vocab),
                .seed = p.seed,
                .position = rows[i].position,
                .first_adjust = first,
                .n_adjust = int(adjust_.size()) - first,
                .mask = rows[i].allowed.empty() ? -1 : n_masked++};
  }
  return greedy;
}

namespace {
constexpr size_t kInPlace = 16;  // rows of parameters that a draw reads from the host's memory
}
void Sampler::sample(const Results<int32_t>& ids, Mat logits, std::span<const SampleRow> rows) {
  CHECK(int(rows.size()) == logits.rows && ids.size() >= rows.size(), "{} rows for {} logits", rows.size(),
        logits.rows);
  resolve_pending_topk();
  const bool greedy = collect_rows(rows, logits.cols);
  reserve(int(rows.size()), int(adjust_.size()), logits.cols);
  if (drawing_) wait();
  const int n_mask = send_masks(rows, logits.cols);
  const size_t row_part = size_t(max_row_) * sizeof(DrawRow);
  std::memcpy(host_, draw_.data(), draw_.size() * sizeof(DrawRow));
  // Few rows are read where they are: a copy would have to wait for the logits and be waited for.
  const bool in_place = draw_.size() <= kInPlace && n_mask == 0;  // every block reads a mask's
  if (!in_place)
    FACET_CUDA_CHECK(
        cudaMemcpyAsync(on_device_, host_, draw_.size() * sizeof(DrawRow), cudaMemcpyHostToDevice, stream_));
  if (!adjust_.empty()) {
    std::memcpy(host_ + row_part, adjust_.data(), adjust_.size() * sizeof(Adjust));
    FACET_CUDA_CHECK(cudaMemcpyAsync(on_device_ + row_part, host_ + row_part, adjust_.size() * sizeof(Adjust),
                                     cudaMemcpyHostToDevice, stream_));
  }
  std::vector<std::pair<size_t, int32_t>> drawn;
  for (size_t i : on_host_) {
    finish();
    std::vector<float> row(static_cast<size_t>(logits.cols));
    FACET_CUDA_CHECK(cudaMemcpyAsync(row.data(), logits.p + int64_t(i) * logits.stride, row.size() * 4,
                                     cudaMemcpyDeviceToHost, stream_));
    FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
    drawn.push_back({i, sample_row(row, rows[i], scratch_)});
  }
  draw(stream_, ids.host_, logits.p, logits.stride, logits.cols, int(rows.size()),
       reinterpret_cast<const DrawRow*>(in_place ? host_ : on_device_),
       reinterpret_cast<const Adjust*>(on_device_ + row_part), int(adjust_.size()), greedy, candidates_, next_results(),
       masks_, n_mask);
  drawing_ = true;
  if (!drawn.empty()) finish();
  for (const auto& [i, id] : drawn) ids.host_[i] = id;
}

}  // namespace facet::cuda
