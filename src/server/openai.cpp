#include "server/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/api_fields.h"
#include "server/constraint.h"

namespace facet {
namespace {

// OpenAI's object of ids, or llama-server's array of pairs. What is no id is text: each of its tokens is meant.
class BiasReader {
 public:
  BiasReader(Fields& f, ApiRequest& r, const ApiDefaults& d) : f_(f), d_(d), out_(r.sampling.logit_bias) {}

  void read() {
    const Json* v = f_.get("logit_bias");
    if (!v) return;
    if (!v->is_object() && !v->is_array())
      return f_.fail("logit_bias", "expected an object of token ids and numbers", v);
    if (v->size() > kMaxBias) return too_many(v->size());
    out_.clear();
    if (v->is_object()) {
      for (auto it = v->begin(); it != v->end(); ++it) entry(it.key(), it.value(), "logit_bias." + it.key());
      return;
    }
    for (size_t i = 0; i < v->size(); ++i) {
      const Json& pair = (*v)[i];
      const std::string at = fmt::format("logit_bias[{}]", i);
      if (!pair.is_array() || pair.size() != 2 || !(pair[0].is_string() || pair[0].is_number()))
        return f_.fail(at, "expected [token id or text, number]", &pair);
      if (pair[0].is_string()) {
        entry(pair[0].get_ref<const std::string&>(), pair[1], at);
      } else if (const auto id = Fields::whole(pair[0], 0, d_.n_vocab - 1)) {
        add({int32_t(*id)}, pair[1], at);
      } else {
        return f_.fail(at, fmt::format("expected a token id in [0, {})", d_.n_vocab), &pair[0]);
      }
    }
  }

 private:
  void too_many(size_t n) {
    f_.fail(Error{"logit_bias", fmt::format("expected at most {} entries, found {}", kMaxBias, n), ""});
  }
  void entry(const std::string& key, const Json& value, const std::string& at) {
    int id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec == std::errc() && end == key.data() + key.size() && id >= 0 && id < d_.n_vocab) return add({id}, value, at);
    const bool number = key.empty() || key.find_first_not_of("-0123456789") == std::string::npos;
    if (number || !d_.tokenize || key.size() > kMaxStopBytes)
      return f_.fail(
          Error{"logit_bias",
                fmt::format("expected token ids in [0, {}) or text of at most {} bytes as keys, found \"{}\"",
                            d_.n_vocab, kMaxStopBytes, cut(key, 40)),
                ""});
    add(d_.tokenize(key), value, at);
  }
  void add(const std::vector<int32_t>& ids, const Json& value, const std::string& at) {
    const bool never = value == false;  // llama-server's way to forbid a token
    if (!never && (!value.is_number() || !(std::abs(value.get<double>()) <= 100)))
      return f_.fail(at, "expected a number in [-100, 100]", &value);
    if (out_.size() + ids.size() > kMaxBias) return too_many(out_.size() + ids.size());
    for (const int32_t id : ids) out_.emplace_back(id, never ? -1e9f : float(value.get<double>()));
  }

  Fields& f_;
  const ApiDefaults& d_;
  std::vector<std::pair<int32_t, float>>& out_;
};

// Fields of OpenAI's and of llama-server that change nothing here.
constexpr const char* kUnused[] = {"user",
                                   "metadata",
                                   "store",
                                   "service_tier",
                                   "prompt_cache_key",
                                   "id_slot",
                                   "prompt_cache_retention",
                                   "safety_identifier",
                                   "priority",
                                   "verbosity",
                                   "prediction",
                                   "request_id"};

// One limit under three names.
void read_max_tokens(Fields& f, ApiRequest& r) {
  const char* given = nullptr;
  for (const char* key : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    const Json* v = f.get(key);
    if (!v) continue;
    const auto n = Fields::whole(*v, -1, kMaxTokens);
    if (!n || (*n == 0 && r.kind != ApiKind::kCompletion))  // of a completion: its prompt is computed
      return f.fail(key, fmt::format("expected an integer in [1, {}], or -1 for no limit", kMaxTokens), v);
    if (given && *n != r.max_tokens) return f.fail(key, fmt::format("expected the same value as {}", given), v);
    r.max_tokens = int(*n);
    given = key;
  }
}

// Choices of a prompt; each is a sequence of the engine.
void read_choices(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  if (r.kind == ApiKind::kNative) return f.only("n", "1", 1);
  f.integer("n", 1, d.n_seq, r.n);
  r.best_of = r.n;
  if (r.kind != ApiKind::kCompletion) return;
  f.integer("best_of", 1, d.n_seq, r.best_of);
  if (r.best_of < r.n) f.fail(Error{"best_of", fmt::format("expected at least n, {}, found {}", r.n, r.best_of), ""});
  if (r.stream && r.best_of > r.n)
    f.fail(Error{"best_of", "expected n in a stream", "which one is the best is known at the end"});
}

void read_ends(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  f.integer("min_tokens", 0, kMaxTokens, r.min_tokens);
  const Json* v = f.get("stop_token_ids");
  if (!v) return;
  if (!v->is_array() || v->size() > kMaxStops)
    return f.fail("stop_token_ids", fmt::format("expected an array of at most {} token ids", kMaxStops), v);
  for (size_t i = 0; i < v->size(); ++i) {
    const auto id = Fields::whole((*v)[i], 0, d.n_vocab - 1);
    if (!id)
      return f.fail(fmt::format("stop_token_ids[{}]", i), fmt::format("expected a token id in [0, {})", d.n_vocab),
                    &(*v)[i]);
    r.stop_ids.push_back(int32_t(*id));
  }
}

// Drafts change no text: a client can do without them, and that is all.
void read_draft(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("draft")) {
    if (*v != "none" && *v != "auto") return f.fail("draft", "expected \"none\" or \"auto\"", v);
    r.draft = *v == "auto";
  }
  int most = -1;
  f.integer("speculative.n_max", 0, kMaxTokens, most);
  if (most == 0) r.draft = false;
}

void read_logprobs(Fields& f, ApiRequest& r) {
  if (r.kind == ApiKind::kNative) return f.only("echo", "false", false);
  if (r.kind == ApiKind::kCompletion) {
    f.boolean("echo", r.echo);
    f.integer("logprobs", 0, kMaxLogprobs, r.logprobs);
    if (!r.echo && r.max_tokens == 0)
      f.fail(Error{"max_tokens", "expected 0 only with echo: true", "nothing would be answered"});
    return;
  }
  bool wanted = false;
  int top = 0;
  f.boolean("logprobs", wanted);
  f.integer("top_logprobs", 0, kMaxLogprobs, top);
  if (top > 0 && !wanted) return f.fail(Error{"top_logprobs", "expected only with logprobs: true", ""});
  if (wanted) r.logprobs = top;
}

void read_common(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.max_tokens = d.max_tokens;
  std::string ignored;
  f.string("model", ignored);
  f.boolean("stream", r.stream);
  if (const Json* v = f.get("stream_options")) {
    Fields o(*v, d.strict, "stream_options");
    o.boolean("include_usage", r.include_usage);
    o.boolean("continuous_usage_stats", r.continuous_usage);
    o.get("include_obfuscation");
    f.check(o.done());
    if (!r.stream) f.fail(Error{"stream_options", "expected only with stream: true", ""});
  }
  read_max_tokens(f, r);
  read_sampling(f, r, d);
  read_stop(f, r, "stop");
  f.boolean("ignore_eos", r.ignore_eos);

  read_choices(f, r, d);
  read_ends(f, r, d);
  f.boolean("cache_prompt", r.cache);
  f.string("cache_salt", r.cache_salt);
  if (r.cache_salt.size() > kMaxSaltBytes)
    f.fail(Error{"cache_salt", fmt::format("expected at most {} bytes, found {}", kMaxSaltBytes, r.cache_salt.size()),
                 ""});
  read_draft(f, r);
  read_constraint(f, r, d.strict);
  f.boolean("timings_per_token", r.timings_per_token);
  f.boolean("return_progress", r.return_progress);
  for (const char* key : kUnused) f.get(key);
}

void read_thinking(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.thinking = d.thinking;
  f.boolean("enable_thinking", r.thinking);
  if (const Json* v = f.get("reasoning_effort")) {
    bool known = false;
    for (const char* e : {"none", "minimal", "low", "medium", "high", "xhigh"}) known = known || *v == e;
    if (!known) return f.fail("reasoning_effort", "expected none, minimal, low, medium, high or xhigh", v);
    const bool thinking = *v != "none";
    if (f.has("enable_thinking") && thinking != r.thinking)
      return f.fail(Error{"reasoning_effort", "contradicts enable_thinking", "give one of them"});
    r.thinking = thinking;
  }
  const Json* v = f.get("chat_template_kwargs");
  if (!v) return;
  Fields k(*v, d.strict, "chat_template_kwargs");
  bool thinking = r.thinking;
  k.boolean("enable_thinking", thinking);
  k.boolean("preserve_thinking", r.preserve_thinking);
  f.check(k.done());
  if ((f.has("enable_thinking") || f.has("reasoning_effort")) && thinking != r.thinking)
    f.fail(Error{"chat_template_kwargs.enable_thinking", "contradicts enable_thinking or reasoning_effort",
                 "give one of them"});
  r.thinking = thinking;
}

void read_messages(Fields& f, ApiRequest& r) {
  const Json* v = f.get("messages");
  if (!v || !v->is_array() || v->empty()) return f.fail("messages", "expected an array of at least one message", v);
  if (v->size() > kMaxMessages)
    return f.fail(
        Error{"messages", fmt::format("expected at most {} messages, found {}", kMaxMessages, v->size()), ""});
  auto messages = messages_from_json(*v);
  if (!messages) return f.fail(messages.error());
  r.messages = std::move(*messages);
  for (size_t i = 0; i < r.messages.size(); ++i)
    if (const auto* parts = std::get_if<std::vector<ContentPart>>(&r.messages[i].content))
      for (size_t p = 0; p < parts->size(); ++p)
        if ((*parts)[p].kind != ContentPart::Kind::kText)
          return f.fail(Error{fmt::format("messages[{}].content[{}].type", i, p),
                              "expected text, found a picture, sound or video", "not supported"});
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (v->is_array() && v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    auto tools = tools_from_json(*v);
    if (!tools) return f.fail(tools.error());
    r.tools = std::move(*tools);
  }
  read_tool_choice(f, r);
  bool parallel = true;
  f.boolean("parallel_tool_calls", parallel);
  r.one_call = !parallel;
}

void read_native(Fields& f, ApiRequest& r) {
  f.boolean("return_tokens", r.return_tokens);
  const Json* v = f.get("response_fields");
  if (!v) return;
  if (!v->is_array() || v->size() > kMaxStops)
    return f.fail("response_fields", fmt::format("expected an array of at most {} names", kMaxStops), v);
  for (const Json& name : *v) {
    if (!name.is_string()) return f.fail("response_fields", "expected strings", &name);
    r.response_fields.push_back(name.get<std::string>());
  }
}

// Text, ids, or both in turn, as llama-server takes them: [2, "some text", 7].
void read_one_prompt(Fields& f, const Json* v, const std::string& where, int n_vocab, std::vector<PromptPart>& out) {
  if (v && v->is_string()) return void(out.emplace_back(v->get<std::string>()));
  if (!v || !v->is_array() || v->empty()) return f.fail(where, "expected a string or an array of token ids", v);
  bool ids = false;
  for (size_t i = 0; i < v->size(); ++i) {
    const Json& item = (*v)[i];
    if (item.is_string() && (ids || (i + 1 < v->size() && !(*v)[i + 1].is_string()))) {
      out.emplace_back(item.get<std::string>());
      ids = true;  // texts that follow belong to this prompt
      continue;
    }
    const auto id = Fields::whole(item, 0, n_vocab - 1);
    if (!id)
      return f.fail(fmt::format("{}[{}]", where, i), fmt::format("expected a token id in [0, {})", n_vocab), &item);
    ids = true;
    if (out.empty() || out.back().index() == 0) out.emplace_back(std::vector<int32_t>{});
    std::get<1>(out.back()).push_back(int32_t(*id));
  }
}

// One prompt, or an array of several: of texts, or of arrays.
void read_prompt(Fields& f, ApiRequest& r, int n_vocab) {
  const Json* v = f.get("prompt");
  if (v && v->is_array() && v->size() == 1 && ((*v)[0].is_string() || (*v)[0].is_array())) v = &(*v)[0];
  const auto all = [&](auto is) { return std::all_of(v->begin(), v->end(), is); };
  if (!v || !v->is_array() || v->size() < 2 ||
      !(all([](const Json& p) { return p.is_string(); }) || all([](const Json& p) { return p.is_array(); })))
    return read_one_prompt(f, v, "prompt", n_vocab, r.prompt);
  if (r.kind != ApiKind::kCompletion)
    return f.fail("prompt", "expected one prompt", v, "/v1/completions takes several");
  if (v->size() > kMaxPrompts)
    return f.fail(Error{"prompt", fmt::format("expected at most {} prompts, found {}", kMaxPrompts, v->size()), ""});
  for (size_t i = 0; i < v->size(); ++i)
    read_one_prompt(f, &(*v)[i], fmt::format("prompt[{}]", i), n_vocab,
                    i == 0 ? r.prompt : r.more_prompts.emplace_back());
}

void read_continuation(Fields& f, ApiRequest& r) {
  const bool said = f.has("continue_final_message");
  f.boolean("continue_final_message", r.continue_last);
  f.boolean("add_generation_prompt", r.add_generation_prompt);
  if (f.failed()) return;
  if (r.continue_last && f.has("add_generation_prompt") && r.add_generation_prompt)
    return f.fail(Error{"continue_final_message", "contradicts add_generation_prompt", "give one of them"});
  if (!r.continue_last && !r.add_generation_prompt) return;
  f.check(settle_continuation(r, said));
}

}  // namespace

void read_stop(Fields& f, ApiRequest& r, const char* key) {
  const Json* v = f.get(key);
  if (!v) return;
  auto add = [&](const Json& s, const std::string& at) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty() ||
        s.get_ref<const std::string&>().size() > kMaxStopBytes)
      return f.fail(at, fmt::format("expected a string of 1 to {} bytes", kMaxStopBytes), &s);
    r.stop.push_back(s.get<std::string>());
  };
  if (!v->is_array()) return add(*v, key);
  if (v->size() > kMaxStops)
    return f.fail(Error{key, fmt::format("expected at most {} strings, found {}", kMaxStops, v->size()), ""});
  for (size_t i = 0; i < v->size(); ++i) add((*v)[i], fmt::format("{}[{}]", key, i));
}

void read_sampling(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.sampling = d.sampling;
  r.seed_given = d.seed_given;
  Sampling& s = r.sampling;
  f.number("temperature", 0, 100, s.temperature);
  f.number("top_p", 0, 1, s.top_p);
  f.number("min_p", 0, 1, s.min_p);
  f.integer("top_k", -1, kMaxTokens, s.top_k);
  f.number("presence_penalty", -100, 100, s.presence_penalty);
  f.number("frequency_penalty", -100, 100, s.frequency_penalty);
  for (const char* key : {"repeat_penalty", "repetition_penalty"})  // llama-server's name and vLLM's
    f.number(key, .01, 100, s.repeat_penalty);
  f.integer("repeat_last_n", -1, kMaxTokens, s.repeat_last_n);
  if (const Json* v = f.get("seed")) {
    const auto n = Fields::whole(*v, -1, std::numeric_limits<int64_t>::max());
    if (!n)
      f.fail("seed", "expected an integer from 0 on, or -1 for a random one", v);
    else if ((r.seed_given = *n >= 0))
      s.seed = uint64_t(*n);
  }
  BiasReader(f, r, d).read();
}

Status settle_continuation(ApiRequest& r, bool said) {
  const auto open = [&](size_t from_end) {
    if (r.messages.size() < from_end) return false;
    const Message& m = r.messages[r.messages.size() - from_end];
    return m.role == "assistant" && m.tool_calls.empty() && m.tool_responses.empty();
  };
  if (said && r.continue_last && !open(1))
    return Error{"continue_final_message", "expected a last message of the assistant without tool calls", ""};
  if (!said) r.continue_last = open(1);
  if (r.continue_last && open(2))
    return Error{fmt::format("messages[{}]", r.messages.size() - 1),
                 "expected one message of the assistant at the end, found two",
                 "the answer continues the last one; join them"};
  return Ok{};
}

const char* kind_name(ApiKind kind) {
  switch (kind) {
    case ApiKind::kChat:
      return "chat";
    case ApiKind::kCompletion:
      return "completion";
    case ApiKind::kNative:
      return "native";
    case ApiKind::kMessages:
      return "messages";
    case ApiKind::kOllamaChat:
      return "ollama-chat";
    case ApiKind::kOllamaGenerate:
      return "ollama-generate";
  }
  return "";
}

Result<ApiRequest> parse_api_request(ApiKind kind, const Json& body, const ApiDefaults& d) {
  ApiRequest r;
  r.kind = kind;
  if (!body.is_object())
    return Error{"", fmt::format("expected a JSON object as the body, found {}", body.type_name()), ""};
  Fields f(body, d.strict);
  read_common(f, r, d);
  read_logprobs(f, r);
  if (kind == ApiKind::kChat) {
    read_messages(f, r);
    read_tools(f, r);
    read_thinking(f, r, d);
    read_continuation(f, r);
    if (const Json* v = f.get("modalities"); v && *v != Json::array({"text"}))
      f.fail("modalities", "expected [\"text\"]", v, "not supported");
  } else {
    read_prompt(f, r, d.n_vocab);
    f.only("suffix", "null or \"\"", "");
    if (kind == ApiKind::kNative) read_native(f, r);
  }
  if (auto ok = f.done(); !ok) return ok.error();
  return r;
}

}  // namespace facet
