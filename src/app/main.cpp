#include "app/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"facet: Gemma 4 inference"};
  app.set_version_flag("--version", FACET_VERSION);
  app.require_subcommand(1);
  int rc = facet::kExitOk;
  facet::add_chat(app, rc);
  facet::add_run(app, rc);
  facet::add_serve(app, rc);
  facet::add_logits(app, rc);
  facet::add_draft(app, rc);
  facet::add_eval(app, rc);
  facet::add_tokenize(app, rc);
  facet::add_render(app, rc);
  facet::add_inspect(app, rc);
  facet::add_bench(app, rc);
  facet::add_plan(app, rc);
  facet::add_quantize(app, rc);
  facet::add_convert(app, rc);
  facet::add_compare(app, rc);
  facet::add_synth(app, rc);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? facet::kExitOk : facet::kExitUsage;
  }
  return rc;
}
