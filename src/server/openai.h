#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/json.h"

// The OpenAI API as JSON: requests in, answers out. Pure functions; no socket, no clock, no model.
namespace facet {

// What a request is completed and checked with.
struct ApiDefaults {
  Sampling sampling = {};
  bool seed_given = false;  // false: a request without a seed has one drawn
  int max_tokens = -1;
  bool thinking = false;
  int n_vocab = 0;
};

enum class ApiKind { kChat, kCompletion };

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::vector<Message> messages = {};  // of kChat
  std::vector<Json> tools = {};        // none with tool_choice "none"
  bool thinking = false, preserve_thinking = false;
  std::string prompt = {};               // of kCompletion: this,
  std::vector<int32_t> prompt_ids = {};  // or these
  bool stream = false, include_usage = false, ignore_eos = false;
  int max_tokens = -1;  // -1: until the context is full
  Sampling sampling = {};
  bool seed_given = false;
  std::vector<std::string> stop = {};
};

// An error's `where` is the path of the field, as in messages[2].content.
Result<ApiRequest> parse_api_request(ApiKind kind, const Json& body, const ApiDefaults& defaults);

// Looks for stop strings in a text that comes in pieces. What may become one is held back; the result does not depend
// on the cuts: the stop string that is complete first ends the text, before its first byte.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stop) : stop_(std::move(stop)) {}
  std::string push(std::string_view text);  // what can be delivered; nothing after stopped()
  std::string finish();                     // what was held back
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

// The model's text to what a client sees. Stop strings end the content; they are not looked for in reasoning and in
// tool calls.
class AnswerText {
 public:
  AnswerText(ApiKind kind, ParseOptions options, std::vector<std::string> stop)
      : kind_(kind), parser_(options), stop_(std::move(stop)) {}
  std::vector<ParseEvent> push(std::string_view text);
  std::vector<ParseEvent> finish();
  bool stopped() const { return stop_.stopped(); }

 private:
  std::vector<ParseEvent> filter(std::vector<ParseEvent> events);
  ApiKind kind_;
  ChatParser parser_;
  StopMatcher stop_;
};

// What all objects of one answer have in common.
struct ApiAnswer {
  ApiKind kind = ApiKind::kChat;
  std::string id = {};  // "chatcmpl-..." or "cmpl-..."
  std::string model = {};
  int64_t created = 0;  // seconds of Unix time
};

void add_event(ParsedMessage& message, const ParseEvent& event);
const char* finish_reason(Stop why, bool stop_string, bool tool_calls);
Json usage_json(const Usage& usage);
Json timings_json(const Usage& usage);

// The whole answer.
Json api_response(const ApiAnswer& a, const ParsedMessage& message, const char* finish, const Usage& usage);
// A stream: chunk_role, one chunk_event per event, chunk_finish, chunk_usage if asked for, then kSseDone.
Json chunk_role(const ApiAnswer& a);  // of kChat
Json chunk_event(const ApiAnswer& a, const ParseEvent& event, int tool_index);
Json chunk_finish(const ApiAnswer& a, const char* finish, const Usage& usage);
Json chunk_usage(const ApiAnswer& a, const Usage& usage);
std::string sse(const Json& chunk);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};  // empty: null
  std::string code = {};   // likewise
};
ApiError api_error(const Error& e);
Json error_json(const ApiError& e);

}  // namespace facet
