#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/engine.h"
#include "facet.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"
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

 private:
  void loop();
  void wake();
  std::unique_ptr<Engine> engine_;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool stopping_ = false, poked_ = false;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

// The messages of a session, shared with the request that will add one.
struct Conversation {
  std::mutex mutex;
  std::vector<Message> messages;
  bool answering = false;
  const bool thinking;
  explicit Conversation(bool think) : thinking(think) {}
};

// A request as the engine's thread fills it and poll() empties it. Holds no Host: it may die on that thread.
class Answer {
 public:
  Answer(const Tokenizer* tokenizer, std::shared_ptr<Conversation> conversation, bool in_thought);
  Sink sink(const std::shared_ptr<Answer>& self);

  // Waits for something new, up to timeout_ms (-1: for ever).
  facet_status poll(int timeout_ms, facet_output* to, Error* why);
  bool stats(facet_stats* to) const;  // false: not done

 private:
  void tokens(std::span<const int32_t> ids);
  void done(Stop why, const Usage& usage, const std::string& error);
  void text(const std::string& piece);
  void show(const std::vector<ParseEvent>& events);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<StreamDecoder> decoder_;
  std::optional<ChatParser> parser_;  // in sessions
  std::shared_ptr<Conversation> conversation_;
  std::vector<int32_t> ids_, told_ids_;
  std::string text_, thought_, told_text_, told_thought_;
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

Result<Request> request_of(const Engine& engine, std::vector<int32_t> prompt, const facet_request_params* params);

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
