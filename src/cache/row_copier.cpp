#include "cache/row_copier.h"

#include <algorithm>
#include <system_error>

namespace facet {

class RowCopier::CopyTask {
 public:
  Direction direction;
  std::vector<Range> pieces;
  std::map<PagePool*, PagePool::Mark> after;
  size_t next = 0, finished = 0;  // pieces; with the copier's lock
  std::atomic<bool> done = false;
};

RowCopier::~RowCopier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

RowCopier::TaskPtr RowCopier::start(Direction d, std::vector<Range> ranges) {
  auto task = std::make_shared<CopyTask>();
  task->direction = d;
  const int64_t most = pool_.copy_engine_bytes();
  for (const Range& r : ranges)
    for (int64_t at = 0; at < r.bytes; at += most)
      task->pieces.push_back({r.in_pool + at, r.in_host + at, std::min(most, r.bytes - at), r.pool ? r.pool : &pool_});
  task->done = task->pieces.empty();
  if (task->done) return task;
  for (const Range& r : task->pieces)
    if (!task->after.contains(r.pool)) task->after[r.pool] = r.pool->mark();
  if (!begin_threads()) {
    Engines engines;
    for (const Range& piece : task->pieces) copy(engines, *task, piece);
    task->done = true;
    return task;
  }
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
  }
  wake_.notify_all();
  return task;
}

bool RowCopier::begin_threads() {
  if (!threads_.empty()) return true;
  threads_.reserve(size_t(pool_.copy_engines()));
  try {
    for (int i = 0; i < pool_.copy_engines(); ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // the system makes no more
  }
  return !threads_.empty();
}

bool RowCopier::done(const TaskPtr& task) { return task->done; }

void RowCopier::wait(const TaskPtr& task) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return task->done.load(); });
}

void RowCopier::copy(Engines& engines, const CopyTask& task, const Range& piece) {
  auto& engine = engines[piece.pool];
  if (!engine) engine = piece.pool->copy_engine();
  engine->after(task.after.at(piece.pool));
  if (task.direction == Direction::kToHost)
    engine->to_host(piece.in_host, piece.in_pool, piece.bytes);
  else
    engine->from_host(piece.in_pool, piece.in_host, piece.bytes);
}

void RowCopier::work() {
  Engines engines;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const TaskPtr task = tasks_.front();
    const Range piece = task->pieces[task->next++];
    if (task->next == task->pieces.size()) tasks_.pop_front();
    lock.unlock();
    copy(engines, *task, piece);
    lock.lock();
    if (++task->finished < task->pieces.size()) continue;
    task->done = true;
    done_.notify_all();
  }
}

}  // namespace facet
