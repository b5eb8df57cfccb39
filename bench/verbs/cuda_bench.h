#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::bench {

// Device memory for n values, kept until the program ends.
template <class T>
T* allocate(size_t n) {
  void* p = nullptr;
  FACET_CUDA_CHECK(cudaMalloc(&p, n * sizeof(T)));
  return static_cast<T*>(p);
}

// Median microseconds of one of `calls` calls of f(i), captured as one graph.
inline double time_us(cudaStream_t stream, int calls, const std::function<void(int)>& f, int replays = 9) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  f(0);
  FACET_CUDA_CHECK(cudaStreamSynchronize(stream));
  FACET_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) f(i);
  FACET_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  FACET_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  cudaEventCreate(&a), cudaEventCreate(&b);
  std::vector<double> us;
  for (int i = 0; i < replays + 2; ++i) {
    cudaEventRecord(a, stream);
    FACET_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    cudaEventRecord(b, stream);
    FACET_CUDA_CHECK(cudaEventSynchronize(b));
    float ms = 0;
    cudaEventElapsedTime(&ms, a, b);
    if (i >= 2) us.push_back(ms * 1000. / calls);
  }
  cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaEventDestroy(a), cudaEventDestroy(b);
  std::nth_element(us.begin(), us.begin() + long(us.size() / 2), us.end());
  return us[us.size() / 2];
}

}  // namespace facet::bench
