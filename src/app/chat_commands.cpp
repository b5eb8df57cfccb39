#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/chat.h"
#include "app/chat_complete.h"
#include "app/chat_files.h"
#include "app/chat_settings.h"
#include "app/console.h"
#include "app/suggest.h"
#include "base/print.h"
#include "model/types.h"

namespace facet {

namespace {
void unknown(const std::string& text, const std::string& name) {
  std::vector<std::string> names;
  for (const ChatCommand& c : chat_commands()) names.emplace_back(c.name);
  print_out("unknown command: {}{}\n/help lists them; // sends a text that begins with /\n", on_one_line(text),
            did_you_mean(name, names));
}
}  // namespace

bool Chat::command(const std::string& text) {
  const size_t space = text.find(' ');
  const std::string name = text.substr(0, space);
  std::string rest = space == std::string::npos ? "" : text.substr(space + 1);
  if (name == "/exit" || name == "/quit") return false;
  if (name != "/system") {  // Tab and a hasty hand leave spaces
    rest.erase(0, rest.find_first_not_of(' '));
    rest.erase(rest.find_last_not_of(' ') + 1);
  }
  if (command(name, rest)) return true;
  const auto commands = chat_commands();
  const auto known = std::find_if(commands.begin(), commands.end(), [&](const auto& c) { return name == c.name; });
  if (known != commands.end())
    print_out("expected {} {}: {}\n", known->name, known->argument, known->description);
  else
    unknown(text, name);
  return true;
}

bool Chat::command(const std::string& name, const std::string& rest) {
  const bool alone = rest.empty();
  if (name == "/help") return put_out(chat_help()), true;
  if (name == "/clear") return reset(), put_out("The conversation is forgotten.\n"), true;
  if (name == "/stats") return print_out("{}\n", stats_.empty() ? "There is no answer yet." : stats_), true;
  if (name == "/think" && (rest == "on" || rest == "off" || alone)) return think(rest), true;
  if (name == "/undo")
    return put_out(undo() ? "The last exchange is forgotten.\n" : "There is nothing to forget.\n"), true;
  if (name == "/set") return set(rest), true;
  if (name == "/regen" && alone) return regenerate(), true;
  if (name == "/model" && alone) return describe_model(), true;
  if (name == "/read" && !alone) return read(rest), true;
  if (name == "/save" && !alone) return save(rest), true;
  if (name == "/load" && !alone) return load(rest), true;
  if (name == "/system") {
    o_.system = rest;
    reset();
    print_out("{} The conversation starts anew.\n",
              alone ? "There is no system message now." : "The system message is set.");
    return true;
  }
  for (const auto& [command, kind] : {std::pair("/image", MediaKind::kPicture), std::pair("/video", MediaKind::kVideo),
                                      std::pair("/audio", MediaKind::kSound)})
    if (name == command && !alone) {
      if (auto ok = attach(rest, kind); !ok) report(ok.error());
      return true;
    }
  return false;
}

void Chat::think(const std::string& value) {
  if (!value.empty()) o_.thinking = value == "on";
  print_out("Thinking is {}.\n", o_.thinking ? "on" : "off");
}

void Chat::set(const std::string& rest) {
  const ChatSettings settings{o_.sampling, o_.n};
  if (!rest.empty()) {
    const size_t space = std::min(rest.find_first_of(" ="), rest.size());
    std::string value = rest.substr(std::min(space + 1, rest.size()));
    value.erase(0, value.find_first_not_of(' '));
    if (auto ok = change_setting(settings, rest.substr(0, space), value); !ok) {
      report(ok.error());
      return;
    }
  }
  print_out("{}\n", settings_line(settings));
}

void Chat::read(const std::string& path) {
  constexpr size_t kMost = size_t(4) << 20;
  auto text = read_text_file(path);
  if (text && read_.size() + text->size() > kMost)
    text = Error{path, "expected at most 4 MiB of files in a message, found more", "send what there is first"};
  if (!text) {
    report(text.error());
    return;
  }
  print_out("{}: {} bytes, for what you write next\n", on_one_line(path), text->size());
  files_ = true;
  read_ += on_one_line(path) + ":\n" + *text + (text->ends_with('\n') ? "\n" : "\n\n");
}

void Chat::save(const std::string& path) {
  if (auto ok = save_conversation(path, messages_); !ok)
    report(ok.error());
  else
    print_out("{}: {} message{} saved\n", on_one_line(path), messages_.size(), messages_.size() == 1 ? "" : "s");
}

void Chat::load(const std::string& path) {
  auto loaded = load_conversation(path, [&](const std::string& file, MediaKind kind) { return encoded(file, kind); });
  if (!loaded) {
    report(loaded.error());
    return;
  }
  messages_ = std::move(*loaded);
  attached_.clear(), read_.clear();
  files_ = true;
  const auto* system =
      messages_.empty() || messages_[0].role != "system" ? nullptr : std::get_if<std::string>(&messages_[0].content);
  o_.system = system ? *system : "";
  print_out("{}: {} message{} loaded\n", on_one_line(path), messages_.size(), messages_.size() == 1 ? "" : "s");
}

void Chat::regenerate() {
  const std::vector<Message> before = messages_;
  while (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
  if (messages_.empty() || messages_.back().role != "user") {
    messages_ = before;
    return put_out("There is no message to answer again.\n");
  }
  if (o_.sampling.temperature > 0)
    ++o_.sampling.seed;  // the same would give the same answer
  else
    put_out("(the temperature is 0: the answer will be the same)\n");
  if (!generate()) messages_ = before;
}

void Chat::describe_model() {
  const EngineConfig& c = engine_.config();
  print_out("{}: {}\n{} layers, context {} of {} trained, {} threads, backend {}\n", engine_.model().name,
            on_one_line(c.model), engine_.model().n_layer(), c.n_ctx, engine_.model().n_ctx_train, c.n_threads,
            c.backend);
  for (const std::string& path : c.draft.files) print_out("drafter {}\n", on_one_line(path));
}

}  // namespace facet
