#include "tokenizer/chat_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tokenizer/call_parse.h"

namespace facet {
namespace {

constexpr std::string_view kChannelOpen = "<|channel>", kChannelClose = "<channel|>", kCallOpen = "<|tool_call>",
                           kCallClose = "<tool_call|>", kResponseOpen = "<|tool_response>", kQuote = "<|\"|>",
                           kThoughtName = "thought", kSpace = " \t\r\n";
// The template writes a newline before the end of a thought; it is no part of the reasoning.
constexpr std::string_view kThoughtEnd = "\n<channel|>";
// Channels of other models that hold the answer; those of other names are thoughts.
constexpr std::array<std::string_view, 4> kAnswerNames = {"final", "answer", "response", "content"};
constexpr size_t kMaxChannelName = 16, kMaxHead = 600;  // bytes held back until it is known what they are
constexpr int kMaxRetries = 8;                          // closers that were part of a string

bool is_space(std::string_view s) { return s.find_first_not_of(kSpace) == std::string_view::npos; }

}  // namespace

ChatParser::ChatParser(ParseOptions options) : options_(std::move(options)) {
  if (!options_.in_thought) return;
  state_ = State::kThought;
  skip_space_ = true;
}

// What ends a run of plain text in the current state.
std::vector<std::string_view> ChatParser::markers() const {
  std::vector<std::string_view> all;
  switch (state_) {
    case State::kContent:
      all = {kChannelOpen, kChannelClose, kCallOpen};
      break;
    case State::kThought:
      all = {kChannelOpen, kThoughtEnd, kChannelClose, kCallOpen};
      break;
    case State::kCall:
      return {kQuote, kCallClose, kCallOpen, kChannelOpen, kChannelClose, kResponseOpen};
    case State::kCallQuote:
      return {kQuote};
    case State::kChannel:
    case State::kHead:
      return {};
  }
  // The model asks for results with <|tool_response>; anywhere else that is text. So is an end without a call.
  if (!message_.tool_calls.empty()) all.push_back(kResponseOpen);
  if (after_call_) all.push_back(kCallClose);
  return all;
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
  if (!is_space(s)) after_call_ = false;
  const bool thought = state_ == State::kThought;
  (thought ? message_.reasoning : message_.content) += s;
  const auto kind = thought ? ParseEvent::Kind::kReasoning : ParseEvent::Kind::kContent;
  if (!out.empty() && out.back().kind == kind)
    out.back().text += s;
  else
    out.push_back({kind, std::string(s), {}});
}

void ChatParser::marker(std::string_view m, std::vector<ParseEvent>& out) {
  if (state_ == State::kCall || state_ == State::kCallQuote) {
    if (m == kQuote) {
      call_ += m;
      state_ = state_ == State::kCall ? State::kCallQuote : State::kCall;
      return;
    }
    if (end_call(m, out)) return;  // of others it is known now where they stand
  }
  line_begins_ = true;
  if (m == kChannelOpen) {
    outer_ = state_;
    state_ = State::kChannel;
  } else if (m == kChannelClose || m == kThoughtEnd) {
    state_ = State::kContent;  // outside of a thought it closes nothing and is dropped
  } else if (m == kCallOpen) {
    outer_ = state_;
    state_ = State::kHead;
  }
}

// --- calls

void ChatParser::add_call(std::string name, std::string arguments, bool partial, std::vector<ParseEvent>& out) {
  state_ = outer_;
  line_begins_ = after_call_ = true;
  call_.clear();
  ParsedCall call{fmt::format("call_{}", message_.tool_calls.size()), std::move(name), std::move(arguments), partial};
  message_.tool_calls.push_back(call);
  out.push_back({ParseEvent::Kind::kToolCall, "", std::move(call)});
}

// It stays text. Of what only looked like a call, the lines that follow may yet be one.
void ChatParser::not_a_call(std::string_view m, std::vector<ParseEvent>& out) {
  state_ = outer_;
  std::string all = std::exchange(call_, {});
  if (!bare_) return text(fmt::format("{}{}{}", kCallOpen, all, m), out);
  --bare_left_;
  line_begins_ = false;
  all += m;
  pending_ = all.append(rest());
  at_ = 0;
}

// A quote that is missing hides where a call ends: the first end at which it is one counts, once the text's own end
// has brought no other.
bool ChatParser::rescue_call(std::string_view m, std::vector<ParseEvent>& out) {
  for (size_t end = call_.find(kCallClose); end != std::string::npos; end = call_.find(kCallClose, end + 1)) {
    if (rescues_left_-- <= 0) return false;
    CallReading r = read_call(std::string_view(call_).substr(0, end), names(), QuoteRules::kMend);
    if (r.kind == CallText::kMalformed || r.kind == CallText::kUnfinished) continue;
    std::string after = call_.substr(end + kCallClose.size());
    after += m;
    pending_ = after.append(rest());
    at_ = 0;
    add_call(std::move(r.name), std::move(r.arguments), false, out);
    return true;
  }
  return false;
}

// m: the marker that stands there; none at the end of the text. True: it was part of the call.
bool ChatParser::end_call(std::string_view m, std::vector<ParseEvent>& out) {
  const bool last = m.empty(), closes = m == kCallClose;
  std::string_view body = call_;
  if (last && state_ == State::kCall)  // a marker that was cut
    for (size_t n = std::min(kCallClose.size() - 1, body.size()); n > 0; --n)
      if (body.ends_with(kCallClose.substr(0, n))) {
        body.remove_suffix(n);
        break;
      }
  CallReading r = read_call(body, names(), QuoteRules::kAsWritten);
  const bool whole = r.kind == CallText::kWhole, ends = r.kind == CallText::kEnds;
  if (bare_ ? (closes && (whole || ends)) || (whole && names()) : whole || (ends && !(last && cut_))) {
    add_call(std::move(r.name), std::move(r.arguments), false, out);
    return closes;
  }
  if (!last && r.kind == CallText::kInString && retries_++ < kMaxRetries) {
    call_ += m;
    return true;
  }
  if (!bare_ && !(last && cut_) && call_.find(kCallClose) != std::string::npos && rescue_call(m, out)) return true;
  if (last && !bare_ && r.kind != CallText::kMalformed) {
    add_call(std::move(r.name), std::move(r.beginning), true, out);
    return true;
  }
  const bool bare = bare_;
  not_a_call(closes || bare ? m : "", out);
  return closes || bare;
}

// After <|tool_call>.
bool ChatParser::head(std::vector<ParseEvent>& out) {
  const CallHead h = call_head(rest());
  if (h == CallHead::kYes) {
    state_ = State::kCall;
    bare_ = false;
    retries_ = 0;
    return true;
  }
  if (h == CallHead::kMore && rest().size() <= kMaxHead) {
    if (!finishing_) return false;
    const std::string_view r = rest().substr(std::min(rest().find_first_not_of(kSpace), rest().size()));
    if (cut_ || r.starts_with(':') || r.starts_with(std::string_view("call").substr(0, r.size()))) {
      at_ = pending_.size();
      state_ = outer_;
      return false;
    }
  }
  state_ = outer_;
  text(kCallOpen, out);
  return true;
}

// At the beginning of a line, where a call may stand whose first token is missing.
bool ChatParser::bare_head() {
  const CallHead h = bare_call_head(rest(), names());
  if (h == CallHead::kMore && rest().size() <= kMaxHead && !finishing_) return false;
  line_begins_ = false;
  if (h == CallHead::kYes) {
    outer_ = state_;
    state_ = State::kCall;
    bare_ = true;
    retries_ = 0;
  }
  return true;
}

// --- the rest

// After <|channel>.
bool ChatParser::channel() {
  const std::string_view r = rest();
  const auto begins = [&](std::string_view s) { return s.starts_with(r.substr(0, s.size())); };
  if (r.starts_with(kThoughtName)) {
    state_ = State::kThought;
    skip_space_ = true;
    at_ += kThoughtName.size();
    return true;
  }
  bool waits = begins(kThoughtName);
  if (outer_ == State::kContent) {
    const size_t n = std::min(r.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), r.size());
    const std::string_view name = r.substr(0, n), after = r.substr(n);
    const bool fits = n > 0 && n <= kMaxChannelName;
    if (fits && (after.starts_with('\n') || after.starts_with(kChannelClose))) {
      const bool answer = std::find(kAnswerNames.begin(), kAnswerNames.end(), name) != kAnswerNames.end();
      state_ = answer ? State::kContent : State::kThought;
      skip_space_ = !answer;
      at_ += n + (answer && after[0] == '\n');
      return true;
    }
    waits = waits || (fits && kChannelClose.starts_with(after));
  }
  if (waits && !finishing_) return false;
  state_ = outer_;  // a stray marker
  return true;
}

// Up to the next marker, or to the end of a line where that means something.
bool ChatParser::plain(std::vector<ParseEvent>& out) {
  const std::string_view r = rest();
  size_t end = r.size();
  bool line = false;
  if (state_ == State::kContent && looks_for_bare_calls())
    if (const size_t at = r.find('\n'); at != std::string_view::npos) end = at + 1, line = true;
  const std::vector<std::string_view> all = markers();
  for (size_t at = r.find_first_of("<\n"); at < end; at = r.find_first_of("<\n", at + 1)) {
    const std::string_view from = r.substr(at);
    for (const std::string_view m : all) {
      if (!from.starts_with(m) && (finishing_ || !m.starts_with(from))) continue;
      if (m == kCallClose && state_ != State::kCall && !is_space(r.substr(0, at))) continue;
      text(r.substr(0, at), out);
      at_ += at;
      if (from.size() < m.size()) return false;
      at_ += m.size();
      marker(m, out);
      return true;
    }
  }
  text(r.substr(0, end), out);
  at_ += end;
  if (line) line_begins_ = true;
  return true;
}

// Takes some of the rest; false if it can only be decided by what follows.
bool ChatParser::step(std::vector<ParseEvent>& out) {
  if (rest().empty()) {
    if (!finishing_) return false;
    if (state_ == State::kHead) return head(out);
    if (state_ != State::kCall && state_ != State::kCallQuote) return false;
    end_call("", out);
    return true;
  }
  if (state_ == State::kChannel) return channel();
  if (state_ == State::kHead) return head(out);
  if (state_ != State::kContent || !line_begins_ || !looks_for_bare_calls()) return plain(out);
  const size_t space = std::min(rest().find_first_not_of(kSpace), rest().size());
  if (space == 0) return bare_head();
  text(rest().substr(0, space), out);
  at_ += space;
  return true;
}

std::vector<ParseEvent> ChatParser::push(std::string_view text) {
  std::vector<ParseEvent> out;
  pending_.erase(0, at_);
  at_ = 0;
  pending_ += text;
  while (step(out)) {
  }
  return out;
}

std::vector<ParseEvent> ChatParser::finish(bool cut) {
  std::vector<ParseEvent> out;
  finishing_ = true;
  cut_ = cut;
  while (step(out)) {
  }
  return out;
}

ParsedMessage parse_chat(std::string_view text, ParseOptions options) {
  ChatParser parser(std::move(options));
  parser.push(text);
  parser.finish();
  return parser.message();
}

}  // namespace facet
