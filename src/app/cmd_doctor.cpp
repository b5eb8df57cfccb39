#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/doctor.h"
#include "app/option_checks.h"
#include "base/print.h"
#include "tokenizer/json.h"

namespace facet {

namespace {

const char* level_name(Finding::Level l) {
  return l == Finding::Level::kOk ? "ok" : l == Finding::Level::kWarn ? "warn" : "fail";
}

int run(const DoctorOptions& o) {
  Findings f(o.json);
  if (!o.url.empty()) {
    look_at_url(f, o);
  } else {
    look_at_machine(f, o);
    look_at_gpu(f, o);
    look_at_model(f, o);
    look_at_service(f, o);
  }
  const size_t failed = f.count(Finding::Level::kFail), warned = f.count(Finding::Level::kWarn);
  if (o.json) {
    Json all = Json::array();
    for (const Finding& x : f.all())
      all.push_back({{"level", level_name(x.level)}, {"check", x.name}, {"found", x.what}, {"do", x.hint}});
    print_out("{}\n",
              dump_json({{"healthy", failed == 0}, {"failed", failed}, {"warnings", warned}, {"findings", all}}));
  } else {
    print_out("{} checks: {} failed, {} warnings\n", f.all().size(), failed, warned);
  }
  return failed == 0 ? int(kExitOk) : int(kExitFailure);
}

}  // namespace

size_t Findings::count(Finding::Level level) const {
  return size_t(std::count_if(all_.begin(), all_.end(), [&](const Finding& f) { return f.level == level; }));
}

void Findings::add(Finding x) {
  x.what = on_one_line(x.what), x.hint = on_one_line(x.hint);
  if (!quiet_) {
    print_out("{:<4}  {:<12}  {}{}\n", level_name(x.level), x.name, x.what, x.hint.empty() ? "" : " -> " + x.hint);
    flush_out();
  }
  all_.push_back(std::move(x));
}

void add_doctor(CLI::App& app, int& rc) {
  auto o = std::make_shared<DoctorOptions>();
  CLI::App* cmd = app.add_subcommand(
      "doctor",
      "Say what of the machine, the model, the drafter and the service is not as it should be, and what to do");
  o->engine.max_seq = 4;
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  cmd->add_option("--parallel", o->engine.max_seq, "Requests at once, as of facet serve")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  cmd->add_option("--host", o->host, "Address that facet serve would listen on")->capture_default_str();
  cmd->add_option("--port", o->port, "Port, likewise")->check(CLI::Range(0, 65535))->capture_default_str();
  cmd->add_option("--cache-disk", o->cache_disk, "Folder for conversations, likewise")->check(not_empty());
  cmd->add_flag("--quick", o->quick, "Load nothing: files and settings alone");
  cmd->add_option("--url", o->url, "Look at a server that runs instead (http://ADDRESS:PORT)")->check(not_empty());
  cmd->add_option("--api-key", o->key, "Its key (others on this machine see it in the list of processes)")
      ->check(not_empty());
  cmd->add_option("--url-model", o->url_model, "Which of its models to ask; omitted: the first")->check(not_empty());
  cmd->add_flag("--json", o->json, "One JSON object instead of lines");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
