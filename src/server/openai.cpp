#include "server/openai.h"

#include <fmt/format.h>

#include <algorithm>

#include "media/picture.h"
#include "media/sound.h"
#include "server/api_fields.h"
#include "server/constraint.h"
#include "server/request_media.h"
#include "tokenizer/media_part.h"

namespace facet {
namespace {

// Fields of OpenAI's and of llama-server that change nothing here.
constexpr const char* kUnused[] = {"user",
                                   "metadata",
                                   "store",
                                   "service_tier",
                                   "prompt_cache_key",
                                   "id_slot",
                                   "prompt_cache_retention",
                                   "safety_identifier",
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
  f.integer("n", 1, d.n_seq, r.n);
  if (r.kind == ApiKind::kNative) f.integer("n_cmpl", 1, d.n_seq, r.n);
  r.best_of = r.n;
  if (r.kind != ApiKind::kCompletion) return;
  f.integer("best_of", 1, d.n_seq, r.best_of);
  if (r.best_of < r.n) f.fail(Error{"best_of", fmt::format("expected at least n, {}, found {}", r.n, r.best_of), ""});
  if (r.stream && r.best_of > r.n)
    f.fail(Error{"best_of", "expected n in a stream", "which one is the best is known at the end"});
}

void read_logprobs(Fields& f, ApiRequest& r) {
  if (r.kind == ApiKind::kNative) {
    f.only("echo", "false", false);
    int n = 0;
    f.integer("n_probs", 0, kMaxProbs, n);
    f.boolean("post_sampling_probs", r.drawn_probs);
    if (n > 0) r.logprobs = n;
    return;
  }
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
  read_choices(f, r, d);
  read_limits(f, r, d);
  read_constraint(f, r, d.strict);
  for (const char* key : kUnused) f.get(key);
}

void read_thinking(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.thinking = d.thinking;
  r.thought_budget = d.thought_budget, r.max_loops = d.max_loops;
  f.boolean("enable_thinking", r.thinking);
  if (const Json* v = f.get("reasoning_effort")) {
    const bool asked = r.thinking;
    read_effort(f, r, "reasoning_effort", v);
    if (f.has("enable_thinking") && asked != r.thinking)
      return f.fail(Error{"reasoning_effort", "contradicts enable_thinking", "give one of them"});
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

void read_budget(Fields& f, ApiRequest& r) {
  read_thought_budget(f, r,
                      {"thinking_budget", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"});
}

void read_messages(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  const Json* v = f.get("messages");
  if (!v || !v->is_array() || v->empty()) return f.fail("messages", "expected an array of at least one message", v);
  if (v->size() > kMaxMessages)
    return f.fail(
        Error{"messages", fmt::format("expected at most {} messages, found {}", kMaxMessages, v->size()), ""});
  auto messages = messages_from_json(*v);
  if (!messages) return f.fail(messages.error());
  r.messages = std::move(*messages);
  leave_media_out(f, r, d, "");
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (v->is_array() && v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    if (!v->is_array()) return f.fail("tools", "expected an array", v);
    for (size_t i = 0; i < v->size(); ++i) {
      const Json& t = (*v)[i];
      const auto type = t.is_object() ? t.find("type") : t.end();
      if (t.is_object() && type != t.end() && type->is_string() && *type != "function" && !t.contains("function") &&
          is_type_name(type->get_ref<const std::string&>())) {
        r.left_out.add(&Dropped::tools, type->get_ref<const std::string&>());
        continue;
      }
      auto tool = tool_from_json(t, fmt::format("tools[{}]", i));
      if (!tool) return f.fail(tool.error());
      r.tools.push_back(std::move(*tool));
    }
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

// Of media that is not said what it is.
ContentPart sniffed_media(const Json& data, const std::string& where, const ApiDefaults& d) {
  ContentPart p = media_from_url(ContentPart::Kind::kImage,
                                 data.is_string() ? std::string_view(data.get_ref<const std::string&>()) : "", where);
  if (p.error) return p;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(*p.bytes));
  if (picture_kind(bytes).empty() && !sound_kind(bytes).empty()) p.kind = ContentPart::Kind::kAudio;
  const bool picture = p.kind == ContentPart::Kind::kImage;
  if (!(picture ? d.takes_pictures : d.takes_sound))
    p.error = Error{where, fmt::format("expected none, found a {}", picture ? "picture" : "sound"),
                    d.no_media.empty() ? "not supported" : d.no_media};
  return p;
}

// llama-server's {"prompt_string": "see <__media__>", "multimodal_data": ["base64"]}: a marker for each.
void read_prompt_object(Fields& f, const Json& v, const std::string& where, const ApiDefaults& d,
                        std::vector<PromptPart>& out) {
  const auto text = v.find("prompt_string");
  if (text == v.end() || !text->is_string()) return f.fail(Error{where + ".prompt_string", "expected a string", ""});
  std::string_view rest = text->get_ref<const std::string&>();
  const auto media = v.find("multimodal_data");
  if (media == v.end() || media->is_null() || media->empty()) return void(out.emplace_back(std::string(rest)));
  const std::string at = where + ".multimodal_data";
  if (!media->is_array() || media->size() > kMaxMedia)
    return f.fail(at, fmt::format("expected an array of at most {} texts in base64", kMaxMedia), &*media);
  size_t n = 0;
  for (size_t mark; (mark = rest.find(kMediaMarker)) != std::string_view::npos; ++n) {
    if (n == media->size()) return f.fail(Error{at, "expected one for each marker of prompt_string, found fewer", ""});
    if (mark > 0) out.emplace_back(std::string(rest.substr(0, mark)));
    ContentPart part = sniffed_media((*media)[n], fmt::format("{}[{}]", at, n), d);
    if (part.error) return f.fail(*part.error);
    out.emplace_back(std::move(part));
    rest.remove_prefix(mark + kMediaMarker.size());
  }
  if (n != media->size())
    return f.fail(Error{
        at, fmt::format("expected one for each {} of prompt_string, found {} for {}", kMediaMarker, media->size(), n),
        "GET /props tells the marker"});
  if (!rest.empty()) out.emplace_back(std::string(rest));
}

// Text, ids, or both in turn, as llama-server takes them: [2, "some text", 7].
void read_one_prompt(Fields& f, const Json* v, const std::string& where, const ApiDefaults& d,
                     std::vector<PromptPart>& out) {
  if (v && v->is_string()) return void(out.emplace_back(v->get<std::string>()));
  if (v && v->is_object()) return read_prompt_object(f, *v, where, d, out);
  if (!v || !v->is_array() || v->empty()) return f.fail(where, "expected a string or an array of token ids", v);
  bool ids = false;
  for (size_t i = 0; i < v->size(); ++i) {
    const Json& item = (*v)[i];
    if (item.is_string() && (ids || (i + 1 < v->size() && !(*v)[i + 1].is_string()))) {
      out.emplace_back(item.get<std::string>());
      ids = true;  // texts that follow belong to this prompt
      continue;
    }
    const auto id = Fields::whole(item, 0, d.n_vocab - 1);
    if (!id)
      return f.fail(fmt::format("{}[{}]", where, i), fmt::format("expected a token id in [0, {})", d.n_vocab), &item);
    ids = true;
    if (out.empty() || out.back().index() == 0) out.emplace_back(std::vector<int32_t>{});
    std::get<1>(out.back()).push_back(int32_t(*id));
  }
}

// One prompt, or an array of several: of texts, or of arrays.
void read_prompt(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  const Json* v = f.get("prompt");
  const auto whole = [](const Json& p) { return p.is_string() || p.is_array() || p.is_object(); };
  if (v && v->is_array() && v->size() == 1 && whole((*v)[0])) v = &(*v)[0];
  if (!v || !v->is_array() || v->size() < 2 || !std::all_of(v->begin(), v->end(), whole))
    return read_one_prompt(f, v, "prompt", d, r.prompt);
  if (v->size() > kMaxPrompts)
    return f.fail(Error{"prompt", fmt::format("expected at most {} prompts, found {}", kMaxPrompts, v->size()), ""});
  for (size_t i = 0; i < v->size(); ++i)
    read_one_prompt(f, &(*v)[i], fmt::format("prompt[{}]", i), d, i == 0 ? r.prompt : r.more_prompts.emplace_back());
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
    case ApiKind::kResponses:
      return "responses";
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
    read_messages(f, r, d);
    read_tools(f, r);
    read_thinking(f, r, d);
    read_budget(f, r);
    read_continuation(f, r);
    if (const Json* v = f.get("modalities"); v && *v != Json::array({"text"}))
      f.fail("modalities", "expected [\"text\"]", v, "not supported");
  } else {
    read_prompt(f, r, d);
    f.only("suffix", "null or \"\"", "");
    if (kind == ApiKind::kNative) read_native(f, r);
  }
  if (auto ok = f.done(); !ok) return ok.error();
  return r;
}

}  // namespace facet
