#include "app/serve_router.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>

#include "app/commands.h"
#include "app/console.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "base/files.h"
#include "base/notify.h"
#include "base/print.h"
#include "compose/plan.h"
#include "model/gemma4_config.h"
#include "router/router.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxPreset = 1 << 20;  // bytes

class Known final : public ServeOptions {
 public:
  explicit Known(const CLI::App& cmd) : cmd_(cmd) {}
  std::string long_name(const std::string& name) const override {
    const CLI::Option* o = cmd_.get_option_no_throw((name.size() == 1 ? "-" : "--") + name);
    return o && !o->get_lnames().empty() ? o->get_lnames()[0] : "";
  }
  bool is_flag(const std::string& long_name) const override {
    return cmd_.get_option_no_throw("--" + long_name)->get_items_expected_max() == 0;
  }

 private:
  const CLI::App& cmd_;
};

// Of the command line, what every model's process gets: all that is not the router's own.
std::vector<GivenOption> common_options(const CLI::App& cmd) {
  static const std::set<std::string> own = {"model",
                                            "models-dir",
                                            "models-preset",
                                            "models-max",
                                            "sleep-idle",
                                            "load-timeout",
                                            "no-models-autoload",
                                            "router-fd",
                                            "host",
                                            "port",
                                            "alias",
                                            "api-key",
                                            "api-key-file",
                                            "cors-origin",
                                            "no-webui",
                                            "drain",
                                            "max-connections",
                                            "idle",
                                            "hf-repo",
                                            "hf-file",
                                            "help"};
  std::vector<GivenOption> given;
  for (const CLI::Option* o : cmd.get_options()) {
    if (o->count() == 0 || o->get_lnames().empty() || own.contains(o->get_lnames()[0])) continue;
    given.push_back({o->get_lnames()[0], {}});
    if (o->get_items_expected_max() > 0) given.back().values = o->results();
    if (given.back().name == "cache-ram")  // bytes by now, and a number alone would be MiB
      for (std::string& v : given.back().values) v += "B";
  }
  return given;
}

ModelConfig* find(std::vector<ModelConfig>& models, const std::string& name) {
  const auto at = std::find_if(models.begin(), models.end(), [&](const auto& m) { return m.name == name; });
  return at == models.end() ? nullptr : &*at;
}

// What a process would say of its options, said at the start.
Status check_command_line(const ModelConfig& m) {
  CLI::App app;
  int rc = 0;
  add_serve(app, rc);
  app.get_subcommand("serve")->callback(std::function<void()>());
  std::vector<std::string> args = command_line(m);
  args.insert(args.begin(), "serve");
  std::reverse(args.begin(), args.end());
  try {
    app.parse(args);
  } catch (const CLI::ParseError& e) {
    return Error{m.name, e.what(), "facet serve --help lists the options"};
  }
  return Ok{};
}

// Files of several models in one folder: each has one of its own there, as one process at a time works in it.
Status separate_caches(ModelConfig& m) {
  for (GivenOption& o : m.options) {
    if (o.name != "cache-disk" || o.values.empty()) continue;
    std::string name = m.name;
    std::replace(name.begin(), name.end(), '/', '_');
    if (name.starts_with('.')) name.insert(0, "_");
    if (auto made = FolderLock::take(o.values[0]); !made) return made.error();
    o.values[0] += "/" + name;
    std::error_code ec;
    if (fs::is_symlink(o.values[0], ec))  // the folder that was named may be reached through one; what is in it is ours
      return Error{o.values[0], "expected a folder, found a link", "move it away"};
  }
  return Ok{};
}

// What is named on a hub is downloaded before the router listens: a request would wait for it too long.
Status fetch_files(ModelConfig& m) {
  const auto says = [&](const char* option, auto&& is) {
    return std::any_of(m.options.begin(), m.options.end(),
                       [&](const GivenOption& o) { return o.name == option && is(o); });
  };
  const bool encoders = !says("no-mmproj", [](const GivenOption&) {
    return true;
  }) && !says("mmproj", [](const GivenOption& o) { return o.values != std::vector<std::string>{"auto"}; });
  if (auto ok = fetch_named(m.path, encoders ? HubUse::kModelWithEncoders : HubUse::kModel); !ok) return ok;
  for (GivenOption& o : m.options)
    for (std::string& value : o.values)
      if (o.name == "draft")
        if (auto ok = fetch_named(value, HubUse::kDrafter); !ok) return ok;
  return Ok{};
}

// The models of the folder, of the preset and of -m. What is said in several places: -m counts before the command
// line, that before the preset's section, and that before its [*].
Result<std::vector<ModelConfig>> collect(const RouterOptions& o) {
  const Known known(*o.command);
  std::vector<ModelConfig> models;
  if (!o.dir.empty()) {
    auto found = find_models(o.dir);
    if (!found) return found.error();
    models = std::move(*found);
  }
  std::vector<std::pair<ModelConfig, std::vector<ModelOption>>> named;
  for (const std::string& text : o.models) {
    ModelConfig m;
    std::vector<ModelOption> options;
    if (!parse_model_argument(text, m, options))
      m.path = text, m.name = text.starts_with("hf:") ? text.substr(3) : fs::path(text).stem().string();
    named.emplace_back(std::move(m), std::move(options));
  }
  for (const auto& [m, options] : named) {
    if (ModelConfig* old = find(models, m.name); old && !o.dir.empty())
      *old = m;  // it stands for the folder's file of that name
    else
      models.push_back(m);
  }
  std::vector<PresetSection> preset;
  if (!o.preset.empty()) {
    auto text = read_file(o.preset, kMaxPreset);
    if (!text) return text.error();
    auto sections = parse_preset(*text, o.preset);
    if (!sections) return sections.error();
    preset = std::move(*sections);
  }
  for (const PresetSection& s : preset)
    if (!s.name.empty() && s.name != "*" && !find(models, s.name)) models.push_back({.name = s.name});
  std::vector<std::string> notes;
  const auto common = common_options(*o.command);
  for (ModelConfig& m : models) {
    for (const bool general : {true, false})
      for (const PresetSection& s : preset) {
        if (general ? !s.name.empty() && s.name != "*" : s.name != m.name) continue;
        for (const ModelOption& option : s.options)
          if (auto ok = apply_option(m, option, known, notes); !ok) return ok.error();
      }
    for (const GivenOption& option : common) set_option(m, option);
    for (const auto& [n, options] : named)
      if (n.name == m.name)
        for (const ModelOption& option : options)
          if (auto ok = apply_option(m, option, known, notes); !ok) return ok.error();
    if (auto ok = fetch_files(m); !ok) return ok.error();
    if (auto ok = separate_caches(m); !ok) return ok.error();
    if (auto ok = check_command_line(m); !ok) return ok.error();
  }
  std::sort(notes.begin(), notes.end());
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  for (const std::string& n : notes) print_err("note: {}\n", n);
  return models;
}

}  // namespace

bool RouterOptions::several() const {
  if (!dir.empty() || !preset.empty() || models.size() > 1) return true;
  ModelConfig m;
  std::vector<ModelOption> options;
  return models.size() == 1 && parse_model_argument(models[0], m, options);
}

void add_router_options(CLI::App* cmd, RouterOptions& o) {
  o.command = cmd;
  cmd->add_option(
         "-m,--model", o.models,
         "Model file (GGUF); omitted: the model that comes with the program. NAME=PATH[,option[=value]...], or "
         "several: each is loaded when a request names it")
      ->check(not_empty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_hub_options(cmd, [&o](const std::string& name, bool again) {
    if (again) o.models.pop_back();
    o.models.push_back(name);
  });
  cmd->add_option("--models-dir", o.dir, "Folder of model files, each of which requests may name")
      ->check(CLI::ExistingDirectory);
  cmd->add_option("--models-preset", o.preset, "File of models and their options, as llama-server has it")
      ->check(CLI::ExistingFile);
  cmd->add_option("--models-max", o.models_max, "Models in memory at once; 0: any number")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  cmd->add_option("--sleep-idle", o.sleep_idle,
                  "Seconds after which a model that nobody asks gives its memory up, until somebody does; 0: never")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  cmd->add_option("--load-timeout", o.load_timeout, "Seconds that a model may take to load, and a request wait for it")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  cmd->add_flag("--no-models-autoload", o.no_autoload, "Requests load no model; POST /models/load does");
  cmd->add_option("--router-fd", o.fd, "A router's socket")->check(CLI::Range(3, 1 << 20))->group("");
}

void tell_ready() {
  if (!notify_service_manager("READY=1"))
    print_err("note: NOTIFY_SOCKET: expected a socket that takes datagrams; the service manager was not told\n");
}

int run_router(const RouterOptions& o, const ServiceConfig& front) {
  auto models = collect(o);
  if (!models) return report(models.error());
  std::signal(SIGPIPE, SIG_IGN);
  for (ModelConfig& m : *models)  // it also asks for health and metrics
    set_option(m, {"max-connections", {fmt::format("{}", std::min(4096, front.http.max_connections + 16))}});
  RouterConfig c{.front = front,
                 .models = std::move(*models),
                 .models_max = o.models_max,
                 .sleep_idle_s = o.sleep_idle,
                 .load_s = o.load_timeout,
                 .autoload = !o.no_autoload};
  const size_t n = c.models.size();
  auto router = Router::open(std::move(c));
  if (!router) return report(router.error());
  print_err("{} models, {} in memory at once\n", n, o.models_max > 0 ? std::to_string(o.models_max) : "any number");
  print_out("listening on {}\n", (*router)->url());
  flush_out();
  tell_ready();
  const Status ended = (*router)->run();
  return ended ? int(kExitOk) : report(ended.error());
}

int64_t planned_bytes(const EngineConfig& c) {
  const auto file = open_gemma4(c.model);
  if (!file) return 0;
  const auto m = gemma4_config(*file);
  if (!m) return 0;
  std::vector<DrafterFile> drafters;
  for (const std::string& path : c.draft.files) {
    auto d = DrafterFile::open(path);
    if (d && c.draft.embed_scale > 0) d->set_embedding_scale(c.draft.embed_scale);
    if (d) drafters.push_back(std::move(*d));
  }
  return plan_memory(*file, *m, c, drafters).total();
}

}  // namespace facet
