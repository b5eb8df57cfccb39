#include "backend/cuda/weight_stream.h"

#include <algorithm>

namespace facet::cuda {

WeightStream::WeightStream(Device& device) : device_(device) {
  FACET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (Place& p : place_)
    for (cudaEvent_t* e : {&p.ready, &p.used}) FACET_CUDA_CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
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
  for (Place& p : place_) cudaEventDestroy(p.ready), cudaEventDestroy(p.used);
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

int64_t WeightStream::bytes(int64_t layer) { return 2 * (layer + 3 * kAlign) + int64_t(2 * Loader::kPiece); }

bool WeightStream::reserve() {
  if (thread_.joinable()) return true;
  int order = 0;
  for (auto& [number, layer] : layers_) layer.order = order++, place_bytes_ = std::max(place_bytes_, layer.bytes);
  for (Place& p : place_) {
    p.p = static_cast<uint8_t*>(device_.allocate(size_t(place_bytes_), "experts on their way"));
    if (!p.p) return false;
  }
  if (!loader_->reserve()) return false;
  thread_ = std::thread([this] { run(); });
  return true;
}

void WeightStream::ask(int layer) {
  const Place& p = place_of(layer);
  if ((p.layer == layer && p.state != State::kEmpty) || std::ranges::find(wanted_, layer) != wanted_.end()) return;
  wanted_.push_back(layer);
}

void WeightStream::prefetch_first() {
  const std::lock_guard lock(mutex_);
  ask(layers_.begin()->first);
  changed_.notify_all();
}

void WeightStream::acquire(int layer) {
  std::unique_lock lock(mutex_);
  Place& p = place_of(layer);
  ask(layer);
  if (const auto next = std::next(layers_.find(layer)); next != layers_.end()) ask(next->first);
  changed_.notify_all();
  changed_.wait(lock, [&] { return p.layer == layer && p.state == State::kThere; });
  p.state = State::kInUse;
  FACET_CUDA_CHECK(cudaStreamWaitEvent(device_.stream(), p.ready, 0));
}

TiledMatrix WeightStream::matrix(int number) const {
  const Matrix& m = matrices_[size_t(number)];
  const Place& p = place_[size_t(layers_.at(m.layer).order % 2)];
  TiledMatrix to = m.to;
  to.p = p.p + m.at;
  return to;
}

void WeightStream::release(int layer) {
  const std::lock_guard lock(mutex_);
  Place& p = place_of(layer);
  FACET_CUDA_CHECK(cudaEventRecord(p.used, device_.stream()));
  p.state = State::kThere;  // until another layer takes the place
  changed_.notify_all();
}

void WeightStream::run() {
  device_.make_current();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [&] { return ending_ || (!wanted_.empty() && place_of(wanted_.front()).state != State::kInUse); });
    if (ending_) return;
    const int layer = wanted_.front();
    wanted_.erase(wanted_.begin());
    Place& p = place_of(layer);
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
