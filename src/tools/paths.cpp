#include "tools/paths.h"

#include <sys/auxv.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace facet {

namespace {

std::string shipped(const char* name) {
  namespace fs = std::filesystem;
  std::error_code ec;
  // A program that was moved away from its models.
  if (const char* folder = std::getenv("FACET_MODELS"); folder && *folder) {
    const fs::path path = fs::path(folder) / name;
    if (fs::is_regular_file(path, ec)) return path.string();
  }
  fs::path exe = fs::read_symlink("/proc/self/exe", ec);
  if (ec) {  // a system without /proc: what the kernel was told to run
    const auto* run_as = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
    if (!run_as) return "";
    exe = fs::canonical(run_as, ec);
    if (ec) return "";
  }
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
bool all(const std::string& s, int (*is)(int)) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [&](char c) { return is(static_cast<unsigned char>(c)) != 0; });
}
// "-00001-of-00003"
bool ends_in_part(const std::string& s) {
  constexpr size_t kLength = 15;
  if (s.size() < kLength) return false;
  const std::string t = s.substr(s.size() - kLength);
  return t[0] == '-' && all(t.substr(1, 5), std::isdigit) && t.substr(6, 4) == "-of-" &&
         all(t.substr(10), std::isdigit);
}
// "Q8_0", "IQ4_XS", "BF16"
bool is_quantisation(std::string s) {
  s = lower(s);
  if (s == "bf16" || s == "f16" || s == "f32") return true;
  if (s.starts_with("i")) s.erase(0, 1);
  return s.size() >= 2 && s[0] == 'q' && std::isdigit(static_cast<unsigned char>(s[1])) != 0 &&
         std::all_of(s.begin(), s.end(),
                     [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; });
}
// "facet-nano-Q8_0.gguf", "x-IQ4_XS-00001-of-00003.gguf": what is before the quantisation.
std::string base_name(const std::string& model) {
  std::string s = std::filesystem::path(model).stem().string();
  if (ends_in_part(lower(s))) s.resize(s.size() - 15);
  if (const size_t dash = s.rfind('-'); dash != std::string::npos && is_quantisation(s.substr(dash + 1)))
    s.resize(dash);
  return s;
}

}  // namespace

std::string drafter_pattern(const std::string& model, const std::string& kind) {
  return base_name(model) + "-" + kind + "*";
}

std::string default_model_path() { return shipped("facet-nano-Q8_0.gguf"); }
std::string default_eval_path() { return shipped("facet-nano-eval.jsonl"); }

}  // namespace facet
