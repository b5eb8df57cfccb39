#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/sampler.h"
#include "backend/cuda/device.h"
#include "backend/cuda/graphs.h"
#include "backend/cuda/kernels/sample.h"
#include "backend/cuda/step_arrays.h"
#include "backend/sampling.h"

namespace facet::cuda {

class Sampler;

// Results that the host reads; the first read after a step waits for it.
template <class T>
class Results {
 public:
  const T& operator[](size_t i) const;
  size_t size() const { return n_; }

 private:
  friend class Sampler;
  Sampler* owner_ = nullptr;
  T* host_ = nullptr;  // page-locked: kernels write here
  size_t n_ = 0;
};

// Tokens from logits, and the host's wait for them.
class Sampler {
 public:
  Sampler(Device& device, StepArrays& arrays, Graphs& graphs)
      : device_(device), stream_(device.stream()), arrays_(arrays), graphs_(graphs) {}
  ~Sampler();
  Sampler(const Sampler&) = delete;

  template <class T>
  Results<T> new_results(int n);
  void wait();    // for the newest results
  void finish();  // for everything

  // One id per row of logits.
  void sample(const Results<int32_t>& ids, Mat logits, std::span<const SampleRow> rows);
  // The k largest of each row; best of a row, if it is not null: its first, for the device. in_pass: what is launched
  // may be replayed, and the host is not told; then the second launch is pending until a verb reads the tokens.
  void top_k(const Results<int32_t>& ids, const Results<float>& log_probs, int32_t* best, Mat logits, int k,
             bool in_pass);
  void resolve_pending_topk();  // does the second launch of top_k if it is pending
  // The pending top_k, if it is of these tokens: the caller launches it. n_row 0: it is not.
  TopK take_pending_topk(int n_row, const int32_t* best);

 private:
  void results_there();
  Done next_results();
  void reserve(int n_row, int n_adjust, int n_vocab);
  int send_masks(std::span<const SampleRow> rows, int n_vocab);  // how many
  bool collect_rows(std::span<const SampleRow> rows, int n_vocab);

  Device& device_;
  const cudaStream_t stream_;
  StepArrays& arrays_;
  Graphs& graphs_;
  std::vector<void*> pinned_;
  bool pending_ = false;  // results are on their way to the host
  bool drawing_ = false;  // host_ may still be read
  Done done_;             // of the newest results
  int max_row_ = 0, max_adjust_ = 0;
  std::byte *host_ = nullptr, *on_device_ = nullptr;  // rows, then adjustments
  size_t max_mask_ = 0;                               // words
  uint32_t *host_masks_ = nullptr, *masks_ = nullptr;
  uint64_t* candidates_ = nullptr;
  int64_t n_candidate_ = 0;
  float2* part_sums_ = nullptr;  // of top_k: largest logit and sum of exponentials of a part
  TopK pending_topk_;            // of next_tokens; n_row 0: none
  SamplerScratch scratch_;
  std::vector<DrawRow> draw_;  // of the step at hand, and what changes its logits
  std::vector<Adjust> adjust_;
  std::vector<size_t> on_host_;  // rows that need more candidates than the device keeps
  std::vector<int32_t> recent_;
};

template <class T>
const T& Results<T>::operator[](size_t i) const {
  owner_->wait();
  return host_[i];
}
template <class T>
Results<T> Sampler::new_results(int n) {
  Results<T> r;
  r.owner_ = this, r.n_ = size_t(n);
  r.host_ = static_cast<T*>(device_.pinned(size_t(n) * sizeof(T), "results"));
  if (r.host_) pinned_.push_back(r.host_);
  uint32_t*& flag = done_.flag;
  if (!flag && (flag = static_cast<uint32_t*>(device_.pinned(sizeof(uint32_t), "results"))))
    pinned_.push_back(flag), *flag = 0;
  return r;
}

}  // namespace facet::cuda
