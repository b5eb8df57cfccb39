#include "app/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "app/suggest.h"
#include "base/files.h"
#include "router/config.h"

namespace facet {
namespace {

// "FACET_CTX_SIZE"
std::string variable_of(const std::string& option) {
  std::string name = "FACET_" + option;
  for (char& c : name) c = c == '-' ? '_' : char(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

bool is_off(const std::string& v) { return v == "0" || v == "false" || v == "off" || v == "no"; }
bool is_on(const std::string& v) { return v == "1" || v == "true" || v == "on" || v == "yes"; }

// The options that the command line has. "-c512" is one of -c.
std::set<const CLI::Option*> given(const CLI::App& cmd, const std::vector<std::string>& args) {
  std::set<const CLI::Option*> options;
  for (const std::string& word : args) {
    if (word == "--") break;
    if (word.size() < 2 || word[0] != '-') continue;
    const CLI::Option* o = cmd.get_option_no_throw(word.substr(0, word.find('=')));
    if (!o && word[1] != '-') o = cmd.get_option_no_throw(word.substr(0, 2));
    if (o) options.insert(o);
  }
  return options;
}

bool is_excluded(const CLI::Option& o, const std::set<const CLI::Option*>& options) {
  return std::any_of(options.begin(), options.end(), [&](const CLI::Option* other) {
    const auto excludes = [](const CLI::Option& a, const CLI::Option& b) {
      const auto all = a.get_excludes();
      return std::any_of(all.begin(), all.end(), [&](const CLI::Option* x) { return x == &b; });
    };
    return excludes(o, *other) || excludes(*other, o);
  });
}

// What a command line says of settings from elsewhere: its command, and the options that may still be set.
struct Command {
  const CLI::App* app = nullptr;  // null: nothing may be set
  std::string name = {};          // "bench matrix"
  size_t depth = 0;               // words of it
  std::set<const CLI::Option*> given = {};
};

Command command_of(const CLI::App& app, const std::vector<std::string>& args) {
  Command c{.app = &app};
  for (; c.depth < args.size(); ++c.depth) {
    const auto subs =
        c.app->get_subcommands([&](const CLI::App* s) { return s->get_name() == args[args.size() - 1 - c.depth]; });
    if (subs.empty()) break;
    c.app = subs[0];
    c.name += (c.name.empty() ? "" : " ") + subs[0]->get_name();
  }
  // A process of a router has been told everything by the router.
  const bool child = std::any_of(args.begin(), args.end(), [](const auto& w) { return w.starts_with("--router-fd"); });
  if (c.app == &app || child) return {};
  c.given = given(*c.app, {args.rbegin(), args.rend()});
  if (c.given.count(c.app->get_help_ptr()) > 0) return {};
  return c;
}

// Options that can be set from elsewhere.
std::vector<const CLI::Option*> settable(const CLI::App& cmd) {
  return cmd.get_options([&](const CLI::Option* o) {
    return !o->get_group().empty() && !o->get_lnames().empty() && !o->get_positional() && o != cmd.get_help_ptr();
  });
}

// Appends the words that set an option, unless the value is that of a flag which is off. False: unless.
bool append_words(const CLI::Option& o, const std::string& value, std::vector<std::string>& words) {
  const bool flag = o.get_items_expected_min() == 0;
  if (flag && is_off(value)) return false;
  words.push_back("--" + o.get_lnames()[0] + (flag && is_on(value) ? "" : "=" + value));
  return true;
}

void insert_words(const Command& c, const std::vector<std::string>& words, std::vector<std::string>& args) {
  args.insert(args.end() - long(c.depth), words.rbegin(), words.rend());
}

constexpr uint64_t kMostConfig = 1 << 20;

// The file to read; "": none. named: by FACET_CONFIG, so that it has to be there.
std::string config_path(bool& named) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const std::string own = variable("FACET_CONFIG"), xdg = variable("XDG_CONFIG_HOME"), home = variable("HOME");
  named = !own.empty();
  if (named) return own;
  if (xdg.starts_with("/")) return xdg + "/facet/facet.conf";
  return home.empty() ? "" : home + "/.config/facet/facet.conf";
}

// Keys of options that a command, or one of all commands, has.
void add_keys(const CLI::App& cmd, std::vector<std::string>& keys) {
  for (const CLI::Option* o : settable(cmd)) keys.push_back(o->get_lnames()[0]);
}
void add_all_keys(const CLI::App& app, const std::string& name, std::map<std::string, std::vector<std::string>>& keys) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string own = name.empty() ? sub->get_name() : name + " " + sub->get_name();
    add_keys(*sub, keys[own]);
    add_keys(*sub, keys[""]);
    add_all_keys(*sub, own, keys);
  }
}

// Every key is an option of its section's command, also where another command runs.
Status check_keys(const CLI::App& app, const std::vector<PresetSection>& sections, const std::string& path) {
  std::map<std::string, std::vector<std::string>> keys;
  add_all_keys(app, "", keys);
  std::vector<std::string> commands;
  for (const auto& entry : keys)
    if (!entry.first.empty()) commands.push_back(entry.first);
  for (const PresetSection& s : sections) {
    const auto known = keys.find(s.name);
    if (known == keys.end())
      return Error{path, fmt::format("[{}]: expected the name of a command{}", s.name, did_you_mean(s.name, commands)),
                   "facet help lists them"};
    std::set<std::string> seen;
    for (const ModelOption& o : s.options) {
      if (std::find(known->second.begin(), known->second.end(), o.name) == known->second.end())
        return Error{o.where,
                     fmt::format("'{}': expected an option of {}{}", o.name,
                                 s.name.empty() ? "a command, by its long name" : "facet " + s.name,
                                 did_you_mean(o.name, known->second)),
                     s.name.empty() ? "facet help COMMAND lists them" : "facet help " + s.name + " lists them"};
      if (!seen.insert(o.name).second)
        return Error{o.where, fmt::format("'{}': expected once, found again", o.name), ""};
    }
  }
  return Ok{};
}

}  // namespace

std::vector<std::string> add_environment(const CLI::App& app, std::vector<std::string>& args) {
  const Command c = command_of(app, args);
  if (!c.app) return {};
  std::vector<std::string> taken, words;
  for (const CLI::Option* o : settable(*c.app)) {
    if (c.given.count(o) > 0) continue;
    const std::string variable = variable_of(o->get_lnames()[0]);
    const char* value = std::getenv(variable.c_str());
    if (!value || !*value || is_excluded(*o, c.given)) continue;
    if (append_words(*o, value, words)) taken.push_back(variable);
  }
  insert_words(c, words, args);
  return taken;
}

Result<std::vector<FromFile>> add_config_file(const CLI::App& app, std::vector<std::string>& args) {
  const Command c = command_of(app, args);
  std::vector<FromFile> taken;
  std::vector<std::string> words;
  if (!c.app || settable(*c.app).empty()) return taken;
  bool named = false;
  const std::string path = config_path(named);
  std::error_code ec;
  if (path.empty() || (!named && !std::filesystem::exists(path, ec))) return taken;
  auto text = read_file(path, kMostConfig);
  if (!text) return text.error();
  auto sections = parse_preset(*text, path);
  if (!sections) return sections.error();
  if (auto ok = check_keys(app, *sections, path); !ok) return ok.error();
  for (const CLI::Option* o : settable(*c.app)) {
    // A flag that is off in the environment is not among the arguments, and wins all the same.
    const char* variable = std::getenv(variable_of(o->get_lnames()[0]).c_str());
    if (c.given.count(o) > 0 || (variable && *variable) || is_excluded(*o, c.given)) continue;
    const ModelOption* found = nullptr;
    for (const PresetSection& s : *sections)
      for (const ModelOption& key : s.options)
        if (key.name == o->get_lnames()[0] && (s.name == c.name || (s.name.empty() && !found))) found = &key;
    if (found && append_words(*o, found->value, words)) taken.push_back({found->name, found->where});
  }
  insert_words(c, words, args);
  return taken;
}

}  // namespace facet
