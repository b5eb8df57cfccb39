#include <fmt/format.h>

#include "app/options.h"
#include "base/threads.h"

namespace facet {
namespace {

std::string tokens(int n) { return fmt::format("{} token{}", n, n == 1 ? "" : "s"); }

// "1,135", "98.3"
std::string rate(int n, double seconds) {
  const double r = seconds > 0 ? n / seconds : 0;
  if (r < 100) return fmt::format("{:.1f}", r);
  std::string s = fmt::format("{:.0f}", r);
  for (size_t at = s.size(); at > 3;) s.insert(at -= 3, ",");
  return s;
}

// Why an answer is not whole; empty when it is.
const char* cut(Stop why) {
  if (why == Stop::kLength) return "; cut at the limit of tokens (-n)";
  if (why == Stop::kLoop) return "; ended, for it went round in a loop (--max-loops)";
  if (why == Stop::kContext) return "; the context is full (-c)";
  if (why == Stop::kCancelled) return "; stopped";
  return "";
}

// Of a prompt that was read approximately; empty for others.
std::string sparse_part(const Usage& u) {
  if (!u.sparse || !u.sparse->approximate) return "";
  return fmt::format("; approximate: {:.0f} % of the blocks read, estimated recall {:.4f}", 100 * u.sparse->kept,
                     u.sparse->recall);
}

}  // namespace

std::string usage_line(const Usage& u, Stop why) {
  const double seconds = u.prefill_s + u.decode_s;
  std::string s = fmt::format("{} in {:.{}f} s, {} tok/s; prompt {}", tokens(u.generated), seconds,
                              seconds < .1 ? 2 : 1, rate(u.generated, u.decode_s), tokens(u.prompt));
  if (u.cached > 0) s += fmt::format(" ({} cached)", u.cached);
  if (u.drafted > 0) s += fmt::format("; drafts accepted {} of {}", u.accepted, u.drafted);
  return s + sparse_part(u) + cut(why);
}

std::string draft_warning(const Usage& u) {
  constexpr int kRounds = 8;  // a drafter that is right every second time misses them all in 1 of 256 answers
  if (u.rounds < kRounds || u.accepted > 0) return "";
  return fmt::format(
      "none of {} drafted tokens was right: the drafter may belong to another model (--draft none leaves it out)",
      u.drafted);
}

std::string seed_part(const Sampling& s) { return s.temperature > 0 ? fmt::format("; seed {}", s.seed) : ""; }

std::string long_usage_line(const Usage& u, Stop why, const Sampling& s) {
  auto per_second = [](int n, double seconds) { return seconds > 0 ? n / seconds : 0.0; };
  return fmt::format("prompt {} tokens ({} cached), {:.1f} tok/s{}; answer {} tokens, {:.1f} tok/s{}; stop: {}{}",
                     u.prompt, u.cached, per_second(u.prompt - u.cached, u.prefill_s), sparse_part(u), u.generated,
                     per_second(u.generated, u.decode_s), draft_line(u), stop_name(why), seed_part(s));
}

std::string cores_part(const CoreUse& cores) {
  const CoreUse::Since use = cores.since();
  if (use.seconds < 0.1) return "";
  const std::string others = other_programs(use);
  if (others.empty()) return "";
  const TeamUse team = team_use();
  return fmt::format("; {}{}", others,
                     team.at_work < team.asked ? fmt::format(", {} of {} threads work", team.at_work, team.asked) : "");
}

std::string draft_line(const Usage& u) {
  std::string s;
  if (u.rounds > 0) {
    s = fmt::format(", {:.2f} a step", u.tokens_per_step());
    for (size_t i = 0; i < u.methods.size(); ++i)
      s += i == 0 ? " with " + u.methods[i].method
                  : fmt::format(", {} from token {}", u.methods[i].method, u.methods[i].at);
    s += fmt::format("; drafts {} of {} right, by place", u.accepted, u.drafted);
    for (size_t k = 0; k < u.offered_at.size(); ++k)
      s += fmt::format(" {:.2f}", u.offered_at[k] > 0 ? double(u.accepted_at[k]) / u.offered_at[k] : 0.);
  }
  if (!u.draft_inactive_reason.empty()) s += "; " + u.draft_inactive_reason;
  return s;
}

}  // namespace facet
