#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace facet {

// How thoughts of an answer end when they have used their tokens up: at the end of a line within the last eighth of the
// budget, else with the last token and a newline. From there the closing tokens are the only ones allowed. The state is
// a function of the answer's tokens, so a row of a verification has the same one as a plain step at its place: drafts
// change no text.
class ThoughtBudget {
 public:
  // tokens: of all thoughts of the answer together. open: the prompt's end is in one.
  ThoughtBudget(const Tokenizer& t, int tokens, bool open)
      : tokenizer_(&t), most_(tokens), early_(tokens - tokens / 8), in_(open) {
    std::vector<int32_t> closing = t.encode("\n", false, false);
    closing.push_back(t.special().channel_close);
    closing_ = std::make_shared<const std::vector<int32_t>>(std::move(closing));
    at_ = closing_->size();
    if (in_ && most_ <= 0) close();
  }

  // The one token that may come next; none: any.
  std::optional<int32_t> forced() const {
    if (at_ == closing_->size()) return std::nullopt;
    return (*closing_)[at_];
  }

  void advance(int32_t id) {
    const Tokenizer::Special& s = tokenizer_->special();
    if (forced()) {
      ++at_;
      if (id == s.channel_close) in_ = false;
    } else if (id == s.channel_close || id == s.tool_call_open) {  // a call in a thought ends it
      in_ = false;
    } else if (id == s.channel_open && !in_) {
      in_ = true;
      if (used_ >= most_) close(closing_->size() - 1);  // the next one is closed at once
    } else if (in_) {
      ++used_;
      if (used_ >= early_ && tokenizer_->piece(id).ends_with('\n'))
        close(closing_->size() - 1);
      else if (used_ >= most_)
        close();
    }
  }

 private:
  void close(size_t from = 0) { at_ = from; }

  const Tokenizer* tokenizer_;
  int most_, early_, used_ = 0;
  bool in_;
  std::shared_ptr<const std::vector<int32_t>> closing_;  // a newline, and the token that ends a thought
  size_t at_ = 0;                                        // of what has to come; its size: nothing has to
};

}  // namespace facet
