#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/console.h"
#include "app/options.h"
#include "app/paths.h"
#include "app/progress.h"
#include "engine/eval.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  std::string set, text, against_model, kind;
  std::optional<KvType> against_kv;
  int window = 512;
};

int grade_set(Engine& e, const Options& o) {
  const std::string path = o.set.empty() ? default_eval_path() : o.set;
  auto docs = read_eval_set(path);
  if (!docs) return report(docs.error());
  if (!o.kind.empty()) std::erase_if(*docs, [&](const EvalDoc& d) { return !d.kind.starts_with(o.kind); });
  Result<std::vector<EvalScore>> scores = std::vector<EvalScore>{};
  {
    Progress progress("questions", Progress::Unit::kTokens);
    scores = grade(e, *docs, [&](int n, int of) { progress.update(uint64_t(n), uint64_t(of)); });
  }
  if (!scores) return report(scores.error());
  int right = 0, of = 0;
  fmt::print("{:<16} {:>9} {:>8} {:>9}\n", "kind", "right", "exact", "majority");
  for (const EvalScore& s : *scores) {
    fmt::print("{:<16} {:>4}/{:<4} {:>7.1f}% {:>8.1f}%\n", s.kind, s.right, s.of, 100. * s.right / s.of,
               100. * s.majority / s.of);
    right += s.right, of += s.of;
  }
  if (of > 0) fmt::print("{:<16} {:>4}/{:<4} {:>7.1f}%\n", "all", right, of, 100. * right / of);
  return kExitOk;
}

int measure_text(Engine& e, const Options& o) {
  if (!e.tokenizer())
    return report(
        {e.config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab", "give another model"});
  std::ifstream f(o.text, std::ios::binary);
  if (!f) return report({o.text, "cannot open the text", "check the path"});
  const std::string text((std::istreambuf_iterator<char>(f)), {});
  const auto ids = e.tokenizer()->encode(text, false, false);
  if (!o.against_kv && o.against_model.empty()) {
    auto p = perplexity(e, ids, o.window);
    if (!p) return report(p.error());
    fmt::print("perplexity {:.4f} over {} tokens, windows of {}\n", p->value(), p->tokens, o.window);
    return kExitOk;
  }
  EngineConfig c = o.engine;
  if (!o.against_model.empty()) c.model = o.against_model;
  if (o.against_kv) c.kv_k = c.kv_v = o.against_kv;
  auto reference = open_engine(c);
  if (!reference) return report(reference.error());
  auto d = divergence(**reference, e, ids, o.window);
  if (!d) return report(d.error());
  fmt::print("KL mean {:.3g}, p99 {:.3g}, max {:.3g} nats; same top token {:.2f}% of {} positions, windows of {}\n",
             d->mean_kl, d->p99_kl, d->max_kl, 100. * double(d->same_top) / double(d->tokens), d->tokens, o.window);
  return kExitOk;
}

int run(Options& o) {
  const bool text = !o.text.empty();
  if (text) o.engine.n_ctx = o.window;
  o.engine.max_out = text ? std::min(o.engine.chunk > 0 ? o.engine.chunk : 512, o.window) : 64;
  o.engine.snapshots = 0;
  auto e = open_engine(o.engine);
  if (!e) return report(e.error());
  return text ? measure_text(**e, o) : grade_set(**e, o);
}

const std::map<std::string, KvType> kTypes{{"f32", KvType::kF32},
                                           {"f16", KvType::kF16},
                                           {"q8_0", KvType::kQ8_0},
                                           {"q4_0", KvType::kQ4_0},
                                           {"tq3_0", KvType::kTQ3_0}};

}  // namespace

void add_eval(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      app.add_subcommand("eval", "Grade a model on questions, or measure perplexity and divergence on a text");
  add_engine_options(cmd, o->engine);
  auto* set = cmd->add_option("--set", o->set,
                              "Questions (JSON lines: kind, context, answer); omitted: those of the shipped model");
  auto* text = cmd->add_option("--text", o->text, "Measure on this text instead")->excludes(set);
  cmd->add_option("--kind", o->kind, "Only kinds that begin with this")->excludes(text);
  cmd->add_option("--window", o->window, "Tokens of a window; its second half is measured")
      ->check(CLI::Range(4, 1 << 20))
      ->needs(text)
      ->capture_default_str();
  cmd->add_option("--against-kv", o->against_kv, "Divergence from the same model with this K/V type")
      ->transform(CLI::CheckedTransformer(kTypes, CLI::ignore_case))
      ->option_text("TYPE")
      ->needs(text);
  cmd->add_option("--against-model", o->against_model, "Divergence from this model file")->needs(text);
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
