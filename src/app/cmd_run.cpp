#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "app/commands.h"
#include "app/console.h"
#include "app/media_options.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/files.h"
#include "base/print.h"
#include "grammar/grammar.h"
#include "model/types.h"
#include "server/media_intake.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/tokenizer.h"
#include "tools/bench.h"

namespace facet {
namespace {

// What the answer has to be; at most one of them.
struct Constraint {
  std::string schema, schema_file, grammar, grammar_file;
  Result<GrammarPtr> compile(ThoughtMode thought) const;
};

struct Options {
  EngineConfig engine;
  EngineDebug debug;
  DraftOptions draft;
  Sampling sampling;
  Voice voice;
  bool seed_given = false, raw = false, ignore_eos = false, thinking = false, add_bos = false;
  bool in_thought = false;  // the prompt ends inside a thought
  std::string prompt, prompt_file, tokens, out_tokens;
  Constraint constraint;
  MediaFiles media;
  int n = -1, max_loops = 0;
};

Result<GrammarPtr> Constraint::compile(ThoughtMode thought) const {
  constexpr uint64_t kMost = uint64_t(16) << 20;
  const auto text_of = [](const std::string& file, const std::string& text) -> Result<std::string> {
    if (file.empty()) return text;
    return read_file(file, kMost);
  };
  const auto told = [](const std::string& where, Result<GrammarPtr> g) -> Result<GrammarPtr> {
    if (g) return g;
    const Error& e = g.error();
    return Error{e.where.empty() ? where : where + ": " + e.where, e.what, e.hint};
  };
  if (!schema.empty() || !schema_file.empty()) {
    auto text = text_of(schema_file, schema);
    if (!text) return text.error();
    return told(schema_file.empty() ? "--json-schema" : schema_file,
                compile_json_schema(std::string_view(*text), {.thought = thought}));
  }
  if (grammar.empty() && grammar_file.empty()) return GrammarPtr();
  auto text = text_of(grammar_file, grammar);
  if (!text) return text.error();
  return told(grammar_file.empty() ? "--grammar" : grammar_file, compile_gbnf(*text, {.thought = thought}));
}

// The file's ids. The model has never seen a text that does not begin with <bos>.
Result<std::vector<int32_t>> token_prompt(const Options& o, const Tokenizer* t, int n_vocab) {
  auto ids = read_token_file(o.tokens, n_vocab);
  if (!ids || !t || ids->front() == t->bos()) return ids;
  if (o.add_bos)
    ids->insert(ids->begin(), t->bos());
  else if (!o.voice.quiet)
    print_err("note: {} does not begin with <bos> ({}), as every text does that the model knows; --add-bos adds it\n",
              o.tokens, t->bos());
  return ids;
}

Result<std::vector<int32_t>> prompt_ids(Options& o, const Engine& e, std::vector<MediaSpan>& spans) {
  const Tokenizer* t = e.tokenizer();
  if (!o.tokens.empty()) return token_prompt(o, t, e.model().n_vocab);
  if (!t)
    return Error{e.config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                 "give token ids with --tokens, or another model"};
  if (o.raw) return t->encode(o.prompt, /*add_bos=*/true, /*parse_special=*/true);
  Message user;
  user.role = "user";
  std::vector<MediaItem> media;
  std::vector<ContentPart> parts;
  auto encoded = o.media.for_each([&](const std::string& path, MediaKind kind) -> Status {
    auto some = encode_file(path, kind, e);
    if (!some) return some.error();
    for (EncodedPart& part : *some)
      for (MediaItem& m : part.items) {
        parts.push_back({.kind = m.is_picture ? ContentPart::Kind::kImage : ContentPart::Kind::kAudio});
        parts.back().before = std::exchange(part.before, {});
        media.push_back(std::move(m));
      }
    return Ok{};
  });
  if (!encoded) return encoded.error();
  const bool plain = !parts.empty();  // a text beside pictures spells no placeholder of one
  parts.push_back({ContentPart::Kind::kText, o.prompt});
  user.content = std::move(parts);
  auto rendered = render_chat_ranges({user}, {},
                                     {.add_generation_prompt = true,
                                      .enable_thinking = o.thinking,
                                      .variant = chat_variant(t->vocab().chat_template, e.model().d_ple > 0)});
  if (!rendered) return rendered.error();
  o.in_thought = ends_in_thought(rendered->text);
  std::vector<int32_t> ids = t->encode(rendered->text, true, true, plain ? rendered->plain : std::vector<TextRange>{});
  if (auto ok = expand_media(media_tokens(*t), media, ids, spans); plain && !ok) return ok.error();
  return ids;
}

// The answer on stdout, its thoughts on stderr.
class Output {
 public:
  Output(const Options& o, const Engine& e) : o_(o) {
    if (!o.tokens.empty() || !e.tokenizer()) return;
    decoder_.emplace(*e.tokenizer(), false);
    if (!o.raw) parser_.emplace(ParseOptions{.in_thought = o.in_thought, .tools = std::vector<std::string>{}});
  }
  void push(std::span<const int32_t> ids) {
    all_.insert(all_.end(), ids.begin(), ids.end());
    for (const int32_t id : ids) {
      if (decoder_)
        text(decoder_->push(id));
      else if (o_.out_tokens.empty())
        print_out("{}\n", id);
    }
    flush_out();
  }
  void finish() {
    if (!decoder_) return;
    text(decoder_->finish());
    if (parser_) show(parser_->finish());
    end_thought();
    put_out("\n");
    flush_out();
    if (o_.voice.quiet || !parser_) return;
    for (const ParsedCall& c : parser_->message().tool_calls)
      print_err("(the model calls {} {}; run has no tools)\n", c.name, c.arguments);
  }
  const std::vector<int32_t>& all() const { return all_; }

 private:
  void text(const std::string& s) { parser_ ? show(parser_->push(s)) : put_out(s); }
  void show(const std::vector<ParseEvent>& events) {
    for (const ParseEvent& e : events) {
      if (e.kind == ParseEvent::Kind::kContent) {
        end_thought();
        put_out(e.text);
      } else if (e.kind == ParseEvent::Kind::kReasoning && !o_.voice.quiet) {
        if (!std::exchange(in_thought_, true)) put_err(dim_ ? "\033[2m" : "(thinking) ");
        put_err(e.text);
      }
    }
  }
  void end_thought() {
    if (std::exchange(in_thought_, false)) put_err(dim_ ? "\033[0m\n" : "\n");
  }

  const Options& o_;
  std::optional<StreamDecoder> decoder_;
  std::optional<ChatParser> parser_;
  std::vector<int32_t> all_;
  bool in_thought_ = false, dim_ = takes_escapes(STDERR_FILENO);
};

// What can be known before the model is read.
Status prepare(Options& o) {
  if (auto ok = find_model(o.engine); !ok) return ok;
  if (!o.out_tokens.empty())
    if (auto ok = check_output(o.out_tokens, files_of(o.engine.model, {o.tokens})); !ok) return ok;
  if (!o.tokens.empty()) return Ok{};
  if (o.prompt == "-" && o.prompt_file == "-")
    return Error{"-f", "expected a file beside -p -, found standard input, too", "name a file"};
  const auto trim = [&](std::string& text) {
    if (!o.raw && text.ends_with('\n')) text.pop_back();  // that of echo
  };
  if (o.prompt == "-") {
    auto text = read_stdin();
    if (!text) return text.error();
    o.prompt = std::move(*text);
    trim(o.prompt);
  }
  if (o.prompt_file.empty()) return Ok{};
  constexpr uint64_t kMost = uint64_t(256) << 20;
  auto text = o.prompt_file == "-" ? read_stdin() : read_file(o.prompt_file, kMost);
  if (!text) return text.error();
  trim(*text);
  o.prompt = std::move(*text) + (o.prompt.empty() ? "" : (o.raw ? "" : "\n\n") + o.prompt);
  return Ok{};
}

// --explain: of the whole run, drafters included.
void explain(const Engine& engine) {
  const VerbCosts costs = engine.verb_costs();
  double sum = 0;
  for (const BenchVerb& v : bench_verbs(costs, 1)) {
    print_err("{:<18} {:>7} calls {:>10.3f} ms {:>7.1f} GB/s {:>8.1f} GFLOP/s {:>5.1f} %\n", v.name,
              costs.at(v.name).calls, v.ms, v.gbps, v.gflops, 100 * v.share);
    sum += v.ms;
  }
  print_err("{:<18} {:>24.3f} ms\n", "all verbs", sum);
}

int run(Options& o) {
  if (auto ok = prepare(o); !ok) return report(ok.error());
  draw_seed(o.sampling, o.seed_given);
  auto grammar = o.constraint.compile(ThoughtMode::kNone);  // what is wrong with it, before the model is read
  if (!grammar) return report(grammar.error());
  auto opened = open_engine(o.engine, o.draft, o.voice, o.debug);
  if (!opened) return report(opened.error());
  Engine& engine = **opened;
  std::vector<MediaSpan> spans;
  auto ids = prompt_ids(o, engine, spans);
  if (!ids) return report(ids.error());
  if (o.thinking) grammar = o.constraint.compile(o.in_thought ? ThoughtMode::kOpen : ThoughtMode::kOptional);
  if (!grammar) return report(grammar.error());

  Output out(o, engine);
  std::string error;
  Usage usage;
  Stop why = Stop::kError;
  Request request{.prompt = std::move(*ids),
                  .media = std::move(spans),
                  .max_tokens = o.n,
                  .sampling = o.sampling,
                  .ignore_eos = o.ignore_eos,
                  .suppress_special = o.tokens.empty() && !o.raw,
                  .max_loops = o.max_loops};
  request.grammar = std::move(*grammar);
  std::unique_ptr<Progress> progress;
  if (!o.voice.quiet) progress = std::make_unique<Progress>("prompt", Progress::Unit::kTokens);
  auto id = engine.submit(std::move(request), {.tokens =
                                                   [&](RequestId, std::span<const int32_t> t) {
                                                     progress.reset();
                                                     out.push(t);
                                                   },
                                               .done = [&](RequestId, Stop s, const Usage& u,
                                                           const std::string& e) { why = s, usage = u, error = e; },
                                               .prefill =
                                                   [&](RequestId, int n, int total) {
                                                     if (progress) progress->update(uint64_t(n), uint64_t(total));
                                                   }});
  if (!id) return report(id.error());
  Interrupts interrupts;
  bool interrupted = false;
  const CoreUse cores;
  while (engine.tick())
    if (Interrupts::pending() || out_failed()) {
      interrupted |= Interrupts::pending();
      engine.cancel(*id), Interrupts::clear();
    }
  progress.reset();
  out.finish();
  if (why == Stop::kError) return report({"run", error, ""});
  if (!o.voice.quiet) {
    print_err("{}\n", o.voice.verbose ? long_usage_line(usage, why, o.sampling) + cores_part(cores)
                                      : usage_line(usage, why) + seed_part(o.sampling));
    if (const std::string warning = draft_warning(usage); !warning.empty()) print_err("note: {}\n", warning);
  }
  if (!o.out_tokens.empty())
    if (auto ok = write_token_file(o.out_tokens, out.all()); !ok) return report(ok.error());
  if (o.debug.explain) explain(engine);
  if (auto ok = lockstep_verdict(engine, o.debug); !ok) return report(ok.error());
  return interrupted ? kExitInterrupted : kExitOk;
}

void add_constraint_options(CLI::App* cmd, Constraint& c) {
  cmd->add_option("-j,--json-schema", c.schema, "The answer is JSON that this schema describes")->check(not_empty());
  cmd->add_option("--json-schema-file", c.schema_file, "The same, with the schema in a file")->check(not_empty());
  cmd->add_option("--grammar", c.grammar, "The answer follows this grammar (GBNF)")->check(not_empty());
  cmd->add_option("--grammar-file", c.grammar_file, "The same, with the grammar in a file")->check(not_empty());
}

}  // namespace

void add_run(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("run", "Answer one prompt; the answer goes to stdout, statistics to stderr");
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_sparse_option(cmd, o->engine);
  add_sampling_options(cmd, o->sampling, o->seed_given);
  auto* prompt = cmd->add_option("-p,--prompt,TEXT", o->prompt, "Text of one user turn; -: standard input");
  auto* file = cmd->add_option("-f,--file", o->prompt_file,
                               "The text of this file, before that of -p if there is both; -: standard input")
                   ->check(not_empty());
  cmd->add_flag("--raw", o->raw, "The prompt is the text as it is, without turns");
  cmd->add_flag("--think", o->thinking, "Let the model think first; its thoughts go to stderr");
  auto* tokens = cmd->add_option("--tokens", o->tokens, "Prompt as a file of token ids (int32, little endian)")
                     ->check(not_empty())
                     ->excludes(prompt)
                     ->excludes(file);
  cmd->add_flag("--add-bos", o->add_bos, "Begin the ids of --tokens with <bos> if they do not")->needs(tokens);
  cmd->add_option("-n,--n-predict", o->n,
                  "Tokens to generate; 0: none, -1: until the model stops or the context is full")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  cmd->add_flag("--ignore-eos", o->ignore_eos, "Go on after the end-of-generation token");
  add_loop_option(cmd, o->max_loops);
  add_constraint_options(cmd, o->constraint);
  add_mmproj_options(cmd, o->engine);
  add_media_files(cmd, o->media);
  cmd->add_option("--out-tokens", o->out_tokens, "Write the generated ids to this file (int32, little endian)")
      ->check(not_empty());
  add_lockstep_option(cmd, o->debug);
  add_forced_option(cmd, o->debug);
  cmd->add_flag("--explain", o->debug.explain,
                "Also what every verb of the model and its drafters cost, one after the other: slower than without")
      ->excludes("--lockstep");
  add_voice_options(cmd, o->voice);
  cmd->preparse_callback([o](size_t) {});  // options live as long as the command that fills them in
  cmd->callback([o, cmd, &rc] {
    if (cmd->count("-p") + cmd->count("-f") + cmd->count("--tokens") == 0)
      throw CLI::RequiredError("a text, -f, -p or --tokens");
    for (const char* turns : {"--raw", "--think"})
      if (cmd->count("--tokens") > 0 && cmd->count(turns) > 0) throw CLI::ExcludesError(turns, "--tokens");
    if (cmd->count("--json-schema") + cmd->count("--json-schema-file") + cmd->count("--grammar") +
            cmd->count("--grammar-file") >
        1)
      throw CLI::ExcludesError("--json-schema", "--grammar");
    rc = run(*o);
  });
}

}  // namespace facet
