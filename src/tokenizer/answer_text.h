#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat_parse.h"

// What the model writes, to what a client sees of it.
namespace facet {

// Looks for stop strings in a text that comes in pieces. What may become one is held back; the result does not depend
// on the cuts: the stop string that is complete first ends the text, before its first byte.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stop) : stop_(std::move(stop)) {}
  std::string push(std::string_view text);  // what can be delivered; nothing after stopped()
  std::string finish();                     // what was held back
  bool stopped() const { return stopped_; }
  const std::string& word() const { return word_; }  // the one that was found

 private:
  std::vector<std::string> stop_;
  std::string held_, word_;
  bool stopped_ = false;
};

// The model's text to what a client sees. Stop strings end the content; they are not looked for in reasoning and in
// tool calls. With one_call, the first tool call ends the answer.
class AnswerText {
 public:
  AnswerText(bool chat, ParseOptions options, std::vector<std::string> stop, bool one_call = false)
      : chat_(chat), one_call_(one_call), parser_(options), stop_(std::move(stop)) {}
  std::vector<ParseEvent> push(std::string_view text);
  std::vector<ParseEvent> finish(bool cut = false);  // by a limit of its length
  bool stopped() const { return stop_.stopped() || called_; }
  const std::string& stop_word() const { return stop_.word(); }

 private:
  std::vector<ParseEvent> filter(std::vector<ParseEvent> events);
  bool chat_, one_call_, called_ = false;
  ChatParser parser_;
  StopMatcher stop_;
};

void add_event(ParsedMessage& message, const ParseEvent& event);

}  // namespace facet
