#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "server/constraint.h"
#include "server/writer.h"

namespace facet {

struct GrammarAnswer {
  GrammarPtr grammar = {};
  std::optional<ApiError> error = {};
};

// Compiles grammars on threads of its own, at low priority: no request without one ever waits for them. Equal requests
// compile once, and grammars are remembered by their keys, as are refusals.
//
// Who is next: a job first runs for kSlice at most. What is not done by then begins again behind all that have had
// less, on any thread but the first; so grammars that compile fast wait for slow ones no longer than for slices. Among
// the jobs of a kind, clients take turns.
class GrammarPool {
 public:
  using Clock = std::chrono::steady_clock;
  struct Times {
    Clock::duration slice = std::chrono::milliseconds(150), most = std::chrono::seconds(10);
  };
  // prepare: what is done with a new grammar before anybody gets it, on the pool's threads.
  using Prepare = std::function<Status(const GrammarPtr&)>;
  GrammarPool(Prepare prepare, int n_threads, Times times);
  GrammarPool(Prepare prepare, int n_threads) : GrammarPool(std::move(prepare), n_threads, Times{}) {}
  ~GrammarPool();  // drops what has not begun, and stops what has

  // Any thread. done is called once, at once or on a thread of the pool; it keeps alive what the recipe and `left` look
  // at. left: the client has gone, and no answer is of use; whoever sets it calls look() then.
  void make(GrammarRecipe recipe, const std::string& client, const std::atomic<bool>& left,
            std::function<void(GrammarAnswer)> done);
  void look();

  size_t waiting() const;  // jobs, with those that run

 private:
  static constexpr size_t kMostKnown = 64, kMostBytes = size_t(64) << 20;
  struct Waiter {
    const std::atomic<bool>* left;
    std::function<void(GrammarAnswer)> done;
  };
  struct Job {
    GrammarRecipe recipe;
    std::string client;
    Clock::time_point since = Clock::now();
    std::vector<Waiter> waiters = {};
    std::atomic<bool> cancelled = false;
    bool sliced = false;  // it has had its slice
  };
  using JobPtr = std::shared_ptr<Job>;

  // One that cannot have all its threads ends those it has.
  GrammarPool(Prepare prepare, Times times) : prepare_(std::move(prepare)), times_(times) {}
  void loop(bool slices_only);
  JobPtr next(bool slices_only);
  void run(const JobPtr& job);
  std::optional<GrammarAnswer> made(Job& job);
  void finish(const JobPtr& job, const GrammarAnswer& answer);
  void remember(const std::string& key, const GrammarAnswer& answer);
  void cancel_if_left(Job& job);

  const Prepare prepare_;
  const Times times_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::list<JobPtr> queue_, running_;
  std::map<std::string, uint64_t> turn_;  // of clients that wait or have waited beside others: when they last had one
  uint64_t n_turns_ = 0;
  std::list<std::pair<std::string, GrammarAnswer>> known_;  // the newest first
  bool stop_ = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace facet
