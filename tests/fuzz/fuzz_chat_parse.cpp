// Any text through the parser of model output, whole and in pieces chosen by the input: the joined events are
// equal, add up to the message, and the
// arguments of every call that is whole are JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/json.h"

namespace {

void append(std::vector<facet::ParseEvent>& all, const std::vector<facet::ParseEvent>& more) {
  for (const facet::ParseEvent& e : more) {
    if (!all.empty() && e.kind != facet::ParseEvent::Kind::kToolCall && all.back().kind == e.kind)
      all.back().text += e.text;
    else
      all.push_back(e);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  facet::ParseOptions options{.in_thought = (data[0] & 1) != 0};
  if (data[0] & 2) options.tools = {"f", "get_time"};
  const bool was_cut = (data[0] & 4) != 0;
  uint32_t cuts = data[1];  // seeds the lengths of pieces
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);

  facet::ChatParser whole(options), cut(options);
  std::vector<facet::ParseEvent> whole_events, cut_events;
  append(whole_events, whole.push(text));
  append(whole_events, whole.finish(was_cut));
  for (size_t at = 0; at < text.size();) {
    cuts = cuts * 1664525u + 1013904223u;
    const size_t n = 1 + (data[1] ? (cuts >> 24) % data[1] : 0);
    append(cut_events, cut.push(text.substr(at, n)));
    at += n;
  }
  append(cut_events, cut.finish(was_cut));
  CHECK(whole_events == cut_events, "events depend on the cuts");
  CHECK(whole.message() == cut.message(), "the message depends on the cuts");

  facet::ParsedMessage sum;
  for (const facet::ParseEvent& e : whole_events) {
    if (e.kind == facet::ParseEvent::Kind::kContent) sum.content += e.text;
    if (e.kind == facet::ParseEvent::Kind::kReasoning) sum.reasoning += e.text;
    if (e.kind == facet::ParseEvent::Kind::kToolCall) sum.tool_calls.push_back(e.call);
  }
  CHECK(sum == whole.message(), "events do not add up to the message");
  for (const facet::ParsedCall& c : sum.tool_calls)
    CHECK(c.partial || facet::Json::accept(c.arguments), "arguments are not JSON: {}", c.arguments);
  return 0;
}
