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
  std::vector<std::vector<int32_t>> ids = {};                                      // of each prompt
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
  void read(Arrival& a);

 private:
  Result<ApiRequest> parse(const Route& route, const Json& json) const;
  void read_text(Arrival& a, const Json& json) const;
  void read_prompts(Arrival& a) const;
  void read_prompt(Arrival& a) const;
  void read_body(Arrival& a, const Result<Json>& json);
  Result<std::vector<int32_t>> prompt_ids(ApiRequest& r, bool& in_thought) const;

  Engine& engine_;
  const ServiceConfig& c_;
  size_t longest_piece_ = 1;  // bytes of a token at most
};

}  // namespace facet
