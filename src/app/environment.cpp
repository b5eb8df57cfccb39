#include "app/environment.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

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

}  // namespace

std::vector<std::string> add_environment(const CLI::App& app, std::vector<std::string>& args) {
  const CLI::App* cmd = &app;
  size_t depth = 0;  // words of the command
  for (; depth < args.size(); ++depth) {
    const auto subs =
        cmd->get_subcommands([&](const CLI::App* s) { return s->get_name() == args[args.size() - 1 - depth]; });
    if (subs.empty()) break;
    cmd = subs[0];
  }
  // A process of a router has been told everything by the router.
  const bool child = std::any_of(args.begin(), args.end(), [](const auto& w) { return w.starts_with("--router-fd"); });
  if (cmd == &app || child) return {};
  const auto options = given(*cmd, {args.rbegin(), args.rend()});
  if (std::any_of(options.begin(), options.end(), [&](const CLI::Option* o) { return o == cmd->get_help_ptr(); }))
    return {};
  std::vector<std::string> taken, words;
  for (const CLI::Option* o : cmd->get_options([](const CLI::Option* o) { return !o->get_group().empty(); })) {
    if (o->get_lnames().empty() || o->get_positional() || o == cmd->get_help_ptr() || options.count(o) > 0) continue;
    const std::string &name = o->get_lnames()[0], variable = variable_of(name);
    const char* value = std::getenv(variable.c_str());
    if (!value || !*value || is_excluded(*o, options)) continue;
    const bool flag = o->get_items_expected_min() == 0;
    if (flag && is_off(value)) continue;
    words.push_back("--" + name + (flag && is_on(value) ? "" : "=" + std::string(value)));
    taken.push_back(variable);
  }
  args.insert(args.end() - long(depth), words.rbegin(), words.rend());
  return taken;
}

}  // namespace facet
