#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_fast.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/weights_in_ram.h"

namespace facet::cuda {

// Feed-forward parts that are computed where their weights lie: in RAM, by the CPU, beside what the GPU does meanwhile.
// A kernel writes rows to the host's memory and asks for a job there; a thread that looks for it multiplies; another
// kernel waits for the sums, and brings them back. A graph records both. Host functions of CUDA would do, but cost as much
// again as the experts of a layer. One exchange is under way at a time.
class CpuFfn {
 public:
  static constexpr int kRows = kMoeSmallBatch;  // of an exchange
  using Weight = CpuFast::Weight;

  CpuFfn(Device& device, const WeightsInRam& which);
  ~CpuFfn();  // the device's stream is idle
  CpuFfn(const CpuFfn&) = delete;

  // A matrix, which stays in the file's memory for as long as this lives.
  const Weight* add(const TensorView& t);
  // After all matrices were added.
  void reserve(const BackendLimits& limits);

  // A step is on its way: the thread looks for its jobs without sleep, for a while.
  void expect();

  // Begins the feed-forward part of up to kRows rows. What is launched in the device's stream before end() runs beside it.
  // x [T, D]: with experts, whose routing comes before it in the stream; the matrices come from add().
  // slots: MoeExperts::slots of a layer that has experts on the GPU as well; null: it has none.
  void begin(const MoeWeights<const Weight*, int>& w, Mat x, const Routing& routing, int n_used, Act act,
             const int16_t* slots);
  void begin(const Weight* gate, const Weight* up, const Weight* down, Mat x, Act act);
  void end(Mat y, const MoePart& part = {});  // of as many rows: in the stream, with what the GPU has

 private:
  struct Job {  // which graphs may ask for again
    CpuFfn* self = nullptr;
    MoeWeights<CpuFast::Weight, CpuFast::Vec> w;
    int rows = 0, n_used = 0;  // 0: dense
    Act act = Act::kGelu;
    void run() const;
  };
  Job& job_of(const Weight* down, int rows) { return jobs_[{down, rows}]; }
  void exchange(Job& job, Mat x, const Routing& routing, const int16_t* slots);
  void answer();       // the thread
  void map_weights();  // a thread of its own: the first tokens would do it page by page
  void stop();

  Device& device_;
  CpuFast cpu_;
  std::deque<Weight> weights_;
  std::vector<std::span<const std::byte>> bytes_;      // of them
  std::map<std::pair<const Weight*, int>, Job> jobs_;  // by the matrix `down` and rows
  int cols_ = 0, hidden_cols_ = 0;                     // D, and of a dense layer's hidden rows
  CpuFast::Rows hidden_;
  std::byte* memory_ = nullptr;
  int rows_most_ = 0, used_most_ = 0;
  MoeHostRows rows_;
  std::atomic<uint64_t> expected_{0};  // calls of expect()
  std::atomic<bool> ending_{false};
  std::mutex mutex_;
  std::condition_variable step_;
  std::thread thread_, maps_;
};

}  // namespace facet::cuda
