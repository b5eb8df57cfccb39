#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "api/engine.h"
#include "api/media.h"

namespace facet {

// The daemon's second protocol: a JSON object a line in both directions, with ids, several requests at once and
// cancellation (docs/daemon.md). The engine runs on a thread of its own meanwhile; command() is called from one other,
// on which pictures and sounds are encoded.
class JsonLines {
 public:
  static constexpr int kVersion = 1;
  static constexpr size_t kLine = 16 << 20;      // bytes of a line
  static constexpr size_t kMostRequests = 1024;  // at once
  // say: a line of an answer; any thread.
  JsonLines(Engine& engine, std::function<void(const std::string&)> say) : engine_(engine), say_(std::move(say)) {}

  // Whether the line {"protocol": "facet", "version": 1} was understood; it is answered either way.
  bool handshake(std::string_view line);
  bool command(std::string_view line);  // false: it was "quit"

 private:
  void say_error(const std::string& id, const std::string& what);
  void generate(const std::string& id, const nlohmann::json& json);
  void finish(const std::string& id);

  Engine& engine_;
  std::function<void(const std::string&)> say_;
  std::mutex mutex_;
  std::map<std::string, RequestId> running_;  // by the client's id, as JSON
  MediaCache cache_{int64_t(64) << 20};       // bytes of encoded pictures and sounds
};

}  // namespace facet
