#pragma once
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/last_memory.h"
#include "server/constraint.h"
#include "server/http.h"
#include "server/media_intake.h"
#include "server/routes.h"
#include "server/service.h"
#include "server/writer.h"

namespace facet {

// A request from its header to the engine: its body is read on the worker's thread, everything else happens on the
// server's.
struct Arrival {
  const Route* route;
  std::string body, key;
  Room::Part body_room = {};         // given back when the body is read
  std::unique_ptr<HttpReply> reply;  // the server's thread alone looks at it
  const char* gone = nullptr;        // likewise: why nobody waits for the answer any more
  std::optional<ApiError> error = {};
  std::optional<std::string> answer = {};  // JSON, of what needs no model
  ApiRequest request = {};
  std::vector<PromptIds> prompts = {};  // with what stands between their ids, until it is encoded
  MediaOfRequest media = {};
  std::vector<std::vector<int32_t>> ids = {};  // of each prompt, with soft tokens
  std::vector<std::vector<MediaSpan>> spans = {};
  std::vector<MediaUse> media_use = {};
  std::shared_ptr<Room::Part> row_room = {};                                       // of soft tokens
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();  // its header was there
  bool chat = false, in_thought = false;     // the answer is a message; it begins in a thought
  std::optional<GrammarRecipe> recipe = {};  // of the grammar, if it asks for one
  GrammarPtr grammar = {};
  std::atomic<bool> left = false;  // gone, for other threads
  ~Arrival() {                     // JSON that goes takes memory, and there may be none
    const MayNotFail scope;
    request = {}, answer = {}, recipe = {};
  }
};

// Bodies to checked requests with their tokens and what their grammars are made of. One thread.
class RequestReader {
 public:
  // Both outlive the reader.
  RequestReader(Engine& engine, const ServiceConfig& config);
  // Fills error, answer, or request and what comes of it. Does not throw where memory runs out: that is an error, too.
  // True: pictures or sounds have to be opened or encoded first, which a pool does (media_job); then go_on().
  bool read(Arrival& a);
  bool go_on(Arrival& a, bool out_of_memory);  // likewise
  TurnPool::Job media_job(Arrival& a);         // without its end; looks at `a`
  MediaCache::Stats media_stats() const { return cache_.stats(); }

 private:
  Result<ApiRequest> parse(const Route& route, const Json& json) const;
  void read_text(Arrival& a, const Json& json) const;
  void read_body(Arrival& a, const Result<Json>& json);
  template <class F>
  bool guarded(Arrival& a, F&& f);
  void read_prompts(Arrival& a);
  void settle(Arrival& a) const;
  void tokenize(Arrival& a) const;
  bool fits(Arrival& a, int64_t n_tokens, int64_t n_bytes) const;
  void insert_media(Arrival& a) const;

  Engine& engine_;
  const ServiceConfig& c_;
  size_t longest_piece_ = 1;  // bytes of a token at most
  MediaCache cache_;
  std::shared_ptr<Room> row_room_;  // of soft tokens on their way to the engine and in it
};

}  // namespace facet
