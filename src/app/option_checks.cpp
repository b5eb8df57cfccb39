#include "app/option_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "app/suggest.h"
#include "base/print.h"

namespace facet {
namespace {

std::string lower(std::string s) {
  for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
  return s;
}

std::string expected(const std::string& what, const std::string& found) {
  return fmt::format("expected {}, found '{}'", what, on_one_line(found));
}

template <class T>
bool parse_all(const std::string& s, T& v) {
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  return error == std::errc() && end == s.data() + s.size();
}

// 1024 for "k", "kb", "kib" and so on; 0: no such unit.
uint64_t unit_of(std::string unit) {
  unit = lower(unit);
  const size_t letter = unit.empty() ? std::string::npos : std::string("kmgt").find(unit[0]);
  if (letter == std::string::npos) return unit.empty() || unit == "b" ? 1 : 0;
  const std::string rest = unit.substr(1);
  return rest.empty() || rest == "b" || rest == "ib" ? uint64_t(1) << (10 * (letter + 1)) : 0;
}

}  // namespace

CLI::Validator not_empty() {
  return {
      [](std::string& s) { return s.empty() ? std::string("expected a value, found an empty one") : std::string(); },
      "", "not_empty"};
}

CLI::Validator number_in(double low, double high) {
  return {[=](std::string& s) {
            double v = 0;
            if (parse_all(s, v) && v >= low && v <= high) return std::string();
            return expected(fmt::format("a number from {:g} to {:g}", low, high), s);
          },
          fmt::format("{:g} to {:g}", low, high), "number_in"};
}

CLI::Validator whole_number() {
  return {[](std::string& s) {
            uint64_t v = 0;
            if (parse_all(s, v)) return std::string();
            return expected(fmt::format("a whole number from 0 to {}", std::numeric_limits<uint64_t>::max()), s);
          },
          "", "whole_number"};
}

CLI::Validator byte_count(uint64_t least) {
  return {[least](std::string& s) {
            const auto digits = std::find_if_not(s.begin(), s.end(),
                                                 [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
            auto unit_at = digits;
            while (unit_at != s.end() && *unit_at == ' ') ++unit_at;
            const uint64_t unit = unit_of({unit_at, s.end()}), most = uint64_t(std::numeric_limits<int64_t>::max());
            uint64_t n = 0;
            if (!parse_all(std::string(s.begin(), digits), n) || unit == 0 || n > most / unit || n * unit < least)
              return expected(fmt::format("a number of bytes from {} on, such as 8GB", least), s);
            s = std::to_string(n * unit);
            return std::string();
          },
          "", "byte_count"};
}

std::optional<std::vector<int>> gpus_from(const std::string& s) {
  constexpr int kMost = 64;
  std::vector<int> gpus;
  for (size_t at = 0; at <= s.size();) {
    const size_t end = std::min(s.find(',', at), s.size());
    int v = 0;
    if (!parse_all(s.substr(at, end - at), v) || v < 0 || v >= kMost) return std::nullopt;
    if (std::find(gpus.begin(), gpus.end(), v) != gpus.end()) return std::nullopt;
    gpus.push_back(v);
    at = end + 1;
  }
  if (gpus.size() > 1) return gpus;
  const int n = gpus[0];
  if (n == 0) return std::nullopt;
  gpus.clear();
  for (int i = 0; i < n; ++i) gpus.push_back(i);
  return gpus;
}

CLI::Validator gpu_list() {
  return {[](std::string& s) {
            return gpus_from(s)
                       ? std::string()
                       : expected("a number of GPUs, or several unlike ones as nvidia-smi numbers them (0,2)", s);
          },
          "", "gpu_list"};
}

std::optional<std::vector<double>> shares_from(const std::string& s) {
  std::vector<double> shares;
  for (size_t at = 0; at <= s.size();) {
    const size_t end = std::min(s.find(',', at), s.size());
    double v = 0;
    if (!parse_all(s.substr(at, end - at), v) || !(v > 0) || !std::isfinite(v)) return std::nullopt;
    shares.push_back(v);
    at = end + 1;
  }
  return shares;
}

CLI::Validator share_list() {
  return {[](std::string& s) {
            return shares_from(s) ? std::string() : expected("a share above 0 for each GPU, such as 3,2", s);
          },
          "", "share_list"};
}

CLI::Validator name_among(std::vector<std::string> names) {
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  return {[names = std::move(names), list](std::string& s) {
            const auto at = std::find(names.begin(), names.end(), lower(s));
            if (at == names.end()) return expected("one of " + list, s) + did_you_mean(lower(s), names);
            s = *at;
            return std::string();
          },
          "", "name_among"};
}

}  // namespace facet
