#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/engine.h"
#include "base/result.h"
#include "tokenizer/answer_text.h"
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
  int thought_budget = -1, max_loops = 0;
  int n_vocab = 0;
  int n_seq = 1;               // choices of a prompt at most
  bool strict = false;         // every unknown field is refused
  bool verbose = false;        // answers tell of the prompt and the settings, as llama-server's do in __verbose
  bool parse_special = false;  // control tokens spelled in messages are those tokens
  bool takes_pictures = false, takes_sound = false;  // the model has encoders of them
  std::string no_media = {};                         // what to do about one that it has not
  // What http and https URLs name, on a thread of the pool; none: nothing is fetched.
  std::function<Result<std::string>(const std::string& url)> fetch_media = {};
  std::string media_path = {};  // folder for file:// URLs; empty: there are none
  std::function<std::vector<int32_t>(std::string_view)> tokenize = {};     // for a logit_bias that names text
  std::function<std::vector<int32_t>(std::string_view)> tokens_with = {};  // ids of tokens that hold a text
};

// Whose request and answer it is: OpenAI's chat, completions and responses, llama-server's own completion, Anthropic's
// messages, Ollama's chat and generate.
enum class ApiKind { kChat, kCompletion, kNative, kMessages, kResponses, kOllamaChat, kOllamaGenerate };
const char* kind_name(ApiKind kind);  // "chat", ...

// A prompt as text, ids, pictures and sounds, in turn.
using PromptPart = std::variant<std::string, std::vector<int32_t>, ContentPart>;

// The form that the answer has (constraint.h).
struct Constraint {
  enum class Kind { kNone, kSchema, kRegex, kGbnf, kChoice } kind = Kind::kNone;
  std::string text = {};   // a schema and choices: as JSON
  std::string where = {};  // the field
};
struct CallChoice {
  enum class Kind { kFree, kSome, kOne } kind = Kind::kFree;  // as the model likes; calls alone; one of `name`
  std::string name = {};
  std::vector<std::string> allowed = {};  // of kFree and kSome: no function but these; none: all
};

// What a request brings that this model has no use for; the conversation goes on without.
struct Dropped {
  int media = 0, tools = 0, items = 0;
  std::vector<std::string> names = {};  // of the kinds, each once, a few
  void add(int Dropped::*count, std::string_view name);
  bool any() const { return media + tools + items > 0; }
};

// A tool's type that may be one of another model's: such tools are left out.
bool is_type_name(std::string_view type);

// How a function that the model knows is called by the client: of kResponses.
struct ToolForm {
  bool custom = false;  // its only argument, `input`, is all that the client wants
  std::string name = {}, space = {};
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::vector<Message> messages = {};  // of a chat
  std::vector<Json> tools = {};        // none with tool_choice "none"
  bool thinking = false, preserve_thinking = false;
  CallChoice call = {};
  std::map<std::string, ToolForm> forms = {};  // by the name in `tools`; none: as it stands there
  Dropped left_out = {};
  Constraint constraint = {};
  bool one_call = false;                                   // the answer ends with its first tool call
  bool add_generation_prompt = true;                       // begin the model's turn
  bool continue_last = false;                              // the last message is the beginning of the answer
  std::vector<PromptPart> prompt = {};                     // of a completion
  std::vector<std::vector<PromptPart>> more_prompts = {};  // of kCompletion and kNative: each has choices of its own
  int n = 1, best_of = 1;                                  // choices of a prompt; best_of: computed
  int logprobs = -1;                                       // as Request::logprobs
  bool drawn_probs = false;                                // as Request::drawn_logprobs
  bool echo = false;                                       // of kCompletion: the answer begins with the prompt
  int min_tokens = 0, priority = 0, max_loops = 0;         // as in Request
  std::vector<int32_t> stop_ids = {};
  bool cache = true, draft = true, sparse_prefill = true;
  int max_draft = -1, thought_budget = -1;  // as in Request
  bool verbose = false;
  bool unload = false;  // of Ollama's: without messages or a prompt, the model is not wanted any more
  Json repeated = {};   // of kResponses: what the answer repeats of the request
  std::string cache_salt = {};
  bool stream = false, include_usage = false, ignore_eos = false;
  bool continuous_usage = false;                  // usage with every chunk
  bool timings_per_token = false;                 // timings with every chunk
  bool return_progress = false;                   // chunks that tell how much of the prompt is read
  bool return_tokens = false;                     // of kNative: ids in the answer
  std::vector<std::string> response_fields = {};  // of kNative: nothing but these
  int max_tokens = -1;                            // -1: until the context is full
  Sampling sampling = {};
  bool seed_given = false;
  std::vector<std::string> stop = {};
  bool chat() const { return !messages.empty(); }
};

// An error's `where` is the path of the field, as in messages[2].content. Every kind but kMessages, kResponses and
// Ollama's.
Result<ApiRequest> parse_api_request(ApiKind kind, const Json& body, const ApiDefaults& defaults);

// What continue_last means for a request that does not say: a last message of the assistant is the beginning of the
// answer.
Status settle_continuation(ApiRequest& request, bool said);

inline constexpr size_t kMaxMessages = 10'000, kMaxTools = 256, kMaxStops = 16, kMaxStopBytes = 256, kMaxBias = 1024;
inline constexpr size_t kMaxPrompts = 64, kMaxSaltBytes = 256;
inline constexpr int kMaxPriority = 1000000, kMaxLoops = 1 << 20;
inline constexpr int kMaxTokens = 1 << 24, kMaxLogprobs = 20, kMaxProbs = 100;

class Fields;
// Parts of a request that several dialects share.
void read_stop(Fields& f, ApiRequest& r, const char* key);
void read_limits(Fields& f, ApiRequest& r, const ApiDefaults& d);  // cache, drafts, min_tokens, what a stream tells
// none, minimal, ..., as a budget of thoughts; a budget that the request names wins.
void read_effort(Fields& f, ApiRequest& r, const char* key, const Json* v);
void read_thought_budget(Fields& f, ApiRequest& r, std::initializer_list<const char*> keys);
void read_sampling(Fields& f, ApiRequest& r, const ApiDefaults& d);  // temperature, top_p, ..., seed, logit_bias
inline constexpr size_t kMaxBreakers = 16;

// What all objects of one answer have in common.
struct ApiAnswer {
  ApiKind kind = ApiKind::kChat;
  std::string id = {};  // "chatcmpl-...", "cmpl-...", "msg_..."
  std::string model = {};
  int64_t created = 0;           // seconds of Unix time
  std::string fingerprint = {};  // of the program; left out if empty
  int index = 0;                 // of the choice
};

// The pictures and sounds of a prompt.
struct MediaUse {
  int image_tokens = 0, audio_tokens = 0;  // of Usage::prompt
  int n = 0, n_encoded = 0;                // pictures and pieces of sound; those that no cache had
  double encode_s = 0, wait_s = 0;         // in the encoder; from the request's arrival to their end
};

// What an answer took, with what only whoever reads its text knows.
struct AnswerUsage : Usage {
  AnswerUsage() = default;
  AnswerUsage(Usage u, int of_thoughts = 0) : Usage(std::move(u)), thought(of_thoughts) {}  // NOLINT: a Usage is one
  int thought = 0;  // of generated: tokens of thoughts
  MediaUse media = {};
};

const char* finish_reason(Stop why, bool stop_string, bool tool_calls);
Json usage_json(const AnswerUsage& usage);
Json input_details(const AnswerUsage& usage);  // of a prompt's tokens: cached, of pictures, of sound
Json timings_json(const AnswerUsage& usage);

// The whole answer.
Json api_response(const ApiAnswer& a, const ParsedMessage& message, const char* finish, const AnswerUsage& usage);
// A stream: chunk_role, one chunk_event per event, chunk_finish, chunk_usage if asked for, then kSseDone.
Json chunk_role(const ApiAnswer& a);  // of kChat
Json chunk_event(const ApiAnswer& a, const ParseEvent& event, int tool_index);
Json chunk_finish(const ApiAnswer& a, const char* finish, const AnswerUsage& usage);
Json chunk_usage(const ApiAnswer& a, const AnswerUsage& usage);
Json chunk_progress(const ApiAnswer& a, const Json& progress);
std::string sse(const Json& chunk);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace facet
