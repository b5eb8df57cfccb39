#pragma once
#include <spdlog/logger.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "router/pool.h"
#include "router/report.h"
#include "router/request.h"
#include "router/upstream.h"
#include "server/http.h"

namespace facet {

// One request on its way to a model.
struct RoutedRequest {
  HttpRequest request = {};
  std::unique_ptr<HttpReply> reply = {};
  RoutedFields fields = {};
  Dialect dialect = Dialect::kOpenAi;
  bool generates = false;  // its path gives answers of a model, perhaps as a stream
  std::string key = {};    // name of the client's
  std::chrono::steady_clock::time_point since = {}, told_at = {};
  bool begun = false;      // words of a stream were written while the model was loaded
  bool streaming = false;  // the process's answer goes through
  bool handed = false;     // a process has it
  UpstreamHead head = {};  // of the process's answer
  std::string body = {};   // of one that is no stream
  Room::Part body_room = {};
  bool no_room = false;  // for it: other answers had it all
  std::shared_ptr<Upstream> upstream = {};
  const char* gone = nullptr;       // why nobody waits any more
  std::function<void()> left = {};  // what leave() has to undo
  void leave(const char* why);
  void buffer(std::string_view piece);  // of the body
};
using RoutedPtr = std::shared_ptr<RoutedRequest>;

// Hands requests to the models' processes, lets them wait for those that load, and passes answers back. On the thread
// of the io_context. No request is lost: each gets an answer of its process, or one error.
class Dispatch {
 public:
  Dispatch(boost::asio::io_context& io, const RouterConfig& config, Pool& pool, RouterCounts& counts,
           spdlog::logger& log)
      : io_(io),
        c_(config),
        pool_(pool),
        counts_(counts),
        log_(log),
        answers_(std::make_shared<Room>(config.front.http.answer_memory, 64 << 10)) {}

  // may_load: it waits for a model that is not there; else it is refused.
  void route(const RoutedPtr& p, Model& m, bool may_load);
  void load(const RoutedPtr& p, Model& m);    // POST /models/load
  void unload(const RoutedPtr& p, Model& m);  // POST /models/unload
  void refuse(RoutedRequest& p, const std::string& model, const ApiError& e);

  void ready(Model& m);  // PoolHooks
  void failed(Model& m, int status, const std::string& why);
  void died(Model& m, const std::string& why);
  void tick();
  void close();  // at the end: what still runs is cut off

 private:
  struct Queues {
    std::deque<RoutedPtr> waiting = {};
    std::set<RoutedPtr> running = {};
    // Whose process has stopped in the middle of the answer: told when it is known why.
    std::map<RoutedPtr, std::chrono::steady_clock::time_point> broken = {};
    std::vector<RoutedPtr> watching = {};  // of load and unload with "wait"
  };
  void hand(const RoutedPtr& p, Model& m);
  void answered(const RoutedPtr& p, Model& m, bool whole);
  void end(const RoutedPtr& p, Model& m, int status);
  void give_up(const RoutedPtr& p, Model& m, const std::string& why);
  void wait(const RoutedPtr& p, Model& m);
  void recount(Model& m);
  void tell_progress(RoutedRequest& p, const Model& m);
  void answer_watchers(Model& m);
  void finish_buffered(RoutedRequest& p);

  boost::asio::io_context& io_;
  const RouterConfig& c_;
  Pool& pool_;
  RouterCounts& counts_;
  spdlog::logger& log_;
  const std::shared_ptr<Room> answers_;  // what processes have answered so far, where it is no stream
  std::map<Model*, Queues> queues_ = {};
  bool closing_ = false;
};

}  // namespace facet
