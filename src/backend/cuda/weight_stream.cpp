#include "backend/cuda/weight_stream.h"

#include <algorithm>

namespace facet::cuda {

WeightStream::WeightStream(Device& device) : device_(device) {
  FACET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t* e : {&ready_, &used_}) FACET_CUDA_CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  loader_.emplace(device, stream_);
}
WeightStream::~WeightStream() {
  turns_.reset();
  cudaStreamSynchronize(stream_);
  loader_.reset();
  cudaEventDestroy(ready_), cudaEventDestroy(used_);
  cudaStreamDestroy(stream_);
}

int WeightStream::add(int layer, const TensorView& t, const TiledMatrix& to, DType kept) {
  CHECK(!turns_, "{}: added when experts are on their way", t.name);
  Layer& l = layers_[layer];
  matrices_.push_back({.t = t, .to = to, .kept = kept, .layer = layer, .at = l.bytes});
  l.matrices.push_back(int(matrices_.size()) - 1);
  l.bytes += (to.matrix_bytes() * to.n_stack + kAlign - 1) / kAlign * kAlign;
  return int(matrices_.size()) - 1;
}

int64_t WeightStream::bytes(int64_t layer) { return layer + 3 * kAlign + int64_t(2 * Loader::kPiece); }

bool WeightStream::reserve() {
  if (turns_) return true;
  int64_t most = 0;
  for (const auto& [number, layer] : layers_) most = std::max(most, layer.bytes);
  place_ = static_cast<uint8_t*>(device_.allocate(size_t(most), "experts on their way"));
  if (!place_ || !loader_->reserve()) return false;
  turns_.emplace([this] { device_.make_current(); }, [this](int layer) { bring(layer); });
  return true;
}

void WeightStream::prefetch_first() { turns_->ask(layers_.begin()->first); }

void WeightStream::acquire(int layer) {
  const auto next = std::next(layers_.find(layer));
  turns_->acquire(layer, next == layers_.end() ? -1 : next->first);
  FACET_CUDA_CHECK(cudaStreamWaitEvent(device_.stream(), ready_, 0));
}

TiledMatrix WeightStream::matrix(int number) const {
  const Matrix& m = matrices_[size_t(number)];
  TiledMatrix to = m.to;
  to.p = place_ + m.at;
  return to;
}

void WeightStream::release(int layer) {
  FACET_CUDA_CHECK(cudaEventRecord(used_, device_.stream()));
  turns_->release(layer);
}

void WeightStream::bring(int layer) {
  FACET_CUDA_CHECK(cudaStreamWaitEvent(stream_, used_, 0));
  for (const int i : layers_.at(layer).matrices)
    loader_->load(matrix(i), matrices_[size_t(i)].t, matrices_[size_t(i)].kept);
  FACET_CUDA_CHECK(cudaEventRecord(ready_, stream_));
}

}  // namespace facet::cuda
