#pragma once
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cuda/kernels/exchange.h"

// What several shards run on: as many GPUs as there are, and one GPU that several share; through memory of their own or
// of the host.
namespace facet::test {

inline int n_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

// What an environment variable says while this lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* was = std::getenv(name)) was_ = was, had_ = true;
    ::setenv(name, value, 1);
  }
  ~Environment() { had_ ? ::setenv(name_, was_.c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;

 private:
  const char* name_;
  std::string was_;
  bool had_ = false;
};

struct GpuList {
  std::vector<int> gpus;
  bool peers = true;
  std::string name() const { return fmt::format("GPUs {}{}", fmt::join(gpus, ","), peers ? "" : " through the host"); }
};
inline std::vector<GpuList> gpu_lists(std::vector<size_t> counts = {2, 4}) {
  std::vector<GpuList> all;
  int n_sm = 0;
  if (cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess) return all;
  for (const size_t n : counts) {
    // All shards' exchanges wait at the same time.
    if (int(n) * cuda::kSumBlocks > 2 * n_sm) continue;
    all.push_back({std::vector<int>(n, 0), true});
    if (n_gpu() >= int(n)) {
      all.push_back({{}, true});
      for (int i = 0; i < int(n); ++i) all.back().gpus.push_back(i);
    }
    all.push_back(all.back());
    all.back().peers = false;
  }
  return all;
}
// Says each list in turn, with the switch that it needs.
template <class F>
void on_each(const std::vector<GpuList>& lists, F&& f) {
  for (const GpuList& l : lists) {
    const Environment peers("FACET_CUDA_PEERS", l.peers ? "1" : "0");
    f(l);
  }
}

}  // namespace facet::test
