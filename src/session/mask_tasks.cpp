#include "session/mask_tasks.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "base/threads.h"

namespace facet {

MaskThread::MaskThread(GrammarMasks& masks) : masks_(masks) {
  worker_.emplace();
  worker_->push([] { lower_priority(); });
}

MaskThread::~MaskThread() {
  {
    const std::lock_guard lock(mutex_);
    if (now_) now_->stopped = true;
  }
  worker_.reset();
}

MaskWait MaskThread::start(GrammarState state, std::vector<int32_t> tokens) {
  const std::shared_ptr<MaskTask> task(new MaskTask{.state = std::move(state), .tokens = std::move(tokens)});
  worker_->push([this, task] {
    {
      const std::lock_guard lock(mutex_);
      now_ = task;
    }
    make(*task);
    {
      const std::lock_guard lock(mutex_);
      now_ = nullptr;
      ++n_made_;
    }
    made_.notify_all();
  });
  return MaskWait(task);
}

void MaskThread::make(MaskTask& task) {
  GrammarWork work(GrammarWork::kMost, &task.stopped);
  const GrammarWorkScope scope(work);
  try {
    for (const int32_t id : task.tokens)
      if (task.end == MaskTask::End::kReady && !task.state.advance(masks_.vocab(), id))
        task.end = work.over() ? MaskTask::End::kOver : MaskTask::End::kRefused;
    if (task.end == MaskTask::End::kReady) {
      task.bits.resize(masks_.vocab().mask_words());
      if (!masks_.mask(task.state, task.bits)) task.end = MaskTask::End::kOver;
    }
  } catch (const std::bad_alloc&) {
    task.end = MaskTask::End::kMemory;
  }
  task.spent = work.spent();
  task.done.store(true, std::memory_order_release);
}

void MaskThread::wait() {
  std::unique_lock lock(mutex_);
  made_.wait_for(lock, std::chrono::milliseconds(5), [&] { return n_made_ != n_seen_; });
  n_seen_ = n_made_;
}

}  // namespace facet
