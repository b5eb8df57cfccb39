#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "app/commands.h"
#include "app/option_checks.h"
#include "base/mmap.h"
#include "base/print.h"
#include "base/sha.h"
#include "formats/format_error.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/drafter_rules.h"
#include "model/mmproj.h"

namespace facet {
namespace {

using nlohmann::ordered_json;

constexpr size_t kShownElements = 8;  // of an array
constexpr size_t kShownChars = 100;   // of a string

struct Options {
  std::string path;
  bool json = false, tensors = false, sha256 = false;
};

// What a model says, whatever its container: all parts of it together.
struct Part {
  std::string path;
  uint64_t bytes = 0, expected = 0;  // expected: where the last tensor ends
  std::optional<Error> problem;      // why it could not be read
  std::string sha256 = {};           // of its bytes, if asked for
};
struct Report {
  std::string format;
  std::vector<Part> parts;
  std::vector<std::pair<std::string, ordered_json>> meta;  // arrays abbreviated to {count, first}
  std::vector<TensorView> tensors;                         // data is not to be touched
  std::vector<ForeignTensor> foreign;                      // of types that facet cannot run
};

ordered_json array_json(size_t count, const auto& element) {
  ordered_json first = ordered_json::array();
  for (size_t i = 0; i < std::min(count, kShownElements); ++i) first.push_back(element(i));
  return {{"count", count}, {"first", std::move(first)}};
}

ordered_json value_json(const GgufValue& v) {
  return std::visit(
      [](const auto& x) -> ordered_json {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, std::string_view>) {
          return std::string(x);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return x;
        } else if constexpr (std::is_same_v<T, std::vector<std::string_view>>) {
          return array_json(x.size(), [&](size_t i) { return std::string(x[i]); });
        } else {
          return array_json(x.size(), [&](size_t i) -> ordered_json { return x[i]; });
        }
      },
      v.v);
}

template <class Contents>
void take_tensors(Report& r, Contents& c) {
  for (TensorView& t : c.tensors) {
    t.data = {};  // the mapping ends with this part
    r.tensors.push_back(std::move(t));
  }
}

// Reads one part into the report. Returns its problem as data: the other parts are still worth showing.
void read_part(Report& r, const std::string& path, bool sha256) {
  Part part{path, 0, 0, std::nullopt};
  auto map = MappedFile::open(path);
  if (!map) {
    part.problem = map.error();
  } else if (r.format == "GGUF") {
    part.bytes = map->bytes().size();
    auto c = parse_gguf(map->bytes(), path, /*inspecting=*/true);
    if (c) {
      part.expected = c->data_end;
      if (r.parts.empty())
        for (const auto& [k, v] : c->meta) r.meta.emplace_back(k, value_json(v));
      take_tensors(r, *c);
      r.foreign.insert(r.foreign.end(), c->foreign.begin(), c->foreign.end());
    } else {
      part.problem = c.error();
    }
  } else {
    part.bytes = map->bytes().size();
    auto c = parse_safetensors(map->bytes(), path, /*allow_truncated=*/true);
    if (c) {
      part.expected = c->data_end;
      if (r.parts.empty())
        for (const auto& [k, v] : c->metadata) r.meta.emplace_back(k, v);
      take_tensors(r, *c);
    } else {
      part.problem = c.error();
    }
  }
  if (map && sha256) {
    Sha sha;
    sha.add(map->bytes());
    part.sha256 = sha.hex();
  }
  r.parts.push_back(std::move(part));
}

bool is_gguf(const std::string& path) {
  auto map = MappedFile::open(path);
  if (!map || map->bytes().size() < 4) return path.ends_with(".gguf");
  return std::equal(map->bytes().begin(), map->bytes().begin() + 4, "GGUF",
                    [](std::byte a, char b) { return char(a) == b; });
}

Result<Report> read_report(const std::string& path, bool sha256) {
  Report r;
  std::vector<std::string> paths;
  if (is_gguf(path) || path.ends_with(".gguf")) {
    r.format = "GGUF";
    paths = gguf_parts(path);
  } else {
    r.format = "safetensors";
    auto parts = safetensors_parts(path);
    if (!parts) return parts.error();
    paths = std::move(*parts);
  }
  for (const std::string& p : paths) read_part(r, p, sha256);
  return r;
}

bool is_complete(const Part& p) { return !p.problem && p.bytes >= p.expected; }

std::string state_of(const Part& p) {
  if (p.problem) return fmt::format("unreadable: {} ({})", p.problem->what, p.problem->hint);
  if (p.bytes < p.expected)
    return fmt::format("truncated: {} bytes short of {} (download it again)", p.expected - p.bytes, p.expected);
  return "complete";
}

struct TypeSum {
  uint64_t tensors = 0, elements = 0, bytes = 0;
};

std::map<std::string, TypeSum> histogram(const Report& r) {
  std::map<std::string, TypeSum> h;
  for (const TensorView& t : r.tensors) {
    TypeSum& s = h[dtype_name(t.type)];
    ++s.tensors;
    s.elements += uint64_t(t.n_elements());
    s.bytes += row_bytes(t.type, t.n_elements());
  }
  for (const ForeignTensor& t : r.foreign) {
    TypeSum& s = h[foreign_type_name(t.ggml_id)];
    ++s.tensors;
    s.elements += uint64_t(t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]);
    s.bytes += t.bytes;
  }
  return h;
}

// The types that make the file one that facet cannot run, in order.
std::vector<std::string> foreign_types(const Report& r) {
  std::set<std::string> names;
  for (const ForeignTensor& t : r.foreign) names.insert(foreign_type_name(t.ggml_id));
  return {names.begin(), names.end()};
}

TensorView shape_of(const ForeignTensor& t) {
  TensorView v;
  v.name = t.name, v.n_dims = t.n_dims, v.ne = t.ne;
  return v;
}

// A model with a vocabulary that knows no turns.
bool is_base_model(const Report& r) {
  const auto has = [&](const char* key) {
    return std::any_of(r.meta.begin(), r.meta.end(), [&](const auto& m) { return m.first == key; });
  };
  return has("tokenizer.ggml.tokens") && !has("tokenizer.chat_template");
}

TypeSum total(const std::map<std::string, TypeSum>& h) {
  TypeSum sum;
  for (const auto& [name, s] : h) {
    sum.tensors += s.tensors;
    sum.elements += s.elements;
    sum.bytes += s.bytes;
  }
  return sum;
}

// Text of a file as JSON, whatever bytes it holds.
std::string dump(const ordered_json& j, int indent) {
  return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

std::string shown(const ordered_json& v) {
  if (v.is_string()) return "\"" + printable(v.get_ref<const std::string&>(), kShownChars) + "\"";
  if (!v.is_object()) return dump(v, -1);
  std::string s = fmt::format("[{}] ", v["count"].get<size_t>());
  for (size_t i = 0; i < v["first"].size(); ++i) s += (i ? ", " : "") + shown(v["first"][i]);
  return v["count"].get<size_t>() > v["first"].size() ? s + ", ..." : s;
}

// What a complete mmproj file holds, or a model file with encoders inside; "": neither. An error is one line, too.
std::string encoders_line(const Report& r) {
  const bool is_mmproj = std::any_of(r.meta.begin(), r.meta.end(), [](const auto& m) {
    return m.first == "clip.has_vision_encoder" || m.first == "clip.has_audio_encoder" ||
           m.first == "gemma4.vision.block_count" || m.first == "gemma4.audio.block_count";
  });
  if (!is_mmproj || r.format != "GGUF" || !std::all_of(r.parts.begin(), r.parts.end(), is_complete)) return "";
  auto file = MmprojFile::open(r.parts[0].path);
  return file ? describe_encoders(*file) : "facet cannot use its encoders: " + file.error().message();
}

// What a drafter's file says, and which rule decides what it leaves open; no lines: it is no drafter, or not complete.
std::vector<std::string> drafter_lines(const Report& r, const std::string& path) {
  const bool may_be = r.format == "safetensors" || std::any_of(r.meta.begin(), r.meta.end(), [](const auto& m) {
                        return m.first == "general.architecture" && m.second.is_string() && m.second != "gemma4";
                      });
  if (!may_be || !std::all_of(r.parts.begin(), r.parts.end(), is_complete)) return {};
  auto file = DrafterFile::open(path);
  return file ? describe_drafter(*file) : std::vector<std::string>{};
}

// What a person wants to know: "Gemma 4 E4B: a model of 7.52 billion weights, mostly Q4_K, 4.60 GiB"
std::string first_line(const Report& r) {
  std::string name, architecture;
  for (const auto& [key, value] : r.meta) {
    if (key == "general.name" && value.is_string()) name = value.get<std::string>();
    if (key == "general.architecture" && value.is_string()) architecture = value.get<std::string>();
  }
  const auto h = histogram(r);
  const TypeSum sum = total(h);
  std::string most;
  for (const auto& [type, s] : h)
    if (most.empty() || s.bytes > h.at(most).bytes) most = type;
  std::string line = name.empty() ? r.parts[0].path : printable(name, kShownChars);
  if (!architecture.empty()) line += " (" + printable(architecture, kShownChars) + ")";
  const double n = double(sum.elements);
  const char* unit = n < 1e9 ? "million" : "billion";
  line += fmt::format(": {:.{}f} {} weights, mostly {}, {:.2f} GiB", n / (n < 1e9 ? 1e6 : 1e9), n < 1e9 ? 1 : 2, unit,
                      most, double(sum.bytes) / double(1 << 30));
  const bool whole = std::all_of(r.parts.begin(), r.parts.end(), is_complete);
  return line + (whole ? "" : "; not all of it is there") + (r.foreign.empty() ? "" : "; facet cannot run it");
}

void print_text(const Report& r, const Options& o) {
  if (!r.tensors.empty() || !r.foreign.empty()) fmt::print("{}\n", first_line(r));
  for (const Part& p : r.parts) fmt::print("{}: {}, {} bytes, {}\n", p.path, r.format, p.bytes, state_of(p));
  for (const Part& p : r.parts)
    if (o.sha256) fmt::print("{}  {}\n", p.sha256, p.path);
  if (std::all_of(r.parts.begin(), r.parts.end(), [](const Part& p) { return p.problem.has_value(); })) return;
  if (const std::string line = encoders_line(r); !line.empty()) fmt::print("{}\n", line);
  for (const std::string& line : drafter_lines(r, o.path)) fmt::print("{}\n", printable(line, 4 * kShownChars));
  fmt::print("\nmetadata ({} keys)\n", r.meta.size());
  for (const auto& [k, v] : r.meta) fmt::print("  {:<46} {}\n", printable(k), shown(v));
  const auto h = histogram(r);
  const TypeSum sum = total(h);
  fmt::print("\n{:<8} {:>8} {:>16} {:>16}\n", "type", "tensors", "elements", "bytes");
  for (const auto& [name, s] : h) fmt::print("{:<8} {:>8} {:>16} {:>16}\n", name, s.tensors, s.elements, s.bytes);
  fmt::print("{:<8} {:>8} {:>16} {:>16}  {:.2f} GiB, {:.2f} bits per weight\n", "total", sum.tensors, sum.elements,
             sum.bytes, double(sum.bytes) / double(1 << 30),
             sum.elements ? 8.0 * double(sum.bytes) / double(sum.elements) : 0.0);
  if (!r.foreign.empty())
    fmt::print("facet cannot run this file: it has tensors of type {} (use one quantised to {})\n",
               fmt::join(foreign_types(r), ", "), kDecodedTypes);
  if (is_base_model(r))
    fmt::print(
        "no tokenizer.chat_template: a base model, which was not trained on turns, or a converter left it out\n");
  if (!o.tensors) return;
  fmt::print("\n");
  for (const TensorView& t : r.tensors)
    fmt::print("{:<48} {:<7} {}\n", printable(t.name), dtype_name(t.type), shape_string(t));
  for (const ForeignTensor& t : r.foreign)
    fmt::print("{:<48} {:<7} {}\n", printable(t.name), foreign_type_name(t.ggml_id), shape_string(shape_of(t)));
}

ordered_json tensor_json(const TensorView& t, const std::string& type) {
  ordered_json ne = ordered_json::array();
  for (int d = 0; d < t.n_dims; ++d) ne.push_back(t.ne[size_t(d)]);
  return {{"name", t.name}, {"type", type}, {"ne", std::move(ne)}};
}

void print_json(const Report& r, const Options& o) {
  ordered_json j;
  j["format"] = r.format;
  j["complete"] = std::all_of(r.parts.begin(), r.parts.end(), is_complete);
  for (const Part& p : r.parts)
    j["files"].push_back(
        {{"path", p.path}, {"bytes", p.bytes}, {"expected_bytes", p.expected}, {"state", state_of(p)}});
  for (size_t i = 0; i < r.parts.size() && o.sha256; ++i) j["files"][i]["sha256"] = r.parts[i].sha256;
  if (const std::string line = encoders_line(r); !line.empty()) j["encoders"] = line;
  if (const auto lines = drafter_lines(r, o.path); !lines.empty()) j["drafter"] = lines;
  j["metadata"] = ordered_json::object();
  for (const auto& [k, v] : r.meta) j["metadata"][k] = v;
  const auto h = histogram(r);
  const TypeSum sum = total(h);
  for (const auto& [name, s] : h)
    j["types"][name] = {{"tensors", s.tensors}, {"elements", s.elements}, {"bytes", s.bytes}};
  j["total"] = {{"tensors", sum.tensors}, {"elements", sum.elements}, {"bytes", sum.bytes}};
  j["base_model"] = is_base_model(r);
  j["cannot_run"] = foreign_types(r);
  if (o.tensors) {
    for (const TensorView& t : r.tensors) j["tensors"].push_back(tensor_json(t, dtype_name(t.type)));
    for (const ForeignTensor& t : r.foreign)
      j["tensors"].push_back(tensor_json(shape_of(t), foreign_type_name(t.ggml_id)));
  }
  fmt::print("{}\n", dump(j, 2));
}

int run(const Options& o) {
  auto report = read_report(o.path, o.sha256);
  if (!report) {
    print_err("facet: {}\n", report.error().message());
    return kExitFailure;
  }
  o.json ? print_json(*report, o) : print_text(*report, o);
  std::fflush(stdout);
  for (const Part& p : report->parts)
    if (!is_complete(p)) print_err("facet: {}: {}\n", p.path, state_of(p));
  return std::all_of(report->parts.begin(), report->parts.end(), is_complete) ? kExitOk : kExitFailure;
}

}  // namespace

void add_inspect(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();  // lives as long as the callback
  CLI::App* cmd = app.add_subcommand("inspect", "Show what a model file holds and whether it is complete");
  cmd->add_option("FILE", o->path, "GGUF file or part, safetensors file, index or folder")
      ->required()
      ->check(not_empty());
  cmd->add_flag("--json", o->json, "Print JSON");
  cmd->add_flag("--tensors", o->tensors, "List every tensor");
  cmd->add_flag("--sha256", o->sha256, "Read it all and print its SHA-256, as hubs list it");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
