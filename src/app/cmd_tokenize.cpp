#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "base/files.h"
#include "formats/gguf.h"
#include "tokenizer/json.h"
#include "tokenizer/known_ids.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

struct TokenizeOptions {
  std::string model, out_tokens;
  bool no_bos = false, no_special = false, show_special = false, check = false;
};

Result<Tokenizer> load_tokenizer(std::string& path) {
  if (auto ok = find_model(path); !ok) return ok.error();
  Result<GgufFile> file = GgufFile::open(path);
  if (!file) return file.error();
  Result<Vocab> vocab = vocab_from_gguf(*file);
  if (!vocab) return vocab.error();
  return Tokenizer::create(std::move(*vocab));
}

std::string escaped(std::string_view text) {
  std::string json = dump_json(Json(std::string(text)));
  return json.substr(1, json.size() - 2);
}

// The published ids against the file's. Exit code 0 if all agree.
Result<int> check(const Tokenizer& t) {
  if (t.size() != kGemma4VocabSize || t.find("Hello") != 9259 || t.find("\n") != 107 || t.find("<0x00>") != 238)
    return Error{
        t.vocab().where,
        fmt::format("the known ids are those of the published Gemma 4 vocabulary ({} tokens, \"Hello\" is 9259); "
                    "this file has another one ({} tokens, \"Hello\" is {})",
                    kGemma4VocabSize, t.size(), t.find("Hello")),
        "there is nothing to compare with; the file may still be fine"};
  std::string out;
  size_t passed = 0;
  const auto known = gemma4_known_encodings();
  for (const KnownEncoding& row : known) {
    const std::vector<int32_t> ids = t.encode(row.text, false, true);
    const bool same = ids == row.ids && t.decode(ids, true) == row.text;
    passed += same;
    out += fmt::format("{}  \"{}\"\n", same ? "pass" : "FAIL", escaped(row.text));
    if (!same)
      out += fmt::format("      expected {}\n      found    {}\n", fmt::join(row.ids, " "), fmt::join(ids, " "));
  }
  for (const std::string& note : t.vocab().notes) out += fmt::format("note  {}\n", note);
  out += fmt::format("{} of {} rows pass\n", passed, known.size());
  if (Status s = write_stdout(out); !s) return s.error();
  return passed == known.size() ? kExitOk : kExitFailure;
}

Result<int> tokenize(TokenizeOptions& o) {
  Result<Tokenizer> t = load_tokenizer(o.model);
  if (!t) return t.error();
  if (o.check) return check(*t);
  Result<std::string> text = read_stdin();
  if (!text) return text.error();
  const std::vector<int32_t> ids = t->encode(*text, !o.no_bos, !o.no_special);
  if (!o.out_tokens.empty()) {
    if (auto ok = check_output(o.out_tokens, files_of(o.model, {})); !ok) return ok.error();
    if (auto ok = write_token_file(o.out_tokens, ids); !ok) return ok.error();
    return int(kExitOk);
  }
  Json tokens = Json::array();
  for (const int32_t id : ids) tokens.push_back(t->text(id));
  if (Status s = write_stdout(dump_json({{"ids", ids}, {"tokens", tokens}}) + "\n"); !s) return s.error();
  return int(kExitOk);
}

Result<std::vector<int32_t>> ids_from_json(const Json& j, const Tokenizer& t) {
  const auto it = j.is_object() ? j.find("ids") : j.end();
  const Json& list = j.is_object() && it != j.end() ? *it : j;
  if (!list.is_array()) return Error{"stdin", "expected a list of token ids or {\"ids\": [...]}", ""};
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || !t.valid(id.get<int64_t>()))
      return Error{"stdin", fmt::format("expected token ids 0..{}, found {}", t.size() - 1, dump_json(id)), ""};
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<int> detokenize(TokenizeOptions& o) {
  Result<Tokenizer> t = load_tokenizer(o.model);
  if (!t) return t.error();
  Result<std::string> text = read_stdin();
  if (!text) return text.error();
  Result<Json> j = parse_json(*text, "stdin");
  if (!j) return j.error();
  Result<std::vector<int32_t>> ids = ids_from_json(*j, *t);
  if (!ids) return ids.error();
  if (Status s = write_stdout(t->decode(*ids, o.show_special)); !s) return s.error();
  return int(kExitOk);
}

}  // namespace

void add_tokenize(CLI::App& app, int& rc) {
  // Shared because a CLI11 callback has to be copyable and outlives this function.
  const auto o = std::make_shared<TokenizeOptions>();
  const auto finish = [&rc](Result<int> result) { rc = result ? *result : report(result.error()); };

  CLI::App* tokenize_cmd = app.add_subcommand("tokenize", "text on stdin to {\"ids\": [...], \"tokens\": [...]}");
  add_model_option(tokenize_cmd, o->model);
  tokenize_cmd
      ->add_option("--out-tokens", o->out_tokens,
                   "write the ids to this file (int32, little endian), which run --tokens reads, and nothing to stdout")
      ->check(not_empty());
  tokenize_cmd->add_flag("--no-bos", o->no_bos, "do not begin with <bos>");
  tokenize_cmd->add_flag("--no-special", o->no_special, "control tokens spelled in the text are plain text");
  tokenize_cmd->add_flag("--check", o->check, "compare the file's tokenizer with published ids; reads no stdin");
  tokenize_cmd->callback([o, finish] { finish(tokenize(*o)); });

  CLI::App* detokenize_cmd = app.add_subcommand("detokenize", "[ids] or {\"ids\": [...]} on stdin to text");
  add_model_option(detokenize_cmd, o->model);
  detokenize_cmd->add_flag("--show-special", o->show_special, "spell control tokens instead of dropping them");
  detokenize_cmd->callback([o, finish] { finish(detokenize(*o)); });
}

}  // namespace facet
