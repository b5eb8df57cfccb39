#include "cache/row_copier.h"

#include <algorithm>
#include <map>

namespace facet {

class RowCopier::Job {
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

RowCopier::JobPtr RowCopier::start(Direction d, std::vector<Range> ranges) {
  auto job = std::make_shared<Job>();
  job->direction = d;
  const int64_t most = pool_.courier_bytes();
  for (const Range& r : ranges)
    for (int64_t at = 0; at < r.bytes; at += most)
      job->pieces.push_back({r.in_pool + at, r.in_host + at, std::min(most, r.bytes - at), r.pool ? r.pool : &pool_});
  job->done = job->pieces.empty();
  if (job->done) return job;
  for (const Range& r : job->pieces)
    if (!job->after.contains(r.pool)) job->after[r.pool] = r.pool->mark();
  if (threads_.empty())
    for (int i = 0; i < pool_.couriers(); ++i) threads_.emplace_back([this] { work(); });
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  wake_.notify_all();
  return job;
}

bool RowCopier::done(const JobPtr& job) { return job->done; }

void RowCopier::wait(const JobPtr& job) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return job->done.load(); });
}

void RowCopier::work() {
  std::map<PagePool*, std::unique_ptr<PagePool::Courier>> couriers;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const JobPtr job = jobs_.front();
    const Range piece = job->pieces[job->next++];
    if (job->next == job->pieces.size()) jobs_.pop_front();
    lock.unlock();
    auto& courier = couriers[piece.pool];
    if (!courier) courier = piece.pool->courier();
    courier->after(job->after.at(piece.pool));
    if (job->direction == Direction::kToHost)
      courier->to_host(piece.in_host, piece.in_pool, piece.bytes);
    else
      courier->from_host(piece.in_pool, piece.in_host, piece.bytes);
    lock.lock();
    if (++job->finished < job->pieces.size()) continue;
    job->done = true;
    done_.notify_all();
  }
}

}  // namespace facet
