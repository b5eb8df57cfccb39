#pragma once
#include <map>
#include <string>
#include <vector>

#include "router/pool.h"
#include "server/writer.h"

// What a router says of its models. Pure functions.
namespace facet {

// An entry of /v1/models, in OpenAI's and llama-server's shape with last_used_ms, size and plan.
Json model_entry(const Model& m, int64_t started);

// GET /props where no model is in memory, in llama-server's shape. sleeping: the next request wakes the last one.
Json router_props(const RouterConfig& config, bool sleeping);

// What a model's process says of itself: the body of its /health; empty: it gave no answer in time.
using HealthAnswers = std::map<std::string, std::string>;
// {"status", "reason", "models": {NAME: {"status", "health", "reason"}}}; `named`: whether whoever asks may know names.
HttpResponse router_health(const std::vector<std::unique_ptr<Model>>& models, const HealthAnswers& answers, bool named);

// Adds {model="NAME"} to every sample of a process's metrics. Those of several models are merged: samples of a name
// stand together, with its HELP and TYPE once, as the format wants it.
class MetricsMerge {
 public:
  void add(std::string_view text, const std::string& model);  // empty: as they are
  std::string text() const;

 private:
  struct Family {
    std::string head = {}, samples = {};
  };
  std::vector<std::string> order_ = {};
  std::map<std::string, Family, std::less<>> families_ = {};
};

// The router's own: requests by model and status, loads, unloads, deaths, what waits and runs.
struct RouterCounts {
  std::map<std::pair<std::string, int>, uint64_t> requests = {};  // by model and status
};
std::string router_metrics(const std::vector<std::unique_ptr<Model>>& models, const RouterCounts& counts);

}  // namespace facet
