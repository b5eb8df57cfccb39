#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "backend/cuda/device.h"

// What tests of CUDA kernels share.
namespace facet::test {

inline bool have_gpu() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}
// The first GPU, current on the thread that calls: kernels are launched without a backend here.
inline cuda::Device& gpu() {
  static cuda::Device device(0);
  device.make_current();
  return device;
}
#define NEEDS_GPU()                                  \
  if (!have_gpu()) GTEST_SKIP() << "no CUDA device"; \
  gpu()

// Sanitizers make kernels a hundred times slower: with FACET_TEST_LIGHT=1 tests of many cases take every step-th of
// them.
inline bool light() { return std::getenv("FACET_TEST_LIGHT") != nullptr; }
class Cases {
 public:
  explicit Cases(unsigned step) : step_(step) {}
  bool leave_out() { return light() && n_++ % step_ != 0; }

 private:
  unsigned step_, n_ = 0;
};

inline void ok(cudaError_t e) { ASSERT_EQ(e, cudaSuccess) << cudaGetErrorString(e); }

// Device memory, poisoned with NaN (in f32, f16 and bf16) or with the values of v.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t n) : n_(n) {
    ok(cudaMalloc(&p_, std::max<size_t>(1, n) * sizeof(T)));
    ok(cudaMemset(p_, 0xFF, n * sizeof(T)));
  }
  explicit OnDevice(const std::vector<T>& v) : OnDevice(v.size()) { put(v); }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(p_); }
  void put(const std::vector<T>& v) { ok(cudaMemcpy(p_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); }
  std::vector<T> get() const {
    std::vector<T> v(n_);
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy(v.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
  T* p() const { return p_; }

 private:
  T* p_ = nullptr;
  size_t n_;
};

}  // namespace facet::test
