#include "server/health.h"

#include <fmt/format.h>

#include "server/writer.h"
#include "tokenizer/json.h"

namespace facet {

void Health::ready() {
  const std::lock_guard lock(mutex_);
  loaded_ = true;
}

void Health::degrade(const std::string& what, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (missing_.size() < 16) missing_.emplace(what, why);  // the first reason is the one that is told
}

void Health::restore(const std::string& what) {
  const std::lock_guard lock(mutex_);
  missing_.erase(what);
}

void Health::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failure_ = why;
}

void Health::succeed() {
  const std::lock_guard lock(mutex_);
  failure_.clear();
}

const char* Health::state() const {
  const std::lock_guard lock(mutex_);
  if (!loaded_) return "loading";
  if (!failure_.empty()) return "failed";
  return missing_.empty() ? "ok" : "degraded";
}

HttpResponse Health::response() const {
  const std::string s = state();
  const std::lock_guard lock(mutex_);
  Json j = {{"status", s}};
  if (s == "degraded") {
    for (const auto& [what, why] : missing_)
      j["reason"] =
          (j.contains("reason") ? j["reason"].get<std::string>() + "; " : "") + fmt::format("{}: {}", what, why);
    return json_response(200, j);
  }
  if (s == "ok") return json_response(200, j);
  const std::string why = s == "loading" ? "the model is loading" : failure_;
  Json body = error_json(Dialect::kOpenAi, {.status = 503, .message = why, .param = "", .code = s});
  body["status"] = s, body["reason"] = why;
  HttpResponse r = json_response(503, body);
  r.headers.emplace_back("Retry-After", "1");
  return r;
}

}  // namespace facet
