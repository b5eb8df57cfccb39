#pragma once
#include <functional>
#include <memory>
#include <string>

#include "router/config.h"

namespace facet {

// Several models behind one address. Each is a process of its own (pool.h), which is loaded when a request names it;
// requests and answers go through unchanged.
class Router {
 public:
  static Result<std::unique_ptr<Router>> open(RouterConfig config);  // listens
  virtual ~Router() = default;
  virtual std::string url() const = 0;
  virtual Status run() = 0;  // until a signal has ended it, and the models' processes
};

}  // namespace facet
