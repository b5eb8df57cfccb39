#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace facet {

// Jobs of several steps on a few threads at low priority. Clients take turns, and the jobs of one take theirs: after each
// step the job goes behind the others, so that nobody waits for more than a step of each that is there.
class TurnPool {
 public:
  struct Job {
    std::string client = {};
    const std::atomic<bool>* left = nullptr;        // the client has gone: the steps that are left are not done
    std::vector<std::function<void()>> steps = {};  // one after another; memory may run out in them
    std::function<bool()> may_begin = {};           // before the first step, as often as it says no; empty: at once
    std::function<void(bool out_of_memory)> done =
        {};  // once, on a thread of the pool; keeps alive what the job looks at
  };
  explicit TurnPool(int n_threads);
  ~TurnPool() { stop(); }
  TurnPool(const TurnPool&) = delete;
  TurnPool& operator=(const TurnPool&) = delete;

  void run(Job job);  // any thread; after stop() it is dropped
  void stop();        // waits for the steps that run, and drops the rest

 private:
  struct Queued {
    Job job;
    size_t next = 0;
    bool out_of_memory = false;
  };
  TurnPool() = default;  // one that cannot have all its threads ends those it has
  void loop();
  std::unique_ptr<Queued> next();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Queued>> queue_;  // those of which no step runs
  std::map<std::string, uint64_t> turn_;       // of clients with jobs here: when they last had one
  std::map<std::string, int> n_jobs_;          // of them, with those that run
  uint64_t n_turns_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace facet
