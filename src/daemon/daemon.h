#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/engine.h"
#include "daemon/line_protocol.h"
#include "daemon/paths.h"
#include "daemon/token_stream.h"

namespace facet {

// An engine behind lines of text: commands on the standard input, acknowledgements on the standard output, tokens on a
// descriptor. One command at a time; what comes meanwhile waits. Not safe for several threads.
class Daemon {
 public:
  struct Config {
    std::function<Result<std::unique_ptr<Engine>>()> open = {};  // again after unpark
    TokenStream stream = {};
    DaemonPaths paths = {};
    std::function<void(const std::string&)> say = {};   // a line of acknowledgement
    std::function<void(const std::string&)> note = {};  // for people
  };
  static Result<std::unique_ptr<Daemon>> start(Config c);

  enum class Next : uint8_t { kGoOn, kQuit, kJson };
  // kJson: the line asks for the protocol of JSON lines (json_lines.h), which goes on with take_engine().
  Next command(std::string_view line);
  std::unique_ptr<Engine> take_engine() { return std::move(engine_); }

 private:
  explicit Daemon(Config c) : c_(std::move(c)) {}
  void fail(const std::string& what, bool end = true);
  void park(const DaemonLine& l);
  void unpark(const DaemonLine& l);
  void list_slots();
  void snapshot(int slot, int len);
  void free_snapshot(int slot);
  void run(const DaemonLine& l);
  void once(const std::string& about, const std::string& text);

  struct Answer {
    std::vector<int32_t> tokens = {};
    Usage usage = {};
    std::string error = {};
  };
  Result<std::vector<int32_t>> read_prompt(const DaemonLine& l) const;
  Answer generate(Request r, bool to_stream);

  Config c_;
  std::unique_ptr<Engine> engine_;  // null: parked
  bool drafts_ = true;
  std::vector<int32_t> last_;                      // tokens of the last command
  std::map<int, std::vector<int32_t>> snapshots_;  // the tokens of a state; the engine keeps states by themselves
  std::set<std::string> noted_;
};

}  // namespace facet
