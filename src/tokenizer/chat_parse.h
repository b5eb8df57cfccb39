#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Model text to content, reasoning and tool calls, while it is being generated.
//
//   <|channel>thought\n REASONING \n<channel|> CONTENT <|tool_call>call:NAME{key:value,...}<tool_call|> ...
//
// The text is Tokenizer::decode's, with user-defined tokens spelled out. Pieces may be cut anywhere: the
// events, with neighbouring deltas of one kind joined, do not depend on it.
namespace facet {

struct ParsedCall {
  std::string id;  // "call_0", "call_1", ... in order
  std::string name;
  std::string arguments;  // the JSON text of an object; of a partial call its beginning
  bool partial = false;   // the text ended within it
  bool operator==(const ParsedCall&) const = default;
};

struct ParseEvent {
  enum class Kind { kContent, kReasoning, kToolCall } kind;
  std::string text;  // of a kContent or kReasoning delta, never empty
  ParsedCall call;   // of kToolCall, complete: whether a call is well formed is known at its end
  bool operator==(const ParseEvent&) const = default;
};

struct ParsedMessage {
  std::string content, reasoning;
  std::vector<ParsedCall> tool_calls;
  bool operator==(const ParsedMessage&) const = default;
};

struct ParseOptions {
  bool in_thought = false;  // the prompt ends inside a thought it has opened (ends_in_thought)
  // Names of the functions that were declared, where they are known. They tell a call without its first token from
  // prose: none, and there is no such call.
  std::optional<std::vector<std::string>> tools = {};
};

class ChatParser {
 public:
  explicit ChatParser(ParseOptions options = {});
  std::vector<ParseEvent> push(std::string_view text);
  // The end of the text. A thought that is still open is reasoning. A call that is open has what is there of it; it is
  // partial where its arguments do not end, and in a text that was cut (by a limit of its length) also where only
  // closing brackets are missing. A malformed call is content, so that nothing the model wrote is lost; what is cut
  // before the name of a call is known is left out.
  std::vector<ParseEvent> finish(bool cut = false);
  const ParsedMessage& message() const { return message_; }  // everything so far

 private:
  enum class State {
    kContent,
    kThought,
    kChannel,    // after <|channel>, until it is known what is named
    kHead,       // after <|tool_call>, until it is known whether a call follows
    kCall,       // in a call
    kCallQuote,  // in a quoted string there, where only the closing quote means anything
  };
  bool step(std::vector<ParseEvent>& out);
  bool channel();
  bool head(std::vector<ParseEvent>& out);
  bool bare_head();
  bool plain(std::vector<ParseEvent>& out);
  void text(std::string_view s, std::vector<ParseEvent>& out);
  void marker(std::string_view m, std::vector<ParseEvent>& out);
  bool end_call(std::string_view m, std::vector<ParseEvent>& out);
  bool rescue_call(std::string_view m, std::vector<ParseEvent>& out);
  void add_call(std::string name, std::string arguments, bool partial, std::vector<ParseEvent>& out);
  void not_a_call(std::string_view m, std::vector<ParseEvent>& out);
  std::vector<std::string_view> markers() const;
  std::string_view rest() const { return std::string_view(pending_).substr(at_); }
  const std::vector<std::string>* names() const { return options_.tools ? &*options_.tools : nullptr; }
  bool looks_for_bare_calls() const { return bare_left_ > 0 && !(options_.tools && options_.tools->empty()); }

  ParseOptions options_;
  State state_ = State::kContent;
  State outer_ = State::kContent;  // of kChannel, kHead and calls: where their marker stood
  bool skip_space_ = false;        // at the start of a thought
  bool line_begins_ = true;        // in content: nothing but space stands before
  bool after_call_ = false;        // likewise, since a call
  bool bare_ = false;              // the call has no <|tool_call>
  bool finishing_ = false, cut_ = false;
  int bare_left_ = 64, rescues_left_ = 16, retries_ = 0;  // each reads a call again
  std::string pending_;  // from at_ on not yet decided; begins with what may become a marker
  size_t at_ = 0;
  std::string call_;  // of kCall, without its markers
  ParsedMessage message_;
};

// All at once.
ParsedMessage parse_chat(std::string_view text, ParseOptions options = {});

}  // namespace facet
