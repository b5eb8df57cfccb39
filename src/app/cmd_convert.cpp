#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "model/drafter_convert.h"

namespace facet {
namespace {

struct Options {
  std::string in, out, target;
};

int convert(const Options& o) {
  auto in = DrafterFile::open(o.in);
  if (!in) return report(in.error());
  for (const std::string& note : in->notes) fmt::print(stderr, "{}\n", note);
  std::optional<GgufFile> target;
  if (!o.target.empty()) {
    auto t = GgufFile::open(o.target);
    if (!t) return report(t.error());
    target = std::move(*t);
  }
  auto bytes = convert_drafter(*in, target ? &*target : nullptr, o.out);
  if (!bytes) return report(bytes.error());
  fmt::print("{}: {} drafter from {}, {} tensors, {:.1f} MB\n", o.out, drafter_kind_name(in->kind()), in->dialect(), in->tensors().size(), double(*bytes) / 1e6);
  return kExitOk;
}

// A model, or a drafter in any dialect: drafters are compared under common names.
struct Tensors {
  std::optional<GgufFile> gguf;
  std::optional<DrafterFile> drafter;
  std::span<const TensorView> all() const { return drafter ? std::span(drafter->tensors()) : std::span(gguf->tensors()); }
};
Result<Tensors> open(const std::string& path) {
  Tensors t;
  if (path.ends_with(".gguf")) {
    auto f = GgufFile::open(path);
    if (!f) return f.error();
    auto arch = f->get_string("general.architecture");
    if (!arch || *arch == "gemma4") {
      t.gguf = std::move(*f);
      return t;
    }
  }
  auto d = DrafterFile::open(path);
  if (!d) return d.error();
  t.drafter = std::move(*d);
  return t;
}

// rms(a - b) / rms(a); empty when they cannot be compared.
std::optional<double> relative_rms(const TensorView& a, const TensorView& b) {
  if (a.ne != b.ne || !dtype_info(a.type).matmul || !dtype_info(b.type).matmul) return std::nullopt;
  const int64_t n = a.ne[0], rows = a.n_elements() / n;
  std::vector<float> x(static_cast<size_t>(n)), y(static_cast<size_t>(n));
  double diff = 0, size = 0;
  for (int64_t r = 0; r < rows; ++r) {
    dequantize_row(a.type, a.data.data() + size_t(r) * row_bytes(a.type, n), x.data(), n);
    dequantize_row(b.type, b.data.data() + size_t(r) * row_bytes(b.type, n), y.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      const double d = double(x[i]) - double(y[i]);
      diff += d * d, size += double(x[i]) * double(x[i]);
    }
  }
  return diff == 0 ? 0 : std::sqrt(diff / size);
}

int compare(const Options& o) {
  auto a = open(o.in), b = open(o.out);
  if (!a) return report(a.error());
  if (!b) return report(b.error());
  std::map<std::string, const TensorView*> others;
  for (const TensorView& t : b->all()) others[t.name] = &t;
  std::vector<std::pair<double, std::string>> lines;
  int same = 0, unmatched = 0;
  for (const TensorView& t : a->all()) {
    const auto at = others.find(t.name);
    if (at == others.end()) {
      fmt::print("{:>10}  {}: only in {}\n", "-", t.name, o.in);
      ++unmatched;
      continue;
    }
    const TensorView& u = *at->second;
    if (const auto rms = relative_rms(t, u)) {
      if (*rms == 0) ++same;
      else lines.push_back({*rms, fmt::format("{} {}: {}, {}", t.name, shape_string(t), dtype_name(t.type), dtype_name(u.type))});
    } else if (t.ne != u.ne || t.type != u.type || !std::equal(t.data.begin(), t.data.end(), u.data.begin(), u.data.end())) {
      fmt::print("{:>10}  {}: {} {} against {} {}\n", "-", t.name, dtype_name(t.type), shape_string(t), dtype_name(u.type), shape_string(u));
      ++unmatched;
    } else {
      ++same;
    }
    others.erase(at);
  }
  for (const auto& [name, t] : others) fmt::print("{:>10}  {}: only in {}\n", "-", name, o.out), ++unmatched;
  std::sort(lines.begin(), lines.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
  for (const auto& [rms, text] : lines) fmt::print("{:>10.3e}  {}\n", rms, text);
  fmt::print("{} tensors equal, {} differ, {} cannot be compared\n", same, lines.size(), unmatched);
  return unmatched == 0 ? kExitOk : kExitFailure;
}

}  // namespace

void add_convert(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("convert", "Write a drafter as GGUF (then facet quantize makes it smaller)");
  cmd->add_option("IN", o->in, "Drafter: safetensors with config.json, its folder, or a GGUF of any dialect")->required();
  cmd->add_option("OUT", o->out, "File to write (.gguf)")->required();
  cmd->add_option("-m,--model", o->target, "Its target: the vocabulary is copied, which other engines want");
  cmd->callback([o, &rc] { rc = convert(*o); });
}

void add_compare(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("compare", "Compare the tensors of two files: relative rms of the difference, worst first");
  cmd->add_option("A", o->in, "Model (GGUF), or drafter in any dialect")->required();
  cmd->add_option("B", o->out, "Another, with the same tensors")->required();
  cmd->callback([o, &rc] { rc = compare(*o); });
}

}  // namespace facet
