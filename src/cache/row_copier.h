#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cache/page_pool.h"

namespace facet {

// Copies of rows between the memory of a pool, or of those beside it (PagePool::mirror), and the host's, beside the
// steps. Threads take pieces of a task one after another; each has a copy engine of the pool: on a GPU a stream and a
// page-locked buffer, so that the copies of one run while another moves its buffer's bytes. The threads start with the
// first task.
class RowCopier {
 public:
  enum class Direction : uint8_t { kToHost, kFromHost };
  struct Range {
    std::byte* in_pool = nullptr;
    std::byte* in_host = nullptr;
    int64_t bytes = 0;
    PagePool* pool = nullptr;  // null: the first
  };
  class CopyTask;
  using TaskPtr = std::shared_ptr<CopyTask>;

  explicit RowCopier(PagePool& pool) : pool_(pool) {}
  ~RowCopier();  // when every task is done

  // After all that the pools' devices were given before. The ranges stay mapped, and both sides untouched, until the
  // task is done.
  TaskPtr start(Direction d, std::vector<Range> ranges);
  static bool done(const TaskPtr& task);
  void wait(const TaskPtr& task);

 private:
  using Engines = std::map<PagePool*, std::unique_ptr<PagePool::CopyEngine>>;  // of one thread
  bool begin_threads();  // false: the system makes none, and start() copies itself
  static void copy(Engines& engines, const CopyTask& task, const Range& piece);
  void work();
  PagePool& pool_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<TaskPtr> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace facet
