#include "backend/layer_turns.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace facet {

LayerTurns::LayerTurns(std::function<void()> begin, std::function<void(int)> bring)
    : begin_(std::move(begin)), bring_(std::move(bring)), thread_([this] { run(); }) {}
LayerTurns::~LayerTurns() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LayerTurns::ask_locked(int layer) {
  if (there_ == layer || std::ranges::find(wanted_, layer) != wanted_.end()) return;
  wanted_.push_back(layer);
}

void LayerTurns::ask(int layer) {
  const std::lock_guard lock(mutex_);
  ask_locked(layer);
  changed_.notify_all();
}

void LayerTurns::acquire(int layer, int next) {
  std::unique_lock lock(mutex_);
  CHECK(!in_use_, "layer {} is acquired, and {} not released", layer, there_);
  ask_locked(layer);
  if (next >= 0) ask_locked(next);
  awaited_ = layer;
  changed_.notify_all();
  changed_.wait(lock, [&] { return there_ == layer && is_there_; });
  awaited_ = -1, in_use_ = true;
}

void LayerTurns::release(int layer) {
  const std::lock_guard lock(mutex_);
  CHECK(in_use_ && there_ == layer, "layer {} is released, and {} there", layer, there_);
  in_use_ = false;
  changed_.notify_all();
}

void LayerTurns::run() {
  begin_();
  std::unique_lock lock(mutex_);
  while (true) {
    // Between bring() and the acquire() that waits for it, the place is not free either.
    changed_.wait(lock,
                  [&] { return ending_ || (!wanted_.empty() && !in_use_ && (there_ < 0 || there_ != awaited_)); });
    if (ending_) return;
    there_ = wanted_.front(), is_there_ = false;
    wanted_.erase(wanted_.begin());
    const int layer = there_;
    lock.unlock();
    bring_(layer);
    lock.lock();
    is_there_ = true;
    changed_.notify_all();
  }
}

}  // namespace facet
