#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "grammar/masks.h"

namespace facet {

// A mask that took too long for a step, made elsewhere.
struct MaskTask {
  enum class End : uint8_t {
    kReady,    // state is behind the tokens, bits is its mask
    kRefused,  // the grammar does not allow the tokens
    kOver,     // too ambiguous
    kMemory,   // there was none
  };
  GrammarState state;           // where the answer was
  std::vector<int32_t> tokens;  // that were drawn since
  std::vector<uint32_t> bits = {};
  uint64_t spent = 0;  // units of work
  End end = End::kReady;
  bool taken = false;                               // the request knows
  std::atomic<bool> done = false, stopped = false;  // stopped: nobody waits for it
};

// A request's task; who drops it does not wait for it any more.
class MaskWait {
 public:
  MaskWait() = default;
  explicit MaskWait(std::shared_ptr<MaskTask> task) : task_(std::move(task)) {}
  MaskWait(MaskWait&& other) noexcept : task_(std::exchange(other.task_, nullptr)) {}
  MaskWait& operator=(MaskWait&& other) noexcept {
    std::swap(task_, other.task_);
    return *this;
  }
  ~MaskWait() { reset(); }
  void reset() {
    if (task_) task_->stopped = true;
    task_ = nullptr;
  }
  explicit operator bool() const { return task_ != nullptr; }
  MaskTask* operator->() const { return task_.get(); }
  MaskTask& operator*() const { return *task_; }

 private:
  std::shared_ptr<MaskTask> task_;
};

// The thread that makes them, one after the other, where the engine's threads leave it time. A request has one at a
// time, so that all who wait take turns.
class MaskThread {
 public:
  explicit MaskThread(GrammarMasks& masks);
  ~MaskThread();
  MaskWait start(GrammarState state, std::vector<int32_t> tokens);
  // Until one is done, or a few milliseconds have passed.
  void wait();

 private:
  void make(MaskTask& task);
  GrammarMasks& masks_;
  std::mutex mutex_;
  std::condition_variable made_;
  uint64_t n_made_ = 0, n_seen_ = 0;
  std::shared_ptr<MaskTask> now_;  // being made
  std::optional<Worker> worker_;   // last: it uses the others
};

}  // namespace facet
