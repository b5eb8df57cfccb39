#include "app/code_colour.h"

#include <utility>

namespace facet {
namespace {

constexpr const char *kCode = "\033[36m", *kPlain = "\033[0m";

}  // namespace

std::string CodeColour::push(std::string_view text) {
  if (!on_) return std::string(text);
  std::string out;
  for (const char c : text) {
    if (start_ && (c == ' ' || c == '`')) {
      held_ += c;
      if (!held_.ends_with("```")) continue;
      start_ = false;
      if (code_)
        closing_ = true;
      else
        out += kCode, code_ = true;
      out += std::exchange(held_, {});
      continue;
    }
    out += std::exchange(held_, {});
    start_ = c == '\n';
    if (start_ && std::exchange(closing_, false)) out += kPlain, code_ = false;
    out += c;
  }
  return out;
}

std::string CodeColour::finish() {
  std::string out = std::exchange(held_, {});
  if (std::exchange(code_, false)) out += kPlain;
  closing_ = false, start_ = true;
  return out;
}

}  // namespace facet
