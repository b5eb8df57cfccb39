#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "session/active_request.h"

namespace facet {

// Where other threads hand requests and cancellations to the engine's.
class RequestQueue {
 public:
  RequestId add(Request r, Sink sink) {
    std::lock_guard lock(mutex_);
    ActiveRequest w{.id = ++last_id_, .request = std::move(r), .sink = std::move(sink)};
    w.tokens = w.request.prompt;
    w.usage.prompt = int(w.tokens.size());
    if (w.request.grammar) w.grammar.emplace(w.request.grammar);
    arrived_.push_back(std::move(w));
    wake_.notify_one();
    return last_id_;
  }
  void cancel(RequestId id) {
    std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
    wake_.notify_one();
  }
  // Work for the engine's thread, between steps.
  void post(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    wake_.notify_one();
  }
  void stop() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  bool stopping() const { return stopping_; }
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stopping_ || !arrived_.empty() || !cancelled_.empty() || !posted_.empty(); });
  }
  struct Taken {
    std::vector<ActiveRequest> arrived;
    std::vector<RequestId> cancelled;
    std::vector<std::function<void()>> posted;
  };
  Taken take() {
    std::lock_guard lock(mutex_);
    return {std::exchange(arrived_, {}), std::exchange(cancelled_, {}), std::exchange(posted_, {})};
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ActiveRequest> arrived_;
  std::vector<RequestId> cancelled_;
  std::vector<std::function<void()>> posted_;
  RequestId last_id_ = 0;
  std::atomic<bool> stopping_ = false;
};

}  // namespace facet
