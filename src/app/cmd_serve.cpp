#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "app/commands.h"
#include "app/compute_options.h"
#include "app/console.h"
#include "app/expert_usage.h"
#include "app/media_options.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/serve_router.h"
#include "base/print.h"
#include "base/reserve.h"
#include "hub/media_fetch.h"
#include "model/types.h"
#include "server/service.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  DraftOptions draft;
  ServiceConfig service;
  RouterOptions router;
  bool seed_given = false;
  std::string alias;
  double slow_step_ms = 0;  // 0: none is told of
  bool count_experts = false;
};

// "a,b": a and b; empty names do not count.
std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) names.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return names;
}

// Loads the model and runs its engine, on one thread, while the caller serves.
class EngineThread {
 public:
  // engine: where it goes; it is to outlive the service, which is to outlive this.
  EngineThread(Options& o, std::unique_ptr<Engine>& engine, Service& service)
      : o_(o), engine_(engine), service_(service), router_(o.router.fd), thread_([this] { run(); }) {}
  ~EngineThread() {
    if (engine_) engine_->stop();
    thread_.join();
  }
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;
  bool loading() const { return loading_; }
  Status loaded() const { return loaded_; }  // unless loading()

 private:
  void run() {
    try {
      loaded_ = load();
    } catch (const std::exception& e) {
      loaded_ = error_of(e);
    }
    loading_ = false;
    if (!loaded_) {
      router_.failed(loaded_.error(), !loaded_.error().detail.empty());  // a table: of a plan that does not fit
      return service_.stop();
    }
    engine_->run();
  }

  Status load() {
    EngineConfig c = o_.engine;
    c.stepped = [this](const StepStats& s) {
      service_.metrics().step(s);
      if (o_.slow_step_ms > 0 && s.tokens > 0 && s.since_last() * 1e3 > o_.slow_step_ms)
        print_err("{}\n", step_line(s));
    };
    c.degraded = [this](const std::string& what, const std::string& why) { service_.health().degrade(what, why); };
    c.planned = [this](const std::string& sum, const std::string&) { plan_ = sum; };
    if (router_.there()) c.loading = [this](uint64_t done, uint64_t total) { router_.loading(done, total); };
    auto opened = open_engine(c, o_.draft);
    if (!opened) return opened.error();
    if (!(*opened)->tokenizer())
      return Error{(*opened)->config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                   "serve needs a model with a vocabulary"};
    engine_ = std::move(*opened);
    service_.attach(
        *engine_, [this](ServiceConfig& s) { complete(s); }, [this] { tell(); });
    return Ok{};
  }

  void complete(ServiceConfig& s) const {
    const std::string& model = engine_->config().model;
    s.defaults.n_vocab = engine_->model().n_vocab;
    s.variant = chat_variant(engine_->tokenizer()->vocab().chat_template, engine_->model().d_ple > 0);
    s.model_file = std::filesystem::path(model).filename().string();
    s.facts = model_facts(model);
    s.aliases = names_in(o_.alias);
    s.model = !s.aliases.empty() ? s.aliases[0] : std::filesystem::path(model).stem().string();
    name_ = s.model;
  }

  void tell() {
    const EngineConfig& c = engine_->config();
    print_err("{}: context {} for each of {} requests at once, {} waiting; {} threads\n", name_, c.n_ctx, c.max_seq,
              o_.service.queue, c.n_threads);
    if (router_.there())
      return router_.ready({c.n_ctx, engine_->model().n_vocab, c.max_seq, planned_bytes(c), plan_.substr(0, 4096)});
    print_out("listening on {}\n", service_.url());
    flush_out();
    tell_ready();
  }

  Options& o_;
  std::unique_ptr<Engine>& engine_;
  Service& service_;
  RouterLink router_;
  mutable std::string name_ = {};
  std::string plan_ = {};
  Status loaded_ = Ok{};
  std::atomic<bool> loading_ = true;
  std::thread thread_;  // last: it uses the others
};

int run(Options& o) {
  if (o.router.several()) return run_router(o.router, o.service);
  if (!o.router.models.empty()) o.engine.model = o.router.models[0];
  o.service.http.clients_fd = o.router.fd;
  if (o.engine.chunk > 0 && o.engine.max_seq > o.engine.chunk)
    return report({"--parallel",
                   fmt::format("expected at most --chunk ({}), found {}", o.engine.chunk, o.engine.max_seq),
                   "every running request takes a token of each step"});
  o.service.defaults.seed_given = o.seed_given;
  std::signal(SIGPIPE, SIG_IGN);
  if (o.count_experts) o.engine.count_experts = std::make_shared<ExpertUsage>();
  std::unique_ptr<Engine> engine;
  auto service = Service::open(o.service);
  if (!service) return report(service.error());
  std::optional<EngineThread> own;
  const EngineThread& thread = own.emplace(o, engine, **service);
  const Status ended = (*service)->run();
  if (thread.loading()) {  // a signal, or no memory to begin: there is no stopping in the middle
    const int rc = ended ? int(kExitOk) : report(ended.error());
    flush_out();
    std::_Exit(rc);
  }
  if (const Status loaded = thread.loaded(); !loaded) return report(loaded.error());
  if (o.count_experts) {
    const std::string model = engine->config().model;
    own.reset(), engine.reset();  // what was counted is there then
    if (auto kept = keep_counted_experts(*o.engine.count_experts, model); !kept) return report(kept.error());
  }
  return ended ? int(kExitOk) : report(ended.error());
}

// What these options are written to outlives the parsing: add_serve.
void add_answer_options(CLI::App* cmd, ApiDefaults& d) {
  cmd->add_option("-n,--n-predict", d.max_tokens,
                  "Tokens of an answer that names no limit; -1: until the context is full")
      ->check(CLI::Range(-1, 1 << 24))
      ->check(
          [](const std::string& n) { return n == "0" ? "expected a limit from 1 on, or -1 for none, found 0" : ""; })
      ->capture_default_str();
  cmd->add_flag("--think", d.thinking, "Let the model think unless a request says otherwise");
  cmd->add_option("--think-budget", d.thought_budget,
                  "Tokens of thoughts before they are ended, unless a request says otherwise; -1: no limit")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  add_loop_option(cmd, d.max_loops);
  cmd->add_flag("--verbose", d.verbose, "Answers tell of the prompt and the settings (__verbose)");
  cmd->add_flag("--parse-special", d.parse_special,
                "Control tokens that are spelled in messages are those tokens: a message can then end its own turn");
  cmd->add_flag("--strict", d.strict, "Refuse every unknown field of a request");
}

// A number alone is one of MiB, as llama-server counts.
CLI::Validator mebibytes() {
  const auto with_unit = [](std::string& s) {
    if (!s.empty() && s.find_first_not_of("0123456789") == std::string::npos) s += "MB";
    return std::string();
  };
  return CLI::Validator(with_unit, "", "mebibytes");
}

void add_sequence_options(CLI::App* cmd, EngineConfig& c) {
  c.max_seq = 4;
  cmd->add_option("--parallel", c.max_seq, "Requests that run at once; each has a context of its own")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  cmd->add_option("--snapshots", c.snapshots,
                  "Sequences kept beside the running ones, to go on from; omitted: 3 for each, as memory allows")
      ->check(CLI::Range(0, 4096));
  cmd->add_option(
         "--kv-memory", c.kv_memory,
         "Bytes for the rows of all sequences (12GB); omitted: what --parallel sequences of -c tokens need, or "
         "what there is")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1) << 20, uint64_t(1) << 50));
  cmd->add_option("--cache-ram", c.cache_ram,
                  "Host memory for conversations that had to go, in MiB or with a suffix (8GB); omitted: a quarter of "
                  "what is free, at most 8 GiB; 0: none")
      ->transform(CLI::AsSizeValue(false))
      ->transform(mebibytes())  // before the one above: the last that was added comes first
      ->check(CLI::Range(uint64_t(0), uint64_t(1) << 50));
  cmd->add_option("--cache-disk", c.cache_disk,
                  "Folder for conversations that had to go from host memory, too, and for all of them at the end: the "
                  "next process goes on from them; omitted: none")
      ->check(not_empty());
  cmd->add_option("--cache-disk-size", c.cache_disk_size, "Bytes of files there")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1) << 20, uint64_t(1) << 50))
      ->default_str("16GB");
  cmd->add_option("--snapshot-every", c.snapshot_every,
                  "Tokens of a long prompt after which one is kept; 0: none but at its end")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option_function<double>(
         "--max-stall", [&c](double ms) { c.max_stall = ms / 1e3; },
         "Milliseconds that a prompt's tokens may make a step take while answers are read; 0: any")
      ->check(CLI::Range(0., 60000.))
      ->default_str("50");
}

void add_access_options(CLI::App* cmd, ServiceConfig& s) {
  cmd->add_option("--host", s.http.host, "Address to listen on; one that other machines reach needs an API key")
      ->capture_default_str();
  cmd->add_option("--port", s.http.port, "Port; 0: a free one, printed")
      ->check(CLI::Range(0, 65535))
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
}

void add_path_options(CLI::App* cmd, ServiceConfig& s) {
  cmd->add_option("--slot-save-path", s.slot_save_path, "Folder for the files of POST /slots/{id}; omitted: none")
      ->check(CLI::ExistingDirectory);
  cmd->add_flag_callback(
      "--no-webui", [&s] { s.webui = false; }, "No page at /");
  cmd->add_flag_callback(
      "--slots", [&s] { s.slots = true; }, "The paths of /slots, which are there anyway");
  cmd->add_flag_callback(
      "--no-slots", [&s] { s.slots = false; }, "No paths of /slots");
  cmd->add_flag("--metrics-compat", s.metrics_compatible,
                "/metrics also has the names that llama-server and vLLM have for its figures");
}

void add_connection_options(CLI::App* cmd, HttpConfig& h) {
  cmd->add_option("--ping", h.ping_s, "Seconds of silence in a stream before a keep-alive is sent")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  cmd->add_option("--max-body", h.max_body, "Bytes of a request's body")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1), uint64_t(1) << 30))
      ->default_str("32MB");
  cmd->add_option("--body-memory", h.body_memory,
                  "Bytes of all bodies that arrive or wait to be read; a request beyond is answered 503")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1) << 16, uint64_t(1) << 40))
      ->default_str("64MB");
  cmd->add_option("--answer-memory", h.answer_memory,
                  "Bytes of all answers that wait for their readers; beyond it the slowest readers are dropped")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(1) << 16, uint64_t(1) << 40))
      ->default_str("64MB");
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
}

}  // namespace

void add_serve(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("serve", "Serve the OpenAI API over HTTP (docs/server.md)");
  ServiceConfig& s = o->service;
  add_router_options(cmd, o->router);
  add_compute_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_mmproj_options(cmd, o->engine);
  cmd->add_option(
         "--media-cache", s.media_cache,
         "Bytes of encoded pictures and sounds that are kept, and of those on their way at once (at least 64MB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(uint64_t(0), uint64_t(1) << 40))
      ->default_str("256MB");
  cmd->add_option_function<std::vector<std::string>>(
         "--allow-media-urls",
         [&s](const std::vector<std::string>& hosts) {
           s.defaults.fetch_media = [c = MediaFetchConfig{.hosts = hosts}](const std::string& url) {
             return fetch_media(url, c);
           };
         },
         "Hosts from which pictures and sounds of requests are fetched (example.com, *.example.com, * for any); "
         "private "
         "addresses never; omitted: none")
      ->delimiter(',')
      ->check(not_empty());
  cmd->add_option("--media-path", s.defaults.media_path,
                  "Folder whose pictures and sounds requests may name as file://NAME; omitted: none")
      ->check(CLI::ExistingDirectory);
  add_sparse_option(cmd, o->engine);
  add_sampling_options(cmd, s.defaults.sampling, o->seed_given);
  add_answer_options(cmd, s.defaults);
  cmd->add_option("-a,--alias", o->alias,
                  "Name of the model in answers (default: the file's); more of its names behind commas");
  add_sequence_options(cmd, o->engine);
  cmd->add_option("--queue", s.queue, "Requests that may wait; more are answered 503")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  add_access_options(cmd, s);
  add_path_options(cmd, s);
  add_connection_options(cmd, s.http);
  cmd->add_flag(
      "--count-experts", o->count_experts,
      "Count how often each expert is chosen, for --expert-usage of later runs: at the end it is added to what "
      "the cache folder has of this model");
  cmd->add_option("--log-slow-steps", o->slow_step_ms,
                  "Milliseconds that answers may wait for a step until a line tells what took them; omitted: any")
      ->check(CLI::Range(.001, 60000.));
  cmd->preparse_callback([o](size_t) {});  // keeps them where the other callback is taken away (check_command_line)
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
