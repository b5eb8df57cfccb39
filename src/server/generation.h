#pragma once
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/writer.h"
#include "tokenizer/answer_text.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// A choice on the engine's thread: the tokens that steps bring to pieces of an answer.
class Generation {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    int prompt = 0;         // tokens
    bool logged = false;    // log-probabilities are told
    std::string echo = {};  // the prompt's text, where the answer begins with it
    MediaUse media = {};
    std::vector<LoggedToken> first = {};  // the prompt's first token, where its log-probabilities are told
  };
  Generation(const Tokenizer& tokenizer, AnswerText text, Options options);

  // How much of the prompt is read, as return_progress tells it.
  Json prefill(int computed, int all);
  // Of the tokens from position `at` on, before they come.
  void logprobs(int at, std::span<const TokenLogprobs> told);
  // What the tokens of a step became; the answer may have ended with one of them. All but the last were drafted: a step
  // ends with the token that the model itself drew behind them.
  std::vector<AnswerPiece> tokens(std::span<const int32_t> tokens);
  bool stopped() const { return stopped_; }  // by a stop string, or by its first tool call
  // The rest, once there are no more tokens. failed: nothing of the prompt is repeated.
  // cut: by a limit of its length.
  std::vector<AnswerPiece> finish(bool failed, bool cut);
  AnswerEnd end(Stop why, Usage usage);  // after finish()

  int prompt() const { return prompt_; }
  int count() const { return n_; }                                  // tokens so far
  double since_last() const;                                        // seconds since the tokens before
  int cached() const { return cached_; }                            // of the prompt; -1: not known yet
  std::vector<int32_t> take_rest() { return std::move(pending_); }  // tokens that no piece has told of
  double mean_logprob() const { return n_ > 0 ? sum_logprobs_ / n_ : 0; }

 private:
  std::string logged_text(int32_t id) const;
  void begin_with_echo(std::vector<AnswerPiece>& pieces);
  AnswerPiece piece(ParseEvent e);
  AnswerUsage so_far() const;

  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  AnswerText text_;
  int prompt_;
  MediaUse media_;
  bool logged_;
  std::string echo_;
  Clock::time_point start_ = Clock::now(), first_ = {}, last_ = {};
  int n_ = 0;  // tokens up to the stop string
  int thought_ = 0;
  bool stopped_ = false;
  int cached_ = -1;
  std::vector<int32_t> pending_ = {};
  int drafted_ = 0;                                 // of `pending_`
  std::vector<LoggedToken> logprobs_, fresh_ = {};  // of `pending_` and the echo; of tokens that are about to come
  double sum_logprobs_ = 0;
};

}  // namespace facet
