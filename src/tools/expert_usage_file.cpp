#include "tools/expert_usage_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/files.h"
#include "session/fingerprint.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr const char* kFormat = "facet-experts-1";
constexpr uint64_t kMaxFile = uint64_t(4) << 20;
constexpr int64_t kMostTimes = int64_t(1) << 50;

}  // namespace

Result<ExpertUsage> read_expert_usage(const std::string& path, const GgufFile& file, const ModelCfg& m) {
  auto text = read_file(path, kMaxFile);
  if (!text) return text.error();
  auto j = parse_json(*text, path);
  if (!j) return j.error();
  const auto wrong = [&](const std::string& what) {
    return Error{path, what, "facet quality --experts FILE writes one for this model"};
  };
  const auto is = [&](const char* key, const std::string& want) {
    return j->is_object() && j->contains(key) && (*j)[key].is_string() &&
           (*j)[key].get_ref<const std::string&>() == want;
  };
  if (!is("format", kFormat)) return wrong(fmt::format("format: expected {}, found another", kFormat));
  if (const std::string own = file_fingerprint(file); !is("fingerprint", own))
    return wrong(fmt::format("fingerprint: expected {}, found another model's", own));
  const Json none = Json::array();
  const Json& layers = j->contains("chosen") ? (*j)["chosen"] : none;
  if (!layers.is_array() || layers.size() != size_t(m.n_layer()))
    return wrong(
        fmt::format("chosen: expected {} lists, found {}", m.n_layer(), layers.is_array() ? layers.size() : 0));
  ExpertUsage usage;
  for (const Json& layer : layers) {
    if (!layer.is_array() || layer.size() != size_t(m.n_expert))
      return wrong(fmt::format("chosen: expected lists of {} numbers, found another", m.n_expert));
    auto& of = usage.chosen.emplace_back();
    for (const Json& n : layer) {
      if (!n.is_number_integer() || n.get<int64_t>() < 0 || n.get<int64_t>() > kMostTimes)
        return wrong("chosen: expected whole numbers from 0 on, found another value");
      of.push_back(n.get<int64_t>());
    }
  }
  return usage;
}

Status write_expert_usage(const ExpertUsage& usage, const std::string& path, const GgufFile& file) {
  auto out = OutputFile::create(path);
  if (!out) return out.error();
  const Json j = {{"format", kFormat},
                  {"model", std::filesystem::path(file.path()).filename().string()},
                  {"fingerprint", file_fingerprint(file)},
                  {"version", FACET_VERSION},
                  {"chosen", usage.chosen}};
  if (auto ok = out->write(dump_json(j) + "\n"); !ok) return ok;
  return out->finish();
}

std::string usage_lines(const ExpertUsage& usage) {
  int layers = 0;
  int64_t all = 0;
  for (const auto& of : usage.chosen) {
    layers += !of.empty();
    for (const int64_t n : of) all += n;
  }
  std::string s = fmt::format("{} choices in {} layers\n", all, layers);
  for (const int quarters : {1, 2, 3}) {
    const ExpertPlacement p = place_experts(usage, layers - layers * quarters / 4);
    int here = 0, of = 0;
    for (size_t l = 0; l < p.slot.size(); ++l) here += p.resident(int(l)), of += p.experts(int(l));
    s += fmt::format("the {} most chosen of {} experts: {:.1f} % of the choices\n", here, of, 100 * p.hits(usage));
  }
  return s;
}

}  // namespace facet
