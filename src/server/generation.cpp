#include "server/generation.h"
#include "tokenizer/json.h"

#include <utility>

namespace facet {
namespace {

double seconds(Generation::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Generation::Generation(const Tokenizer& tokenizer, AnswerText text, Options o)
    : tokenizer_(tokenizer),
      decoder_(tokenizer),
      text_(std::move(text)),
      prompt_(o.prompt),
      media_(o.media),
      logged_(o.logged),
      echo_(std::move(o.echo)),
      logprobs_(std::move(o.first)) {}

AnswerUsage Generation::so_far() const {
  AnswerUsage u(Usage{.prompt = prompt_, .generated = n_}, thought_);
  u.media = media_;
  u.prefill_s = seconds(first_ - start_);
  u.decode_s = seconds(Clock::now() - first_);
  return u;
}

double Generation::since_last() const { return seconds(Clock::now() - last_); }

Json Generation::prefill(int computed, int all) {
  if (cached_ < 0) cached_ = computed;  // the first time
  return {{"total", all},
          {"cache", cached_},
          {"processed", computed},
          {"time_ms", int64_t(seconds(Clock::now() - start_) * 1e3)}};
}

std::string Generation::logged_text(int32_t id) const {
  return tokenizer_.is_special(id) ? tokenizer_.text(id) : std::string(tokenizer_.piece(id));
}

void Generation::logprobs(int at, std::span<const TokenLogprobs> told) {
  if (at >= prompt_) fresh_.clear();
  for (const TokenLogprobs& t : told) {
    LoggedToken l{.id = t.id, .text = logged_ ? logged_text(t.id) : "", .logprob = t.logprob};
    for (const auto& [id, logprob] : t.top) l.top.push_back({id, logged_text(id), logprob});
    (at < prompt_ ? logprobs_ : fresh_).push_back(std::move(l));
  }
}

AnswerPiece Generation::piece(ParseEvent e) {
  if (e.kind == ParseEvent::Kind::kReasoning) thought_ += int(pending_.size());
  return {std::move(e), std::exchange(pending_, {}), so_far(), std::exchange(logprobs_, {}),
          std::exchange(drafted_, 0)};
}

// The prompt, where the answer begins with it.
void Generation::begin_with_echo(std::vector<AnswerPiece>& pieces) {
  if (!echo_.empty())
    pieces.push_back(
        {{ParseEvent::Kind::kContent, std::exchange(echo_, {}), {}}, {}, so_far(), std::exchange(logprobs_, {})});
}

std::vector<AnswerPiece> Generation::tokens(std::span<const int32_t> tokens) {
  last_ = Clock::now();
  if (n_ == 0) first_ = last_;
  std::vector<AnswerPiece> pieces;
  begin_with_echo(pieces);
  for (size_t i = 0; i < tokens.size() && !stopped_; ++i) {  // a step may bring more tokens than the answer wants
    ++n_;
    pending_.push_back(tokens[i]);
    drafted_ += i + 1 < tokens.size();
    if (i < fresh_.size()) {
      sum_logprobs_ += double(fresh_[i].logprob.value_or(0));
      if (logged_) logprobs_.push_back(std::move(fresh_[i]));
    }
    for (ParseEvent& e : text_.push(decoder_.push(tokens[i]))) pieces.push_back(piece(std::move(e)));
    stopped_ = text_.stopped();
  }
  return pieces;
}

std::vector<AnswerPiece> Generation::finish(bool failed, bool cut) {
  std::vector<AnswerPiece> pieces;
  if (!failed) begin_with_echo(pieces);
  for (bool last : {false, true})
    for (ParseEvent& e : last ? text_.finish(cut) : text_.push(decoder_.finish()))
      pieces.push_back(piece(std::move(e)));
  return pieces;
}

AnswerEnd Generation::end(Stop why, Usage usage) {
  usage.generated = n_;
  AnswerUsage all(std::move(usage), thought_);
  all.media = media_;
  return {.why = why,
          .stopped = text_.stopped(),
          .stop_word = text_.stop_word(),
          .usage = std::move(all),
          .logprobs = std::move(logprobs_)};
}

}  // namespace facet
