#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <set>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/files.h"
#include "base/print.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"
#include "tools/paths.h"

namespace facet {
namespace {

constexpr uint64_t kMaxText = uint64_t(1) << 30;

struct Options {
  EngineConfig engine;
  std::string set, text, against_model, kind;
  std::optional<KvType> against_kv;
  int window = 512;
};

int grade_set(Engine& e, const Options& o) {
  const std::string path = o.set.empty() ? default_eval_path() : o.set;
  if (path.empty())
    return report({"--set", "expected questions, found none given and none beside the program",
                   "give a file of JSON lines (facet eval --help)"});
  auto docs = read_eval_set(path);
  if (!docs) return report(docs.error());
  if (docs->empty()) return report({path, "expected questions, found none", "each line is {kind, context, answer}"});
  std::set<std::string> kinds;
  for (const EvalDoc& d : *docs) kinds.insert(d.kind);
  if (!o.kind.empty()) std::erase_if(*docs, [&](const EvalDoc& d) { return !d.kind.starts_with(o.kind); });
  if (docs->empty())
    return report(
        {"--kind",
         fmt::format("expected the beginning of one of {}, found '{}'", fmt::join(kinds, ", "), on_one_line(o.kind)),
         "leave it out for all of them"});
  Result<std::vector<EvalScore>> scores = std::vector<EvalScore>{};
  {
    Progress progress("questions", Progress::Unit::kTokens);
    scores = grade(e, *docs, [&](int n, int of) { progress.update(uint64_t(n), uint64_t(of)); });
  }
  if (!scores) return report(scores.error());
  int right = 0, of = 0;
  print_out("{:<16} {:>9} {:>8} {:>9}\n", "kind", "right", "exact", "majority");
  for (const EvalScore& s : *scores) {
    print_out("{:<16} {:>4}/{:<4} {:>7.1f}% {:>8.1f}%\n", s.kind, s.right, s.of, 100. * s.right / s.of,
              100. * s.majority / s.of);
    right += s.right, of += s.of;
  }
  if (of > 0) print_out("{:<16} {:>4}/{:<4} {:>7.1f}%\n", "all", right, of, 100. * right / of);
  if (const SparsePrefill s = e.scored_sparse(); s.tiles > 0)
    print_out(
        "sparse prefill: {:.1f} % of the blocks read, estimated recall {:.4f}, {} of {} tiles done again in full\n",
        100 * s.kept, s.recall, s.repaired, s.tiles);
  return kExitOk;
}

int measure_text(Engine& e, const Options& o) {
  if (!e.tokenizer())
    return report(
        {e.config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab", "give another model"});
  const auto text = read_file(o.text, kMaxText);
  if (!text) return report(text.error());
  const auto ids = e.tokenizer()->encode(*text, false, false);
  if (!o.against_kv && o.against_model.empty()) {
    auto p = perplexity(e, ids, o.window);
    if (!p) return report(p.error());
    print_out("perplexity {:.4f} over {} tokens, windows of {}\n", p->value(), p->tokens, o.window);
    return kExitOk;
  }
  EngineConfig c = o.engine;
  if (!o.against_model.empty()) c.model = o.against_model;  // a path, or hf:...
  if (o.against_kv) c.kv_k = c.kv_v = o.against_kv, c.kv_layers.clear(), c.kv_auto = false;
  auto reference = open_engine(c);
  if (!reference) return report(reference.error());
  auto d = divergence(**reference, e, ids, o.window);
  if (!d) return report(d.error());
  print_out("KL mean {:.3g}, p99 {:.3g}, max {:.3g} nats; same top token {:.2f}% of {} positions, windows of {}\n",
            d->mean_kl, d->p99_kl, d->max_kl, 100. * double(d->same_top) / double(d->tokens), d->tokens, o.window);
  return kExitOk;
}

int run(Options& o) {
  const bool text = !o.text.empty();
  if (text) o.engine.n_ctx = o.window;
  o.engine.max_out = text ? std::min(o.engine.chunk > 0 ? o.engine.chunk : 512, o.window) : 64;
  o.engine.snapshots = 0, o.engine.cache_ram = 0;
  auto e = open_engine(o.engine);
  if (!e) return report(e.error());
  return text ? measure_text(**e, o) : grade_set(**e, o);
}

}  // namespace

void add_eval(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      app.add_subcommand("eval", "Grade a model on questions, or measure perplexity and divergence on a text");
  add_engine_options(cmd, o->engine);
  add_sparse_option(cmd, o->engine);
  auto* set = cmd->add_option("--set", o->set,
                              "Questions (JSON lines: kind, context, answer); omitted: those of the shipped model")
                  ->check(not_empty());
  auto* text = cmd->add_option("--text", o->text, "Measure on this text instead")->check(not_empty())->excludes(set);
  cmd->add_option("--kind", o->kind, "Only kinds that begin with this")->check(not_empty())->excludes(text);
  cmd->add_option("--window", o->window, "Tokens of a window; its second half is measured")
      ->check(CLI::Range(4, 1 << 20))
      ->needs(text)
      ->capture_default_str();
  add_named(cmd, "--against-kv", o->against_kv, kv_types_by_name(), "Divergence from the same model with this K/V type")
      ->needs(text);
  cmd->add_option("--against-model", o->against_model, "Divergence from this model file")
      ->check(not_empty())
      ->needs(text);
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
