#include "daemon/line_protocol.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace facet {
namespace {

using Kind = DaemonLine::Kind;

Error bad_args() { return {"", "bad_args", ""}; }
Error unknown() { return {"", "unknown_command", ""}; }

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t n = std::min(line.find(' '), line.size());
    if (n > 0) words.push_back(line.substr(0, n));
    line.remove_prefix(std::min(n + 1, line.size()));
  }
  return words;
}

template <class T>
std::optional<T> number(std::string_view text, T least, T most) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) return {};
  return value;
}
std::optional<int> slot_of(std::string_view text) { return number<int>(text, 0, kDaemonSlots - 1); }

// samp=temperature[,top_p[,top_k[,repeat_penalty[,seed[,frequency_penalty[,presence_penalty]]]]]]
bool read_sampling(std::string_view text, DaemonLine& line) {
  Sampling& s = line.sampling;
  s = {.temperature = 1, .top_k = 0, .top_p = 1};
  s.repeat_last_n = -1;
  int i = 0;
  for (bool more = true; more; ++i) {
    const size_t n = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, n);
    more = n < text.size();
    text.remove_prefix(more ? n + 1 : n);
    const auto real = [&](float& to, float least, float most) {
      const auto v = number<float>(item, least, most);
      if (v) to = *v;
      return v.has_value();
    };
    bool ok = false;
    switch (i) {
      case 0:
        ok = real(s.temperature, 0, 1e6f);
        break;
      case 1:
        ok = real(s.top_p, 0, 1);
        break;
      case 2:
        if (const auto v = number<int>(item, 0, 1 << 24)) s.top_k = *v, ok = true;
        break;
      case 3:
        ok = real(s.repeat_penalty, 1e-3f, 1e3f);
        break;
      case 4:
        if (const auto v = number<uint64_t>(item, 0, std::numeric_limits<uint64_t>::max()))
          s.seed = *v, line.seed_given = *v != 0, ok = true;
        break;
      case 5:
        ok = real(s.frequency_penalty, -1e3f, 1e3f);
        break;
      case 6:
        ok = real(s.presence_penalty, -1e3f, 1e3f);
        break;
      default:
        break;
    }
    if (!ok) return false;
  }
  return true;
}

// snap=position:slot
bool read_snap(std::string_view text, DaemonLine& line) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  const auto position = number<int>(text.substr(0, colon), 1, kDaemonMostTokens);
  const auto slot = slot_of(text.substr(colon + 1));
  if (!position || !slot) return false;
  line.snap = DaemonLine::Snap{*position, *slot};
  return true;
}

// [samp=...] [snap=...] behind the words that a command must have.
bool read_options(const std::vector<std::string_view>& words, size_t from, bool snap_too, DaemonLine& line) {
  for (size_t i = from; i < words.size(); ++i) {
    const bool samp = words[i].starts_with("samp="), snap = snap_too && words[i].starts_with("snap=");
    if (!samp && !snap) return false;
    if (!(samp ? read_sampling(words[i].substr(5), line) : read_snap(words[i].substr(5), line))) return false;
  }
  return true;
}

bool read_count(std::string_view word, DaemonLine& line) {
  const auto n = number<int>(word, 0, kDaemonMostTokens);
  line.n = n.value_or(0);
  return n.has_value();
}

Result<DaemonLine> park(const std::vector<std::string_view>& words, Kind kind) {
  DaemonLine line{.kind = kind};
  if (words.size() > 2) return bad_args();
  if (words.size() == 1 || words[1] == "all") return line;
  if (words[1] == "target")
    line.what = DaemonLine::What::kTarget;
  else if (words[1] == "draft")
    line.what = DaemonLine::What::kDraft;
  else
    return bad_args();
  return line;
}

Result<DaemonLine> snapshot(const std::vector<std::string_view>& words, Kind kind) {
  DaemonLine line{.kind = kind};
  const auto slot = words.size() == 2 ? slot_of(words[1]) : std::nullopt;
  if (!slot) return bad_args();
  line.slot = *slot;
  return line;
}

Result<DaemonLine> generate(const std::vector<std::string_view>& words) {
  DaemonLine line{.kind = Kind::kGenerate};
  if (words.size() < 4 || !read_count(words[2], line) || !read_options(words, 4, false, line)) return bad_args();
  line.in = words[1], line.out = words[3];
  return line;
}

Result<DaemonLine> restore(const std::vector<std::string_view>& words) {
  DaemonLine line{.kind = Kind::kRestore};
  const auto slot = words.size() >= 4 ? slot_of(words[1]) : std::nullopt;
  if (!slot || !read_count(words[3], line) || !read_options(words, 4, true, line)) return bad_args();
  line.slot = *slot, line.in = words[2];
  return line;
}

bool is_path(std::string_view word) { return word.starts_with('.') || word.find('/') != std::string_view::npos; }

Result<DaemonLine> run(const std::vector<std::string_view>& words) {
  DaemonLine line{.kind = Kind::kRun, .in = std::string(words[0])};
  if (words.size() < 2 || !read_count(words[1], line) || !read_options(words, 2, true, line)) return bad_args();
  return line;
}

}  // namespace

Result<DaemonLine> parse_daemon_line(std::string_view text) {
  if (text.size() > kDaemonLine) return bad_args();
  if (text.ends_with('\r')) text.remove_suffix(1);
  for (const char c : text)
    if (static_cast<unsigned char>(c) < ' ') return bad_args();
  if (text.starts_with('{')) return DaemonLine{.kind = Kind::kHandshake, .name = std::string(text)};
  const std::vector<std::string_view> words = words_of(text);
  if (words.empty()) return unknown();
  const std::string_view name = words[0];
  if (text == "quit" || text == "exit") return DaemonLine{.kind = Kind::kQuit};
  if (name == "park") return park(words, Kind::kPark);
  if (name == "unpark") return park(words, Kind::kUnpark);
  if (text == "free drafter" || text == "drafter free")
    return DaemonLine{.kind = Kind::kAcknowledged, .name = "free drafter"};
  if (name == "compress" || name == "SNAPSHOT_THIN" || name == "RESTORE_CHAIN")
    return DaemonLine{.kind = Kind::kUnsupported, .name = std::string(name)};
  if (text == "LIST_SLOTS") return DaemonLine{.kind = Kind::kListSlots};
  if (name == "SNAPSHOT") return snapshot(words, Kind::kSnapshot);
  if (name == "FREE_SNAPSHOT") return snapshot(words, Kind::kFreeSnapshot);
  if (name == "generate") return generate(words);
  if (name == "RESTORE") return restore(words);
  if (is_path(name)) return run(words);
  return unknown();
}

Result<std::vector<int32_t>> parse_ids(std::string_view bytes, const std::string& path) {
  if (bytes.size() % 4 != 0)
    return Error{path, fmt::format("expected int32 token ids, little endian, found {} bytes", bytes.size()),
                 "write 4 bytes per token"};
  std::vector<int32_t> ids(bytes.size() / 4);
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

Result<std::vector<int32_t>> parse_counted_ids(std::string_view bytes, const std::string& path) {
  uint32_t n = 0;
  if (bytes.size() < 4) return Error{path, fmt::format("expected a count of 4 bytes, found {}", bytes.size()), ""};
  std::memcpy(&n, bytes.data(), 4);
  if (uint64_t(n) * 4 + 4 != bytes.size())
    return Error{path, fmt::format("expected {} ids, {} bytes, found {} bytes", n, uint64_t(n) * 4 + 4, bytes.size()),
                 "the count in its first 4 bytes is wrong, or the file is not complete"};
  return parse_ids(bytes.substr(4), path);
}

std::string counted_ids(const std::vector<int32_t>& ids) {
  const auto n = uint32_t(ids.size());
  std::string bytes(4 + ids.size() * 4, '\0');
  std::memcpy(bytes.data(), &n, 4);
  if (!ids.empty()) std::memcpy(bytes.data() + 4, ids.data(), ids.size() * 4);
  return bytes;
}

}  // namespace facet
