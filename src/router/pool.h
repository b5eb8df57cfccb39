#pragma once
#include "server/asio.h"  // before other headers of Boost

#include <chrono>
#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "router/child.h"
#include "router/config.h"

namespace facet {

enum class ModelState {
  kUnloaded,
  kLoading,
  kLoaded,
  kStopping,  // it ends: by the limit, on request, or of idleness
  kSleeping,  // unloaded of idleness: the next request wakes it, and "any" may mean it
  kFailed,    // the last load failed, or the process died twice; Model::failure says why
};
const char* state_name(ModelState s);

// One model of the router, and the process that answers for it, if there is one.
struct Model {
  using Clock = std::chrono::steady_clock;
  ModelConfig config = {};
  ModelState state = ModelState::kUnloaded;
  std::unique_ptr<Child> child = {};

  // Kept by whoever hands out requests.
  int waiting = 0, running = 0;          // requests
  Clock::time_point waiting_since = {};  // of the oldest that waits
  Clock::time_point idle_since = {};
  int64_t last_used_ms = 0;  // Unix time; 0: never
  uint64_t used = 0;         // the larger, the more recently
  bool restarted = false;    // its process died, and it has not answered a request since

  bool asked = false;    // to be loaded though no request waits
  bool leaving = false;  // it takes no more requests, and ends when nothing runs
  enum class Leave { kLimit, kAsked, kIdle } leave = Leave::kLimit;
  bool takes_requests() const { return state == ModelState::kLoaded && !leaving; }
  bool resident() const { return state == ModelState::kLoaded || state == ModelState::kStopping; }

  double progress = 0;                    // of the load, 0 to 1
  int64_t plan_bytes = 0;                 // of the last load; 0: there was none
  std::string plan = {};                  // in words
  int n_ctx = 0, n_vocab = 0, n_seq = 0;  // likewise
  std::string failure = {}, told = {};    // told: what the process said of its failure
  std::string last_death = {};
  bool no_room = false, timed_out = false;
  int exit_code = 0, failures = 0;  // failures: in a row
  int beside = INT_MAX;             // other models in memory at most while it loads, as it did not fit with more
  Clock::time_point started = {}, stop_at = {}, retry_at = {};
  int64_t failed_file = 0;  // when its file was last changed, as of the failure
  uint64_t loads = 0, unloads_limit = 0, unloads_asked = 0, unloads_idle = 0, failed_loads = 0, deaths = 0,
           restarts = 0;
};

struct PoolHooks {
  std::function<void(Model&)> ready = {};                                   // it takes requests
  std::function<void(Model&, int status, const std::string&)> failed = {};  // those that wait will not be answered
  std::function<void(Model&, const std::string& why)> died = {};            // those that run will not be answered
  std::function<void(const std::string&)> log = {};
  std::function<void(const Model&, const std::string& line)> said = {};
};

// Which models are in memory: loads those that are wanted, one at a time, and makes room for them. On the thread of
// the io_context.
class Pool {
 public:
  using Clock = Model::Clock;
  Pool(boost::asio::io_context& io, const RouterConfig& config, PoolHooks hooks);

  std::vector<std::unique_ptr<Model>>& models() { return models_; }
  Model* find(std::string_view name);  // by its name or an alias; null: there is none
  // The most recently used model in memory; else the one that sleeps; null: neither.
  Model* most_recent();
  // Whether a request for it may wait: false while a failed load is not to be tried again yet.
  bool may_load(const Model& m) const;
  void used(Model& m);         // a request came or ended
  void unload(Model& m);       // when nothing runs
  void schedule();             // after whatever may let a model be loaded or unloaded
  void tick();                 // every 100 ms or so
  void stop_all(int seconds);  // at the end: SIGTERM, then SIGKILL; runs the io_context meanwhile

 private:
  Model* next_wanted();
  bool make_room(Model& next);
  void start(Model& m);
  void stop(Model& m);
  void told(Model& m, const Json& message);
  void ended(Model& m, int status, const std::string& last_line);
  void load_failed(Model& m, int status, const std::string& why);
  void died(Model& m, const std::string& why);

  boost::asio::io_context& io_;
  const RouterConfig& c_;
  PoolHooks hooks_;
  std::vector<std::unique_ptr<Model>> models_;
  uint64_t uses_ = 0;
  bool closing_ = false;
};

}  // namespace facet
