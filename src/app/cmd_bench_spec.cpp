#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "base/files.h"
#include "base/print.h"
#include "compose/load_model.h"
#include "formats/gguf.h"
#include "grammar/grammar.h"
#include "spec/answer_memory.h"
#include "tokenizer/tokenizer.h"
#include "tools/bench_spec.h"
#include "tools/eval.h"
#include "tools/paths.h"

namespace facet {
namespace {

constexpr uint64_t kMostSchema = 1 << 20;  // bytes of a file

struct Options {
  EngineConfig engine;
  SpecBenchOptions bench;
  std::vector<std::string> drafts{"auto"}, sets{"code", "json", "prose", "retrieval"};
  std::string prompts, json, schema, replay;
  std::vector<int> contexts, sequences;
  int count = 12, random = 0;
};

// What the shipped questions call it; other files name their kinds as they like.
const std::map<std::string, std::vector<std::string>> kKinds{{"prose", {"prose", "remember", "thinking"}}};

bool belongs(const std::string& set, const std::string& kind) {
  const auto at = kKinds.find(set);
  if (at == kKinds.end()) return kind.starts_with(set);
  for (const std::string& k : at->second)
    if (kind.starts_with(k)) return true;
  return false;
}

Result<std::vector<EvalDoc>> questions(const Options& o) {
  return read_eval_set(o.prompts.empty() ? default_eval_path() : o.prompts);
}

// The prompts of every set: from the file of questions, or random tokens for a model without a vocabulary.
Result<std::vector<PromptSet>> prompt_sets(const Options& o) {
  auto file = GgufFile::open(o.engine.model);
  if (!file) return file.error();
  auto vocab = vocab_from_gguf(*file);
  if (!vocab) return vocab.error();
  if (vocab->empty() || o.random > 0) {
    PromptSet s{"random", {}};
    uint32_t state = 1;
    for (int i = 0; i < std::min(o.count, 3); ++i) {
      s.prompts.emplace_back(size_t(o.random > 0 ? o.random : 64));
      for (int32_t& id : s.prompts.back()) id = int32_t((state = state * 1664525u + 1013904223u) >> 23);  // below 512
    }
    return std::vector<PromptSet>{std::move(s)};
  }
  auto tokenizer = Tokenizer::create(std::move(*vocab));
  if (!tokenizer) return tokenizer.error();
  auto docs = questions(o);
  if (!docs) return docs.error();
  std::vector<PromptSet> sets;
  for (const std::string& name : o.sets) {
    PromptSet s{name, {}};
    for (const EvalDoc& d : *docs)
      if (belongs(name, d.kind) && int(s.prompts.size()) < o.count)
        s.prompts.push_back(tokenizer->encode(d.context, /*add_bos=*/false, /*parse_special=*/true));
    if (s.prompts.empty())
      return Error{o.prompts.empty() ? default_eval_path() : o.prompts,
                   fmt::format("expected lines of kind {}, found none", name), "name the sets with --sets"};
    sets.push_back(std::move(s));
  }
  return sets;
}

nlohmann::ordered_json to_json(const SpecLine& l, const Options& o) {
  nlohmann::ordered_json j{{"set", l.set},
                           {"method", l.method},
                           {"length", l.length},
                           {"tree", l.tree},
                           {"kv", kv_type_name(l.kv)},
                           {"runs", l.runs},
                           {"tokens_per_step", l.tokens_per_step},
                           {"tok_s", l.tok_s},
                           {"tok_s_sd", l.tok_s_sd},
                           {"speedup", l.speedup},
                           {"drafted", l.drafted},
                           {"accepted", l.accepted},
                           {"right_at", l.right_at},
                           {"draft_ms", l.draft_ms},
                           {"verify_ms", l.verify_ms},
                           {"accept_ms", l.accept_ms},
                           {"skipped", o.bench.skip},
                           {"in_turn", o.bench.in_turn},
                           {"forced", o.bench.debug.forced_drafts},
                           {"schema", o.schema},
                           {"model", o.engine.model},
                           {"backend", o.engine.backend},
                           {"version", FACET_VERSION}};
  if (l.length > 0)
    for (int n = 1; n <= l.length + 1; ++n) j["tok_s_at"].push_back(l.tok_s_at(n));
  return j;
}
nlohmann::ordered_json to_json(const ContextLine& l, const Options& o, int length) {
  return {{"set", l.set},
          {"method", l.method},
          {"length", length},
          {"context", l.context},
          {"prompts", l.prompts},
          {"tokens", l.tokens},
          {"tokens_per_step_kept", l.kept},
          {"tokens_per_step_fresh", l.fresh},
          {"error", l.error},
          {"different", l.different},
          {"same_as_first", l.same},
          {"same_change", l.same_change},
          {"same_error", l.same_error},
          {"model", o.engine.model},
          {"backend", o.engine.backend},
          {"version", FACET_VERSION}};
}

// What every length would give at every acceptance, from the times of its steps.
void print_curve(const std::vector<SpecLine>& lines) {
  int most = 0;
  for (const SpecLine& l : lines) most = std::max(most, l.length + 1);
  if (most <= 1) return;
  print_out(
      "\nTokens per second if every step brought so many tokens, from the times of a step: T_draft of n "
      "tokens, T_verify of n + 1 rows, T_accept.\n\n"
      "| set | method | n | kv | T_draft | T_verify | T_accept, ms | as plain at |");
  for (int n = 1; n <= most; ++n) print_out(" {} |", n);
  print_out("\n| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |");
  for (int n = 1; n <= most; ++n) print_out(" ---: |");
  print_out("\n");
  for (const SpecLine& l : lines) {
    if (l.length == 0) continue;
    double plain = 0;
    for (const SpecLine& p : lines)
      if (p.method == "none" && p.set == l.set && p.kv == l.kv) plain = p.tok_s;
    print_out("| {} | {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {:.2f} |", l.set, l.method, l.length,
              kv_type_name(l.kv), l.draft_ms, l.verify_ms, l.accept_ms, plain / std::max(1e-9, l.tok_s_at(1)));
    for (int n = 1; n <= most; ++n) print_out(" {} |", n <= l.length + 1 ? fmt::format("{:.0f}", l.tok_s_at(n)) : "");
    print_out("\n");
  }
}

std::string length_name(const SpecLine& l) {
  if (l.method == "none") return "";
  return (l.length > 0 ? std::to_string(l.length) : "auto") + (l.tree > 0 ? fmt::format(", tree {}", l.tree) : "");
}

int written(const Options& o, OutputFile& json) {
  if (o.json.empty()) return kExitOk;
  const Status ok = json.finish();
  return ok ? int(kExitOk) : report(ok.error());
}

// Second answers of conversations of several lengths.
int run_contexts(const Options& o, OutputFile& json) {
  auto file = GgufFile::open(o.engine.model);
  if (!file) return report(file.error());
  auto vocab = vocab_from_gguf(*file);
  if (!vocab) return report(vocab.error());
  auto tokenizer = Tokenizer::create(std::move(*vocab));
  if (!tokenizer) return report(tokenizer.error());
  auto docs = questions(o);
  if (!docs) return report(docs.error());
  if (std::all_of(o.bench.lengths.begin(), o.bench.lengths.end(), [](int n) { return n == 0; }))
    return report({"--lengths", "expected the length of a draft with --contexts, found 0: times would choose",
                   "use --lengths 7"});
  if (o.bench.methods.empty())
    return report({"--draft", "expected a drafter with --contexts, found none", "name one: --draft PATH"});
  auto encode = [&](const std::string& s) { return tokenizer->encode(s, /*add_bos=*/false, /*parse_special=*/true); };
  ContextBenchOptions b{.texts = {},
                        .next_turn = encode("<turn|>\n"),
                        .sets = o.bench.sets,
                        .methods = o.bench.methods,
                        .contexts = o.contexts,
                        .n_predict = o.bench.n_predict};
  size_t longest = 0;
  for (const EvalDoc& d : *docs)
    if (belongs("retrieval", d.kind)) {
      b.texts.push_back(encode(d.context));
      longest = std::max(longest, b.texts.back().size());
    }
  std::erase_if(b.texts, [&](const auto& t) { return t.size() < longest * 9 / 10; });
  if (b.texts.empty())
    return report({"--contexts", "expected questions of the kind retrieval, found none", "leave --prompts out"});
  for (PromptSet& s : b.sets)
    for (auto& p : s.prompts)
      if (!p.empty() && p[0] == tokenizer->bos()) p.erase(p.begin());
  print_out(
      "| set | method | length | context | tokens a step, kept rows | computed afresh | +- | tokens | other "
      "text | text as at the first context: change |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
  for (const int length : o.bench.lengths) {
    if (length == 0) continue;  // times would choose
    b.length = length;
    const Status done = bench_context(o.engine, b, [&](const ContextLine& l) {
      print_out("| {} | {} | {} | {} | {:.2f} | {:.2f} | {:.2f} | {} | {} of {} | {}: {:+.2f} +- {:.2f} |\n", l.set,
                l.method, length, l.context, l.kept, l.fresh, l.error, l.tokens, l.different, l.prompts, l.same,
                l.same_change, l.same_error);
      flush_out();
      if (json.is_open()) (void)json.write(to_json(l, o, length).dump() + "\n");  // finish() tells of failures
    });
    if (!done) return report(done.error());
  }
  return written(o, json);
}

// Sequences that decode together.
int run_sequences(const Options& o, OutputFile& json) {
  print_out(
      "| set | sequences | method | length | kv | tokens a step | tok/s | x plain |\n"
      "| --- | ---: | --- | --- | --- | ---: | ---: | ---: |\n");
  const Status done = bench_spec_batch(o.engine, o.bench, o.sequences, [&](const BatchLine& l) {
    const std::string length = l.method == "none" ? "" : l.length > 0 ? std::to_string(l.length) : "auto";
    print_out("| {} | {} | {} | {} | {} | {:.2f} | {:.1f} | {:.2f} |\n", l.set, l.sequences, l.method, length,
              kv_type_name(l.kv), l.tokens_per_step, l.tok_s, l.speedup);
    flush_out();
    const nlohmann::ordered_json j{{"set", l.set},
                                   {"sequences", l.sequences},
                                   {"method", l.method},
                                   {"length", l.length},
                                   {"kv", kv_type_name(l.kv)},
                                   {"tokens_per_step", l.tokens_per_step},
                                   {"tok_s", l.tok_s},
                                   {"speedup", l.speedup},
                                   {"forced", o.bench.debug.forced_drafts},
                                   {"model", o.engine.model},
                                   {"backend", o.engine.backend},
                                   {"version", FACET_VERSION}};
    if (json.is_open()) (void)json.write(j.dump() + "\n");  // finish() tells of failures
  });
  if (!done) return report(done.error());
  return written(o, json);
}

// Recorded turns of agents and people.
Status replay(const Options& o, const std::function<void(const SpecLine&)>& print) {
  auto file = GgufFile::open(o.engine.model);
  if (!file) return file.error();
  auto vocab = vocab_from_gguf(*file);
  if (!vocab) return vocab.error();
  auto tokenizer = Tokenizer::create(std::move(*vocab));
  if (!tokenizer) return tokenizer.error();
  auto turns = read_recorded_turns(o.replay, *tokenizer);
  if (!turns) return turns.error();
  return bench_spec_replay(o.engine, o.bench, *turns, print);
}

int run(Options& o) {
  if (auto ok = find_model(o.engine.model); !ok) return report(ok.error());
  if (o.replay.empty()) {
    auto sets = prompt_sets(o);
    if (!sets) return report(sets.error());
    o.bench.sets = std::move(*sets);
    o.bench.ignore_eos = o.bench.sets[0].name == "random" || !o.bench.debug.forced_drafts.empty();
  }
  // Each drafter on its own, then all of them, where the faster one is chosen as it goes.
  auto files = draft_files(o.engine.model, {o.drafts});
  if (!files) return report(files.error());
  for (const std::string& note : files->notes) print_err("note: {}\n", note);
  for (const std::string& f : files->paths) {
    auto kind = drafter_kind_of(f);
    if (!kind) return report(kind.error());
    o.bench.methods.push_back({*kind, {f}});
  }
  if (files->suffix) o.bench.methods.push_back({"suffix", {}, true});
  if (!o.schema.empty()) {
    auto text = read_file(o.schema, kMostSchema);
    if (!text) return report(text.error());
    auto grammar = compile_json_schema(std::string_view(*text));
    if (!grammar) return report(grammar.error());
    o.bench.grammar = std::move(*grammar);
  }
  OutputFile json;
  if (!o.json.empty()) {
    auto file = OutputFile::create(o.json, std::vector{o.engine.model});
    if (!file) return report(file.error());
    json = std::move(*file);
  }
  if (!o.contexts.empty()) return run_contexts(o, json);
  if (o.bench.methods.size() > 1) o.bench.methods.push_back({"all", files->paths, files->suffix});
  if (!o.bench.debug.forced_drafts.empty())
    print_out("Forced acceptance: draft k is taken for right with probability {}. The text means nothing.\n\n",
              fmt::join(o.bench.debug.forced_drafts, ", "));
  if (!o.sequences.empty()) return run_sequences(o, json);
  print_out(
      "| set | method | length | kv | tokens a step | tok/s | +- | x plain | draft ms | verify ms | accept "
      "ms | right by place |\n"
      "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
  std::vector<SpecLine> lines;
  const auto print = [&](const SpecLine& l) {
    lines.push_back(l);
    std::string places;
    for (const double p : l.right_at) places += fmt::format("{:.2f} ", p);
    print_out("| {} | {} | {} | {} | {:.2f} | {:.1f} | {:.1f} | {:.2f} | {:.3f} | {:.3f} | {:.3f} | {}|\n", l.set,
              l.method, length_name(l), kv_type_name(l.kv), l.tokens_per_step, l.tok_s, l.tok_s_sd, l.speedup,
              l.draft_ms, l.verify_ms, l.accept_ms, places);
    flush_out();
    if (json.is_open()) (void)json.write(to_json(l, o).dump() + "\n");  // finish() tells of failures
  };
  const Status done = o.replay.empty() ? bench_spec(o.engine, o.bench, print) : replay(o, print);
  if (!done) return report(done.error());
  print_curve(lines);
  return written(o, json);
}

}  // namespace

void add_bench_spec(CLI::App& bench, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd =
      bench.add_subcommand("spec", "Measure drafting: tokens a step and tokens a second, a Markdown table to stdout");
  add_engine_options(cmd, o->engine);
  for (const char* given_otherwise : {"--kv", "--kv-layers"}) cmd->remove_option(cmd->get_option(given_otherwise));
  cmd->add_option("--draft", o->drafts, "Drafters, as elsewhere; each is measured alone, then all of them together")
      ->option_text("PATH|auto|dflash|mtp|suffix [auto]");
  cmd->add_option("--draft-tree", o->engine.draft.tree, "Trees of this many tokens instead of chains")
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  cmd->add_option("--draft-memory", o->engine.draft.memory, "Token ids of earlier answers that suffix drafts from")
      ->check(CLI::Range(0, int(AnswerStore::kMostTokens)))
      ->capture_default_str();
  cmd->add_option("--lengths", o->bench.lengths, "Tokens of a draft; 0: chosen as it goes")
      ->delimiter(',')
      ->check(CLI::Range(0, 63))
      ->capture_default_str();
  cmd->add_option_function<std::vector<std::string>>(
         "--kv",
         [o](const std::vector<std::string>& names) {
           o->bench.kv.clear();
           for (const std::string& name : names) o->bench.kv.push_back(kv_types_by_name().at(name));
         },
         "Cache types")
      ->delimiter(',')
      ->transform(name_among(names_of(kv_types_by_name())))
      ->option_text("TYPE,... [f16]");
  cmd->add_option("--prompts", o->prompts,
                  "JSON lines {kind, context, answer}; omitted: the questions that come with the model");
  cmd->add_option("--sets", o->sets, "Kinds of prompts")->delimiter(',')->capture_default_str();
  cmd->add_option("--count", o->count, "Prompts of a set at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  cmd->add_option("--random", o->random,
                  "Instead, prompts of this many random tokens, as for a model without a vocabulary")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  add_forced_option(cmd, o->bench.debug);
  cmd->add_option("--schema", o->schema, "Answers follow the JSON schema in this file")->option_text("FILE");
  cmd->add_option("-n,--n-predict", o->bench.n_predict, "Tokens of an answer at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  cmd->add_option("--skip", o->bench.skip, "Tokens of an answer before its clock starts")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  cmd->add_flag("--in-turn", o->bench.in_turn,
                "Measure plain decoding again beside each run; \"x plain\" is the median of the pairs");
  cmd->add_option("--contexts", o->contexts,
                  "Instead, tokens a step in the second answer of a conversation of so many tokens, with "
                  "rows kept from the first one and computed afresh")
      ->delimiter(',')
      ->check(CLI::Range(32, 1 << 20));
  cmd->add_option("--sequences", o->sequences,
                  "Instead, tokens a second of so many sequences that decode together, with each way of drafting")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  cmd->add_option("--replay", o->replay,
                  "Instead, answers that were recorded: JSON lines {kind, prompt, answer}; a draft is right where it "
                  "equals the recorded token")
      ->option_text("FILE");
  cmd->add_option("--runs", o->bench.runs, "Measurements, after one that does not count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  cmd->add_option("--json", o->json, "Also write the rows as JSON lines to this file");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
