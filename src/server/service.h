#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/engine.h"
#include "base/result.h"
#include "server/health.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/ollama_model.h"
#include "server/openai.h"
#include "tokenizer/chat.h"

namespace facet {

struct ServiceConfig {
  HttpConfig http = {};
  std::string api_key = {};                    // empty: none; without a key of either kind only this machine is served
  std::string api_key_file = {};               // more of them (access.h); read again on SIGHUP
  std::vector<std::string> cors_origins = {};  // whose pages may read answers
  std::string slot_save_path = {};             // folder for the files of POST /slots/{id}; empty: there are none
  bool webui = true;                           // the page at /
  bool metrics_compatible = false;             // /metrics also has the names of llama-server and vLLM
  int queue = 64;                              // requests that wait for one of the engine's sequences
  ApiDefaults defaults = {};
  bool slots = true;                           // the paths of /slots
  uint64_t media_cache = uint64_t(256) << 20;  // bytes of encoded pictures and sounds
  std::string model = {};                      // its name in answers
  std::vector<std::string> aliases = {};       // all of its names, if it was given any
  std::string model_file = {};                 // without its folder
  ModelFacts facts = {};
  Variant variant = Variant::kLarge;
};

// Routes, the queue, cancellation and the log. The engine runs on a thread of its own (Engine::run), bodies are read on
// another, and the HTTP server is on the one that calls run(), which the others reach through HttpServer::post.
class Service {
 public:
  // Listens; until attach() every request but for /health is told that the model is loading.
  static Result<std::unique_ptr<Service>> open(ServiceConfig config);
  virtual ~Service() = default;
  virtual std::string url() const = 0;
  // Any thread, once. complete: adds to the configuration what the engine decided; ready: called when requests are
  // answered. Both on run()'s thread. The engine has a tokenizer and outlives the service; its thread has ended before
  // the service is destroyed.
  virtual void attach(Engine& engine, std::function<void(ServiceConfig&)> complete, std::function<void()> ready) = 0;
  virtual Status run() = 0;  // until a signal or stop() has ended it
  virtual void stop() = 0;   // any thread
  virtual Health& health() = 0;
  virtual Metrics& metrics() = 0;
};

}  // namespace facet
