#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "api/engine.h"
#include "router/link.h"
#include "server/service.h"

// The part of `facet serve` that is about several models.
namespace facet {

struct RouterOptions {
  CLI::App* command = nullptr;
  std::vector<std::string> models = {};  // -m: paths, or NAME=PATH[,option[=value]...]
  std::string dir = {}, preset = {};
  int models_max = 4, sleep_idle = 0, load_timeout = 600;
  bool no_autoload = false;
  int fd = -1;           // of a model's process: its end of the link (router/link.h)
  bool several() const;  // whether there is a router, as opposed to one model in this process
};
void add_router_options(CLI::App* cmd, RouterOptions& o);  // -m among them

// Serves several models until a signal ends it. front: the options that the router itself has; the others go to the
// models' processes as they were given. Returns the exit code.
int run_router(const RouterOptions& o, const ServiceConfig& front);
// Tells a service manager that requests are served from now on.
void tell_ready();

// Bytes that an open engine's plan comes to; 0: its files are gone.
int64_t planned_bytes(const EngineConfig& decided);

}  // namespace facet
