// Writes the manual page and the completions of shells from the program's own commands and options, so that they say
// the same:
//   facet_manual FOLDER      FOLDER/facet.1, facet.bash, _facet (zsh) and facet.fish
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/help.h"
#include "command_table.h"

namespace facet {
namespace {

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
  const auto names = dashed_names(o);
  return names.empty() ? o.get_name(true) : fmt::format("{}", fmt::join(names, ", "));
}

// What comes behind the name: "INT [0]", "TYPE", nothing for a flag.
std::string value_of(const CLI::Option& o) {
  if (!o.get_option_text().empty()) return o.get_option_text();
  const auto choices = choices_of(o);
  std::string type = value_name(o);
  type = choices.empty() ? type.substr(0, type.find(':')) : fmt::format("{}", fmt::join(choices, ", "));
  return type.empty() || o.get_default_str().empty() ? type : fmt::format("{} [{}]", type, o.get_default_str());
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
      "--ctx-size; every option of a command has such a variable, of a flag with 1 or 0. The command line wins over "
      "it, "
      "and it over the configuration file.\n");
  out += ".TP\n.B FACET_CONFIG\nthe configuration file, instead of the one below; /dev/null: none\n";
  out += ".TP\n.B FACET_MODELS\nfolder of the models that come with the program\n";
  out += ".TP\n.B FACET_CACHE\nfolder of downloads and of the history of chats\n";
  out +=
      ".TP\n.B HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT\nas for other programs that download\n";
  out += ".TP\n.B NO_COLOR\nno escape sequences\n";
  out += ".SH FILES\n.TP\n.I ~/.config/facet/facet.conf\n";
  out += roff(
      "the configuration file, or facet/facet.conf in XDG_CONFIG_HOME: lines `ctx-size = 8192` of options by their "
      "long "
      "names, of a flag on or off; below a line `[serve]` of that command alone\n");
  out += ".TP\n.I ~/.cache/facet/hub\ndownloads\n.TP\n.I ~/.cache/facet/hub/chat_history\n";
  out += "what was typed in chats\n";
  out += ".SH EXAMPLES\n.nf\nfacet chat\n";
  out += roff(
      "facet chat -m gemma-4-E4B-it-Q4_K_M.gguf -c 8192\nfacet run -p \"Name three rivers\" --temp 0\n"
      "facet plan -m gemma-4-31B-it-Q4_K_M.gguf -c 32768 --kv-k q8_0 --kv-v q8_0\n");
  return out + ".fi\n";
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
                 facet::write(folder + "/facet.bash", facet::bash_completion(app)) &&
                 facet::write(folder + "/_facet", facet::zsh_completion(app)) &&
                 facet::write(folder + "/facet.fish", facet::fish_completion(app))
             ? 0
             : 1;
}
