#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http.h"
#include "server/openai.h"

namespace facet {

// A token with the model's opinion of it, as `logprobs` tells it.
struct LoggedToken {
  struct Other {
    int32_t id;
    std::string text;
    float logprob;
  };
  int32_t id = -1;
  std::string text = {};              // bytes; perhaps a part of a UTF-8 sequence
  std::optional<float> logprob = {};  // none: the first token of a prompt
  std::vector<Other> top = {};        // the likeliest, best first
};

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};          // empty: null
  std::string code = {};           // likewise
  size_t n_prompt = 0, n_ctx = 0;  // of a prompt that is longer than the context
};
ApiError api_error(const Error& e);
ApiError no_memory();  // for this request; the server goes on

// Whose shape an error has.
enum class Dialect { kOpenAi, kAnthropic, kOllama };
Dialect dialect_of(ApiKind kind);
Json error_json(Dialect dialect, const ApiError& e);
HttpResponse json_response(int status, const Json& body);
HttpResponse written_response(std::string json);  // status 200
HttpResponse error_response(Dialect dialect, const ApiError& e);

// Part of an answer: what one or more tokens became.
struct AnswerPiece {
  ParseEvent event = {};
  std::vector<int32_t> tokens = {};        // since the piece before
  AnswerUsage usage = {};                  // so far: prompt, generated and the times
  std::vector<LoggedToken> logprobs = {};  // of these tokens, if they are wanted
  int drafted = 0;                         // of these tokens, those that came from a draft
};

struct AnswerEnd {
  Stop why = Stop::kEos;
  bool stopped = false;        // by a stop string, or by one_call
  std::string stop_word = {};  // the string
  AnswerUsage usage = {};
  std::vector<LoggedToken> logprobs = {};  // of the tokens since the last piece; in whole() of all
};

// One answer in its dialect: a stream of begin, progress, piece and end, or whole() alone. Pure: no socket, no clock.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual const char* stream_type() const { return "text/event-stream"; }
  virtual const char* keep_alive() const { return ": keep-alive\n\n"; }  // written when there is nothing to say
  virtual std::string begin(int prompt_tokens, int cached) = 0;
  virtual std::string progress(const Json&) { return ""; }  // of return_progress
  virtual std::string piece(const AnswerPiece& piece) = 0;
  virtual std::string end(const AnswerEnd& end) = 0;
  virtual std::string close(const AnswerUsage&) {
    return "";
  }                                                  // after the end of all choices, with the sum of their usage
  virtual std::string error(const ApiError& e) = 0;  // of a stream that cannot go on
  virtual Json whole(const ParsedMessage& message, const std::vector<int32_t>& tokens, const AnswerEnd& end) = 0;
};

// The request's prompt as text and its sampling are needed where an answer repeats them.
struct WriterContext {
  ApiRequest request = {};         // without messages
  std::string prompt = {};         // of kNative, and of verbose requests
  std::vector<int32_t> ends = {};  // tokens that ignore_eos is about
  int n_ctx = 0;
};
std::unique_ptr<AnswerWriter> make_writer(ApiAnswer answer, WriterContext context);

// Adds a choice's usage to the answer's. Choices of one prompt share it: it is counted once. Times are those of the
// slowest, as choices run side by side.
void add_usage(AnswerUsage& total, const AnswerUsage& choice, bool new_prompt);
// Several choices of one answer, each from whole(), as one.
Json join_choices(std::vector<Json> choices, const AnswerUsage& total);

// A tool call's id: unique among answers, because clients match results to calls by it.
std::string call_id(const char* prefix, const ApiAnswer& a, const ParsedCall& c);

std::string rfc3339(int64_t unix_seconds);  // 2026-01-31T12:00:00Z

}  // namespace facet
