#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/engine.h"
#include "server/http.h"

// What the server counts, in Prometheus' text format. Nothing of a prompt, an answer or a key is in it.
namespace facet {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), count_(bounds_.size() + 1) {}
  void observe(double value, uint64_t times = 1);
  void write(std::string& out, std::string_view name, std::string_view help) const;

 private:
  std::vector<double> bounds_;   // upper, included, ascending
  std::vector<uint64_t> count_;  // of each, and of what is above all
  double sum_ = 0;
};

// Any thread.
class Metrics {
 public:
  Metrics();
  struct Gauges {  // as they are now
    size_t running = 0, waiting = 0;
    std::string state = {};
    HttpUse http = {};
  };
  void step(const StepStats& s);
  void first_token(double seconds);               // from a request's header to it
  void between_tokens(double seconds, size_t n);  // n tokens came after so long
  void ended(const char* kind, const char* stop, const Usage& u);
  void refused(int status);
  void left_out(const char* what, int n);  // of requests: parts that this model has no use for
  // compatible: also under the names that llama-server and vLLM have for them.
  std::string text(const Gauges& now, bool compatible) const;

 private:
  void write_own(std::string& out, const Gauges& now) const;
  static void write_http(std::string& out, const HttpUse& use);
  void write_compatible(std::string& out, const Gauges& now) const;
  std::vector<uint64_t> accepted_at() const;  // [k]: of all methods, drafts k + 1 that were right

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, uint64_t> ended_ = {};  // by kind and stop
  std::map<int, uint64_t> refused_ = {};
  std::map<std::string, uint64_t> left_out_ = {};
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_ = 0, parked_ = 0, steps_ = 0, sequences_ = 0;
  uint64_t rounds_ = 0, drafted_ = 0, accepted_ = 0;
  struct Places {  // [k]: rounds that came to draft k + 1; it was right
    std::vector<uint64_t> offered = {}, accepted = {};
    void add(const std::vector<int>& offered_at, const std::vector<int>& accepted_at);
  };
  std::map<std::string, Places> by_method_ = {};
  double prefill_s_ = 0, decode_s_ = 0;
  PhaseTimes::Seconds phase_s_ = {};
  int longest_ = 0;  // tokens of a prompt with its answer
  Histogram first_, between_, queue_, step_, cached_;
};

}  // namespace facet
