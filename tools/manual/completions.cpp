// Completions of shells, from the program's own commands and options: words of commands, names of options, and the
// values of those that take one of a list. Where no list is known the shell completes files: most values are paths.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_table.h"

namespace facet {
namespace {

// 'chat', 'bench', 'bench spec', ...
std::vector<std::string> command_paths(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* cmd : commands_of(app)) {
    names.push_back(fmt::format("'{}'", cmd->get_name()));
    for (const CLI::App* sub : commands_of(*cmd))
      names.push_back(fmt::format("'{} {}'", cmd->get_name(), sub->get_name()));
  }
  return names;
}

std::string below(const std::string& name, const CLI::App& sub) {
  return name.empty() ? sub.get_name() : name + " " + sub.get_name();
}

struct Completion {
  std::string options, values;  // branches of the two case statements
};

void complete_command(Completion& c, const CLI::App& cmd, const std::string& name) {
  std::vector<std::string> words;
  for (const CLI::App* sub : commands_of(cmd)) words.push_back(sub->get_name());
  for (const CLI::Option* o : options_of(cmd)) {
    std::vector<std::string> names = dashed_names(*o);
    words.insert(words.end(), names.begin(), names.end());
    const auto choices = choices_of(*o);
    if (choices.empty() || names.empty()) continue;
    for (std::string& n : names) n = fmt::format("'{}:{}'", name, n);
    c.values += fmt::format("    {}) words=\"{}\" ;;\n", fmt::join(names, "|"), fmt::join(choices, " "));
  }
  c.options += fmt::format("    '{}') words=\"{}\" ;;\n", name, fmt::join(words, " "));
  for (const CLI::App* sub : commands_of(cmd))
    complete_command(c, *sub, name.empty() ? sub->get_name() : name + " " + sub->get_name());
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  Completion c;
  complete_command(c, app, "");
  const std::vector<std::string> names = command_paths(app);
  // Files where no list is known: most values are paths.
  return fmt::format(
      "# bash completion for facet\n_facet() {{\n"
      "  local cur=${{COMP_WORDS[COMP_CWORD]}} prev= command= next= words= i\n"
      "  ((COMP_CWORD > 0)) && prev=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    next=\"${{command:+$command }}${{COMP_WORDS[i]}}\"\n"
      "    case $next in\n    {}) command=$next ;;\n    esac\n  done\n"
      "  case $command:$prev in\n{}  esac\n"
      "  if [ -z \"$words\" ] && {{ [ -z \"$command\" ] || [[ $cur == -* ]] || [ \"${{command%% *}}\" = \"$prev\" ]; "
      "}}; then\n"
      "    case $command in\n{}    esac\n  fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
      "}}\ncomplete -o bashdefault -o default -F _facet facet\n",
      fmt::join(names, "|"), c.values, c.options);
}

namespace {

// A text in single quotes, each of `special` after a backslash.
std::string quoted(const std::string& text, std::string_view special, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += quote;
    else if (special.find(c) != special.npos)
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out + "'";
}
std::string zsh_quoted(const std::string& text) { return quoted(text, "\\[]:", "'\\''"); }
std::string fish_quoted(const std::string& text) { return quoted(text, "\\", "\\'"); }

bool is_flag(const CLI::Option& o) { return o.get_items_expected_max() == 0; }

void zsh_command(std::string& out, const CLI::App& cmd, const std::string& name) {
  out += fmt::format("    {})\n      specs=(\n", zsh_quoted(name));
  for (const CLI::Option* o : options_of(cmd)) {
    const auto choices = choices_of(*o);
    const std::string value = is_flag(*o)       ? ""
                              : choices.empty() ? ":value:_files"
                                                : fmt::format(":value:({})", fmt::join(choices, " "));
    for (const std::string& n : dashed_names(*o)) {
      const std::string text = zsh_quoted(o->get_description());
      out += fmt::format("        '*{}['{}']{}'\n", n, text, value);
    }
  }
  out += "      )\n      commands=(\n";
  for (const CLI::App* sub : commands_of(cmd))
    out += fmt::format("        {}':'{}\n", zsh_quoted(sub->get_name()), zsh_quoted(sub->get_description()));
  out += "      ) ;;\n";
  for (const CLI::App* sub : commands_of(cmd)) zsh_command(out, *sub, below(name, *sub));
}

void fish_command(std::string& out, const CLI::App& cmd, const std::string& name) {
  const std::string at = fmt::format("complete -c facet -n {}", fish_quoted("__facet_at " + fish_quoted(name)));
  for (const CLI::App* sub : commands_of(cmd))
    out += fmt::format("{} -f -a {} -d {}\n", at, sub->get_name(), fish_quoted(sub->get_description()));
  for (const CLI::Option* o : options_of(cmd)) {
    const auto choices = choices_of(*o);
    std::string names;
    for (const std::string& s : o->get_snames()) names += " -s " + s;
    for (const std::string& s : o->get_lnames()) names += " -l " + s;
    if (names.empty()) continue;
    const std::string value = is_flag(*o)       ? ""
                              : choices.empty() ? " -r"
                                                : fmt::format(" -x -a '{}'", fmt::join(choices, " "));
    out += fmt::format("{}{}{} -d {}\n", at, names, value, fish_quoted(o->get_description()));
  }
  for (const CLI::App* sub : commands_of(cmd)) fish_command(out, *sub, below(name, *sub));
}

}  // namespace

std::string zsh_completion(const CLI::App& app) {
  std::string cases;
  zsh_command(cases, app, "");
  return fmt::format(
      "#compdef facet\n# zsh completion for facet\n_facet() {{\n"
      "  local command= next= depth=1 i\n  local -a specs commands\n"
      "  for ((i = 2; i < CURRENT; i++)); do\n"
      "    next=\"${{command:+$command }}${{words[i]}}\"\n"
      "    case $next in\n    ({}) command=$next depth=$i ;;\n    (*) break ;;\n    esac\n  done\n"
      "  case $command in\n{}  esac\n"
      "  if ((CURRENT == depth + 1 && $#commands)) && [[ ${{words[CURRENT]}} != -* ]]; then\n"
      "    _describe command commands\n    return\n  fi\n"
      "  shift $((depth - 1)) words\n  ((CURRENT -= depth - 1))\n"
      "  _arguments $specs '*:file:_files'\n}}\n"
      "if [ \"$funcstack[1]\" = _facet ]; then\n  _facet \"$@\"\nelse\n  compdef _facet facet\nfi\n",
      fmt::join(command_paths(app), "|"), cases);
}

std::string fish_completion(const CLI::App& app) {
  std::string lines;
  fish_command(lines, app, "");
  return fmt::format(
      "# fish completion for facet\n"
      "# Whether the words before the cursor name this command.\n"
      "function __facet_at\n  set -l command ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    set -l next (string trim -- \"$command $word\")\n"
      "    contains -- $next {}; or break\n    set command $next\n  end\n"
      "  test \"$command\" = \"$argv[1]\"\nend\n{}",
      fmt::join(command_paths(app), " "), lines);
}

}  // namespace facet
