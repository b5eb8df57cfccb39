// llama-server's own completion: what it answers.
#include <fmt/format.h>

#include <algorithm>

#include "server/writers.h"

namespace facet {
namespace {

Json settings_json(const WriterContext& c) {
  const ApiRequest& r = c.request;
  const Sampling& s = r.sampling;
  Json bias = Json::array();
  for (const auto& [id, value] : s.logit_bias) bias.push_back({id, value});
  return {{"n_ctx", c.n_ctx},
          {"n_predict", r.max_tokens},
          {"max_tokens", r.max_tokens},
          {"seed", s.seed},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repeat_last_n", s.repeat_last_n},
          {"repeat_penalty", s.repeat_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"logit_bias", std::move(bias)},
          {"stop", r.stop},
          {"ignore_eos", r.ignore_eos},
          {"stream", r.stream},
          {"timings_per_token", r.timings_per_token}};
}

class NativeWriter final : public AnswerWriter {
 public:
  NativeWriter(ApiAnswer a, WriterContext c) : a_(std::move(a)), c_(std::move(c)) {}

  std::string begin(int prompt_tokens, int) override {
    prompt_tokens_ = prompt_tokens;
    return "";
  }
  std::string progress(const Json& p) override {
    Json j = partial("", {}, 0);
    j["prompt_progress"] = p;
    return sse(j);
  }
  std::string piece(const AnswerPiece& p) override {
    new_line_ = new_line_ || p.event.text.find('\n') != std::string::npos;
    Json j = partial(p.event.text, p.tokens, p.usage.generated);
    if (c_.request.timings_per_token) j["timings"] = timings_json(p.usage);
    return sse(j);
  }
  std::string end(const AnswerEnd& e) override { return sse(last("", {}, e)); }
  std::string error(const ApiError& e) override { return sse(error_json(Dialect::kOpenAi, e)); }
  Json whole(const ParsedMessage& m, const std::vector<int32_t>& tokens, const AnswerEnd& e) override {
    new_line_ = m.content.find('\n') != std::string::npos;
    const Json all = last(m.content, c_.request.return_tokens ? tokens : std::vector<int32_t>{}, e);
    if (c_.request.response_fields.empty()) return all;
    Json chosen = Json::object();  // "a/b" is b of the object a
    for (const std::string& path : c_.request.response_fields) {
      const size_t slash = path.find('/');
      const auto at = all.find(path.substr(0, slash));
      if (at == all.end()) continue;
      if (slash == std::string::npos)
        chosen[path] = *at;
      else if (at->is_object() && at->contains(path.substr(slash + 1)))
        chosen[path] = (*at)[path.substr(slash + 1)];
    }
    return chosen;
  }

 private:
  Json partial(const std::string& text, const std::vector<int32_t>& tokens, int generated) const {
    return {{"index", 0},
            {"content", text},
            {"tokens", tokens},
            {"stop", false},
            {"id_slot", -1},
            {"tokens_predicted", generated},
            {"tokens_evaluated", prompt_tokens_}};
  }

  Json last(const std::string& text, const std::vector<int32_t>& tokens, const AnswerEnd& e) const {
    const bool limit = !e.stopped && (e.why == Stop::kLength || e.why == Stop::kContext);
    return {{"index", 0},
            {"content", text},
            {"tokens", tokens},
            {"id_slot", -1},
            {"stop", true},
            {"model", a_.model},
            {"tokens_predicted", e.usage.generated},
            {"tokens_evaluated", e.usage.prompt},
            {"generation_settings", settings_json(c_)},
            {"prompt", c_.prompt},
            {"has_new_line", new_line_},
            {"truncated", !e.stopped && e.why == Stop::kContext},
            {"stop_type", e.stopped             ? "word"
                          : limit               ? "limit"
                          : e.why == Stop::kEos ? "eos"
                                                : "none"},
            {"stopping_word", e.stop_word},
            {"tokens_cached", e.usage.prompt + std::max(0, e.usage.generated - 1)},
            {"timings", timings_json(e.usage)}};
  }

  ApiAnswer a_;
  WriterContext c_;
  int prompt_tokens_ = 0;
  bool new_line_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_native_writer(ApiAnswer a, WriterContext c) {
  return std::make_unique<NativeWriter>(std::move(a), std::move(c));
}

}  // namespace facet
