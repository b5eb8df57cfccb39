#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "app/chat.h"
#include "app/commands.h"
#include "app/console.h"
#include "app/hub_models.h"
#include "app/line_input.h"
#include "base/print.h"
#include "model/types.h"

namespace facet {
namespace {

// Lines up to one that ends with three quotes; `first` is what follows those that began it.
std::string quoted(LineInput& lines, std::string first, bool tell) {
  constexpr std::string_view kQuotes = "\"\"\"";
  std::string text;
  std::optional<std::string> line = std::move(first);
  while (true) {
    const bool last = line->ends_with(kQuotes);
    if (last) line->resize(line->size() - kQuotes.size());
    if (!line->empty() || (!last && !text.empty())) text += (text.empty() ? "" : "\n") + *line;
    if (last) return text;
    line = lines.next("| ");
    if (!line) return text;  // the input ended: what there is counts
    if (tell) print_out("{}\n", *line);
  }
}

int talk(Engine& engine, const ChatOptions& o) {
  Chat chat(engine, o);
  if (auto ok = o.files.for_each([&](const std::string& path, MediaKind kind) { return chat.attach(path, kind); }); !ok)
    return report(ok.error());
  Interrupts interrupts;
  LineSettings settings{.complete = complete_chat};
  const std::string folder = o.no_history ? "" : hub_cache_folder();
  if (!folder.empty()) settings.history = ChatHistory(folder + "/chat_history");
  LineInput lines(std::move(settings));
  while (auto line = lines.next("> ")) {
    if (!lines.echoes()) print_out("{}\n", *line);
    if (line->starts_with("\"\"\""))
      line = quoted(lines, line->substr(3), !lines.echoes());
    else if (line->starts_with("//"))
      line->erase(0, 1);
    else if (line->starts_with("/")) {
      if (!chat.command(*line)) break;
      continue;
    }
    if (line->find_first_not_of(" \t\r\n") != std::string::npos) chat.answer(*line);
  }
  put_out("\n");
  return kExitOk;
}

int run(ChatOptions& o) {
  draw_seed(o.sampling, o.seed_given);
  o.voice.brief = true;
  auto engine = open_engine(o.engine, o.draft, o.voice);
  if (!engine) return report(engine.error());
  if (!(*engine)->tokenizer())
    return report({(*engine)->config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                   "chat needs a model with a vocabulary; facet run --tokens works without"});
  const EngineConfig& c = (*engine)->config();
  print_out("{}, context {}, {} threads. /help lists commands.\n", (*engine)->model().name, c.n_ctx, c.n_threads);
  return talk(**engine, o);
}

}  // namespace

void add_chat(CLI::App& app, int& rc) {
  auto o = std::make_shared<ChatOptions>();
  CLI::App* cmd = app.add_subcommand("chat", "Talk with the model in the terminal");
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_mmproj_options(cmd, o->engine);
  add_media_files(cmd, o->files);
  add_sparse_option(cmd, o->engine);
  add_sampling_options(cmd, o->sampling, o->seed_given);
  cmd->add_option("-s,--system", o->system, "System message");
  cmd->add_flag("--think", o->thinking, "Let the model think before it answers");
  cmd->add_option("-n,--n-predict", o->n, "Tokens of an answer at most; 0: none, -1: no limit")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  cmd->add_flag("--no-history", o->no_history,
                "Keep nothing of what is typed for other chats, and offer nothing of it");
  add_voice_options(cmd, o->voice);
  cmd->preparse_callback([o](size_t) {});  // options live as long as the command that fills them in
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
