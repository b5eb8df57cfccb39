#include "backend/cuda/weight_stream.h"

#include <algorithm>

namespace facet::cuda {

WeightStream::WeightStream(Device& device) : device_(device) {
  FACET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t* e : {&place_.ready, &place_.used})
    FACET_CUDA_CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
  loader_.emplace(device, stream_);
}
WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  cudaStreamSynchronize(stream_);
  loader_.reset();
  cudaEventDestroy(place_.ready), cudaEventDestroy(place_.used);
  cudaStreamDestroy(stream_);
}

int WeightStream::add(int layer, const TensorView& t, const TiledMatrix& to, DType kept) {
  CHECK(!thread_.joinable(), "{}: added when experts are on their way", t.name);
  Layer& l = layers_[layer];
  matrices_.push_back({.t = t, .to = to, .kept = kept, .layer = layer, .at = l.bytes});
  l.matrices.push_back(int(matrices_.size()) - 1);
  l.bytes += (to.matrix_bytes() * to.n_stack + kAlign - 1) / kAlign * kAlign;
  return int(matrices_.size()) - 1;
}

int64_t WeightStream::bytes(int64_t layer) { return layer + 3 * kAlign + int64_t(2 * Loader::kPiece); }

bool WeightStream::reserve() {
  if (thread_.joinable()) return true;
  int64_t most = 0;
  for (const auto& [number, layer] : layers_) most = std::max(most, layer.bytes);
  place_.p = static_cast<uint8_t*>(device_.allocate(size_t(most), "experts on their way"));
  if (!place_.p || !loader_->reserve()) return false;
  thread_ = std::thread([this] { run(); });
  return true;
}

void WeightStream::ask(int layer) {
  if ((place_.layer == layer && place_.state != State::kEmpty) || std::ranges::find(wanted_, layer) != wanted_.end())
    return;
  wanted_.push_back(layer);
}

void WeightStream::prefetch_first() {
  const std::lock_guard lock(mutex_);
  ask(layers_.begin()->first);
  changed_.notify_all();
}

void WeightStream::acquire(int layer) {
  std::unique_lock lock(mutex_);
  Place& p = place_;
  ask(layer);
  if (const auto next = std::next(layers_.find(layer)); next != layers_.end()) ask(next->first);
  changed_.notify_all();
  changed_.wait(lock, [&] { return p.layer == layer && p.state == State::kThere; });
  p.state = State::kInUse;
  FACET_CUDA_CHECK(cudaStreamWaitEvent(device_.stream(), p.ready, 0));
}

TiledMatrix WeightStream::matrix(int number) const {
  const Matrix& m = matrices_[size_t(number)];
  TiledMatrix to = m.to;
  to.p = place_.p + m.at;
  return to;
}

void WeightStream::release(int layer) {
  const std::lock_guard lock(mutex_);
  CHECK(place_.layer == layer, "layer {} is released, {} is there", layer, place_.layer);
  FACET_CUDA_CHECK(cudaEventRecord(place_.used, device_.stream()));
  place_.state = State::kThere;  // until another layer takes the place
  changed_.notify_all();
}

void WeightStream::run() {
  device_.make_current();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || (!wanted_.empty() && place_.state != State::kInUse); });
    if (ending_) return;
    const int layer = wanted_.front();
    wanted_.erase(wanted_.begin());
    Place& p = place_;
    p.layer = layer, p.state = State::kOnItsWay;
    lock.unlock();
    FACET_CUDA_CHECK(cudaStreamWaitEvent(stream_, p.used, 0));
    for (const int i : layers_.at(layer).matrices)
      loader_->load(matrix(i), matrices_[size_t(i)].t, matrices_[size_t(i)].kept);
    FACET_CUDA_CHECK(cudaEventRecord(p.ready, stream_));
    lock.lock();
    p.state = State::kThere;
    changed_.notify_all();
  }
}

}  // namespace facet::cuda
