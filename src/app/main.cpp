#include "app/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"facet: Gemma 4 inference"};
  app.set_version_flag("--version", FACET_VERSION);
  app.require_subcommand(1);
  int rc = facet::kExitOk;
  facet::add_commands(app, rc);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? facet::kExitOk : facet::kExitUsage;
  }
  return rc;
}
