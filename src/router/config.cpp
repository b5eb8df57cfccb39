#include "router/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "formats/gguf.h"

namespace facet {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxName = 128, kMaxModels = 256;

std::string lower(std::string s) {
  for (char& c : s)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return s;
}

// llama-server's names of options that `facet serve` has under another one.
const std::map<std::string, std::string>& llama_names() {
  static const std::map<std::string, std::string> names = {{"predict", "n-predict"},
                                                           {"np", "parallel"},
                                                           {"n-parallel", "parallel"},
                                                           {"temperature", "temp"},
                                                           {"cache-type-k", "kv-k"},
                                                           {"ctk", "kv-k"},
                                                           {"cache-type-v", "kv-v"},
                                                           {"ctv", "kv-v"},
                                                           {"model-draft", "draft"},
                                                           {"md", "draft"},
                                                           {"spec-draft-model", "draft"},
                                                           {"spec-draft-n-max", "draft-max"},
                                                           {"spec-draft-n-min", "draft-min"},
                                                           {"main-gpu", "gpu"},
                                                           {"mg", "gpu"},
                                                           {"ubatch-size", "chunk"},
                                                           {"ub", "chunk"},
                                                           {"sse-ping-interval", "ping"}};
  return names;
}

// Of llama-server's, what is always so here.
bool has_no_effect(const std::string& name) {
  static const std::set<std::string> names = {"version", "jinja", "flash-attn", "fa",   "cont-batching", "cb",
                                              "metrics", "slots", "props",      "mmap", "n-gpu-layers",  "ngl"};
  return names.contains(name);
}

// What the router decides for every model.
bool is_the_routers(const std::string& name) {
  static const std::set<std::string> names = {
      "host",        "port",          "api-key",    "api-key-file", "cors-origin",     "no-webui", "models-dir",
      "models-max",  "models-preset", "sleep-idle", "router-fd",    "max-connections", "drain",    "no-models-autoload",
      "load-timeout"};
  return names.contains(name);
}

Result<bool> truth(const std::string& value, const std::string& where) {
  const std::string v = lower(value);
  if (v.empty() || v == "true" || v == "on" || v == "1" || v == "yes") return true;
  if (v == "false" || v == "off" || v == "0" || v == "no") return false;
  return Error{where, fmt::format("expected true or false, found \"{}\"", value), ""};
}

// "-00001-of-00003": the place and the number of parts; false for any other name.
bool split_part(const std::string& stem, std::string& base, bool& first) {
  constexpr size_t kLength = 15;
  if (stem.size() <= kLength) return false;
  const std::string t = stem.substr(stem.size() - kLength);
  const auto digits = [&](size_t at) {
    return std::all_of(t.begin() + long(at), t.begin() + long(at) + 5, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (t[0] != '-' || t.substr(6, 4) != "-of-" || !digits(1) || !digits(10)) return false;
  base = stem.substr(0, stem.size() - kLength), first = t.substr(1, 5) == "00001";
  return true;
}

// Drafters and other parts of models have names of architectures of their own. A file that cannot be read is listed:
// whoever asks for it is told why.
bool is_drafter(const std::string& path) {
  const auto file = GgufFile::open(path);
  if (!file) return false;
  const auto architecture = file->get_string("general.architecture");
  return architecture && *architecture != "gemma4";
}

void add_file(const fs::path& path, const std::string& folder_name, std::vector<ModelConfig>& found) {
  if (path.extension() != ".gguf") return;
  std::string name = path.stem().string(), base;
  bool first = true;
  if (split_part(name, base, first)) name = base;
  if (!first || !is_model_name(name) || is_drafter(path.string())) return;
  if (!folder_name.empty() && is_model_name(folder_name)) name = folder_name;
  found.push_back({.name = name, .path = path.string()});
}

}  // namespace

bool is_model_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '"' && c != '\\' && c != ',' && c != '=';
  });
}

bool parse_model_argument(const std::string& text, ModelConfig& model, std::vector<ModelOption>& options) {
  std::error_code ec;
  if (fs::exists(text, ec)) return false;
  const size_t eq = text.find('=');
  if (eq == std::string::npos || !is_model_name(std::string_view(text).substr(0, eq)) || text.find('/') < eq)
    return false;
  model.name = text.substr(0, eq);
  std::string_view rest = std::string_view(text).substr(eq + 1);
  // A comma may be part of a path or of a value: one begins an option if what follows reads like its name.
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(',', 1), rest.size());
    const std::string piece(rest.substr(rest[0] == ',' ? 1 : 0, end - (rest[0] == ',' ? 1 : 0)));
    const std::string word = piece.substr(0, piece.find('='));
    const bool option = rest[0] == ',' && !word.empty() && word[0] >= 'a' && word[0] <= 'z' &&
                        word.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
    if (option)
      options.push_back(
          {.name = word, .value = piece.substr(std::min(piece.size(), word.size() + 1)), .where = "-m " + model.name});
    else
      (options.empty() ? model.path : options.back().value) += rest.substr(0, end);
    rest.remove_prefix(end);
  }
  return true;
}

void set_option(ModelConfig& model, GivenOption option) {
  std::erase_if(model.options, [&](const GivenOption& o) { return o.name == option.name; });
  model.options.push_back(std::move(option));
}

std::vector<std::string> command_line(const ModelConfig& model) {
  std::vector<std::string> args;
  for (const GivenOption& o : model.options) {
    if (o.values.empty()) args.push_back("--" + o.name);
    // One word each: a value may begin with a dash.
    for (const std::string& v : o.values) args.push_back(fmt::format("--{}={}", o.name, v));
  }
  return args;
}

Status apply_option(ModelConfig& model, const ModelOption& o, const ServeOptions& known,
                    std::vector<std::string>& notes) {
  std::string name = o.name;
  while (name.starts_with('-')) name.erase(0, 1);
  if (name.starts_with("LLAMA_ARG_")) {
    name = lower(name.substr(10));
    std::replace(name.begin(), name.end(), '_', '-');
  }
  const std::string at = fmt::format("{}: {}", o.where, o.name);
  if (name == "model" || name == "m") return model.path = o.value, Status(Ok{});
  if (name == "hf-repo" || name == "hf" || name == "hfr") return model.path = "hf:" + o.value, Status(Ok{});
  if (name == "pinned" || name == "load-on-startup") {
    auto yes = truth(o.value, at);
    if (!yes) return yes.error();
    (name == "pinned" ? model.pinned : model.load_on_startup) = *yes;
    return Ok{};
  }
  if (name == "stop-timeout") {
    const auto [end, ec] = std::from_chars(o.value.data(), o.value.data() + o.value.size(), model.stop_s);
    if (ec == std::errc() && end == o.value.data() + o.value.size() && model.stop_s >= 0 && model.stop_s <= 86400)
      return Ok{};
    return Error{at, fmt::format("expected seconds from 0 to 86400, found \"{}\"", o.value), ""};
  }
  if (name == "alias" || name == "a") {
    if (!is_model_name(o.value)) return Error{at, fmt::format("expected a name, found \"{}\"", o.value), ""};
    model.aliases.push_back(o.value);
    return Ok{};
  }
  std::string value = o.value;
  if (name == "cache-ram" && o.from_file && value.find_first_not_of("0123456789") == std::string::npos)
    value += "MB";  // as llama-server counts it
  if (const auto to = llama_names().find(name); to != llama_names().end() && known.long_name(name).empty())
    name = to->second;
  const std::string full = known.long_name(name);
  if (full.empty()) {
    if (!has_no_effect(name))
      return Error{at, "expected an option of facet serve, found no such option", "facet serve --help lists them"};
    if (name != "version") notes.push_back(fmt::format("{}: has no effect here", at));
    return Ok{};
  }
  if (is_the_routers(full)) return Error{at, "expected an option of a model, found one of the router", "leave it out"};
  if (known.is_flag(full)) {
    auto yes = truth(value, at);
    if (!yes) return yes.error();
    set_option(model, {full, {}});
    if (!*yes) model.options.pop_back();
    return Ok{};
  }
  if (value.empty()) return Error{at, "expected a value, found none", ""};
  set_option(model, {full, {value}});
  return Ok{};
}

Result<std::vector<ModelConfig>> find_models(const std::string& folder) {
  std::error_code ec;
  if (!fs::is_directory(folder, ec))
    return Error{"--models-dir", fmt::format("expected a folder, found {}", folder), "it holds model files (.gguf)"};
  std::vector<ModelConfig> found;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code one;
    if (it->is_regular_file(one)) add_file(it->path(), "", found);
    if (!it->is_directory(one)) continue;
    std::vector<ModelConfig> inside;
    for (fs::directory_iterator in(it->path(), one); !one && in != end; in.increment(one))
      if (in->is_regular_file(one)) add_file(in->path(), "", inside);
    // A folder of one model has its name.
    if (inside.size() == 1 && is_model_name(it->path().filename().string()))
      inside[0].name = it->path().filename().string();
    found.insert(found.end(), inside.begin(), inside.end());
  }
  if (ec) return Error{folder, "cannot be listed: " + ec.message(), ""};
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return found;
}

uint64_t model_bytes(const std::string& path) {
  uint64_t sum = 0;
  for (const std::string& part : gguf_parts(path)) {
    std::error_code ec;
    const auto n = fs::file_size(part, ec);
    if (!ec) sum += n;
  }
  return sum;
}

Status check_router(const RouterConfig& c) {
  if (c.models.empty())
    return Error{"--models-dir", "expected at least one model, found none",
                 "give a folder with model files, or -m NAME=PATH"};
  if (c.models.size() > kMaxModels)
    return Error{"--models-dir", fmt::format("expected at most {} models, found {}", kMaxModels, c.models.size()), ""};
  std::map<std::string, std::string> taken;
  int pinned = 0;
  for (const ModelConfig& m : c.models) {
    pinned += m.pinned;
    if (!is_model_name(m.name))
      return Error{"-m", fmt::format("expected a name of visible characters, found \"{}\"", m.name), ""};
    if (m.path.empty()) return Error{m.name, "expected the path of a model, found none", "add model = PATH"};
    std::vector<std::string> names = m.aliases;
    names.push_back(m.name);
    for (const std::string& n : names)
      if (const auto [at, fresh] = taken.emplace(n, m.path); !fresh)
        return Error{"-m", fmt::format("expected names that differ, found \"{}\" for {} and {}", n, at->second, m.path),
                     "give one of them another name"};
  }
  if (c.models_max > 0 && pinned > c.models_max)
    return Error{"--models-max",
                 fmt::format("expected at least {}, as many models are pinned, found {}", pinned, c.models_max), ""};
  return Ok{};
}

}  // namespace facet
