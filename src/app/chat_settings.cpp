#include "app/chat_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "app/suggest.h"

namespace facet {
namespace {

constexpr std::string_view kNames[] = {"temp", "top-p", "top-k", "min-p", "seed", "n-predict"};

Error refused(const std::string& name, const std::string& expected, const std::string& found) {
  return {"/set " + name, fmt::format("expected {}, found \"{}\"", expected, found), "/set shows what is set"};
}

template <class T>
Status real(T& to, const std::string& name, const std::string& text, double most) {
  char* end = nullptr;
  const double v = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !(v >= 0 && v <= most))
    return refused(name, fmt::format("a number from 0 to {}", most), text);
  to = T(v);
  return Ok{};
}

Status whole(int& to, const std::string& name, const std::string& text, int least) {
  constexpr int kMost = 1 << 24;
  char* end = nullptr;
  errno = 0;
  const long v = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != 0 || errno != 0 || v < least || v > kMost)
    return refused(name, fmt::format("a whole number from {} to {}", least, kMost), text);
  to = int(v);
  return Ok{};
}

Status seed_from(uint64_t& to, const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long v = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || errno != 0)
    return refused("seed", "a whole number of 64 bits", text);
  to = v;
  return Ok{};
}

// As the APIs spell them: top_k, temperature, max_tokens.
std::string own_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  for (const auto& [other, own] : {std::pair{"temperature", "temp"}, {"max-tokens", "n-predict"}})
    if (name == other) return own;
  return name;
}

}  // namespace

std::span<const std::string_view> setting_names() { return kNames; }

Status change_setting(ChatSettings s, const std::string& written, const std::string& value) {
  const std::string name = own_name(written);
  if (name == "temp") return real(s.sampling.temperature, name, value, 100);
  if (name == "top-p") return real(s.sampling.top_p, name, value, 1);
  if (name == "min-p") return real(s.sampling.min_p, name, value, 1);
  if (name == "top-k") return whole(s.sampling.top_k, name, value, 0);
  if (name == "n-predict") return whole(s.n_predict, name, value, -1);
  if (name == "seed") return seed_from(s.sampling.seed, value);
  std::vector<std::string> names(std::begin(kNames), std::end(kNames));
  names.insert(names.end(), {"temperature", "max-tokens"});
  return Error{
      "/set",
      fmt::format("expected one of {}, found \"{}\"{}", fmt::join(kNames, ", "), written, did_you_mean(name, names)),
      ""};
}

std::string settings_line(ChatSettings s) {
  return fmt::format("temp {}, top-p {}, top-k {}, min-p {}, seed {}, n-predict {}", s.sampling.temperature,
                     s.sampling.top_p, s.sampling.top_k, s.sampling.min_p, s.sampling.seed, s.n_predict);
}

}  // namespace facet
