#include "tools/matrix_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

namespace facet {
namespace {

using Values = std::vector<double>;
struct Cell {
  Values decode, prefill, joules;
  int64_t decoded = 0, steps = 0;
};

// What tells a configuration from the others: all of it where it is the only one.
std::string name_of(const MatrixConfig& c, std::span<const MatrixConfig> all) {
  const auto varies = [&](auto what) {
    return std::any_of(all.begin(), all.end(), [&](const MatrixConfig& x) { return what(x) != what(c); });
  };
  const bool alone = all.size() == 1;
  std::string s;
  const auto add = [&](const std::string& part) {
    if (!s.empty()) s += ", ";
    s += part;
  };
  if (alone || varies([](const MatrixConfig& x) { return x.model; })) {
    const auto file = [](const MatrixConfig& x) { return std::filesystem::path(x.model).filename(); };
    const bool unique = std::none_of(all.begin(), all.end(),
                                     [&](const MatrixConfig& x) { return x.model != c.model && file(x) == file(c); });
    add(unique ? file(c).string() : c.model);
  }
  if (alone || varies([](const MatrixConfig& x) { return x.drafter; }))
    add(c.drafter == "none" ? "no drafter" : c.drafter);
  if (alone || varies([](const MatrixConfig& x) { return x.kv(); })) add(c.kv());
  return s;
}

void compare(MatrixValue& v, const MatrixValue& first, double confidence) {
  if (v.sample.n < 2 || first.sample.n < 2 || first.sample.mean <= 0) return;
  const Interval d = welch_interval(first.sample, v.sample, confidence);
  v.change = Interval{d.low / first.sample.mean, d.high / first.sample.mean};
}

// "+12.1 % (9.8 to 14.4)", or that there is none, or none to be told.
std::string verdict(const MatrixValue& v, double first) {
  if (!v.change) return "";
  const std::string range = fmt::format("({:+.1f} to {:+.1f})", 100 * v.change->low, 100 * v.change->high);
  if (!v.differs()) return fmt::format("{} {}", v.is_too_noisy() ? "too noisy to tell" : "no difference", range);
  return fmt::format("{:+.1f} % {}", 100 * (v.sample.mean / first - 1), range);
}

std::string plus_minus(const Sample& s, int digits) {
  if (s.n == 0) return "";
  return fmt::format("{:.{}f} ± {:.{}f}", s.mean, digits, s.sd, digits);
}

std::string cell_text(const std::string& text) {  // of a Markdown table
  std::string s;
  for (const char c : text) {
    if (c == '|') s += '\\';
    s += c;
  }
  return s;
}
std::string xml_text(const std::string& s) {
  std::string out;
  for (const char c : s) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (static_cast<unsigned char>(c) >= ' ')
      out += c;
  }
  return out;
}

// Calls f(the first row of a group, its rows): those of one context and set.
template <class F>
void for_groups(const MatrixReport& r, F&& f) {
  for (size_t at = 0; at < r.rows.size();) {
    size_t end = at;
    while (end < r.rows.size() && r.rows[end].set == r.rows[at].set && r.rows[end].context == r.rows[at].context) ++end;
    f(r.rows[at], std::span(r.rows).subspan(at, end - at));
    at = end;
  }
}
std::string group_title(const MatrixRow& r) {
  return r.context > 0 ? fmt::format("{}, {} tokens", r.set, r.context) : r.set;
}

}  // namespace

MatrixReport matrix_report(const MatrixOptions& o, std::span<const MatrixRun> runs) {
  std::map<MatrixKey, Cell> cells;  // by keys of run 0
  for (const MatrixRun& r : runs) {
    MatrixKey key = r.key;
    key.run = 0;
    Cell& c = cells[key];
    c.decode.push_back(r.decode_tok_s()), c.prefill.push_back(r.prefill_tok_s());
    if (const auto j = r.joules_per_token()) c.joules.push_back(*j);
    c.decoded += r.decoded, c.steps += r.steps;
  }
  MatrixReport report;
  for (size_t context = 0; context < o.contexts.size(); ++context)
    for (size_t set = 0; set < o.sets.size(); ++set)
      for (size_t config = 0; config < o.configs.size(); ++config) {
        const auto at = cells.find(matrix_key(o, {.config = config, .context = context, .set = set, .run = 0}));
        if (at == cells.end()) continue;
        const Cell& c = at->second;
        report.rows.push_back({.index = config,
                               .config = name_of(o.configs[config], o.configs),
                               .set = o.sets[set].name,
                               .context = o.contexts[context],
                               .decode = {.sample = sample_of(c.decode)},
                               .prefill = {.sample = sample_of(c.prefill)},
                               .joules = {.sample = sample_of(c.joules)},
                               .tokens_per_step = c.steps > 0 ? double(c.decoded) / double(c.steps) : 0});
      }
  const auto for_values = [&](auto&& f) {
    MatrixRow* of_group = nullptr;
    for (MatrixRow& r : report.rows) {
      if (of_group && (of_group->set != r.set || of_group->context != r.context)) of_group = nullptr;
      if (r.index == 0)
        of_group = &r;
      else if (of_group)
        for (MatrixValue MatrixRow::*v : {&MatrixRow::decode, &MatrixRow::prefill, &MatrixRow::joules})
          if ((r.*v).sample.n >= 2 && (of_group->*v).sample.n >= 2) f(r.*v, of_group->*v);
    }
  };
  for_values([&](MatrixValue&, const MatrixValue&) { ++report.comparisons; });
  const double confidence = 1 - kNoise / std::max(1, report.comparisons);
  for_values([&](MatrixValue& v, const MatrixValue& first) { compare(v, first, confidence); });
  return report;
}

std::string matrix_markdown(const MatrixReport& r, const std::string& title) {
  const bool energy =
      std::any_of(r.rows.begin(), r.rows.end(), [](const MatrixRow& x) { return x.joules.sample.n > 0; });
  std::string s = fmt::format("# {}\n", title);
  for_groups(r, [&](const MatrixRow& first, std::span<const MatrixRow> rows) {
    s += fmt::format(
        "\n## {}\n\n| | decode, tok/s | against the first | prompt, tok/s | against the first | tokens a step |",
        group_title(first));
    s += energy ? " J a token | against the first |\n" : "\n";
    s += energy ? "| --- | ---: | --- | ---: | --- | ---: | ---: | --- |\n"
                : "| --- | ---: | --- | ---: | --- | ---: |\n";
    for (const MatrixRow& x : rows) {
      s += fmt::format("| {} | {} | {} | {} | {} | {:.2f} |", cell_text(x.config), plus_minus(x.decode.sample, 1),
                       verdict(x.decode, first.decode.sample.mean), plus_minus(x.prefill.sample, 0),
                       verdict(x.prefill, first.prefill.sample.mean), x.tokens_per_step);
      if (energy)
        s += fmt::format(" {} | {} |", plus_minus(x.joules.sample, 3), verdict(x.joules, first.joules.sample.mean));
      s += "\n";
    }
  });
  if (r.comparisons > 0)
    s += fmt::format(
        "\nMean ± deviation of a run. Rule: a difference is told where Welch's interval of it leaves out zero; in "
        "brackets the interval, in % of the first. There are {} comparisons, each at {:.3g} %, so that noise alone "
        "makes one of {:.0f} such tables tell any.\n",
        r.comparisons, 100 * (1 - kNoise / r.comparisons), 1 / kNoise);
  return s;
}

std::string matrix_svg(const MatrixReport& r, const std::string& title) {
  constexpr int kWidth = 960, kLabel = 320, kRight = 230, kBar = 18, kStep = 26, kGroup = 44, kTop = 56;
  double most = 0;
  int height = kTop, groups = 0;
  for (const MatrixRow& x : r.rows) most = std::max(most, x.decode.sample.mean + x.decode.sample.sd), height += kStep;
  for_groups(r, [&](const MatrixRow&, std::span<const MatrixRow>) { ++groups; });
  height += groups * kGroup + 16;
  const double scale = most > 0 ? (kWidth - kLabel - kRight) / most : 0;
  std::string s = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"16\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{2}</text>\n"
      "<text x=\"16\" y=\"44\" fill=\"#666666\">decoding, tokens a second; lines: deviation of a run; green, red: "
      "faster, "
      "slower than the first beyond noise</text>\n",
      kWidth, height, xml_text(title));
  int y = kTop;
  for_groups(r, [&](const MatrixRow& first, std::span<const MatrixRow> rows) {
    s += fmt::format("<text x=\"16\" y=\"{}\" font-weight=\"bold\">{}</text>\n", y + kGroup - 14,
                     xml_text(group_title(first)));
    y += kGroup;
    for (const MatrixRow& x : rows) {
      const Sample& d = x.decode.sample;
      const char* colour = !x.decode.differs() ? "#8fa3b5" : x.decode.change->low > 0 ? "#2f9e5b" : "#c8503c";
      const double end = kLabel + d.mean * scale, sd = d.sd * scale;
      s += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLabel - 8, y + 13,
                       xml_text(x.config));
      s += fmt::format("<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"/>\n", kLabel,
                       y, d.mean * scale, kBar, colour);
      s += fmt::format("<path d=\"M{:.2f} {}H{:.2f}\" stroke=\"#222222\" stroke-width=\"1.5\"/>\n",
                       std::max<double>(kLabel, end - sd), y + kBar / 2, end + sd);
      s += fmt::format(
          "<text x=\"{:.2f}\" y=\"{}\">{}{}</text>\n", end + sd + 8, y + 13, plus_minus(d, 1),
          x.decode.differs() ? fmt::format(", {:+.1f} %", 100 * (d.mean / first.decode.sample.mean - 1)) : "");
      y += kStep;
    }
  });
  return s + "</svg>\n";
}

}  // namespace facet
