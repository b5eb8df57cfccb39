#pragma once
#include <string>

#include "base/result.h"

namespace facet {

// Where a daemon's files may lie. With a root nothing outside of it is read or written, whatever links and dots a path
// has; relative paths begin there.
class DaemonPaths {
 public:
  static Result<DaemonPaths> open(const std::string& root);  // empty: anywhere
  // A path to open. The file, or for one that is written its folder, is there and lies within the root.
  Result<std::string> input(const std::string& path) const;
  Result<std::string> output(const std::string& path) const;

 private:
  Result<std::string> within(const std::string& path, bool must_exist) const;
  std::string root_;
};

}  // namespace facet
