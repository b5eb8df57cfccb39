#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/options.h"
#include "app/progress.h"
#include "model/types.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

struct Options {
  EngineConfig engine;
  DraftOptions draft;
  Sampling sampling;
  bool seed_given = false, raw = false, ignore_eos = false, thinking = false;
  std::string prompt, tokens, out_tokens;
  int n = -1;
};

Result<std::vector<int32_t>> prompt_ids(const Options& o, const Engine& e) {
  if (!o.tokens.empty()) return read_token_file(o.tokens, e.model().n_vocab);
  const Tokenizer* t = e.tokenizer();
  if (!t)
    return Error{e.config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                 "give token ids with --tokens, or another model"};
  if (o.raw) return t->encode(o.prompt, /*add_bos=*/true, /*parse_special=*/true);
  Message user;
  user.role = "user";
  user.content = o.prompt;
  auto text = render_chat({user}, {},
                          {.add_generation_prompt = true,
                           .enable_thinking = o.thinking,
                           .variant = chat_variant(t->vocab().chat_template, e.model().d_ple > 0)});
  if (!text) return text.error();
  return t->encode(*text, true, true);
}

int run(Options& o) {
  draw_seed(o.sampling, o.seed_given);
  auto opened = open_engine(o.engine, o.draft);
  if (!opened) return report(opened.error());
  Engine& engine = **opened;
  auto ids = prompt_ids(o, engine);
  if (!ids) return report(ids.error());

  const bool text = o.tokens.empty();
  std::unique_ptr<StreamDecoder> decoder;
  if (engine.tokenizer() && text) decoder = std::make_unique<StreamDecoder>(*engine.tokenizer(), false);
  std::vector<int32_t> out;
  std::string error;
  Usage usage;
  Stop why = Stop::kError;
  Request request{.prompt = std::move(*ids),
                  .max_tokens = o.n,
                  .sampling = o.sampling,
                  .ignore_eos = o.ignore_eos,
                  .suppress_special = text && !o.raw};
  auto progress = std::make_unique<Progress>("prompt", Progress::Unit::kTokens);
  auto id = engine.submit(std::move(request), {.tokens =
                                                   [&](RequestId, std::span<const int32_t> t) {
                                                     progress.reset();
                                                     out.insert(out.end(), t.begin(), t.end());
                                                     for (int32_t x : t) {
                                                       if (decoder)
                                                         fmt::print("{}", decoder->push(x));
                                                       else if (o.out_tokens.empty())
                                                         fmt::print("{}\n", x);
                                                     }
                                                     std::fflush(stdout);
                                                   },
                                               .done = [&](RequestId, Stop s, const Usage& u,
                                                           const std::string& e) { why = s, usage = u, error = e; },
                                               .prefill =
                                                   [&](RequestId, int n, int total) {
                                                     if (progress) progress->update(uint64_t(n), uint64_t(total));
                                                   }});
  if (!id) return report(id.error());
  Interrupts interrupts;
  while (engine.tick())
    if (Interrupts::pending()) engine.cancel(*id), Interrupts::clear();
  progress.reset();
  if (decoder) fmt::print("{}\n", decoder->finish());
  std::fflush(stdout);
  if (why == Stop::kError) return report({"run", error, ""});
  fmt::print(stderr, "{}\n", usage_line(usage, why, o.sampling));
  if (!o.out_tokens.empty())
    if (auto ok = write_token_file(o.out_tokens, out); !ok) return report(ok.error());
  if (auto ok = lockstep_verdict(engine); !ok) return report(ok.error());
  return kExitOk;
}

}  // namespace

void add_run(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("run", "Answer one prompt; the answer goes to stdout, statistics to stderr");
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_sampling_options(cmd, o->sampling, o->seed_given);
  auto* prompt = cmd->add_option("-p,--prompt", o->prompt, "Text of one user turn");
  cmd->add_flag("--raw", o->raw, "The prompt is the text as it is, without turns")->needs(prompt);
  cmd->add_flag("--think", o->thinking, "Let the model think first")->needs(prompt);
  cmd->add_option("--tokens", o->tokens, "Prompt as a file of token ids (int32, little endian)")->excludes(prompt);
  cmd->add_option("-n,--n-predict", o->n, "Tokens to generate; -1: until the model stops or the context is full")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  cmd->add_flag("--ignore-eos", o->ignore_eos, "Go on after the end-of-generation token");
  cmd->add_option("--out-tokens", o->out_tokens, "Write the generated ids to this file (int32, little endian)");
  add_lockstep_option(cmd, o->engine);
  cmd->callback([o, cmd, &rc] {
    if (cmd->count("-p") + cmd->count("--tokens") == 0) throw CLI::RequiredError("-p or --tokens");
    rc = run(*o);
  });
}

}  // namespace facet
