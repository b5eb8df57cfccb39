#include "tools/matrix_file.h"

#include <fmt/format.h>

#include <filesystem>
#include <sstream>

#include "base/files.h"

namespace facet {
namespace {

constexpr uint64_t kMost = uint64_t(64) << 20;  // bytes of a file of measurements
constexpr const char* kByName[] = {"files", "sets"};

bool by_name(const std::string& key) { return key == kByName[0] || key == kByName[1]; }

// The first value that both have and that differs: "n_predict: expected 64, found 32"; empty: none.
std::string difference(const Json& now, const Json& then) {
  for (const auto& [key, value] : now.items()) {
    if (!then.contains(key)) return fmt::format("{}: expected {}, found none", key, dump_json(value));
    if (!by_name(key)) {
      if (then[key] != value)
        return fmt::format("{}: expected {}, found {}", key, dump_json(value), dump_json(then[key]));
      continue;
    }
    for (const auto& [name, hash] : value.items())
      if (then[key].is_object() && then[key].contains(name) && then[key][name] != hash)
        return fmt::format("{}: {} is another than it was", key, name);
  }
  return "";
}

}  // namespace

Json to_json(const MatrixRun& r) {
  Json j = {{"model", r.key.model},
            {"drafter", r.key.drafter},
            {"kv", r.key.kv},
            {"set", r.key.set},
            {"context", r.key.context},
            {"run", r.key.run},
            {"prompts", r.prompts},
            {"prompt_tokens", r.prompt_tokens},
            {"decoded", r.decoded},
            {"steps", r.steps},
            {"drafted", r.drafted},
            {"accepted", r.accepted},
            {"prefill_s", r.prefill_s},
            {"decode_s", r.decode_s},
            {"decode_tok_s", r.decode_tok_s()},
            {"prefill_tok_s", r.prefill_tok_s()}};
  if (r.joules) j["joules"] = *r.joules;
  return j;
}

Result<MatrixRun> matrix_run_from_json(const Json& j, const std::string& where) {
  MatrixRun r;
  std::string missing;
  auto get = [&](const char* key, auto& to) {
    using T = std::remove_reference_t<decltype(to)>;
    const bool there = j.is_object() && j.contains(key) &&
                       (std::is_same_v<T, std::string> ? j[key].is_string()
                        : std::is_same_v<T, double>    ? j[key].is_number()
                                                       : j[key].is_number_integer());
    if (there)
      to = j[key].template get<T>();
    else if (missing.empty())
      missing = key;
  };
  get("model", r.key.model), get("drafter", r.key.drafter), get("kv", r.key.kv), get("set", r.key.set);
  get("context", r.key.context), get("run", r.key.run), get("prompts", r.prompts);
  get("prompt_tokens", r.prompt_tokens), get("decoded", r.decoded), get("steps", r.steps);
  get("drafted", r.drafted), get("accepted", r.accepted), get("prefill_s", r.prefill_s), get("decode_s", r.decode_s);
  if (j.is_object() && j.contains("joules")) get("joules", r.joules.emplace());
  if (!missing.empty())
    return Error{where, fmt::format("{}: expected a measurement's value, found none", missing),
                 "the file is not one of facet bench matrix, or was changed"};
  return r;
}

Result<MatrixFile> MatrixFile::open(const std::string& path, const Json& settings) {
  MatrixFile f;
  f.path_ = path, f.settings_ = settings;
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) {
    if (auto ok = check_output(path); !ok) return ok.error();
    return f;
  }
  auto text = read_file(path, kMost);
  if (!text) return text.error();
  std::istringstream lines(std::move(*text));
  int n = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}:{}", path, ++n);
    auto j = parse_json(line, where);
    if (!j) return j.error();
    if (n > 1) {
      auto run = matrix_run_from_json(*j, where);
      if (!run) return run.error();
      f.runs_.push_back(std::move(*run));
      continue;
    }
    if (!j->is_object() || !j->contains("matrix") || !(*j)["matrix"].is_object())
      return Error{path, "expected measurements of facet bench matrix, found something else", "give another --out"};
    const Json& then = (*j)["matrix"];
    if (const std::string d = difference(settings, then); !d.empty())
      return Error{path, d, "it was measured with other settings: give another --out, or remove it"};
    for (const char* key : kByName)  // what earlier calls measured stays known
      for (const auto& [name, hash] : then[key].items()) f.settings_[key][name] = hash;
  }
  if (n == 0) return Error{path, "expected measurements, found an empty file", "remove it"};
  return f;
}

Status MatrixFile::add(const MatrixRun& run) {
  runs_.push_back(run);
  auto file = OutputFile::create(path_);
  if (!file) return file.error();
  std::string text = dump_json({{"matrix", settings_}}) + "\n";
  for (const MatrixRun& r : runs_) text += dump_json(to_json(r)) + "\n";
  if (auto ok = file->write(text); !ok) return ok;
  return file->finish();
}

}  // namespace facet
