#include "tokenizer/answer_text.h"

#include <algorithm>
#include <utility>

namespace facet {

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  if (stop_.empty()) return std::exchange(held_, {});
  size_t end = std::string::npos, begin = 0;
  const std::string* found = nullptr;
  for (const std::string& s : stop_) {
    const size_t at = held_.find(s);
    if (at == std::string::npos) continue;
    if (at + s.size() < end || (at + s.size() == end && at < begin)) end = at + s.size(), begin = at, found = &s;
  }
  if (end != std::string::npos) {
    stopped_ = true;
    word_ = *found;
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  // The longest end that begins a stop string stays.
  size_t keep = 0;
  for (const std::string& s : stop_)
    for (size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

std::vector<ParseEvent> AnswerText::filter(std::vector<ParseEvent> events) {
  std::vector<ParseEvent> out;
  for (ParseEvent& e : events) {
    if (stopped()) break;
    if (e.kind == ParseEvent::Kind::kContent) e.text = stop_.push(e.text);
    called_ = one_call_ && e.kind == ParseEvent::Kind::kToolCall;
    if (e.kind == ParseEvent::Kind::kToolCall || !e.text.empty()) out.push_back(std::move(e));
  }
  return out;
}

std::vector<ParseEvent> AnswerText::push(std::string_view text) {
  if (stopped() || text.empty()) return {};
  if (chat_) return filter(parser_.push(text));
  return filter({{ParseEvent::Kind::kContent, std::string(text), {}}});
}

std::vector<ParseEvent> AnswerText::finish(bool cut) {
  if (stop_.stopped()) return {};
  std::vector<ParseEvent> out;
  if (chat_ && !called_) out = filter(parser_.finish(cut));
  if (std::string held = stop_.finish(); !stop_.stopped() && !held.empty())
    out.push_back({ParseEvent::Kind::kContent, std::move(held), {}});
  return out;
}

void add_event(ParsedMessage& m, const ParseEvent& e) {
  switch (e.kind) {
    case ParseEvent::Kind::kContent:
      m.content += e.text;
      break;
    case ParseEvent::Kind::kReasoning:
      m.reasoning += e.text;
      break;
    case ParseEvent::Kind::kToolCall:
      m.tool_calls.push_back(e.call);
      break;
  }
}

}  // namespace facet
