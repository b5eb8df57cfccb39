#include "server/slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "server/api_fields.h"

namespace facet {
namespace {

constexpr std::string_view kFolder = "/slots/";
constexpr size_t kMaxName = 200;  // bytes of a file's name
double ms(double seconds) { return std::round(seconds * 1e6) / 1e3; }

std::string_view query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    query.remove_prefix(std::min(query.size(), end + 1));
    if (const size_t eq = field.find('='); eq != std::string_view::npos && field.substr(0, eq) == key)
      return field.substr(eq + 1);
  }
  return {};
}

// The name of a file in a folder, whatever the system makes of other characters.
bool is_plain_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= kMaxName && name[0] != '.' && std::all_of(name.begin(), name.end(), plain);
}

}  // namespace

Json slots_json(std::span<const SlotInfo> slots, int n_ctx, bool drafts) {
  Json all = Json::array();
  for (const SlotInfo& s : slots) {
    Json j = {{"id", s.id},
              {"id_task", s.running ? Json(s.request) : Json(-1)},
              {"n_ctx", n_ctx},
              {"speculative", drafts},
              {"is_processing", s.running},
              {"n_tokens", s.tokens},
              {"n_computed", s.computed},
              {"snapshot", s.snapshot}};
    if (s.running) {
      j["n_prompt_tokens"] = s.prompt;
      j["next_token"] = Json::array({{{"has_next_token", true}, {"n_decoded", s.generated}}});
    }
    all.push_back(std::move(j));
  }
  return all;
}

bool needs_file(SlotAction::Kind kind) { return kind != SlotAction::Kind::kErase; }

Result<SlotAction> parse_slot_action(std::string_view path, std::string_view query, const std::string& body) {
  SlotAction a;
  const std::string_view id = path.substr(std::min(path.size(), kFolder.size()));
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), a.id);
  if (error != std::errc() || end != id.data() + id.size() || a.id < 0)
    return Error{"id", fmt::format("expected a slot's number in the path, found \"{}\"", id.substr(0, 20)),
                 "GET /slots lists them"};
  const std::string_view action = query_value(query, "action");
  if (action == "save")
    a.kind = SlotAction::Kind::kSave;
  else if (action == "restore")
    a.kind = SlotAction::Kind::kRestore;
  else if (action != "erase")
    return Error{"action", fmt::format("expected save, restore or erase, found \"{}\"", action.substr(0, 20)), ""};
  if (!needs_file(a.kind)) return a;
  auto json = parse_json(body, "");
  if (!json) return json.error();
  Fields f(*json, /*strict=*/false);
  f.string("filename", a.filename);
  if (auto ok = f.done(); !ok) return ok.error();
  if (!is_plain_name(a.filename))
    return Error{
        "filename",
        fmt::format("expected a file's name of letters, digits, dots, _ and -, found {}", shown(Json(a.filename))),
        "it lies in the folder of --slot-save-path"};
  return a;
}

Json slot_done_json(const SlotAction& a, const SlotDone& done) {
  if (a.kind == SlotAction::Kind::kErase) return {{"id_slot", a.id}, {"n_erased", done.tokens}};
  const bool save = a.kind == SlotAction::Kind::kSave;
  return {{"id_slot", a.id},
          {"filename", a.filename},
          {save ? "n_saved" : "n_restored", done.tokens},
          {save ? "n_written" : "n_read", done.bytes},
          {"timings", {{save ? "save_ms" : "restore_ms", ms(done.seconds)}}}};
}

Json cache_json(const CacheUse& use, int hit_tokens) {
  const bool from = use.source != CacheUse::Source::kNone;
  return {{"hit_tokens", hit_tokens},
          {"source", from ? Json(cache_source_name(use.source)) : Json()},
          {"restore_ms", ms(use.restore_s)},
          {"miss_at", use.miss_at >= 0 ? Json(use.miss_at) : Json()},
          {"miss_reason", use.miss_reason.empty() ? Json() : Json(use.miss_reason)}};
}

std::string miss_reason(const CacheUse& use, std::span<const int32_t> prompt, const Tokenizer& t) {
  using Miss = CacheUse::Miss;
  if (use.miss == Miss::kNone) return "";
  if (use.miss == Miss::kOff) return "the request goes on from nothing (cache_prompt: false)";
  if (use.miss == Miss::kNew || use.miss_at < 0 || size_t(use.miss_at) >= prompt.size())
    return "nothing that is known begins like this prompt";
  // The turn that the token is in, and what the template calls who speaks.
  int turn = -1;
  std::string role;
  for (size_t i = 0; i < prompt.size() && (i <= size_t(use.miss_at) || role.find('\n') == std::string::npos); ++i) {
    if (prompt[i] == t.special().turn_open) {
      if (i > size_t(use.miss_at)) break;
      ++turn, role.clear();
    } else if (turn >= 0 && role.size() < 40 && role.find('\n') == std::string::npos) {
      role += is_soft_id(prompt[i]) ? "" : t.piece(prompt[i]);
    }
  }
  role.resize(std::min(role.find('\n'), role.size()));
  const int32_t id = prompt[size_t(use.miss_at)];
  const std::string token = is_soft_id(id)
                                ? "of a picture or sound"
                                : shown(Json(utf8_sanitize(t.is_special(id) ? t.text(id) : std::string(t.piece(id)))));
  const std::string where = turn < 0 ? "" : fmt::format("turn {} ({}): ", turn, utf8_sanitize(role));
  if (use.miss == Miss::kNotKept)
    return fmt::format("{}no state is kept that reaches beyond token {}, {}", where, use.miss_at, token);
  return fmt::format("{}token {}, {}, differs from the nearest known conversation", where, use.miss_at, token);
}

}  // namespace facet
