// llama-server's own completion: what it answers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/writers.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

Json settings_json(const WriterContext& c) {
  const ApiRequest& r = c.request;
  const Sampling& s = r.sampling;
  Json bias = Json::array();  // null: never
  for (const auto& [id, value] : s.logit_bias)
    bias.push_back({{"token", id}, {"bias", value <= -1e9f ? Json() : Json(value)}});
  for (const int32_t id : c.ends) bias.push_back({{"token", id}, {"bias", nullptr}});
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
          {"dry_multiplier", s.dry_multiplier},
          {"dry_base", s.dry_base},
          {"dry_allowed_length", s.dry_allowed_length},
          {"dry_penalty_last_n", s.dry_last_n},
          {"xtc_probability", s.xtc_probability},
          {"xtc_threshold", s.xtc_threshold},
          {"n_probs", r.drawn_probs || r.kind == ApiKind::kNative ? std::max(0, r.logprobs) : 0},
          {"post_sampling_probs", r.drawn_probs},
          {"logit_bias", std::move(bias)},
          {"stop", r.stop},
          {"ignore_eos", r.ignore_eos},
          {"stream", r.stream},
          {"timings_per_token", r.timings_per_token}};
}

// llama-server's n_probs: natural logarithms, or, drawn, the probabilities that tokens were drawn with.
Json probabilities(const std::vector<LoggedToken>& tokens, bool drawn) {
  const auto entry = [drawn](int32_t id, const std::string& text, float logprob) {
    Json j = {{"id", id}, {"token", token_name(text)}, {"bytes", std::vector<uint8_t>(text.begin(), text.end())}};
    if (drawn)
      j["prob"] = std::exp(double(logprob));
    else
      j["logprob"] = logprob;
    return j;
  };
  Json all = Json::array();
  for (const LoggedToken& t : tokens) {
    Json j = entry(t.id, t.text, t.logprob.value_or(0));
    Json& top = j[drawn ? "top_probs" : "top_logprobs"] = Json::array();
    for (const LoggedToken::Other& o : t.top) top.push_back(entry(o.id, o.text, o.logprob));
    all.push_back(std::move(j));
  }
  return all;
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
    if (c_.request.logprobs > 0) j["completion_probabilities"] = probabilities(p.logprobs, c_.request.drawn_probs);
    return sse(j);
  }
  std::string end(const AnswerEnd& e) override { return sse(last("", {}, e)); }
  std::string error(const ApiError& e) override { return sse(error_json(Dialect::kOpenAi, e)); }
  Json whole(const ParsedMessage& m, const std::vector<int32_t>& tokens, const AnswerEnd& e) override {
    new_line_ = m.content.find('\n') != std::string::npos;
    Json all = last(m.content, c_.request.return_tokens ? tokens : std::vector<int32_t>{}, e);
    if (c_.request.logprobs > 0) all["completion_probabilities"] = probabilities(e.logprobs, c_.request.drawn_probs);
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
    return {{"index", a_.index},
            {"content", text},
            {"tokens", tokens},
            {"stop", false},
            {"id_slot", -1},
            {"tokens_predicted", generated},
            {"tokens_evaluated", prompt_tokens_}};
  }

  Json last(const std::string& text, const std::vector<int32_t>& tokens, const AnswerEnd& e) const {
    Json j = native_json(a_, c_, text, tokens, e);
    j["has_new_line"] = new_line_;
    return j;
  }

  ApiAnswer a_;
  WriterContext c_;
  int prompt_tokens_ = 0;
  bool new_line_ = false;
};

}  // namespace

Json native_json(const ApiAnswer& a, const WriterContext& c, const std::string& text,
                 const std::vector<int32_t>& tokens, const AnswerEnd& e) {
  const bool limit = !e.stopped && is_cut(e.why);
  return {{"index", a.index},
          {"content", text},
          {"tokens", tokens},
          {"id_slot", -1},
          {"stop", true},
          {"model", a.model},
          {"tokens_predicted", e.usage.generated},
          {"tokens_evaluated", e.usage.prompt},
          {"generation_settings", settings_json(c)},
          {"prompt", c.prompt},
          {"has_new_line", text.find('\n') != std::string::npos},
          {"truncated", !e.stopped && e.why == Stop::kContext},
          {"stop_type", e.stopped             ? "word"
                        : limit               ? "limit"
                        : e.why == Stop::kEos ? "eos"
                                              : "none"},
          {"stopping_word", e.stop_word},
          {"tokens_cached", e.usage.prompt + std::max(0, e.usage.generated - 1)},
          {"timings", timings_json(e.usage)}};
}

std::unique_ptr<AnswerWriter> make_native_writer(ApiAnswer a, WriterContext c) {
  return std::make_unique<NativeWriter>(std::move(a), std::move(c));
}

}  // namespace facet
