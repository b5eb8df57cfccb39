#pragma once
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
  std::string arguments;  // the JSON text of an object
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
};

class ChatParser {
 public:
  explicit ChatParser(ParseOptions options = {});
  std::vector<ParseEvent> push(std::string_view text);
  // The end of the text. A thought that is still open is reasoning; a call that is cut off is content, as is
  // every malformed call, so that nothing the model wrote is lost.
  std::vector<ParseEvent> finish();
  const ParsedMessage& message() const { return message_; }  // everything so far

 private:
  enum class State {
    kContent,
    kThought,
    kChannel,    // after <|channel>, until it is known whether "thought" follows
    kCall,       // between <|tool_call> and <tool_call|>
    kCallQuote,  // in a quoted string there, where only the closing quote means anything
  };
  bool step(std::string_view& rest, std::vector<ParseEvent>& out);
  void text(std::string_view s, std::vector<ParseEvent>& out);
  void marker(std::string_view m, std::vector<ParseEvent>& out);
  void end_call(bool closed, std::vector<ParseEvent>& out);
  std::vector<std::string_view> markers() const;

  State state_ = State::kContent;
  State outer_ = State::kContent;  // of kChannel: where its marker stood
  bool skip_space_ = false;        // at the start of a thought
  std::string pending_;            // not yet decided; begins with what may become a marker
  std::string call_;               // of kCall, without its markers
  ParsedMessage message_;
};

// All at once.
ParsedMessage parse_chat(std::string_view text, ParseOptions options = {});

// "{city:<|"|>London<|"|>,n:3}" to {"city":"London","n":3}. False if it is malformed or nested deeper than
// 100.
bool parse_call_arguments(std::string_view text, std::string& json);

}  // namespace facet
