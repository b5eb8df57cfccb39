#include "tokenizer/chat_parse.h"

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr std::string_view kChannelOpen = "<|channel>", kChannelClose = "<channel|>", kCallOpen = "<|tool_call>",
                           kCallClose = "<tool_call|>", kResponseOpen = "<|tool_response>", kQuote = "<|\"|>",
                           kThoughtName = "thought", kSpace = " \t\r\n";
// The template writes a newline before the end of a thought; it is no part of the reasoning.
constexpr std::string_view kThoughtEnd = "\n<channel|>";
constexpr int kMaxDepth = 100;

// Reads a call's arguments and writes JSON.
//   dict  := { [ key : value { , key : value } ] }      key: anything but ':' and '}', or a quoted string
//   value := <|"|> text <|"|> | dict | [ [ value { , value } ] ] | JSON number | true | false | null
class ArgumentReader {
 public:
  explicit ArgumentReader(std::string_view text) : rest_(text) {}
  bool read(std::string& json) {
    if (!dict(0)) return false;
    space();
    json = std::move(out_);
    return rest_.empty();
  }

 private:
  void space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kSpace), rest_.size())); }
  bool take(std::string_view s) {
    if (!rest_.starts_with(s)) return false;
    rest_.remove_prefix(s.size());
    return true;
  }
  void write_string(std::string_view s) { out_ += dump_json(Json(std::string(s))); }

  bool string() {
    const size_t end = rest_.find(kQuote);
    if (end == std::string_view::npos) return false;
    write_string(rest_.substr(0, end));
    rest_.remove_prefix(end + kQuote.size());
    return true;
  }

  bool key() {
    if (take(kQuote)) return string();
    const size_t end = rest_.find_first_of(":}");
    if (end == std::string_view::npos) return false;
    const size_t last = rest_.substr(0, end).find_last_not_of(kSpace);
    if (last == std::string_view::npos) return false;
    write_string(rest_.substr(0, last + 1));
    rest_.remove_prefix(end);
    return true;
  }

  bool dict(int depth) {
    if (depth > kMaxDepth || !take("{")) return false;
    out_ += '{';
    space();
    if (!take("}")) {
      while (true) {
        if (!key()) return false;
        space();
        if (!take(":")) return false;
        out_ += ':';
        if (!value(depth)) return false;
        if (take("}")) break;
        if (!take(",")) return false;
        out_ += ',';
        space();
      }
    }
    out_ += '}';
    return true;
  }

  bool array(int depth) {
    if (depth > kMaxDepth) return false;
    out_ += '[';
    space();
    if (!take("]")) {
      while (true) {
        if (!value(depth)) return false;
        if (take("]")) break;
        if (!take(",")) return false;
        out_ += ',';
      }
    }
    out_ += ']';
    return true;
  }

  bool digits() {
    const size_t n = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    out_ += rest_.substr(0, n);
    rest_.remove_prefix(n);
    return n > 0;
  }

  // A JSON number, copied as it stands. One that no double holds (1e999) is refused here, because whoever
  // reads the JSON would refuse it there.
  bool number() {
    const size_t begin = out_.size();
    return number_text() && Json::accept(out_.begin() + ptrdiff_t(begin), out_.end());
  }

  bool number_text() {
    if (take("-")) out_ += '-';
    if (take("0"))
      out_ += '0';
    else if (!digits())
      return false;
    if (take(".")) {
      out_ += '.';
      if (!digits()) return false;
    }
    if (rest_.starts_with('e') || rest_.starts_with('E')) {
      out_ += 'e';
      rest_.remove_prefix(1);
      if (rest_.starts_with('+') || rest_.starts_with('-')) {
        out_ += rest_[0];
        rest_.remove_prefix(1);
      }
      if (!digits()) return false;
    }
    return true;
  }

  // With the whitespace around it.
  bool value(int depth) {
    space();
    if (!bare_value(depth)) return false;
    space();
    return true;
  }

  bool bare_value(int depth) {
    if (take(kQuote)) return string();
    if (rest_.starts_with('{')) return dict(depth + 1);
    if (take("[")) return array(depth + 1);
    for (const std::string_view word : {"true", "false", "null"}) {
      if (!take(word)) continue;
      out_ += word;
      return true;
    }
    return number();
  }

  std::string_view rest_;
  std::string out_;
};

// "call:NAME{...}"
bool parse_call(std::string_view text, ParsedCall& call) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (!text.starts_with("call:")) return false;
  text.remove_prefix(5);
  const size_t end = text.find('{');
  if (end == 0 || end == std::string_view::npos) return false;
  const std::string_view name = text.substr(0, end);
  if (name.find_first_of(" \t\r\n<>}\"") != std::string_view::npos) return false;
  call.name = name;
  return parse_call_arguments(text.substr(end), call.arguments);
}

}  // namespace

bool parse_call_arguments(std::string_view text, std::string& json) { return ArgumentReader(text).read(json); }

ChatParser::ChatParser(ParseOptions options) {
  if (!options.in_thought) return;
  state_ = State::kThought;
  skip_space_ = true;
}

// What ends a run of plain text in the current state.
std::vector<std::string_view> ChatParser::markers() const {
  switch (state_) {
    case State::kContent:
      // The model asks for results with <|tool_response>; anywhere else that is text.
      if (!message_.tool_calls.empty()) return {kChannelOpen, kChannelClose, kCallOpen, kResponseOpen};
      return {kChannelOpen, kChannelClose, kCallOpen};
    case State::kThought:
      return {kChannelOpen, kThoughtEnd, kChannelClose};
    case State::kCall:
      return {kQuote, kCallClose};
    case State::kCallQuote:
      return {kQuote};
    case State::kChannel:
      break;
  }
  return {};
}

void ChatParser::text(std::string_view s, std::vector<ParseEvent>& out) {
  if (state_ == State::kThought && skip_space_) {
    s.remove_prefix(std::min(s.find_first_not_of(kSpace), s.size()));
    skip_space_ = s.empty();
  }
  if (s.empty()) return;
  if (state_ == State::kCall || state_ == State::kCallQuote) {
    call_ += s;
    return;
  }
  const bool thought = state_ == State::kThought;
  (thought ? message_.reasoning : message_.content) += s;
  const auto kind = thought ? ParseEvent::Kind::kReasoning : ParseEvent::Kind::kContent;
  if (!out.empty() && out.back().kind == kind)
    out.back().text += s;
  else
    out.push_back({kind, std::string(s), {}});
}

void ChatParser::marker(std::string_view m, std::vector<ParseEvent>& out) {
  if (m == kChannelOpen) {
    outer_ = state_;
    state_ = State::kChannel;
  } else if (m == kChannelClose || m == kThoughtEnd) {
    state_ = State::kContent;  // outside of a thought it closes nothing and is dropped
  } else if (m == kCallOpen) {
    state_ = State::kCall;
    call_.clear();
  } else if (m == kCallClose) {
    end_call(true, out);
  } else if (m == kQuote) {
    call_ += m;
    state_ = state_ == State::kCall ? State::kCallQuote : State::kCall;
  }
}

void ChatParser::end_call(bool closed, std::vector<ParseEvent>& out) {
  const bool quoted = state_ == State::kCallQuote;
  state_ = State::kContent;
  ParsedCall call;
  if (!quoted && parse_call(call_, call)) {
    call.id = fmt::format("call_{}", message_.tool_calls.size());
    message_.tool_calls.push_back(call);
    out.push_back({ParseEvent::Kind::kToolCall, "", std::move(call)});
  } else {
    text(fmt::format("{}{}{}", kCallOpen, call_, closed ? kCallClose : ""), out);
  }
  call_.clear();
}

// Consumes some of rest; false if it can only be decided by what follows.
bool ChatParser::step(std::string_view& rest, std::vector<ParseEvent>& out) {
  if (state_ == State::kChannel) {
    const std::string_view start = rest.substr(0, kThoughtName.size());
    if (start == kThoughtName) {
      state_ = State::kThought;
      skip_space_ = true;
      rest.remove_prefix(kThoughtName.size());
    } else if (kThoughtName.starts_with(start)) {
      return false;
    } else {
      state_ = outer_;  // a stray marker
    }
    return true;
  }
  const std::vector<std::string_view> all = markers();
  for (size_t at = rest.find_first_of("<\n"); at != std::string_view::npos; at = rest.find_first_of("<\n", at + 1)) {
    const std::string_view from = rest.substr(at);
    for (const std::string_view m : all) {
      if (!from.starts_with(m) && !m.starts_with(from)) continue;
      text(rest.substr(0, at), out);
      rest.remove_prefix(at);
      if (from.size() < m.size()) return false;
      rest.remove_prefix(m.size());
      marker(m, out);
      return true;
    }
  }
  text(rest, out);
  rest = {};
  return false;
}

std::vector<ParseEvent> ChatParser::push(std::string_view text) {
  std::vector<ParseEvent> out;
  pending_ += text;
  std::string_view rest = pending_;
  while (!rest.empty() && step(rest, out)) {
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::vector<ParseEvent> ChatParser::finish() {
  std::vector<ParseEvent> out;
  if (state_ == State::kChannel) state_ = outer_;
  text(pending_, out);
  pending_.clear();
  if (state_ == State::kCall || state_ == State::kCallQuote) end_call(false, out);
  return out;
}

ParsedMessage parse_chat(std::string_view text, ParseOptions options) {
  ChatParser parser(options);
  parser.push(text);
  parser.finish();
  return parser.message();
}

}  // namespace facet
