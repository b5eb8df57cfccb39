#pragma once
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cuda/kernels/collectives.h"

// What several shards run on: GPUs of their own, through their memory or the host's.
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
// GPUs of their own: shards that share one wait for each other behind kernels that fill it.
inline std::vector<GpuList> gpu_lists(std::vector<size_t> counts = {2, 4}) {
  std::vector<GpuList> all;
  for (const size_t n : counts) {
    if (n_gpu() < int(n)) continue;
    all.push_back({{}, true});
    for (int i = 0; i < int(n); ++i) all.back().gpus.push_back(i);
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
