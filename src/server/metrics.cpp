#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace facet {
namespace {

void head(std::string& out, std::string_view name, std::string_view help, const char* type) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class T>
void single(std::string& out, std::string_view name, std::string_view help, const char* type, T value) {
  head(out, name, help, type);
  out += fmt::format("{} {}\n", name, value);
}
template <class T>
void counter(std::string& out, std::string_view name, std::string_view help, T value) {
  single(out, name, help, "counter", value);
}

double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

}  // namespace

void Histogram::observe(double v, uint64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), v);
  count_[size_t(at - bounds_.begin())] += times;
  sum_ += v * double(times);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help) const {
  head(out, name, help, "histogram");
  uint64_t n = 0;
  for (size_t i = 0; i < bounds_.size(); ++i)
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], n += count_[i]);
  n += count_.back();
  out += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, n, name, sum_, name, n);
}

Metrics::Metrics()
    : first_({.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}),
      between_({.001, .0025, .005, .01, .02, .04, .08, .15, .3, .6, 1.2, 2.5}),
      queue_({.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60, 120}),
      step_({.001, .0025, .005, .01, .02, .04, .08, .15, .3, .6, 1.2, 2.5}),
      cached_({0, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99, 1}) {}

void Metrics::step(const StepStats& s) {
  const std::lock_guard lock(mutex_);
  ++steps_;
  sequences_ += uint64_t(s.sequences);
  step_.observe(s.seconds);
  for (size_t p = 0; p < phase_s_.size(); ++p) phase_s_[p] += s.phase_s[p];
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_.observe(seconds);
}

void Metrics::between_tokens(double seconds, size_t n) {
  const std::lock_guard lock(mutex_);
  if (n > 0) between_.observe(seconds / double(n), n);
}

void Metrics::refused(int status) {
  const std::lock_guard lock(mutex_);
  ++refused_[status];
}

void Metrics::Places::add(const std::vector<int>& offered_at, const std::vector<int>& accepted_at) {
  const size_t n = std::max(offered.size(), offered_at.size());
  offered.resize(n), accepted.resize(n);
  for (size_t k = 0; k < offered_at.size(); ++k)
    offered[k] += uint64_t(offered_at[k]), accepted[k] += uint64_t(accepted_at[k]);
}

void Metrics::ended(const char* kind, const char* stop, const Usage& u) {
  const std::lock_guard lock(mutex_);
  ++ended_[{kind, stop}];
  prompt_tokens_ += uint64_t(u.prompt), cached_tokens_ += uint64_t(u.cached), generated_ += uint64_t(u.generated);
  prefill_s_ += u.prefill_s, decode_s_ += u.decode_s;
  rounds_ += uint64_t(u.rounds), drafted_ += uint64_t(u.drafted), accepted_ += uint64_t(u.accepted);
  parked_ += uint64_t(u.parked);
  longest_ = std::max(longest_, u.prompt + u.generated);
  for (const Usage::Method& m : u.by_method) by_method_[m.name].add(m.offered_at, m.accepted_at);
  queue_.observe(u.queue_s);
  if (u.prompt > 0) cached_.observe(double(u.cached) / u.prompt);
}

std::string Metrics::text(const Gauges& now, bool compatible) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  write_own(out, now);
  if (compatible) write_compatible(out, now);
  return out;
}

void Metrics::write_http(std::string& out, const HttpUse& use) {
  single(out, "facet_http_connections", "Clients connected.", "gauge", use.connections);
  single(out, "facet_http_body_bytes", "Of bodies that arrive or wait to be read.", "gauge", use.body_bytes);
  single(out, "facet_http_answer_bytes", "Of answers that wait for their readers.", "gauge", use.answer_bytes);
  counter(out, "facet_http_refused_bodies_total", "Requests refused because bodies had no memory left.",
          use.refused_bodies);
  counter(out, "facet_http_dropped_readers_total", "Connections closed because answers had no memory left.",
          use.dropped_for_memory);
}

void Metrics::left_out(const char* what, int n) {
  if (n <= 0) return;
  const std::lock_guard lock(mutex_);
  left_out_[what] += uint64_t(n);
}

void Metrics::write_own(std::string& out, const Gauges& now) const {
  head(out, "facet_build_info", "The program's version.", "gauge");
  out += "facet_build_info{version=\"" FACET_VERSION "\"} 1\n";
  head(out, "facet_health_state", "1 for the state that /health tells.", "gauge");
  for (const char* s : {"loading", "ok", "degraded", "failed"})
    out += fmt::format("facet_health_state{{state=\"{}\"}} {}\n", s, int(now.state == s));
  single(out, "facet_requests_running", "Choices that have a sequence.", "gauge", now.running);
  single(out, "facet_requests_waiting", "Requests that are read or wait for a sequence.", "gauge", now.waiting);
  write_http(out, now.http);
  if (!ended_.empty()) head(out, "facet_requests_total", "Choices that ended, by what was asked and why.", "counter");
  for (const auto& [by, n] : ended_)
    out += fmt::format("facet_requests_total{{kind=\"{}\",stop=\"{}\"}} {}\n", by.first, by.second, n);
  if (!refused_.empty()) head(out, "facet_requests_refused_total", "Requests answered with an error.", "counter");
  for (const auto& [status, n] : refused_)
    out += fmt::format("facet_requests_refused_total{{status=\"{}\"}} {}\n", status, n);
  if (!left_out_.empty())
    head(out, "facet_left_out_total", "Parts of requests that this model has no use for.", "counter");
  for (const auto& [what, n] : left_out_) out += fmt::format("facet_left_out_total{{what=\"{}\"}} {}\n", what, n);
  counter(out, "facet_requests_parked_total", "Times that a request gave its memory up and went on later.", parked_);
  counter(out, "facet_prompt_tokens_total", "Tokens of prompts.", prompt_tokens_);
  counter(out, "facet_prompt_tokens_cached_total", "Of them, not computed again.", cached_tokens_);
  counter(out, "facet_generated_tokens_total", "Tokens of answers.", generated_);
  counter(out, "facet_prompt_seconds_total", "From a sequence to the first token, summed over requests.", prefill_s_);
  counter(out, "facet_generation_seconds_total", "From the first token to the last, summed over requests.", decode_s_);
  counter(out, "facet_steps_total", "Steps of the model.", steps_);
  counter(out, "facet_step_sequences_total", "Sequences in them.", sequences_);
  single(out, "facet_request_tokens_max", "Tokens of the longest prompt with its answer.", "gauge", longest_);
  first_.write(out, "facet_time_to_first_token_seconds", "From a request's header to its first token.");
  between_.write(out, "facet_time_between_tokens_seconds",
                 "Between tokens of an answer; those of a step share its time.");
  queue_.write(out, "facet_queue_seconds", "From a read request to its sequence.");
  step_.write(out, "facet_step_seconds", "A step, with its drafts.");
  head(out, "facet_phase_seconds_total", "Where the engine's thread spends the time between tokens.", "counter");
  for (size_t p = 0; p < phase_s_.size(); ++p)
    out += fmt::format("facet_phase_seconds_total{{phase=\"{}\"}} {}\n", kPhaseName[p], phase_s_[p]);
  cached_.write(out, "facet_prompt_cached_ratio", "The share of a prompt that was not computed again.");
  counter(out, "facet_draft_rounds_total", "Steps of a sequence with a draft.", rounds_);
  counter(out, "facet_draft_tokens_total", "Drafted tokens that were verified.", drafted_);
  counter(out, "facet_draft_accepted_tokens_total", "Of them, tokens of an answer.", accepted_);
  const auto by_place = [&](std::string_view name, std::string_view help, std::vector<uint64_t> Places::*of) {
    if (!by_method_.empty()) head(out, name, help, "counter");
    for (const auto& [method, places] : by_method_)
      for (size_t k = 0; k < (places.*of).size(); ++k)
        out += fmt::format("{}{{method=\"{}\",place=\"{}\"}} {}\n", name, method, k + 1, (places.*of)[k]);
  };
  by_place("facet_draft_offered_at_total", "Rounds that came to a method's draft at this place.", &Places::offered);
  by_place("facet_draft_accepted_at_total", "Of them, those where it was right.", &Places::accepted);
}

std::vector<uint64_t> Metrics::accepted_at() const {
  std::vector<uint64_t> n;
  for (const auto& [method, places] : by_method_) {
    n.resize(std::max(n.size(), places.accepted.size()));
    for (size_t k = 0; k < places.accepted.size(); ++k) n[k] += places.accepted[k];
  }
  return n;
}

void Metrics::write_compatible(std::string& out, const Gauges& now) const {
  const std::string_view as = "As llama-server has it.";
  counter(out, "llamacpp:prompt_tokens_total", as, prompt_tokens_ - cached_tokens_);
  counter(out, "llamacpp:prompt_seconds_total", as, prefill_s_);
  counter(out, "llamacpp:tokens_predicted_total", as, generated_);
  counter(out, "llamacpp:tokens_predicted_seconds_total", as, decode_s_);
  counter(out, "llamacpp:n_decode_total", as, steps_);
  counter(out, "llamacpp:n_tokens_max", as, longest_);
  single(out, "llamacpp:n_busy_slots_per_decode", as, "gauge", steps_ > 0 ? double(sequences_) / double(steps_) : 0.);
  single(out, "llamacpp:prompt_tokens_seconds", as, "gauge",
         per_second(double(prompt_tokens_ - cached_tokens_), prefill_s_));
  single(out, "llamacpp:predicted_tokens_seconds", as, "gauge", per_second(double(generated_), decode_s_));
  single(out, "llamacpp:requests_processing", as, "gauge", now.running);
  single(out, "llamacpp:requests_deferred", as, "gauge", now.waiting);
  const std::string_view vllm = "As vLLM has it.";
  counter(out, "vllm:prompt_tokens_total", vllm, prompt_tokens_);
  counter(out, "vllm:generation_tokens_total", vllm, generated_);
  counter(out, "vllm:prompt_tokens_cached_total", vllm, cached_tokens_);
  counter(out, "vllm:prefix_cache_queries_total", vllm, prompt_tokens_);
  counter(out, "vllm:prefix_cache_hits_total", vllm, cached_tokens_);
  single(out, "vllm:num_requests_running", vllm, "gauge", now.running);
  single(out, "vllm:num_requests_waiting", vllm, "gauge", now.waiting);
  for (const std::string prefix : {"llamacpp:spec_decode", "vllm:spec_decode"}) {
    const std::string_view help = prefix[0] == 'v' ? vllm : as;
    counter(out, prefix + "_num_drafts_total", help, rounds_);
    counter(out, prefix + "_num_draft_tokens_total", help, drafted_);
    counter(out, prefix + "_num_accepted_tokens_total", help, accepted_);
    const std::vector<uint64_t> accepted = accepted_at();
    if (accepted.empty()) continue;
    head(out, prefix + "_num_accepted_tokens_per_pos_total", help, "counter");
    for (size_t k = 0; k < accepted.size(); ++k)
      out += fmt::format("{}_num_accepted_tokens_per_pos_total{{position=\"{}\"}} {}\n", prefix, k, accepted[k]);
  }
  first_.write(out, "vllm:time_to_first_token_seconds", vllm);
  between_.write(out, "vllm:inter_token_latency_seconds", vllm);
  queue_.write(out, "vllm:request_queue_time_seconds", vllm);
}

}  // namespace facet
