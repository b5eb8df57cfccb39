#include "server/turn_pool.h"

#include <chrono>
#include <new>
#include <utility>

#include "base/last_memory.h"
#include "base/threads.h"

namespace facet {

TurnPool::TurnPool(int n_threads) : TurnPool() {
  for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this] { loop(); });
}

void TurnPool::stop() {
  std::deque<std::unique_ptr<Queued>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    dropped.swap(queue_);
  }
  dropped.clear();
  wake_.notify_all();
  for (std::thread& t : threads_)
    if (t.joinable()) t.join();
}

void TurnPool::run(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    auto queued = std::make_unique<Queued>(Queued{.job = std::move(job)});
    ++n_jobs_[queued->job.client];
    queue_.push_back(std::move(queued));
  }
  wake_.notify_one();
}

// The first that may go on, of the client whose last turn is the longest ago. Null: there is none now.
std::unique_ptr<TurnPool::Queued> TurnPool::next() {
  auto best = queue_.end();
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    Job& job = (*it)->job;
    if (best != queue_.end() && turn_[job.client] >= turn_[(*best)->job.client]) continue;
    if ((*it)->next == 0 && job.may_begin && !*job.left && !job.may_begin()) continue;
    best = it;
  }
  if (best == queue_.end()) return nullptr;
  std::unique_ptr<Queued> job = std::move(*best);
  queue_.erase(best);
  job->job.may_begin = {};
  turn_[job->job.client] = ++n_turns_;
  return job;
}

void TurnPool::loop() {
  lower_priority();
  // Memory that a job waits for comes back without a word.
  constexpr auto kLook = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    std::unique_ptr<Queued> q = next();
    if (!q) {
      if (queue_.empty())
        wake_.wait(lock);
      else
        wake_.wait_for(lock, kLook);
      continue;
    }
    lock.unlock();
    Job& job = q->job;
    if (*job.left || q->out_of_memory) q->next = job.steps.size();
    if (q->next < job.steps.size()) try {
        job.steps[q->next++]();
      } catch (const std::bad_alloc&) {
        q->out_of_memory = true;
      }
    const bool done = q->next >= job.steps.size() || q->out_of_memory || *job.left;
    if (done) {
      const MayNotFail scope;
      job.done(q->out_of_memory);
    }
    lock.lock();
    if (!done) {
      if (!stop_) queue_.push_back(std::move(q));
      continue;
    }
    const std::string client = q->job.client;
    if (--n_jobs_[client] == 0) n_jobs_.erase(client), turn_.erase(client);
    lock.unlock();
    q.reset();  // what it kept alive may take long to go
    lock.lock();
  }
}

}  // namespace facet
