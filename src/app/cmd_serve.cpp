#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "base/files.h"
#include "base/print.h"
#include "model/types.h"
#include "server/service.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  DraftOptions draft;
  ServiceConfig service;
  bool seed_given = false;
  std::string alias;
};

// The engine on a thread of its own, which ends before this does, whatever happens between.
class Running {
 public:
  explicit Running(Engine& engine) : engine_(engine), thread_([&engine] { engine.run(); }) {}
  ~Running() {
    engine_.stop();
    thread_.join();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Engine& engine_;
  std::thread thread_;
};

int run(Options& o) {
  if (o.engine.chunk > 0 && o.engine.max_seq > o.engine.chunk)
    return report({"--parallel",
                   fmt::format("expected at most --chunk ({}), found {}", o.engine.chunk, o.engine.max_seq),
                   "every running request takes a token of each step"});
  auto opened = open_engine(o.engine, o.draft);
  if (!opened) return report(opened.error());
  Engine& engine = **opened;
  const Tokenizer* t = engine.tokenizer();
  if (!t)
    return report({engine.config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                   "serve needs a model with a vocabulary"});

  ServiceConfig& s = o.service;
  s.defaults.seed_given = o.seed_given;
  s.defaults.n_vocab = engine.model().n_vocab;
  s.variant = chat_variant(t->vocab().chat_template, engine.model().d_ple > 0);
  s.model_file = std::filesystem::path(engine.config().model).filename().string();
  s.model = !o.alias.empty() ? o.alias : std::filesystem::path(engine.config().model).stem().string();
  std::signal(SIGPIPE, SIG_IGN);
  auto service = Service::open(engine, s);
  if (!service) return report(service.error());
  const Running running(engine);
  print_err("{}: context {} for each of {} requests at once, {} waiting; {} threads\n", s.model, engine.config().n_ctx,
            engine.config().max_seq, s.queue, engine.config().n_threads);
  print_out("listening on {}\n", (*service)->url());
  flush_out();
  const Status ended = (*service)->run();
  return ended ? int(kExitOk) : report(ended.error());
}

}  // namespace

void add_serve(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("serve", "Serve the OpenAI API over HTTP (docs/server.md)");
  HttpConfig& h = o->service.http;
  ServiceConfig& s = o->service;
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_sampling_options(cmd, s.defaults.sampling, o->seed_given);
  cmd->add_option("-n,--n-predict", s.defaults.max_tokens,
                  "Tokens of an answer that names no limit; -1: until the context is full")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  cmd->add_flag("--think", s.defaults.thinking, "Let the model think unless a request says otherwise");
  cmd->add_option("--host", h.host, "Address to listen on; one that other machines reach needs an API key")
      ->capture_default_str();
  cmd->add_option("--port", h.port, "Port; 0: a free one, printed")->check(CLI::Range(0, 65535))->capture_default_str();
  cmd->add_option("-a,--alias", o->alias, "Name of the model in answers (default: the file's)");
  o->engine.max_seq = 4;
  cmd->add_option("--parallel", o->engine.max_seq, "Requests that run at once; each has a context of its own")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  cmd->add_option("--snapshots", o->engine.snapshots,
                  "Sequences kept beside the running ones, to go on from; omitted: 3 for each, as memory allows")
      ->check(CLI::Range(0, 4096));
  cmd->add_option(
         "--kv-memory", o->engine.kv_memory,
         "Bytes for the rows of all sequences (12GB); omitted: what --parallel sequences of -c tokens need, or "
         "what there is")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1) << 20, uint64_t(1) << 50));
  cmd->add_option("--cache-ram", o->engine.cache_ram,
                  "Bytes of host memory for conversations that had to go (8GB); omitted: a quarter of what is free, at "
                  "most 8 GiB; 0: none")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(0), uint64_t(1) << 50));
  cmd->add_option("--cache-disk", o->engine.cache_disk,
                  "Folder for conversations that had to go from host memory, too, and for all of them at the end: the "
                  "next process goes on from them; omitted: none")
      ->check(not_empty());
  cmd->add_option("--cache-disk-size", o->engine.cache_disk_size, "Bytes of files there")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1) << 20, uint64_t(1) << 50))
      ->default_str("16GB");
  cmd->add_option("--slot-save-path", s.slot_save_path, "Folder for the files of POST /slots/{id}; omitted: none")
      ->check(CLI::ExistingDirectory);
  cmd->add_option("--snapshot-every", o->engine.snapshot_every,
                  "Tokens of a long prompt after which one is kept; 0: none but at its end")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option_function<double>(
         "--max-stall", [o](double ms) { o->engine.max_stall = ms / 1e3; },
         "Milliseconds that a prompt's tokens may make a step take while answers are read; 0: any")
      ->check(CLI::Range(0., 60000.))
      ->default_str("50");
  cmd->add_option("--queue", s.queue, "Requests that may wait; more are answered 503")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  auto* key = cmd->add_option("--api-key", s.api_key,
                              "Key that clients must send (others on this machine see it in the list of processes)")
                  ->check(not_empty());
  cmd->add_option("--api-key-file", s.api_key_file,
                  "File of keys, one a line, each perhaps with a name for the log; read again on SIGHUP")
      ->check(not_empty())
      ->excludes(key);
  cmd->add_option("--cors-origin", s.cors_origins,
                  "Origin whose pages may read answers (https://chat.example); may be repeated; *: every one")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  cmd->add_flag_callback(
      "--no-webui", [o] { o->service.webui = false; }, "No page at /");
  cmd->add_flag("--strict", s.defaults.strict, "Refuse every unknown field of a request");
  cmd->add_option("--ping", h.ping_s, "Seconds of silence in a stream before a keep-alive is sent")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  cmd->add_option("--max-body", h.max_body, "Bytes of a request's body")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1), uint64_t(1) << 30))
      ->default_str("8MB");
  cmd->add_option("--max-connections", h.max_connections, "Clients connected at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  cmd->add_option("--backlog", h.max_backlog, "Bytes of a stream that its reader may be behind before it is dropped")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1024), uint64_t(1) << 30))
      ->default_str("1MB");
  cmd->add_option("--idle", h.idle_s, "Seconds that a connection may be without a request")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  cmd->add_option("--request-time", h.request_s, "Seconds that a request may take to arrive")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  cmd->add_option("--write-time", h.write_s, "Seconds that a client may take to read anything")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  cmd->add_option("--drain", h.drain_s, "Seconds that running requests have to finish after SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
