#include "tokenizer/call_parse.h"

#include <algorithm>

#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr std::string_view kQuote = "<|\"|>", kCallClose = "<tool_call|>", kSpace = " \t\r\n";
constexpr size_t kMaxName = 256;
constexpr int kMaxPrefixes = 4;  // `call:call:NAME`

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}
std::string_view skip_space(std::string_view s) {
  s.remove_prefix(std::min(s.find_first_not_of(kSpace), s.size()));
  return s;
}

bool is_declared(ToolNames names, std::string_view name) {
  return names && std::find(names->begin(), names->end(), name) != names->end();
}

// Models put what they know functions of before the name: default_api:bash, functions.bash.
std::string resolved(ToolNames names, std::string_view name) {
  if (names && !is_declared(names, name))
    if (const size_t at = name.find_last_of(":./");
        at != std::string_view::npos && is_declared(names, name.substr(at + 1)))
      name.remove_prefix(at + 1);
  return std::string(name);
}

struct Head {
  CallHead kind = CallHead::kNo;
  bool said = false;  // "call:" or ":" stands before the name
  std::string_view name{}, rest{};
};

// Takes `call:` away. False: the text ends within it.
bool take_prefix(std::string_view& s, bool& said) {
  for (int i = 0; i < kMaxPrefixes; ++i) {
    s = skip_space(s);
    if (s.starts_with(':')) {
      s.remove_prefix(1);
      said = true;
      continue;
    }
    if (s.size() < 4 && std::string_view("call").starts_with(s)) return false;
    if (!s.starts_with("call")) return true;
    const std::string_view after = skip_space(s.substr(4));
    if (after.empty()) return false;
    if (after[0] != ':') return true;  // a name
    s = after.substr(1);
    said = true;
  }
  return true;
}

Head read_head(std::string_view text) {
  Head h{.rest = text};
  const auto more = [&] { return h.kind = CallHead::kMore, h; };
  if (!take_prefix(h.rest, h.said)) return more();
  h.rest = skip_space(h.rest);
  if (h.rest.empty()) return more();
  if (h.rest[0] == '{') return h.kind = CallHead::kYes, h;  // {"name": ...}
  if (kQuote.starts_with(h.rest)) return more();
  const std::string_view quote = h.rest.starts_with(kQuote)              ? kQuote
                                 : h.rest[0] == '"' || h.rest[0] == '\'' ? h.rest.substr(0, 1)
                                                                         : "";
  h.rest.remove_prefix(quote.size());
  const size_t end = std::min(h.rest.find_first_of(" \t\r\n<>{}()\"'`,;[]"), h.rest.size());
  h.name = h.rest.substr(0, end);
  if (h.name.size() > kMaxName) return h;
  h.rest.remove_prefix(end);
  if (h.name.ends_with(':') && !h.rest.empty()) h.name.remove_suffix(1);  // NAME:{
  if (h.rest.empty()) return more();
  if (h.name.empty()) return h;
  if (!quote.empty()) {
    if (h.rest.size() < quote.size() && quote.starts_with(h.rest)) return more();
    if (!h.rest.starts_with(quote)) return h;
    h.rest.remove_prefix(quote.size());
  }
  h.rest = skip_space(h.rest);
  if (h.rest.empty() || (h.rest.size() < kCallClose.size() && kCallClose.starts_with(h.rest))) return more();
  if (h.rest[0] == '{' || h.rest[0] == '(' || (h.said && h.rest.starts_with(kCallClose))) h.kind = CallHead::kYes;
  return h;
}

// {"name": NAME, "arguments": {...}}
CallReading read_json_call(std::string_view text, ToolNames names) {
  CallReading r;
  const CallArguments a = read_call_arguments(text);
  if (a.kind != CallText::kWhole && a.kind != CallText::kEnds) return r;
  const auto json = parse_json(a.json, "");
  if (!json) return r;
  const auto name = json->find("name");
  if (name == json->end() || !name->is_string() || name->get_ref<const std::string&>().empty()) return r;
  for (const char* key : {"arguments", "parameters", "input"}) {
    const auto it = json->find(key);
    if (it == json->end() || !it->is_object()) continue;
    r.kind = CallText::kWhole;
    r.name = resolved(names, name->get_ref<const std::string&>());
    r.arguments = r.beginning = dump_json(*it);
    break;
  }
  return r;
}

}  // namespace

CallHead call_head(std::string_view text) { return read_head(text).kind; }

CallHead bare_call_head(std::string_view text, ToolNames names) {
  if (!text.starts_with(':') && !text.starts_with(std::string_view("call").substr(0, text.size())))
    return CallHead::kNo;
  if (text.starts_with(':') && !names) return CallHead::kNo;
  const Head h = read_head(text);
  if (h.kind == CallHead::kNo || (!h.said && (h.kind == CallHead::kYes || !h.name.empty()))) return CallHead::kNo;
  if (!std::all_of(h.name.begin(), h.name.end(), is_name)) return CallHead::kNo;
  // A name and a space in a line are prose; so is a call without arguments.
  if (h.kind == CallHead::kMore) return h.name.empty() || h.rest.empty() ? CallHead::kMore : CallHead::kNo;
  if (h.name.empty() || h.rest.starts_with(kCallClose)) return CallHead::kNo;
  return !names || is_declared(names, resolved(names, h.name)) ? CallHead::kYes : CallHead::kNo;
}

CallReading read_call(std::string_view text, ToolNames names, QuoteRules rules) {
  // The end of a call without arguments is where its text ends.
  std::string whole(text);
  whole += kCallClose;
  const Head h = read_head(whole);
  if (h.kind != CallHead::kYes) return {};
  if (h.rest.size() == kCallClose.size()) return {CallText::kWhole, resolved(names, h.name), "{}", "{}"};
  if (h.name.empty()) return read_json_call(h.rest.substr(0, h.rest.size() - kCallClose.size()), names);
  CallArguments a = read_call_arguments(h.rest.substr(0, h.rest.size() - kCallClose.size()), rules);
  return {a.kind, resolved(names, h.name), std::move(a.json), std::move(a.beginning)};
}

}  // namespace facet
