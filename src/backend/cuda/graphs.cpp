#include "backend/cuda/graphs.h"

#include <algorithm>
#include <bit>

namespace facet::cuda {

int64_t row_bucket(int64_t rows) { return std::max<int64_t>(128, int64_t(std::bit_ceil(uint64_t(rows)))); }

void Graphs::drop(Captured& c) {
  if (c.exec) cudaGraphExecDestroy(c.exec);  // one that still runs goes when it is done
  c.exec = nullptr;
}
void Graphs::forget() { captured_.clear(drop); }

Graphs::Captured* Graphs::find(const void* pass, const StepShape& shape) {
  if (!on_ || shape.n_tok > (shape.n_small == shape.n_tok ? kBatchRows : kRows) || shape.staged || shape.select)
    return nullptr;
  ++passes_;
  return &captured_.at({pass, shape}, drop);
}
void Graphs::begin_capture() { FACET_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }
cudaGraph_t Graphs::captured_graph() {
  cudaGraph_t graph = nullptr;
  FACET_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  return graph;
}
void Graphs::instantiate(Captured& c, cudaGraph_t graph) {
  FACET_CUDA_CHECK(cudaGraphInstantiate(&c.exec, graph, 0));
  FACET_CUDA_CHECK(cudaGraphDestroy(graph));
  ++counters_.captures;
}
void Graphs::launch(Captured& c) {
  FACET_CUDA_CHECK(cudaGraphLaunch(c.exec, stream_));
  ++counters_.launches;
}

}  // namespace facet::cuda
