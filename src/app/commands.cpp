#include "app/commands.h"

#include "app/doctor.h"
#include "app/help.h"

namespace facet {

void add_commands(CLI::App& app, int& rc) {
  add_chat(app, rc);
  add_run(app, rc);
  add_serve(app, rc);
  add_daemon(app, rc);
  add_logits(app, rc);
  add_draft(app, rc);
  add_eval(app, rc);
  add_quality(app, rc);
  add_tokenize(app, rc);
  add_render(app, rc);
  add_download(app, rc);
  add_ls(app, rc);
  add_rm(app, rc);
  add_inspect(app, rc);
  add_bench(app, rc);
  add_plan(app, rc);
  add_quantize(app, rc);
  add_convert(app, rc);
  add_compare(app, rc);
  add_synth(app, rc);
  add_doctor(app, rc);
  add_help(app, rc);
  add_version(app, rc);
  arrange_help(app);
}

}  // namespace facet
