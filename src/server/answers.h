#pragma once
#include <spdlog/logger.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/arrival.h"
#include "server/generation.h"
#include "server/health.h"
#include "server/metrics.h"
#include "server/writer.h"

namespace facet {

// What outlives Answers. post: work for the server's thread, from any other; write: for the one that writes answers.
struct AnswersHooks {
  spdlog::logger* log = nullptr;
  Metrics* metrics = nullptr;
  Health* health = nullptr;
  std::function<void(std::function<void()>)> post = {}, write = {};
};

// A request's life from the engine to the end of its answer: choices that run and wait, cancellation, the log. Its
// public methods and whatever it posts run on the server's thread; the engine's sinks decode tokens, look for stop
// strings and post what is left, and never wait for a client. An answer that is no stream is written as a whole by a
// thread of its own: with the probabilities of its tokens it may have megabytes, and other clients would wait.
class Answers {
 public:
  // engine and config outlive it.
  Answers(Engine& engine, const ServiceConfig& config, AnswersHooks hooks);

  // Hands a request that was read to the engine. An error: nothing of it was begun, and `a` still has its reply.
  std::optional<ApiError> begin(Arrival& a);
  size_t size() const { return jobs_.size(); }  // choices that run or wait

 private:
  using Clock = Generation::Clock;
  // What several choices share.
  struct Answer {
    std::unique_ptr<HttpReply> reply;
    std::vector<RequestId> ids = {};
    size_t open = 0;  // choices that are not complete
    int n = 1, best_of = 1;
    ApiKind kind = ApiKind::kChat;
    const char* gone = nullptr;  // why nobody waits for the answer any more
    struct Choice {
      Json json = {};
      double score = 0;  // mean log-probability of its tokens
    };
    std::vector<Choice> choices = {};  // unless it is a stream; the writing thread alone looks at them
    AnswerUsage total = {};
  };
  struct Job {  // a choice
    std::shared_ptr<Answer> answer;
    int index = 0;
    std::unique_ptr<AnswerWriter> writer;
    ApiKind kind = ApiKind::kChat;
    ParsedMessage message = {};
    std::vector<int32_t> tokens = {};  // of the answer, where it repeats them
    std::vector<LoggedToken> logprobs = {};
    bool stream = false, return_tokens = false;
    bool begun = true;  // a stream's first words were written
    uint64_t seed = 0;
    std::string key = {};  // name of the client's
  };

  WriterContext context_of(Arrival& a) const;
  std::optional<ApiError> submit(Arrival& a, int index, ApiAnswer head, const WriterContext& context,
                                 const std::shared_ptr<Answer>& answer);
  Generation generation_of(const Arrival& a, size_t prompt) const;
  // ids: the prompt's.
  Sink sink_of(const ApiRequest& r, const std::vector<int32_t>& ids, std::shared_ptr<Generation> g, bool tells_cached,
               Clock::time_point since);
  // On the server's thread. A request for which memory runs out there ends, without the end of its answer.
  void post_for(RequestId id, std::function<void()> work);
  void lose(RequestId id);
  void deliver(RequestId id, const std::vector<AnswerPiece>& pieces);
  void complete(RequestId id, AnswerEnd end, const std::vector<int32_t>& rest, const std::string& error, double score);
  void fail(RequestId id, Job& job, const std::string& error, bool refused);
  void log_request(RequestId id, const Job& job, const AnswerEnd& end);
  static void begin_stream(Job& job, int prompt, int cached);
  static std::string text_of(Answer& a);

  Engine& engine_;
  const ServiceConfig& c_;
  AnswersHooks to_;
  std::mt19937_64 seeds_;
  std::unordered_map<RequestId, Job> jobs_;
  bool told_bos_ = false;
};

}  // namespace facet
