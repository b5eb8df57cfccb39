// The text of /metrics, judged by the rules of Prometheus' exposition format and its naming practice.
#include "server/metrics.h"

#include <gtest/gtest.h>
#include <regex.h>

#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "server/health.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

// A line as a name, its labels and a value.
struct Sample {
  std::string name, labels, value;
};
std::optional<Sample> sample_of(const std::string& line) {
  static const regex_t form = [] {
    regex_t r;
    const char* text = R"re(^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-z_]+="[^"\]*"(,[a-z_]+="[^"\]*")*\})? ([^[:space:]]+)$)re";
    EXPECT_EQ(regcomp(&r, text, REG_EXTENDED), 0);
    return r;
  }();
  regmatch_t m[5];
  if (regexec(&form, line.c_str(), 5, m, 0) != 0) return std::nullopt;
  const auto part = [&](int i) {
    return m[i].rm_so < 0 ? "" : line.substr(size_t(m[i].rm_so), size_t(m[i].rm_eo - m[i].rm_so));
  };
  return Sample{part(1), part(2), part(4)};
}

// Empty, or what is wrong with a text of metrics.
std::string fault(const std::string& text) {
  std::map<std::string, std::string> type;
  std::set<std::string> helped, series;
  std::map<std::string, double> bucket;  // the last one's count, by histogram
  std::istringstream in(text);
  if (text.empty() || text.back() != '\n') return "no newline at the end";
  std::string current;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string hash, what, name, rest;
    if (line.starts_with("# ")) {
      words >> hash >> what >> name;
      std::getline(words, rest);
      if (rest.size() < 2) return "nothing said: " + line;
      if (what == "HELP" && !helped.insert(name).second) return "helped twice: " + line;
      if (what == "TYPE" && !type.emplace(name, rest.substr(1)).second) return "typed twice: " + line;
      if (what == "TYPE") current = name;
      continue;
    }
    const auto sample = sample_of(line);
    if (!sample) return "no sample: " + line;
    if (!series.insert(sample->name + sample->labels).second) return "twice: " + line;
    char* end = nullptr;
    const double value = std::strtod(sample->value.c_str(), &end);
    if (*end) return "no number: " + line;
    name = sample->name;
    if (type.count(current) && type[current] == "histogram") {
      if (name != current + "_bucket" && name != current + "_sum" && name != current + "_count")
        return "not of its histogram: " + line;
      if (name.ends_with("_bucket")) {
        if (value < bucket[current]) return "buckets fall: " + line;
        bucket[current] = value;
      }
      if (name.ends_with("_count") && value != bucket[current]) return "the last bucket is not the count: " + line;
      continue;
    }
    if (name != current || !helped.count(name)) return "without its head: " + line;
    if ((type[name] == "counter") != name.ends_with("_total") && name.starts_with("facet_"))
      return "named otherwise: " + line;
    if (type[name] == "counter" && value < 0) return "below zero: " + line;
  }
  return "";
}

TEST(Metrics, AreWellFormed) {
  Metrics m;
  EXPECT_EQ(fault(m.text({}, true)), "");
  m.step({.sequences = 2, .waiting = 0, .prompt_tokens = 5, .tokens = 2, .seconds = .01, .phase_s = {0, .25, .5}});
  m.first_token(.2);
  m.between_tokens(.03, 3);
  m.refused(400);
  m.refused(503);
  Usage u{.prompt = 100, .cached = 60, .generated = 20};
  u.queue_s = .5, u.prefill_s = .2, u.decode_s = .4, u.rounds = 5, u.drafted = 10, u.accepted = 7;
  u.offered_at = {5, 4}, u.accepted_at = {4, 3};
  u.by_method = {{"dflash", {3, 3}, {3, 2}}, {"mtp", {2, 1}, {1, 1}}};
  m.ended("chat", "eos", u);
  m.ended("completion", "length", u);
  for (const bool compatible : {false, true}) {
    const std::string text = m.text(
        {.running = 1,
         .waiting = 2,
         .state = "ok",
         .http = {.connections = 3, .body_bytes = 4, .answer_bytes = 5, .refused_bodies = 6, .dropped_for_memory = 7}},
        compatible);
    EXPECT_EQ(fault(text), "");
    for (const char* line : {"facet_prompt_tokens_total 200\n",
                             "facet_prompt_tokens_cached_total 120\n",
                             "facet_requests_total{kind=\"chat\",stop=\"eos\"} 1\n",
                             "facet_requests_running 1\n",
                             "facet_time_between_tokens_seconds_bucket{le=\"0.01\"} 3\n",
                             "facet_time_between_tokens_seconds_sum 0.03\n",
                             "facet_queue_seconds_count 2\n",
                             "facet_draft_accepted_at_total{method=\"dflash\",place=\"2\"} 4\n",
                             "facet_draft_offered_at_total{method=\"mtp\",place=\"1\"} 4\n",
                             "facet_step_seconds_count 1\n",
                             "facet_phase_seconds_total{phase=\"map\"} 0.25\n",
                             "facet_phase_seconds_total{phase=\"fork\"} 0.5\n",
                             "facet_prompt_cached_ratio_bucket{le=\"0.6\"} 2\n",
                             "facet_health_state{state=\"ok\"} 1\n",
                             "facet_requests_refused_total{status=\"503\"} 1\n",
                             "facet_http_connections 3\n",
                             "facet_http_body_bytes 4\n",
                             "facet_http_answer_bytes 5\n",
                             "facet_http_refused_bodies_total 6\n",
                             "facet_http_dropped_readers_total 7\n"})
      EXPECT_NE(text.find(line), std::string::npos) << line << text;
    for (const char* line : {"llamacpp:prompt_tokens_total 80\n", "llamacpp:requests_deferred 2\n",
                             "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 6\n",
                             "vllm:prefix_cache_hits_total 120\n"})
      EXPECT_EQ(text.find(line) != std::string::npos, compatible) << line;
  }
}

TEST(Metrics, TheCheckBites) {
  for (const char* text :
       {"a 1", "a 1\n", "# HELP a b\n# TYPE a counter\na 1\na 1\n", "# HELP a b\n# TYPE a gauge\na x\n",
        "# HELP a b\n# TYPE a gauge\nb 1\n", "# HELP facet_a b\n# TYPE facet_a counter\nfacet_a 1\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\n"})
    EXPECT_NE(fault(text), "") << text;
}

TEST(Health, TellsItsStateAndWhy) {
  Health h;
  const auto told = [&] { return parse_json(h.response().body, "")->dump(); };
  EXPECT_EQ(h.response().status, 503);
  EXPECT_NE(told().find("\"status\":\"loading\""), std::string::npos);
  h.ready();
  EXPECT_EQ(h.response().status, 200);
  EXPECT_EQ(told(), R"({"status":"ok"})");
  h.degrade("drafter", "made for another model");
  EXPECT_EQ(told(), R"({"status":"degraded","reason":"drafter: made for another model"})");
  EXPECT_EQ(h.response().status, 200);
  h.fail("no finite number");
  EXPECT_EQ(h.response().status, 503);
  EXPECT_EQ(h.state(), std::string("failed"));
  EXPECT_NE(told().find("no finite number"), std::string::npos);
  h.succeed();
  EXPECT_EQ(h.state(), std::string("degraded"));
  h.degrade("disk cache, writing", "no room");
  h.restore("disk cache, writing");
  EXPECT_EQ(told(), R"({"status":"degraded","reason":"drafter: made for another model"})");
}

}  // namespace
}  // namespace facet
