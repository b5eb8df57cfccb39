#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/commands.h"
#include "app/console.h"
#include "app/media_options.h"
#include "app/options.h"
#include "base/print.h"
#include "daemon/daemon.h"
#include "daemon/json_lines.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  DraftOptions draft;
  Voice voice;
  int stream_fd = -1;
  std::string root;
};

// Lines of the standard input. What is longer than `most` comes as its first most + 1 bytes, for whoever tells it.
class Lines {
 public:
  std::optional<std::string> next(size_t most) {
    std::string line;
    for (bool cut = false;;) {
      const size_t n = std::min(buffer_.find('\n', at_), buffer_.size());
      const size_t take = std::min(n - at_, most + 1 - std::min(line.size(), most + 1));
      line.append(buffer_, at_, take);
      cut = cut || take < n - at_;
      const bool whole = n < buffer_.size();
      at_ = whole ? n + 1 : n;
      if (whole) return line;
      if (!fill()) return line.empty() ? std::nullopt : std::optional(line);
    }
  }

 private:
  bool fill() {
    buffer_.resize(64 << 10);
    at_ = 0;
    ssize_t n;
    do n = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
    while (n < 0 && errno == EINTR);
    buffer_.resize(size_t(std::max<ssize_t>(n, 0)));
    return n > 0;
  }
  std::string buffer_;
  size_t at_ = 0;
};

void say(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  print_out("{}\n", line);
  flush_out();
}

void serve_json(Engine& engine, Lines& lines, const std::string& first) {
  JsonLines json(engine, say);
  bool ready = json.handshake(first);
  std::thread steps([&] { engine.run(); });
  for (std::optional<std::string> line; !out_failed() && (line = lines.next(JsonLines::kLine));) {
    if (line->empty()) continue;
    if (!ready)
      ready = json.handshake(*line);
    else if (!json.command(*line))
      break;
  }
  engine.stop();
  steps.join();
}

int serve(Options& o) {
  if (auto ok = find_model(o.engine); !ok) return report(ok.error());
  auto stream = TokenStream::open(o.stream_fd);
  if (!stream) return report(stream.error());
  auto paths = DaemonPaths::open(o.root);
  if (!paths) return report(paths.error());
  auto daemon = Daemon::start({.open = [&] { return open_engine(o.engine, o.draft, o.voice); },
                               .stream = std::move(*stream),
                               .paths = std::move(*paths),
                               .say = say,
                               .note = [](const std::string& text) { print_err("{}\n", text); }});
  if (!daemon) return report(daemon.error());
  Lines lines;
  for (std::optional<std::string> line; !out_failed() && (line = lines.next(kDaemonLine));) {
    const Daemon::Next next = (*daemon)->command(*line);
    if (next == Daemon::Next::kQuit) break;
    if (next == Daemon::Next::kGoOn) continue;
    const auto engine = (*daemon)->take_engine();
    if (!engine) {
      say(R"({"event":"error","message":"the target is parked: unpark it first"})");
      continue;
    }
    serve_json(*engine, lines, *line);
    break;
  }
  return kExitOk;
}

// What drivers of other daemons pass, and facet does by itself or not at all.
void add_accepted(CLI::App* cmd) {
  for (const char* flag : {"--daemon", "--fast-rollback", "--ddtree", "--ddtree-no-chain-seed"})
    cmd->add_flag_callback(flag, [flag] { print_err("{}: accepted, and does nothing here\n", flag); })->group("");
  for (const char* option : {"--ddtree-budget", "--ddtree-temp"})
    cmd->add_option_function<std::string>(
           option,
           [option](const std::string&) {
             print_err("{}: accepted, and does nothing here; --draft-tree sets the nodes of a draft\n", option);
           })
        ->group("");
}

}  // namespace

void add_daemon(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand(
      "daemon", "Serve one program over standard input and output: commands as lines, tokens on a descriptor");
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_sparse_option(cmd, o->engine);
  add_mmproj_options(cmd, o->engine);
  cmd->add_option("--parallel", o->engine.max_seq, "Sequences served together, by the protocol of JSON lines")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  cmd->add_option("--stream-fd", o->stream_fd, "Inherited descriptor that tokens are written to (int32; -1 ends)")
      ->check(CLI::Range(0, 1 << 20));
  cmd->add_option("--root", o->root, "Folder that files of commands must lie in");
  add_accepted(cmd);
  add_voice_options(cmd, o->voice);
  cmd->callback([o, &rc] { rc = serve(*o); });
}

}  // namespace facet
