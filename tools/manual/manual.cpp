// Writes the manual page and the bash completion from the program's own commands and options, so that they say the
// same:
//   facet_manual FOLDER      FOLDER/facet.1 and FOLDER/facet.bash
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "app/commands.h"

namespace facet {
namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Text as roff takes it: no line begins with a control character, no dash is a hyphen.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string("\\&") + c;
    else
      out += c;
  }
  return out;
}

// "-c, --ctx-size"
std::string names_of(const CLI::Option& o) {
  std::vector<std::string> names;
  for (const std::string& s : o.get_snames()) names.push_back("-" + s);
  for (const std::string& s : o.get_lnames()) names.push_back("--" + s);
  return names.empty() ? o.get_name(true) : fmt::format("{}", fmt::join(names, ", "));
}

// The words that may follow an option, if they are a list: "{auto,cpu}", or "{f16->1,...}" with what they stand for.
std::vector<std::string> choices_of(const CLI::Option& o) {
  const std::string type = o.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> words;
  if (open == type.npos || close == type.npos || close < open) return words;
  std::string rest = type.substr(open + 1, close - open - 1) + ",";
  for (size_t at; (at = rest.find(',')) != rest.npos; rest.erase(0, at + 1)) {
    std::string word = rest.substr(0, std::min(at, rest.find("->")));
    if (!word.empty()) words.push_back(std::move(word));
  }
  return words;
}

// What comes behind the name: "INT [0]", "TYPE", nothing for a flag.
std::string value_of(const CLI::Option& o) {
  if (!o.get_option_text().empty()) return o.get_option_text();
  const auto choices = choices_of(o);
  std::string type = o.get_type_name();
  type = choices.empty() ? type.substr(0, type.find(':')) : fmt::format("{}", fmt::join(choices, ", "));
  return type.empty() || o.get_default_str().empty() ? type : fmt::format("{} [{}]", type, o.get_default_str());
}

// As --help: without the hidden ones.
std::vector<const CLI::Option*> options_of(const CLI::App& cmd) {
  return cmd.get_options([](const CLI::Option* o) { return !o->get_group().empty(); });
}

void write_options(std::string& out, const CLI::App& cmd) {
  for (const CLI::Option* o : options_of(cmd)) {
    const std::string value = value_of(*o);
    out += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(names_of(*o)),
                       value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(value)), roff(o->get_description()));
  }
}

void write_command(std::string& out, const CLI::App& cmd, const std::string& name) {
  out += fmt::format(".SS facet {}\n{}\n", roff(name), roff(cmd.get_description()));
  write_options(out, cmd);
  for (const CLI::App* sub : commands_of(cmd)) write_command(out, *sub, name + " " + sub->get_name());
}

std::string manual(const CLI::App& app) {
  std::string out = fmt::format(
      ".TH FACET 1 \"\" \"facet {}\" \"User Commands\"\n.SH NAME\nfacet \\- run Gemma 4 models: chat, server, tools\n"
      ".SH SYNOPSIS\n.B facet\n.I COMMAND\n.RI [ OPTIONS ]\n.SH DESCRIPTION\n",
      roff(FACET_VERSION));
  out += roff(
      "facet runs Gemma 4 models from GGUF files on a CPU or a GPU, with speculative decoding that changes no text. "
      "Without -m it uses the small model that comes with it.\n");
  out += ".PP\nBeside or instead of a command:\n";
  write_options(out, app);
  out += ".SH COMMANDS\n";
  for (const CLI::App* cmd : commands_of(app)) write_command(out, *cmd, cmd->get_name());
  out +=
      ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nfailure, with one line on stderr\n.TP\n2\nwrong "
      "usage\n.TP\n130\nended by Ctrl-C\n";
  out += ".SH ENVIRONMENT\n.TP\n.B FACET_CTX_SIZE\n";
  out += roff(
      "--ctx-size; every option of a command has such a variable, of a flag with 1 or 0. The command line wins.\n");
  out += ".TP\n.B FACET_MODELS\nfolder of the models that come with the program\n";
  out += ".TP\n.B FACET_CACHE\nfolder of downloads and of the history of chats\n";
  out +=
      ".TP\n.B HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT\nas for other programs that download\n";
  out += ".TP\n.B NO_COLOR\nno escape sequences\n";
  out += ".SH FILES\n.TP\n.I ~/.cache/facet/hub\ndownloads\n.TP\n.I ~/.cache/facet/hub/chat_history\n";
  out += "what was typed in chats\n";
  out += ".SH EXAMPLES\n.nf\nfacet chat\n";
  out += roff(
      "facet chat -m gemma-4-E4B-it-Q4_K_M.gguf -c 8192\nfacet run -p \"Name three rivers\" --temp 0\n"
      "facet plan -m gemma-4-31B-it-Q4_K_M.gguf -c 32768 --kv-k q8_0 --kv-v q8_0\n");
  return out + ".fi\n";
}

struct Completion {
  std::string options, values;  // branches of the two case statements
};

void complete_command(Completion& c, const CLI::App& cmd, const std::string& name) {
  std::vector<std::string> words;
  for (const CLI::App* sub : commands_of(cmd)) words.push_back(sub->get_name());
  for (const CLI::Option* o : options_of(cmd)) {
    std::vector<std::string> names;
    for (const std::string& s : o->get_snames()) names.push_back("-" + s);
    for (const std::string& s : o->get_lnames()) names.push_back("--" + s);
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

std::string completion(const CLI::App& app) {
  Completion c;
  complete_command(c, app, "");
  std::vector<std::string> names;
  for (const CLI::App* cmd : commands_of(app)) {
    names.push_back(fmt::format("'{}'", cmd->get_name()));
    for (const CLI::App* sub : commands_of(*cmd))
      names.push_back(fmt::format("'{} {}'", cmd->get_name(), sub->get_name()));
  }
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

bool write(const std::string& path, const std::string& text) {
  std::ofstream f(path, std::ios::binary);
  f << text;
  f.close();
  if (!f) fmt::print(stderr, "facet_manual: {}: cannot write\n", path);
  return bool(f);
}

}  // namespace
}  // namespace facet

int main(int argc, char** argv) {
  if (argc != 2) return fmt::print(stderr, "usage: facet_manual FOLDER\n"), 2;
  CLI::App app;
  app.set_version_flag("--version", FACET_VERSION, "Print the version and exit");
  int rc = 0;
  facet::add_commands(app, rc);
  const std::string folder = argv[1];
  return facet::write(folder + "/facet.1", facet::manual(app)) &&
                 facet::write(folder + "/facet.bash", facet::completion(app))
             ? 0
             : 1;
}
