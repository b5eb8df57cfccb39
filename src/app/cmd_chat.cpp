#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "app/commands.h"
#include "app/console.h"
#include "app/line_input.h"
#include "app/media_options.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/print.h"
#include "model/types.h"
#include "server/media_intake.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

constexpr const char* kHelp =
    "/help          this list\n"
    "/think on|off  let the model think before it answers\n"
    "/system TEXT   set the system message and start anew; without TEXT: none\n"
    "/image PATH    a picture for what you write next (JPEG, PNG, WebP, GIF, BMP); several, one by one\n"
    "/audio PATH    a sound, likewise (WAV, FLAC, MP3)\n"
    "/undo          forget the last exchange\n"
    "/clear         forget the conversation\n"
    "/stats         all there is to say about the last answer's speed\n"
    "/exit          leave (so does Ctrl-D)\n"
    "//...          a text that begins with /\n"
    "\"\"\"            begins and ends a text of several lines (Alt-Enter puts a line break into one)\n"
    "Ctrl-C stops an answer, not the program.\n";

struct Options {
  EngineConfig engine;
  DraftOptions draft;
  Sampling sampling;
  Voice voice;
  MediaFiles files;
  bool seed_given = false, thinking = false;
  std::string system;
  int n = -1;
};

class Chat {
 public:
  Chat(Engine& engine, Options o) : engine_(engine), o_(std::move(o)), t_(*engine.tokenizer()) { reset(); }

  // False when the user leaves.
  bool command(const std::string& text) {
    const size_t space = text.find(' ');
    const std::string name = text.substr(0, space), rest = space == std::string::npos ? "" : text.substr(space + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      put_out(kHelp);
    } else if (name == "/clear") {
      reset();
      put_out("The conversation is forgotten.\n");
    } else if (name == "/stats") {
      print_out("{}\n", stats_.empty() ? "There is no answer yet." : stats_);
    } else if (name == "/system") {
      o_.system = rest;
      reset();
      print_out("{} The conversation starts anew.\n",
                rest.empty() ? "There is no system message now." : "The system message is set.");
    } else if (name == "/think" && (rest == "on" || rest == "off" || rest.empty())) {
      if (!rest.empty()) o_.thinking = rest == "on";
      print_out("Thinking is {}.\n", o_.thinking ? "on" : "off");
    } else if ((name == "/image" || name == "/audio") && !rest.empty()) {
      if (auto ok = attach(rest, name == "/image"); !ok) report(ok.error());
    } else if (name == "/undo") {
      put_out(undo() ? "The last exchange is forgotten.\n" : "There is nothing to forget.\n");
    } else {
      print_out("unknown command: {} (// sends a text that begins with /)\n{}", on_one_line(text), kHelp);
    }
    return true;
  }

  void answer(const std::string& text);
  // A picture or a sound of the next message.
  Status attach(const std::string& path, bool is_picture) {
    auto items = encode_file(path, is_picture, engine_);
    if (!items) return items.error();
    int n = 0;
    for (const MediaItem& i : *items) n += i.n;
    print_out("{}: {} tokens, for what you write next\n", on_one_line(path), n);
    ContentPart part;
    part.kind = is_picture ? ContentPart::Kind::kImage : ContentPart::Kind::kAudio;
    part.bytes = std::make_shared<const std::string>(path);  // tells it apart; its tokens are in items_
    items_[part.bytes.get()] = std::move(*items);
    attached_.push_back(std::move(part));
    return Ok{};
  }

 private:
  void reset() {
    messages_.clear();
    if (!o_.system.empty()) add("system", o_.system);
  }
  bool undo() {
    const size_t before = messages_.size();
    while (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
    if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
    return messages_.size() < before;
  }
  void add(const char* role, const std::string& content) {
    messages_.push_back({});
    messages_.back().role = role;
    messages_.back().content = content;
  }

  // The conversation with an answer begun, in which pictures and sounds are soft tokens.
  Result<Request> request(bool& in_thought) const {
    auto prompt = render_chat_ranges(messages_, {},
                                     {.add_generation_prompt = true,
                                      .enable_thinking = o_.thinking,
                                      .variant = chat_variant(t_.vocab().chat_template, engine_.model().d_ple > 0)});
    if (!prompt) return prompt.error();
    in_thought = ends_in_thought(prompt->text);
    PromptIds ids = prompt_ids({.text = prompt->text, .media = prompt->media}, /*parse_special=*/true, t_);
    std::vector<MediaItem> items;
    std::vector<size_t> at;
    for (size_t i = 0; i < ids.media.size(); ++i)
      for (const MediaItem& item : items_.at(ids.media[i])) items.push_back(item), at.push_back(ids.at[i]);
    Request r{.max_tokens = o_.n, .sampling = o_.sampling};
    if (auto ok = insert_media(media_tokens(t_), items, at, ids.ids, r.media); !ok) return ok.error();
    r.prompt = std::move(ids.ids);
    return r;
  }

  void show(const std::vector<ParseEvent>& events) {
    for (const ParseEvent& e : events) {
      if (e.kind == ParseEvent::Kind::kReasoning) {
        if (!std::exchange(in_thought_, true)) print_out("{}", dim_ ? "\033[2m" : "(thinking) ");
        print_out("{}", e.text);
      } else if (e.kind == ParseEvent::Kind::kContent) {
        end_thought();
        print_out("{}", e.text);
      }
    }
    flush_out();
  }
  void end_thought() {
    if (std::exchange(in_thought_, false)) print_out("{}\n", dim_ ? "\033[0m" : "");
  }
  void failed(const Error& e) {
    report(e);
    undo();
  }

  Engine& engine_;
  Options o_;
  const Tokenizer& t_;
  std::vector<Message> messages_;
  std::vector<ContentPart> attached_;                           // of the next message
  std::map<const std::string*, std::vector<MediaItem>> items_;  // by ContentPart::bytes
  std::string stats_;
  bool in_thought_ = false;
  Usage drafted_;        // of all answers, its drafts alone
  bool warned_ = false;  // of a drafter that is of no use
  bool dim_ = takes_escapes(STDOUT_FILENO);
};

void Chat::answer(const std::string& text) {
  add("user", text);
  if (!attached_.empty()) {
    std::vector<ContentPart> parts = std::exchange(attached_, {});
    parts.push_back({ContentPart::Kind::kText, text});
    messages_.back().content = std::move(parts);
  }
  bool in_thought = false;
  auto request = this->request(in_thought);
  if (!request) return failed(request.error());
  ChatParser parser({.in_thought = in_thought, .tools = std::vector<std::string>{}});
  StreamDecoder decoder(t_);
  std::string error;
  Stop why = Stop::kError;
  Usage usage;
  if (int(request->prompt.size()) >= engine_.config().n_ctx)
    return failed({"chat",
                   fmt::format("the conversation has {} tokens now and the context {}", request->prompt.size(),
                               engine_.config().n_ctx),
                   "/undo forgets the last exchange, /clear all of it; -c makes the context larger"});
  auto progress = std::make_unique<Progress>("prompt", Progress::Unit::kTokens);
  auto id = engine_.submit(std::move(*request), {.tokens =
                                                     [&](RequestId, std::span<const int32_t> ids) {
                                                       progress.reset();
                                                       for (int32_t x : ids) show(parser.push(decoder.push(x)));
                                                     },
                                                 .done = [&](RequestId, Stop s, const Usage& u,
                                                             const std::string& e) { why = s, usage = u, error = e; },
                                                 .prefill =
                                                     [&](RequestId, int n, int total) {
                                                       if (progress) progress->update(uint64_t(n), uint64_t(total));
                                                     }});
  if (!id) return failed(id.error());
  Interrupts::clear();
  const CoreUse cores;
  while (engine_.tick())
    if (Interrupts::pending() || out_failed()) engine_.cancel(*id), Interrupts::clear();
  progress.reset();
  show(parser.push(decoder.finish()));
  show(parser.finish());
  end_thought();
  print_out("\n");
  if (why == Stop::kError) return failed({"chat", error, "/clear starts anew"});
  flush_out();
  stats_ = long_usage_line(usage, why, o_.sampling) + cores_part(cores);
  if (!o_.voice.quiet) {
    print_err("[{}]\n", o_.voice.verbose ? stats_ : usage_line(usage, why));
    drafted_.rounds += usage.rounds, drafted_.drafted += usage.drafted, drafted_.accepted += usage.accepted;
    if (const std::string warning = draft_warning(drafted_); !warning.empty() && !std::exchange(warned_, true))
      print_err("note: {}\n", warning);
  }
  if (why == Stop::kContext) put_out("(the context is full: /undo forgets the last exchange, /clear all of it)\n");
  const ParsedMessage& m = parser.message();
  add("assistant", m.content);
  messages_.back().reasoning = m.reasoning;
  for (const ParsedCall& c : m.tool_calls)
    print_out("(the model calls {} {}; chat has no tools)\n", c.name, c.arguments);
}

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

int talk(Engine& engine, const Options& o) {
  Chat chat(engine, o);
  for (const auto* paths : {&o.files.images, &o.files.sounds})
    for (const std::string& path : *paths)
      if (auto ok = chat.attach(path, paths == &o.files.images); !ok) return report(ok.error());
  Interrupts interrupts;
  LineInput lines;
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

int run(Options& o) {
  draw_seed(o.sampling, o.seed_given);
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
  auto o = std::make_shared<Options>();
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
  add_voice_options(cmd, o->voice);
  cmd->preparse_callback([o](size_t) {});  // options live as long as the command that fills them in
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
