#include "app/aliases.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "app/llama_options.h"
#include "app/suggest.h"
#include "base/print.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

using Kind = LlamaOption::Kind;
using Value = LlamaOption::Value;

// The command that the arguments name.
const CLI::App* command_of(const CLI::App& app, const std::vector<std::string>& args) {
  const CLI::App* cmd = &app;
  for (const std::string& word : args) {
    const auto subs = cmd->get_subcommands([&](const CLI::App* s) { return s->get_name() == word; });
    if (subs.empty()) break;
    cmd = subs[0];
  }
  return cmd;
}

bool is_whole(const std::string& s) { return !s.empty() && s.find_first_not_of("0123456789") == std::string::npos; }

bool is_switch(const std::string& s) {
  constexpr std::string_view kWords[] = {"on", "off", "auto", "true", "false", "1", "0", "enabled", "disabled"};
  return std::find(std::begin(kWords), std::end(kWords), s) != std::end(kWords);
}
bool is_on(const std::string& s) { return s == "on" || s == "true" || s == "1" || s == "enabled"; }

bool is_among(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(' '), list.size());
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// The words that an option becomes; none: it changes nothing.
using Words = std::vector<std::string>;

// "CUDA0,CUDA1" and "none".
Result<Words> devices(const std::string& value) {
  if (value == "none") return Words{"--backend", "cpu"};
  std::string numbers;
  for (const std::string& d : split(value)) {
    if (!d.starts_with("CUDA") || !is_whole(d.substr(4)))
      return Error{"", "expected CUDA0 and its like, or none", "facet doctor lists the GPUs"};
    numbers += (numbers.empty() ? "" : ",") + d.substr(4);
  }
  return Words{numbers.find(',') == std::string::npos ? "--gpu" : "--gpus", numbers};
}

// {"enable_thinking": true}, and nothing else.
Result<Words> template_fields(const std::string& value) {
  const auto j = parse_json(value, "");
  if (!j || !j->is_object() || j->size() > 1 || (j->size() == 1 && !j->contains("enable_thinking")))
    return Error{"", "expected {\"enable_thinking\": true} or false", "requests say the rest: chat_template_kwargs"};
  return j->value("enable_thinking", Json()) == true ? Words{"--think"} : Words{};
}

// "\\.ffn_.*_exps\\.=CPU" and its like: patterns that place tensors. All experts may be on the CPU, or the first layers'.
Result<Words> placement(const std::string& value) {
  for (const std::string& rule : split(value)) {
    const size_t equals = rule.rfind('=');
    const std::string pattern = rule.substr(0, equals),
                      place = equals == std::string::npos ? "" : rule.substr(equals + 1);
    const bool layers = pattern.find_first_of("0123456789") != std::string::npos;
    if (place != "CPU" || pattern.find("exps") == std::string::npos || layers)
      return Error{"", fmt::format("expected a pattern of all layers' experts, such as exps=CPU, found {}", rule),
                   "--experts-on-cpu N keeps those of the first N layers in RAM"};
  }
  return Words{"--experts-on-cpu", "all"};
}

Words drafters(const std::string& value) {
  Words out;
  for (std::string kind : split(value)) {
    if (kind == "draft-simple") continue;  // the one that another option names
    if (kind.starts_with("draft-")) kind.erase(0, 6);
    out.insert(out.end(), {"--draft", kind.starts_with("ngram") ? "suffix" : kind});
  }
  return out;
}

// What an option with this value is here. llama.cpp names drafters by kind, counts the layers on a GPU where here it is
// all or none, and has -1 for what is omitted here.
Result<Words> own_words(const std::string& name, const std::string& here, const std::string& value) {
  if (name == "--spec-type") return drafters(value);
  if (name == "-ot" || name == "--override-tensor") return placement(value);
  if (name == "-dev" || name == "--device") return devices(value);
  if (name == "--chat-template-kwargs") return template_fields(value);
  if (name == "-rea" || name == "--reasoning") return is_on(value) ? Words{here} : Words{};
  if (name == "--cors-origins") {
    Words out;
    for (std::string& o : split(value)) out.insert(out.end(), {here, std::move(o)});
    return out;
  }
  if (here == "--draft" && name.find("hf") != std::string::npos) return Words{here, "hf:" + value};
  if (here == "--backend") return Words{here, value == "0" ? "cpu" : "auto"};
  if (here == "--ping" && value.starts_with('-')) return Words{here, "86400"};
  if (here == "--sleep-idle" && value.starts_with('-')) return Words{here, "0"};
  if (value == "-1" && (here == "--cache-ram" || here == "--parallel" || here == "--seed")) return Words{};
  return Words{here, value};
}

// Options of these names here that take other values there; the rest of them is left to CLI.
std::optional<Result<Words>> same_name(const CLI::App& cmd, const std::string& name, const std::string& value) {
  const bool automatic = name == "--cache-ram" || name == "--parallel" || name == "-t" || name == "--threads" ||
                         (name == "--seed" && cmd.get_option_no_throw("--ctx-size"));
  if (automatic && value == "-1") return Words{};
  if (name == "--draft" && is_whole(value) && cmd.get_option_no_throw("--draft-max"))
    return Words{"--draft-max", value};
  if (name == "--api-key" && value.find(',') != std::string::npos)
    return Result<Words>(Error{"", "expected one key, found a comma", "several are lines of --api-key-file"});
  return std::nullopt;
}

// One pass over the arguments.
class Translation {
 public:
  Translation(const CLI::App& cmd, Words args)
      : cmd_(cmd), args_(std::move(args)), theirs_(cmd.get_option_no_throw("--threads") != nullptr) {}

  Result<Words> run() {
    for (; at_ < args_.size(); ++at_) {
      if (args_[at_] == "--") {  // options end
        out_.insert(out_.end(), args_.begin() + long(at_), args_.end());
        break;
      }
      word();
    }
    if (!problems_.empty()) return Error{"", problems_, ""};
    return std::move(out_);
  }

 private:
  void word() {
    const std::string& word = args_[at_];
    const size_t equals = word.starts_with('-') ? word.find('=') : std::string::npos;
    std::string name = word.substr(0, equals);
    given_ = equals == std::string::npos ? std::nullopt : std::optional(word.substr(equals + 1));
    const CLI::Option* own = option(name);
    if (!own && theirs_ && name.starts_with("--") && name.find('_') != std::string::npos) {
      std::replace(name.begin(), name.end(), '_', '-');  // llama.cpp takes both
      own = option(name);
    }
    if (own) return take_own(name, *own);
    const LlamaOption* o = theirs_ && name.starts_with('-') ? find_llama_option(name) : nullptr;
    if (!o) return out_.push_back(word);
    take_theirs(name, *o);
  }

  const CLI::Option* option(const std::string& name) const {
    return name.starts_with('-') && name.size() > 1 ? cmd_.get_option_no_throw(name) : nullptr;
  }

  // The value of an option is no option, whatever it looks like.
  std::optional<std::string> value_behind() {
    if (given_) return std::exchange(given_, std::nullopt);
    if (at_ + 1 < args_.size()) return args_[++at_];
    return std::nullopt;
  }

  void take_own(const std::string& name, const CLI::Option& own) {
    const bool with_equals = given_.has_value();
    if (own.get_items_expected_min() == 0 && !with_equals) return out_.push_back(name);
    const auto value = value_behind();
    if (!value) return out_.push_back(name);
    if (theirs_)
      if (auto other = same_name(cmd_, name, *value)) return put(name, *value, std::move(*other));
    if (with_equals)
      out_.push_back(name + "=" + *value);
    else
      out_.insert(out_.end(), {name, *value});
  }

  void take_theirs(const std::string& name, const LlamaOption& o) {
    std::optional<std::string> value;
    if (o.value == Value::kOne || o.value == Value::kTwo) value = value_behind();
    if (o.value == Value::kTwo && value) value = value_behind();
    if (o.value == Value::kSwitch && (given_ || (at_ + 1 < args_.size() && is_switch(args_[at_ + 1]))))
      value = value_behind();
    if (o.kind == Kind::kError && !(value && is_among(o.neutral, *value))) return problem(name, std::string(o.here));
    if (o.kind != Kind::kAs) return note(name, value, o.kind == Kind::kError ? "it is so here" : std::string(o.here));
    const std::string here(o.here);
    if (!cmd_.get_option_no_throw(here)) return note(name, value, "facet " + cmd_.get_name() + " has no " + here);
    if (o.value == Value::kNone) return put(name, value, here == "--experts-on-cpu" ? Words{here, "all"} : Words{here});
    if (o.value == Value::kSwitch) return put(name, value, own_words(name, here, value.value_or("on")));
    if (!value) return out_.push_back(here);  // CLI says what is missing
    put(name, value, own_words(name, here, *value));
  }

  void put(const std::string& name, const std::optional<std::string>& value, Result<Words> words) {
    if (!words) return problem(name, words.error().message());
    out_.insert(out_.end(), words->begin(), words->end());
    if (name == "-hf" || name == "-hfr" || name == "-hff") return;  // short names, which the options' texts tell
    std::string here;
    for (const std::string& w : *words) here += " " + w;
    if (here.empty()) return note(name, value, "it is so here when nothing says otherwise");
    print_err("note: {}{} is{} here\n", name, value ? " " + on_one_line(*value) : "", on_one_line(here));
  }

  static void note(const std::string& name, const std::optional<std::string>& value, const std::string& why) {
    print_err("note: {}{} changes nothing here: {}\n", name, value ? " " + on_one_line(*value) : "", why);
  }

  void problem(const std::string& name, const std::string& what) {
    problems_ += (problems_.empty() ? "" : "; ") + name + ": " + what;
  }

  const CLI::App& cmd_;
  const Words args_;
  const bool theirs_;  // the command loads a model
  size_t at_ = 0;
  std::optional<std::string> given_ = {};  // behind an =
  Words out_ = {};
  std::string problems_ = {};
};

// llama-server reads its options from the environment, too. Of a router's process its router has told.
void note_environment(const CLI::App& cmd, const Words& args) {
  const bool child = std::any_of(args.begin(), args.end(), [](const auto& w) { return w.starts_with("--router-fd"); });
  if (child || !cmd.get_option_no_throw("--threads")) return;
  std::string names;
  for (char** e = environ; e && *e; ++e) {
    const std::string_view entry = *e;
    if (entry.starts_with("LLAMA_ARG_")) names += " " + std::string(entry.substr(0, entry.find('=')));
  }
  if (!names.empty()) print_err("note: not read here, give options instead:{}\n", on_one_line(names));
}

}  // namespace

Result<std::vector<std::string>> with_own_names(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const CLI::App* cmd = command_of(app, args);
  note_environment(*cmd, args);
  auto out = Translation(*cmd, std::move(args)).run();
  if (out) std::reverse(out->begin(), out->end());
  return out;
}

std::string unexpected_arguments(const CLI::App& app) {
  std::string list;
  size_t n = 0;
  const CLI::App* cmd = &app;
  for (auto subs = cmd->get_subcommands(); !subs.empty(); subs = cmd->get_subcommands()) cmd = subs[0];
  std::vector<std::string> names;
  for (const CLI::Option* o : cmd->get_options([](const CLI::Option* o) { return !o->get_group().empty(); }))
    for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    list += " " + word, ++n;
    if (word.starts_with("--")) list += did_you_mean(word.substr(0, word.find('=')), names);
  }
  return fmt::format("The following argument{} not expected:{}", n > 1 ? "s were" : " was", list);
}

}  // namespace facet
