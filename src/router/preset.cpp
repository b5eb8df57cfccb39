#include <fmt/format.h>

#include "router/config.h"

namespace facet {
namespace {

std::string_view trim(std::string_view s) {
  const char* blank = " \t\r";
  const size_t from = s.find_first_not_of(blank);
  return from == std::string_view::npos ? std::string_view() : s.substr(from, s.find_last_not_of(blank) - from + 1);
}

// A quoted text at the beginning of `s`, which then is what follows it; nothing: it does not end, or has an escape
// that is not known.
bool take_quoted(std::string_view& s, std::string& out) {
  const char quote = s[0];
  for (size_t i = 1; i < s.size(); ++i) {
    if (s[i] == quote) {
      s.remove_prefix(i + 1);
      return true;
    }
    if (s[i] == '\\' && quote == '"') {
      if (++i == s.size() || (s[i] != '"' && s[i] != '\\')) return false;
    }
    out += s[i];
  }
  return false;
}

// What is left of a line is a comment or nothing.
bool only_comment(std::string_view s) {
  s = trim(s);
  return s.empty() || s[0] == '#' || s[0] == ';';
}

bool read_value(std::string_view s, std::string& out) {
  s = trim(s);
  if (!s.empty() && (s[0] == '"' || s[0] == '\'')) return take_quoted(s, out) && only_comment(s);
  for (size_t i = 1; i < s.size(); ++i)  // a comment begins after a space, so that a path may hold its sign
    if ((s[i] == ';' || s[i] == '#') && (s[i - 1] == ' ' || s[i - 1] == '\t')) s = s.substr(0, i);
  out = trim(s);
  return true;
}

bool read_section(std::string_view line, std::string& name) {
  line = trim(line.substr(1));
  if (!line.empty() && (line[0] == '"' || line[0] == '\'')) {
    if (!take_quoted(line, name)) return false;
  } else {
    const size_t end = line.find(']');
    if (end == std::string_view::npos) return false;
    name = trim(line.substr(0, end));
    line.remove_prefix(end);
  }
  line = trim(line);
  return !line.empty() && line[0] == ']' && only_comment(line.substr(1)) && !name.empty();
}

}  // namespace

Result<std::vector<PresetSection>> parse_preset(std::string_view text, const std::string& where) {
  std::vector<PresetSection> sections(1);
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
    if (only_comment(line)) continue;
    const std::string at = fmt::format("{} line {}", where, number);
    if (line[0] == '[') {
      PresetSection s;
      if (!read_section(line, s.name)) return Error{at, "expected [NAME], with quotes where the name has a ]", ""};
      for (const PresetSection& other : sections)
        if (other.name == s.name) return Error{at, fmt::format("expected [{}] once, found it again", s.name), ""};
      sections.push_back(std::move(s));
      continue;
    }
    const size_t eq = line.find('=');
    ModelOption o{.name = std::string(trim(line.substr(0, eq))), .where = at, .from_file = true};
    if (eq == std::string_view::npos || o.name.empty()) return Error{at, "expected KEY = VALUE or [NAME]", ""};
    if (!read_value(line.substr(eq + 1), o.value))
      return Error{at, "expected a value, found a quote that does not end", ""};
    sections.back().options.push_back(std::move(o));
  }
  return sections;
}

}  // namespace facet
