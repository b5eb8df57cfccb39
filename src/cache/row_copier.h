#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/page_pool.h"

namespace facet {

// Copies of rows between the memory of a pool, or of those beside it (PagePool::mirror), and the host's, beside the
// steps. Threads take pieces of a job one after another; each has a courier of the pool: on a GPU a stream and a
// page-locked buffer, so that the copies of one run while another moves its buffer's bytes. The threads start with the
// first job.
class RowCopier {
 public:
  enum class Direction : uint8_t { kToHost, kFromHost };
  struct Range {
    std::byte* in_pool = nullptr;
    std::byte* in_host = nullptr;
    int64_t bytes = 0;
    PagePool* pool = nullptr;  // null: the first
  };
  class Job;
  using JobPtr = std::shared_ptr<Job>;

  explicit RowCopier(PagePool& pool) : pool_(pool) {}
  ~RowCopier();  // when every job is done

  // After all that the pools' devices were given before. The ranges stay mapped, and both sides untouched, until the
  // job is done.
  JobPtr start(Direction d, std::vector<Range> ranges);
  static bool done(const JobPtr& job);
  void wait(const JobPtr& job);

 private:
  void work();
  PagePool& pool_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<JobPtr> jobs_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace facet
