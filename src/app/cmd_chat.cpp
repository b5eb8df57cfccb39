#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "app/commands.h"
#include "app/options.h"
#include "app/progress.h"
#include "model/types.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

constexpr const char* kHelp =
    "/help          this list\n"
    "/think on|off  let the model think before it answers\n"
    "/system TEXT   set the system message and start anew\n"
    "/undo          forget the last exchange\n"
    "/clear         forget the conversation\n"
    "/stats         speed of the last answer\n"
    "/exit          leave (so does Ctrl-D)\n"
    "Ctrl-C stops an answer, not the program.\n";

struct Options {
  EngineConfig engine;
  DraftOptions draft;
  Sampling sampling;
  bool seed_given = false, thinking = false;
  std::string system;
  int n = -1;
};

// Lines of standard input. Ctrl-C at the prompt drops the line, the end of the input ends the chat.
class LineReader {
 public:
  std::optional<std::string> next() {
    while (true) {
      if (const size_t end = held_.find('\n'); end != std::string::npos) {
        std::string line = held_.substr(0, end);
        held_.erase(0, end + 1);
        return line;
      }
      if (!Interrupts::wait_for_input(STDIN_FILENO)) {
        held_.clear();
        fmt::print("\n(type /exit or press Ctrl-D to leave)\n> ");
        std::fflush(stdout);
        continue;
      }
      char buffer[4096];
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n > 0) {
        held_.append(buffer, size_t(n));
      } else {
        if (held_.empty()) return std::nullopt;
        return std::exchange(held_, {});
      }
    }
  }

 private:
  std::string held_;
};

class Chat {
 public:
  Chat(Engine& engine, Options o) : engine_(engine), o_(std::move(o)), t_(*engine.tokenizer()) { reset(); }

  // False when the user leaves.
  bool line(const std::string& text) {
    if (text.empty()) return true;
    if (text[0] != '/') {
      answer(text);
      return true;
    }
    const size_t space = text.find(' ');
    const std::string name = text.substr(0, space), rest = space == std::string::npos ? "" : text.substr(space + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help")
      fmt::print("{}", kHelp);
    else if (name == "/clear")
      reset();
    else if (name == "/stats")
      fmt::print("{}\n", stats_.empty() ? "no answer yet" : stats_);
    else if (name == "/system")
      o_.system = rest, reset();
    else if (name == "/think" && (rest == "on" || rest == "off"))
      o_.thinking = rest == "on";
    else if (name == "/undo")
      undo();
    else
      fmt::print("unknown command: {}\n{}", text, kHelp);
    return true;
  }

 private:
  void reset() {
    messages_.clear();
    if (!o_.system.empty()) add("system", o_.system);
  }
  void undo() {
    while (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
    if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
  }
  void add(const char* role, const std::string& content) {
    messages_.push_back({});
    messages_.back().role = role;
    messages_.back().content = content;
  }

  void answer(const std::string& text) {
    add("user", text);
    auto prompt = render_chat(messages_, {},
                              {.add_generation_prompt = true,
                               .enable_thinking = o_.thinking,
                               .variant = chat_variant(t_.vocab().chat_template, engine_.model().d_ple > 0)});
    if (!prompt) return failed(prompt.error());
    ChatParser parser({.in_thought = ends_in_thought(*prompt)});
    StreamDecoder decoder(t_);
    std::string error;
    Stop why = Stop::kError;
    Usage usage;
    Request request{.prompt = t_.encode(*prompt, true, true), .max_tokens = o_.n, .sampling = o_.sampling};
    auto progress = std::make_unique<Progress>("prompt", Progress::Unit::kTokens);
    auto id = engine_.submit(std::move(request), {.tokens =
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
    while (engine_.tick())
      if (Interrupts::pending()) engine_.cancel(*id), Interrupts::clear();
    progress.reset();
    show(parser.push(decoder.finish()));
    show(parser.finish());
    end_thought();
    fmt::print("\n");
    if (why == Stop::kError) return failed({"chat", error, "/clear starts anew"});
    std::fflush(stdout);
    stats_ = usage_line(usage, why, o_.sampling);
    fmt::print(stderr, "[{}]\n", stats_);
    const ParsedMessage& m = parser.message();
    add("assistant", m.content);
    messages_.back().reasoning = m.reasoning;
    for (const ParsedCall& c : m.tool_calls)
      fmt::print("(the model calls {} {}; chat has no tools)\n", c.name, c.arguments);
  }

  void show(const std::vector<ParseEvent>& events) {
    for (const ParseEvent& e : events) {
      if (e.kind == ParseEvent::Kind::kReasoning) {
        if (!std::exchange(in_thought_, true)) fmt::print("{}", dim_ ? "\033[2m" : "(thinking) ");
        fmt::print("{}", e.text);
      } else if (e.kind == ParseEvent::Kind::kContent) {
        end_thought();
        fmt::print("{}", e.text);
      }
    }
    std::fflush(stdout);
  }
  void end_thought() {
    if (std::exchange(in_thought_, false)) fmt::print("{}\n", dim_ ? "\033[0m" : "");
  }
  void failed(const Error& e) {
    fmt::print(stderr, "facet: {}\n", e.message());
    undo();
  }

  Engine& engine_;
  Options o_;
  const Tokenizer& t_;
  std::vector<Message> messages_;
  std::string stats_;
  bool in_thought_ = false;
  bool dim_ = ::isatty(STDOUT_FILENO) != 0;
};

int run(Options& o) {
  draw_seed(o.sampling, o.seed_given);
  auto engine = open_engine(o.engine, o.draft);
  if (engine && !(*engine)->tokenizer())
    engine = Error{(*engine)->config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                   "chat needs a model with a vocabulary; facet run --tokens works without"};
  if (!engine) {
    fmt::print(stderr, "facet: {}\n", engine.error().message());
    return kExitFailure;
  }
  const EngineConfig& c = (*engine)->config();
  fmt::print("{}, context {}, {} threads. /help lists commands.\n", (*engine)->model().name, c.n_ctx, c.n_threads);
  Chat chat(**engine, o);
  Interrupts interrupts;
  LineReader lines;
  const bool echo = ::isatty(STDIN_FILENO) == 0;
  while (true) {
    fmt::print("> ");
    std::fflush(stdout);
    const auto line = lines.next();
    if (!line) break;
    if (echo) fmt::print("{}\n", *line);
    if (!chat.line(*line)) break;
  }
  fmt::print("\n");
  return kExitOk;
}

}  // namespace

void add_chat(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  CLI::App* cmd = app.add_subcommand("chat", "Talk with the model in the terminal");
  add_engine_options(cmd, o->engine);
  add_draft_options(cmd, o->draft, o->engine);
  add_sampling_options(cmd, o->sampling, o->seed_given);
  cmd->add_option("-s,--system", o->system, "System message");
  cmd->add_flag("--think", o->thinking, "Let the model think before it answers");
  cmd->add_option("-n,--n-predict", o->n, "Tokens of an answer at most; -1: no limit")
      ->check(CLI::Range(-1, 1 << 24))
      ->capture_default_str();
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
