#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/expert_usage.h"
#include "app/media_options.h"
#include "app/options.h"
#include "base/print.h"
#include "compose/plan.h"
#include "compose/prove.h"
#include "model/gemma4_config.h"
#include "server/service.h"
#include "session/fingerprint.h"
#include "tools/quality.h"
#include "tools/ram_rate.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  DraftOptions draft{{"none"}};
  bool prove = false;
};

// The plan against what it comes to.
int prove(const EngineConfig& decided) {
  const auto proof = prove_plan(decided);
  if (!proof) return report(proof.error());
  const std::string beside =
      proof->beside > 0 ? fmt::format(", and at most {} beside it for kernels and graphs", human_bytes(proof->beside))
                        : "";
  print_out("{} of {} sequences filled, {} kept beside them; {} taken for {} planned{}: {:+.2f} %\n", proof->sequences,
            decided.max_seq, proof->kept, human_bytes(proof->measured), human_bytes(proof->planned), beside,
            100. * double(proof->measured - proof->planned) / double(proof->planned));
  if (proof->holds()) return kExitOk;
  return report(
      {"--prove",
       fmt::format("expected {} within 2 %, found {}", human_bytes(proof->planned), human_bytes(proof->measured)),
       "the plan is wrong for this model on this machine"});
}

// What the report beside the model says of the types, if there is one.
void quote_quality(const GgufFile& file, const std::string& model, const EngineConfig& decided) {
  const std::string path = quality_path(model);
  if (!std::filesystem::exists(path)) return;
  const auto r = read_quality(path);
  print_out("{}\n", r ? quality_line(*r, path, file_fingerprint(file), {*decided.kv_k, *decided.kv_v}, decided.n_ctx)
                      : fmt::format("note: {}", r.error().message()));
}

// "fits: 154.83 MiB of 21.52 GiB; context 131072 is the largest that fits"
std::string verdict(const GgufFile& file, const ModelCfg& m, EngineConfig asked, const EngineConfig& decided,
                    std::span<const DrafterFile> drafters) {
  const MemoryPlan p = plan_memory(file, m, decided, drafters);
  std::string line = "fits: " + human_bytes(p.total());
  if (p.available > 0) line += " of " + human_bytes(p.available);
  asked.n_ctx = 0;
  const auto largest = resolve_config(file, m, asked, drafters);
  const int n = std::max(decided.n_ctx, largest ? largest->n_ctx : 0);
  return fmt::format("{}; context {} is the largest that fits{}", line, n,
                     n == m.n_ctx_train ? ", and that of its training" : "");
}

int run(const Options& o) {
  EngineConfig c = o.engine;
  if (auto ok = find_model(c); !ok) return report(ok.error());
  auto file = open_gemma4(c.model);
  if (!file) return report(file.error());
  auto m = gemma4_config(*file);
  if (!m) return report(m.error());
  std::vector<std::string> notes;
  if (auto ok = find_encoders(c, &notes); !ok) return report(ok.error());
  for (const std::string& note : notes) print_out("note: {}\n", note);
  auto files = draft_files(c.model, o.draft);
  if (!files) return report(files.error());
  c.draft.files = files->paths, c.draft.suffix = files->suffix;
  std::vector<DrafterFile> drafters;
  for (const std::string& path : c.draft.files) {
    auto drafter = DrafterFile::open(path);
    if (!drafter) return report(drafter.error());
    if (c.draft.embed_scale > 0) drafter->set_embedding_scale(c.draft.embed_scale);
    drafters.push_back(std::move(*drafter));
  }
  if (auto ok = read_kv_choices(c, *file); !ok) return report(ok.error());
  if (auto ok = find_expert_usage(c, *file); !ok) return report(ok.error());
  auto decided = resolve_config(*file, *m, c, drafters);
  if (!decided) {
    const Error& e = decided.error();
    if (!e.detail.empty())  // the table of a plan
      print_out("does not fit: {}{}\n", e.what, e.hint.empty() ? "" : " (" + e.hint + ")");
    return report(e);
  }
  print_out("{}\n", verdict(*file, *m, c, *decided, drafters));
  print_out("{}: {}, {} layers, width {}, vocabulary {}\n", c.model, m->name, m->n_layer(), m->d_model, m->n_vocab);
  print_out("context {} of {} trained, {} slots, K {} V {}, backend {}\n", decided->n_ctx, m->n_ctx_train,
            decided->max_seq, kv_type_name(*decided->kv_k), kv_type_name(*decided->kv_v), decided->backend);
  if (!decided->kv_reason.empty()) print_out("note: {}\n", decided->kv_reason);
  if (const std::string note = layout_note(*m, *decided); !note.empty()) print_out("note: {}\n", note);
  if (decided->n_ctx > m->n_ctx_train) print_out("note: positions from {} on are extrapolation\n", m->n_ctx_train);
  print_out("{}", plan_memory(*file, *m, *decided, drafters).table());
  if (const std::string rate = placement_rate(*file, *m, *decided); !rate.empty()) print_out("{}\n", rate);
  if (decided->draft.suffix && decided->backend == "cuda")
    for (const MemoryLine& l : suffix_lines(*decided))
      print_out("{}: {} of {}\n", l.name, human_bytes(l.bytes), l.detail);
  if (!decided->mmproj.empty())
    print_out("encoded pictures and sounds: at most {} of the host's memory, when serving (--media-cache)\n",
              human_bytes(int64_t(ServiceConfig{}.media_cache)));
  quote_quality(*file, c.model, *decided);
  return o.prove ? prove(*decided) : kExitOk;
}

}  // namespace

void add_plan(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("plan", "Print what a context would need in memory, before anything is allocated");
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_mmproj_options(cmd, o->engine);
  add_sparse_option(cmd, o->engine);
  cmd->get_option("--draft")->option_text("PATH|auto|dflash|mtp|suffix|none [none]");
  cmd->add_option("--parallel", o->engine.max_seq, "Sequences served together")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  cmd->add_flag("--prove", o->prove,
                "Allocate it all, fill every sequence with random rows, run a step, and compare what was taken; exit "
                "code 1 when it is not within 2 %");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
