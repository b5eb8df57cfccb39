#include "app/paths.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <system_error>
#include <utility>
#include <vector>

namespace facet {

namespace {

std::string shipped(const char* name) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path exe = fs::read_symlink("/proc/self/exe", ec);
  if (ec) return "";
  // A build folder of the source tree, an unpacked archive, an installation with bin/ and share/.
  for (const char* models : {"../../models", "models", "../share/facet/models"}) {
    const fs::path path = (exe.parent_path() / models / name).lexically_normal();
    if (fs::is_regular_file(path, ec)) return path.string();
  }
  return "";
}

}  // namespace

namespace {

std::string lower(std::string s) {
  for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
  return s;
}
// "facet-nano-Q8_0.gguf", "x-IQ4_XS-00001-of-00003.gguf": what is before the quantisation.
std::string base_name(const std::string& model) {
  static const std::regex tail(R"((-(I?Q[0-9][A-Za-z0-9_]*|BF16|F16|F32))?(-[0-9]{5}-of-[0-9]{5})?$)", std::regex::icase);
  return std::regex_replace(std::filesystem::path(model).stem().string(), tail, "", std::regex_constants::format_first_only);
}

}  // namespace

std::string drafter_pattern(const std::string& model, const std::string& kind) { return base_name(model) + "-" + kind + "*"; }

std::string drafter_beside(const std::string& model, const std::string& kind) {
  namespace fs = std::filesystem;
  std::vector<std::string> starts{lower(base_name(model) + "-" + kind)};
  if (kind == "mtp") starts.push_back(lower(base_name(model) + "-assistant"));
  std::string best;
  std::error_code ec;
  const fs::path folder = fs::path(model).parent_path();
  for (const fs::directory_entry& f : fs::directory_iterator(folder.empty() ? "." : folder, ec)) {
    const std::string name = lower(f.path().filename().string()), path = f.path().string();
    if (std::none_of(starts.begin(), starts.end(), [&](const std::string& s) { return name.starts_with(s); })) continue;
    if (!f.is_directory(ec) && !name.ends_with(".gguf") && !name.ends_with(".safetensors")) continue;
    auto rank = [](const std::string& p) { return std::pair(!lower(p).ends_with(".gguf"), p); };
    if (best.empty() || rank(path) < rank(best)) best = path;
  }
  return best;
}

std::string default_model_path() { return shipped("facet-nano-Q8_0.gguf"); }
std::string default_eval_path() { return shipped("facet-nano-eval.jsonl"); }

}  // namespace facet
