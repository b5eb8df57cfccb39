#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/engine.h"
#include "facet.h"
#include "grammar/grammar.h"
#include "tokenizer/answer_text.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

// What is behind the handles of include/facet.h.
namespace facet::capi {

// An engine and the thread that it runs on.
class Host {
 public:
  explicit Host(std::unique_ptr<Engine> engine);
  ~Host();  // ends what runs; not on its own thread
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  Result<RequestId> submit(Request r, Sink sink);
  void cancel(RequestId id);
  // On the engine's thread, once no request runs. Returns after it.
  void when_idle(const std::function<void()>& work);
  // Soft tokens of a picture or a sound, made in the caller's time or found in the cache. where: for errors.
  Result<std::vector<MediaItem>> encode(bool is_picture, std::string_view bytes, const std::string& where, int budget);

 private:
  void loop();
  void wake();
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool stopping_ = false, poked_ = false;
  std::deque<std::function<void()>> work_;
  std::mutex encoding_;  // the encoder takes one at a time
  MediaCache encoded_{int64_t(256) << 20};
  std::thread thread_;
};

// The messages of a session, shared with the request that will add one.
struct Conversation {
  std::mutex mutex;
  std::vector<Message> messages;
  std::vector<Json> tools;
  std::vector<ContentPart> attached;                           // of the next message
  std::map<const std::string*, std::vector<MediaItem>> items;  // by ContentPart::bytes
  bool answering = false;
  const bool thinking;
  explicit Conversation(bool think) : thinking(think) {}
};

// A request as the engine's thread fills it and poll() empties it. Holds no Host: it may die on that thread.
class Answer {
 public:
  struct Options {
    bool in_thought = false;
    std::vector<std::string> tools = {}, stop = {};
    int logprobs = -1;          // as Request::logprobs
    int prompt = 0, media = 0;  // tokens of the prompt; of them, soft tokens
  };
  // engine: outlives the calls of the sink, which cancel the request once its text has ended.
  Answer(Engine& engine, std::shared_ptr<Conversation> conversation, Options options);
  Sink sink(const std::shared_ptr<Answer>& self);

  // Waits for something new, up to timeout_ms (-1: for ever).
  facet_status poll(int timeout_ms, facet_output* to, Error* why);
  bool stats(facet_stats* to) const;  // false: not done

 private:
  void tokens(RequestId id, std::span<const int32_t> ids);
  void logprobs(int at, std::span<const TokenLogprobs> told);
  void done(Stop why, const Usage& usage, const std::string& error);
  void show(const std::vector<ParseEvent>& events);
  void add_logprobs();  // of the next token
  void add_to_conversation();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Engine& engine_;
  const Options o_;
  std::optional<StreamDecoder> decoder_;
  AnswerText parser_;
  ParsedMessage message_;
  std::shared_ptr<Conversation> conversation_;  // null: none
  std::vector<int32_t> ids_, told_ids_;
  int n_tokens_ = 0;                      // that came
  std::map<int, TokenLogprobs> waiting_;  // by the place of their token in the answer
  std::vector<facet_logprob> logprobs_, told_logprobs_;
  std::string text_, thought_, told_text_, told_thought_, calls_;
  std::string error_;
  Usage usage_;
  int32_t stop_ = FACET_RUNNING;
};

// Copies a caller's structure of `size` bytes, its first member, over defaults of zero. False: its size is none, or
// members that this library does not have are not zero.
template <class T>
bool read_struct(const T* from, T& to) {
  to = {};
  if (!from || from->struct_size < sizeof(size_t)) return false;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < from->struct_size; ++i)
    if (bytes[i] != 0) return false;
  __builtin_memcpy(&to, from, std::min(sizeof(T), from->struct_size));
  return true;
}
// Fills as much of a caller's structure as it has room for.
template <class T>
bool write_struct(T* to, T value) {
  if (!to || to->struct_size < sizeof(size_t)) return false;
  value.struct_size = to->struct_size;
  __builtin_memcpy(to, &value, std::min(sizeof(T), value.struct_size));
  return true;
}

facet_status fail(facet_error* to, facet_status status, const Error& why);
inline facet_status bad_argument(facet_error* to, const char* function, const std::string& what) {
  return fail(to, FACET_BAD_ARGUMENT, {function, what, ""});
}

// No exception leaves the library: memory that ran out is an error of the call.
template <class F>
facet_status guarded(facet_error* error, const char* function, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    return fail(error, FACET_FAILED, {function, e.what(), "free some memory"});
  }
}

inline facet_status busy(facet_error* error, const char* function) {
  return fail(error, FACET_BUSY, {function, "the session's last request is not done", "poll it"});
}

extern const Error kNoVocabulary;

// What a caller's parameters say. Downloads what they name and what is not there.
Result<EngineConfig> config_of(const facet_model_params& p);
struct Asked {
  Request request = {};
  std::vector<std::string> stop = {};
};
// The rest of an answer's form. tools: functions that it may call.
struct AnswerForm {
  ThoughtMode thought = ThoughtMode::kNone;
  std::span<const Json> tools = {};
};
Result<Asked> request_of(const Engine& engine, std::vector<int32_t> prompt, const facet_request_params* params,
                         const AnswerForm& form);
facet_status submit(const std::shared_ptr<Host>& host, Request r, std::shared_ptr<Answer> answer,
                    facet_request** request, facet_error* error);

}  // namespace facet::capi

struct facet_model {
  std::shared_ptr<facet::capi::Host> host;
};
struct facet_session {
  std::shared_ptr<facet::capi::Host> host;
  std::shared_ptr<facet::capi::Conversation> conversation;
};
struct facet_request {
  std::shared_ptr<facet::capi::Host> host;
  std::shared_ptr<facet::capi::Answer> answer;
  facet::RequestId id = 0;
};
