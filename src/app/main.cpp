#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "app/aliases.h"
#include "app/commands.h"
#include "app/console.h"
#include "app/environment.h"
#include "app/help.h"
#include "app/suggest.h"
#include "base/mmap.h"
#include "base/print.h"
#include "base/reserve.h"

namespace facet {
namespace {

// What no one foresaw, in one line, also where there is no memory for words.
int unforeseen(const std::exception& e) {
  try {
    return report(error_of(e));
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kLast = "facet: out of memory (allow the program more)\n";
    if (::write(STDERR_FILENO, kLast.data(), kLast.size()) < 0) return kExitFailure;
  }
  return kExitFailure;
}

// An exception that leaves a thread ends the program at once: in the same words, without a core file.
[[noreturn]] void on_terminate() {
  if (const std::exception_ptr p = std::current_exception()) {
    try {
      std::rethrow_exception(p);
    } catch (const std::exception& e) {
      unforeseen(e);
    } catch (...) {
      report({"", "an error of unknown kind", ""});
    }
  }
  ::_exit(kExitFailure);
}

bool has_command(const CLI::App& app, const std::string& name) {
  return !app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; }).empty();
}
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

// "--backend: cude not in {auto,cuda,cpu}", as CLI says it, with the name that was meant.
std::string with_suggestion(const std::string& what) {
  const size_t in = what.find(" not in {"), close = what.rfind('}');
  if (in == std::string::npos || close == std::string::npos || close < in) return what;
  const size_t before = what.rfind(' ', in - 1);
  std::vector<std::string> names;
  for (size_t at = in + 9; at < close;) {
    const size_t end = std::min(what.find(',', at), close);
    names.push_back(what.substr(at, end - at));
    at = end + 1;
  }
  return what + did_you_mean(what.substr(before + 1, in - before - 1), names);
}

int usage_error(const std::string& what) {
  print_err("facet: {}\nRun with --help for more information.\n", on_one_line(what));
  return kExitUsage;
}

int run_program(int argc, char** argv) {
  CLI::App app{"facet: Gemma 4 inference"};
  app.set_version_flag("--version", FACET_VERSION);
  app.require_subcommand(1);
  app.name(argc > 0 ? argv[0] : "facet");
  int rc = kExitOk;
  add_commands(app, rc);
  if (argc <= 1) return put_out(first_words()), kExitUsage;  // to a script it is a mistake
  if (argv[1][0] != '-' && !has_command(app, argv[1])) {
    const auto names = command_names(app);
    return usage_error(fmt::format("unknown command '{}', expected one of {}{}", argv[1], fmt::join(names, ", "),
                                   did_you_mean(argv[1], names)));
  }
  auto args = with_own_names(app, argc, argv);
  if (!args) return usage_error(args.error().message());
  const auto variables = add_environment(app, *args);
  const auto keys = add_config_file(app, *args);
  if (!keys) return usage_error(keys.error().message());
  // Where what is wrong may come from.
  const auto from = [&](const std::string& what) {
    std::string text = variables.empty() ? "" : fmt::format(" (of the environment: {})", fmt::join(variables, ", "));
    for (const FromFile& key : *keys)
      if (what.find("--" + key.name) != std::string::npos) text += fmt::format(" ({})", key.where);
    return text;
  };
  try {
    app.parse(std::move(*args));
  } catch (const CLI::ExtrasError&) {
    return usage_error(unexpected_arguments(app) + from(""));  // its own text has them the other way round
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return usage_error(with_suggestion(e.what()) + from(e.what()));
  } catch (const std::exception& e) {
    return unforeseen(e);
  }
  return rc;
}

}  // namespace
}  // namespace facet

int main(int argc, char** argv) {
  facet::open_closed_streams();
  std::set_terminate(facet::on_terminate);
  facet::tell_of_lost_mappings();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit fails, and is told like any other
  int rc = facet::kExitFailure;
  try {
    rc = facet::run_program(argc, argv);
  } catch (const std::exception& e) {
    rc = facet::unforeseen(e);
  }
  // What was printed counts once it is out: a full disk behind stdout is a failure.
  if (const facet::Status out = facet::finish_out(); !out) {
    if (rc != facet::kExitOk) return rc;  // which has been told
    rc = facet::report(out.error());
  }
  return rc;
}
