#include <fmt/format.h>

#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/options.h"
#include "base/print.h"
#include "engine/plan.h"
#include "model/gemma4_config.h"

namespace facet {
namespace {

int run(EngineConfig c) {
  if (auto ok = find_model(c.model); !ok) return report(ok.error());
  auto file = open_gemma4(c.model);
  if (!file) return report(file.error());
  auto m = gemma4_config(*file);
  if (!m) return report(m.error());
  auto decided = resolve_config(*file, *m, c);
  if (!decided) return report(decided.error());
  print_out("{}: {}, {} layers, width {}, vocabulary {}\n", c.model, m->name, m->n_layer(), m->d_model, m->n_vocab);
  print_out("context {} of {} trained, {} slots, K {} V {}, backend {}\n", decided->n_ctx, m->n_ctx_train,
            decided->max_seq, kv_type_name(*decided->kv_k), kv_type_name(*decided->kv_v), decided->backend);
  if (decided->n_ctx > m->n_ctx_train) print_out("note: positions from {} on are extrapolation\n", m->n_ctx_train);
  print_out("{}", plan_memory(*file, *m, *decided).table());
  return kExitOk;
}

}  // namespace

void add_plan(CLI::App& app, int& rc) {
  auto c = std::make_shared<EngineConfig>();
  CLI::App* cmd = app.add_subcommand("plan", "Print what a context would need in memory, before anything is allocated");
  add_engine_options(cmd, *c);
  cmd->add_option("--parallel", c->max_seq, "Sequences served together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  cmd->callback([c, &rc] { rc = run(*c); });
}

}  // namespace facet
