#include "app/paths.h"

#include <filesystem>
#include <system_error>

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

std::string default_model_path() { return shipped("facet-nano-Q8_0.gguf"); }
std::string default_eval_path() { return shipped("facet-nano-eval.jsonl"); }

}  // namespace facet
