#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/suggest.h"
#include "backend/cpu/isa.h"
#include "base/print.h"
#include "compose/plan.h"
#include "facet_commit.h"

namespace facet {
namespace {

std::vector<std::string> names_below(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

int help(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* cmd = &app;
  std::string path = "facet";
  for (const std::string& word : words) {
    const auto subs = cmd->get_subcommands([&](const CLI::App* s) { return s->get_name() == word; });
    if (subs.empty()) {
      print_err("facet: unknown command '{}'{}\n", on_one_line(word), did_you_mean(word, names_below(*cmd)));
      return kExitUsage;
    }
    cmd = subs[0];
    path += " " + word;
  }
  put_out(cmd->get_formatter()->make_help(cmd, path, CLI::AppFormatMode::Normal));
  return kExitOk;
}

int version() {
  std::string isas;
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (has_isa(isa)) isas += fmt::format(" {}", isa_name(isa));
  const auto cuda = resolve_backend("cuda", 0);
  print_out("facet {}\ncommit {}\nbackends cpu, ref{}\ninstruction sets{}\n", FACET_VERSION, FACET_COMMIT,
            cuda ? ", cuda" : fmt::format(" ({})", on_one_line(cuda.error().what)), isas);
  return kExitOk;
}

}  // namespace

void add_help(CLI::App& app, int& rc) {
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* cmd = app.add_subcommand("help", "Show the commands, or the options of one");
  cmd->add_option("COMMAND", *words, "A command, and one below it");
  cmd->callback([words, &app, &rc] { rc = help(app, *words); });
}

void add_version(CLI::App& app, int& rc) {
  CLI::App* cmd = app.add_subcommand("version", "Print the version, commit, backends and instruction sets");
  cmd->callback([&rc] { rc = version(); });
}

}  // namespace facet
