#include "daemon/paths.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace facet {
namespace fs = std::filesystem;

Result<DaemonPaths> DaemonPaths::open(const std::string& root) {
  DaemonPaths p;
  if (root.empty()) return p;
  std::error_code error;
  const fs::path at = fs::canonical(root, error);
  if (error || !fs::is_directory(at)) return Error{"--root", "expected a folder, found " + root, "make it first"};
  p.root_ = at.string();
  return p;
}

Result<std::string> DaemonPaths::within(const std::string& path, bool must_exist) const {
  if (root_.empty()) return path;
  std::error_code error;
  const fs::path asked = fs::path(root_) / path;  // an absolute path stays one
  const fs::path found = must_exist ? fs::canonical(asked, error) : fs::weakly_canonical(asked, error);
  if (error) return Error{path, "cannot be found", "give a path below " + root_};
  const fs::path root(root_);
  if (std::mismatch(root.begin(), root.end(), found.begin(), found.end()).first != root.end())
    return Error{path, "lies outside of " + root_, "give a path below it"};
  return found.string();
}

Result<std::string> DaemonPaths::input(const std::string& path) const { return within(path, true); }
Result<std::string> DaemonPaths::output(const std::string& path) const { return within(path, false); }

}  // namespace facet
