#include "api/events.h"

#include <fmt/format.h>

#include <utility>

namespace facet {

std::string step_line(const StepStats& s) {
  const double all = s.since_last();
  std::string text = fmt::format("{:.1f} ms to a step of {} sequences", all * 1e3, s.sequences);
  if (s.prompt_tokens > 0) text += fmt::format(", {} tokens of prompts", s.prompt_tokens);
  if (s.pages > 0) text += fmt::format(", {} pages mapped", s.pages);
  const char* before = ": ";
  for (size_t p = 0; p < s.phase_s.size(); ++p)
    if (s.phase_s[p] >= .01 * all)
      text += fmt::format("{}{} {:.1f}", std::exchange(before, ", "), kPhaseName[p], s.phase_s[p] * 1e3);
  return text;
}

}  // namespace facet
