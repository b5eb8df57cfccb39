#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/console.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "base/print.h"
#include "model/drafter_convert.h"

namespace facet {
namespace {

struct Options {
  std::string in, out, target;
  std::optional<double> max_rms;  // of compare
};

int convert(Options& o) {
  if (auto ok = fetch_named(o.target, HubUse::kModel); !ok) return report(ok.error());
  auto in = DrafterFile::open(o.in);
  if (!in) return report(in.error());
  for (const std::string& note : in->notes) print_err("{}\n", note);
  std::optional<GgufFile> target;
  if (!o.target.empty()) {
    auto t = GgufFile::open(o.target);
    if (!t) return report(t.error());
    target = std::move(*t);
  }
  auto bytes = convert_drafter(*in, target ? &*target : nullptr, o.out);
  if (!bytes) return report(bytes.error());
  print_out("{}: {} drafter from {}, {} tensors, {:.1f} MB\n", o.out, drafter_kind_name(in->kind()), in->dialect(),
            in->tensors().size(), double(*bytes) / 1e6);
  return kExitOk;
}

// A model, or a drafter in any dialect: drafters are compared under common names.
struct Tensors {
  std::optional<GgufFile> gguf;
  std::optional<DrafterFile> drafter;
  std::span<const TensorView> all() const {
    return drafter ? std::span(drafter->tensors()) : std::span(gguf->tensors());
  }
};
Result<Tensors> open(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec))
    return Error{path, "expected a model or a drafter, found no such file", "check the path"};
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

bool comparable(DType t) { return dtype_info(t).matmul || t == DType::kI32 || t == DType::kI64; }

// Row r of a tensor as numbers.
void read_row(const TensorView& t, int64_t r, std::vector<double>& to, std::vector<float>& scratch) {
  const size_t n = size_t(t.ne[0]), size = t.type == DType::kI64 ? 8 : 4;
  for (size_t i = 0; i < n && !dtype_info(t.type).matmul; ++i) {
    int64_t v = 0;
    std::memcpy(&v, t.data.data() + (size_t(r) * n + i) * size, size);  // little endian
    to[i] = size == 8 ? double(v) : double(int32_t(v));
  }
  if (!dtype_info(t.type).matmul) return;
  dequantize_row(t.type, t.data.data() + size_t(r) * row_bytes(t.type, t.ne[0]), scratch.data(), t.ne[0]);
  std::copy(scratch.begin(), scratch.end(), to.begin());
}

// rms(a - b) / rms(a); empty when they cannot be compared.
std::optional<double> relative_rms(const TensorView& a, const TensorView& b) {
  if (a.ne != b.ne || !comparable(a.type) || !comparable(b.type)) return std::nullopt;
  std::vector<double> x(size_t(a.ne[0])), y(x.size());
  std::vector<float> scratch(x.size());
  double diff = 0, size = 0;
  for (int64_t r = 0; r < a.n_elements() / a.ne[0]; ++r) {
    read_row(a, r, x, scratch);
    read_row(b, r, y, scratch);
    for (size_t i = 0; i < x.size(); ++i) diff += (x[i] - y[i]) * (x[i] - y[i]), size += x[i] * x[i];
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
  int same = 0, alone = 0, unlike = 0;
  for (const TensorView& t : a->all()) {
    const auto at = others.find(t.name);
    if (at == others.end()) {
      print_out("{:>10}  {}: only in {}\n", "-", t.name, o.in);
      ++alone;
      continue;
    }
    const TensorView& u = *at->second;
    if (const auto rms = relative_rms(t, u)) {
      if (*rms == 0)
        ++same;
      else
        lines.push_back(
            {*rms, fmt::format("{} {}: {}, {}", t.name, shape_string(t), dtype_name(t.type), dtype_name(u.type))});
    } else {
      print_out("{:>10}  {}: {} {} against {} {}\n", "-", t.name, dtype_name(t.type), shape_string(t),
                dtype_name(u.type), shape_string(u));
      ++unlike;
    }
    others.erase(at);
  }
  for (const auto& [name, t] : others) print_out("{:>10}  {}: only in {}\n", "-", name, o.out), ++alone;
  std::sort(lines.begin(), lines.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
  for (const auto& [rms, text] : lines) print_out("{:>10.3e}  {}\n", rms, text);
  print_out("{} tensors equal, {} differ, {} in one file only, {} of another shape\n", same, lines.size(), alone,
            unlike);
  if (o.max_rms && unlike + alone > 0)
    return report({"--max-rms",
                   fmt::format("expected the same tensors in both files, found {} of another shape and {} "
                               "in one file only",
                               unlike, alone),
                   ""});
  if (o.max_rms && !lines.empty() && !(lines[0].first <= *o.max_rms))
    return report({"--max-rms",
                   fmt::format("expected at most {:g}, found {:g} in {}", *o.max_rms, lines[0].first, lines[0].second),
                   ""});
  return unlike == 0 ? kExitOk : kExitFailure;
}

}  // namespace

void add_convert(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("convert", "Write a drafter as GGUF (then facet quantize makes it smaller)");
  cmd->add_option("IN", o->in, "Drafter: safetensors with config.json, its folder, or a GGUF of any dialect")
      ->required()
      ->check(not_empty());
  cmd->add_option("OUT", o->out, "File to write (.gguf)")->required()->check(not_empty());
  cmd->add_option("-m,--model", o->target, "Its target: the vocabulary is copied, which other engines want")
      ->check(not_empty());
  add_hub_options(cmd, [o](const std::string& name, bool) { o->target = name; });
  cmd->callback([o, &rc] { rc = convert(*o); });
}

void add_compare(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      app.add_subcommand("compare", "Compare the tensors of two files: relative rms of the difference, worst first");
  cmd->add_option("A", o->in, "Model (GGUF), or drafter in any dialect")->required()->check(not_empty());
  cmd->add_option("B", o->out, "Another, with the same tensors")->required()->check(not_empty());
  cmd->add_option("--max-rms", o->max_rms, "Exit code 1 if a tensor differs by more, or is in one file only")
      ->check(number_in(0, 1e30));
  cmd->callback([o, &rc] { rc = compare(*o); });
}

}  // namespace facet
