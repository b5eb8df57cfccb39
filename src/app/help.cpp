#include "app/help.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace facet {
namespace {

struct Example {
  const char *command, *text;
};
constexpr Example kExamples[] = {
    {"facet", "facet chat\nfacet run \"Name three rivers\"\nfacet serve -m model.gguf -c 8192"},
    {"chat", "facet chat -m model.gguf -c 8192 --think"},
    {"run", "facet run \"Name three rivers\" --temp 0\nfacet run -f question.txt --json-schema '{\"enum\": [41, 42]}'"},
    {"serve", "facet serve -m model.gguf -c 8192 --parallel 4 --port 8080"},
    {"daemon", "facet daemon --help"},
    {"logits", "facet logits --tokens prompt.i32 --out logits.bin"},
    {"draft", "facet draft --help"},
    {"eval", "facet eval --kind tools"},
    {"quality", "facet quality --kv f16,q4_0 --count 4"},
    {"tokenize", "echo Hello | facet tokenize"},
    {"detokenize", "echo Hello | facet tokenize | facet detokenize"},
    {"render", "facet render < messages.json"},
    {"parse", "facet parse < answer.txt"},
    {"download", "facet download ggml-org/gemma-4-E4B-it-GGUF:Q4_K_M"},
    {"ls", "facet ls"},
    {"rm", "facet rm ggml-org/gemma-4-E4B-it-GGUF"},
    {"inspect", "facet inspect model.gguf"},
    {"bench", "facet bench -m model.gguf --depths 0,4096"},
    {"spec", "facet bench spec --lengths 3"},
    {"matrix", "facet bench matrix --draft none,dflash --kv f16,q8_0"},
    {"plan", "facet plan -m model.gguf -c 32768 --kv q8_0"},
    {"quantize", "facet quantize model-BF16.gguf model-Q4_K_M.gguf Q4_K_M"},
    {"convert", "facet convert --help"},
    {"compare", "facet compare a.gguf b.gguf"},
    {"synth", "facet synth --preset tiny --quant Q8_0 tiny.gguf"},
    {"doctor", "facet doctor -m model.gguf -c 4096 --port 0"},
    {"help", "facet help run"},
    {"version", "facet version"},
};

struct Group {
  const char *title, *names;  // between spaces
};
constexpr Group kGroups[] = {
    {"Model", " model hf-repo hf-file offline mmproj no-mmproj image-tokens no-mmproj-offload image audio media-path "},
    {"Context, memory and speed",
     " ctx-size threads kv kv-layout kv-k kv-v kv-layers kv-memory backend gpu gpus split experts-on-cpu expert-usage "
     "ffn-on-cpu "
     "cpu-isa chunk "
     "memory "
     "sparse-prefill "
     "snapshots snapshot-every cache-ram cache-disk cache-disk-size media-cache parallel max-stall "},
    {"Drafting", " draft draft-embedding-scale draft-max draft-min draft-tree draft-memory spec-trace "},
    {"Sampling",
     " temp top-k top-p min-p repeat-penalty repeat-last-n presence-penalty frequency-penalty seed n-predict "
     "ignore-eos "
     "max-loops json-schema json-schema-file grammar grammar-file "},
    {"Network",
     " host port api-key api-key-file cors-origin ping max-body body-memory answer-memory max-connections backlog idle "
     "request-time write-time drain queue "},
};

constexpr Group kCommands[] = {
    {"Answers", " chat run serve daemon "},
    {"Model files", " download ls rm inspect plan quantize convert compare synth "},
    {"Measuring", " bench eval quality logits draft "},
    {"Text and tokens", " tokenize detokenize render parse "},
    {"Help", " help version doctor "},
};

constexpr const char* kOtherCommands = "Commands";

// What a text is that an option takes.
constexpr Group kValues[] = {
    {"FILE",
     " model mmproj image audio video file tokens out-tokens out json text set draft spec-trace against-model "
     "json-schema-file grammar-file api-key-file models-preset experts "},
    {"FOLDER", " sets root slot-save-path models-dir media-path cache-disk "},
    {"SCHEMA", " json-schema "},
    {"GRAMMAR", " grammar "},
    {"NAME", " alias url-model kind "},
    {"ADDRESS", " host "},
    {"KEY", " api-key "},
    {"URL", " url cors-origin "},
    {"HOST", " allow-media-urls "},
};

const char* title_of(std::span<const Group> groups, const std::string& name) {
  for (const Group& g : groups)
    if (std::string_view(g.names).find(" " + name + " ") != std::string_view::npos) return g.title;
  return nullptr;
}

const char* title_of(std::span<const Group> groups, const CLI::Option& o) {
  for (const std::string& name : o.get_lnames())
    if (const char* title = title_of(groups, name)) return title;
  return nullptr;
}

size_t width_of_terminal() {
  constexpr size_t kNarrow = 60, kUsual = 100;
  winsize w{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0) return kUsual;
  return std::clamp(size_t(w.ws_col), kNarrow, kUsual);
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return make_expanded(app);
    std::string out = wrapped(app->get_description(), 0, 0) + "\n" + make_usage(app, std::move(name));
    const std::string own = app->get_parent() ? app->get_name() : "facet";
    for (const Example& e : kExamples)
      if (own == e.command) out += example(e.text);
    out += make_positionals(app) + make_groups(app, mode) + make_subcommands(app, mode);
    for (size_t at; (at = out.find("\n\n\n")) != std::string::npos;) out.erase(at, 1);
    return out;
  }
  std::string make_option(const CLI::Option* o, bool is_positional) const override {
    return entry(make_option_name(o, is_positional) + (is_positional ? "" : make_option_opts(o)), make_option_desc(o));
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::vector<std::string> titles;
    for (const Group& g : kCommands) titles.emplace_back(g.title);
    titles.emplace_back(kOtherCommands);
    std::string out;
    for (const std::string& title : titles) {
      const auto subs = app->get_subcommands([&](const CLI::App* s) { return s->get_group() == title; });
      if (!subs.empty()) out += "\n" + title + ":\n";
      for (const CLI::App* sub : subs) out += make_subcommand(sub);
    }
    return out;
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return entry(sub->get_display_name(true), sub->get_description());
  }
  // "TYPE=default", without the names of checks, and without what needs or excludes what: an error says that.
  std::string make_option_opts(const CLI::Option* o) const override {
    if (!o->get_option_text().empty()) return " " + o->get_option_text();
    if (o->get_type_size() == 0) return "";
    std::string type = value_name(*o);
    const size_t open = type.find('{'), close = type.find('}');
    if (open != std::string::npos && close != std::string::npos && open < close)
      type = type.substr(open, close - open + 1);
    else
      type.resize(std::min(type.find(':'), type.size()));
    if (!o->get_default_str().empty()) type += "=" + o->get_default_str();
    if (o->get_expected_max() == CLI::detail::expected_max_vector_size) type += " ...";
    return (type.empty() ? "" : " " + type) + (o->get_required() ? " REQUIRED" : "");
  }

 private:
  static constexpr size_t kColumn = 30;

  static std::string example(const std::string& text) {
    std::string out = "\nExamples:\n";
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      out += "  " + text.substr(at, end - at) + "\n";
      at = end + 1;
    }
    return out;
  }
  std::string entry(const std::string& name, const std::string& description) const {
    std::string out = "  " + name;
    if (out.size() + 1 < kColumn)
      out.append(kColumn - out.size(), ' ');
    else
      out += "\n" + std::string(kColumn, ' ');
    return out + wrapped(description, kColumn, kColumn) + "\n";
  }
  // Words on lines of the terminal's width; `column`: where the first begins, `indent`: the others.
  std::string wrapped(const std::string& text, size_t column, size_t indent) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      if (end > at) {
        if (column > indent && column + 1 + (end - at) > width_) {
          out += "\n" + std::string(indent, ' ');
          column = indent;
        } else if (column > indent) {
          out += ' ', ++column;
        }
        out += text.substr(at, end - at), column += end - at;
      }
      at = end + 1;
    }
    return out;
  }
  size_t width_ = width_of_terminal();
};

void arrange(CLI::App& app, const std::shared_ptr<HelpFormatter>& formatter) {
  app.formatter(formatter);
  const char* group = app.get_parent() ? title_of(kCommands, app.get_name()) : nullptr;
  if (app.get_parent() && !app.get_group().empty()) app.group(group ? group : kOtherCommands);
  for (CLI::Option* o : app.get_options([](const CLI::Option* o) { return o->get_group() == "Options"; }))
    if (const char* title = title_of(kGroups, *o)) o->group(title);
  for (CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) arrange(*sub, formatter);
}

}  // namespace

std::string value_name(const CLI::Option& o) {
  const std::string type = o.get_type_name();
  const char* name = type.substr(0, type.find(':')) == "TEXT" ? title_of(kValues, o) : nullptr;
  return name ? name : type;
}

void arrange_help(CLI::App& app) {
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->label("SUBCOMMAND", "COMMAND");
  arrange(app, formatter);
}

std::string first_words() {
  return "facet runs Gemma 4 models. To begin with:\n\n"
         "  facet chat               talk with a model in the terminal\n"
         "  facet run \"TEXT\"         answer one prompt\n"
         "  facet serve              a page, and the APIs of OpenAI, Anthropic, Ollama\n"
         "  facet download NAME      fetch a model\n"
         "  facet plan -m FILE       what a model needs in memory, what context fits\n\n"
         "For example, with the small model that comes with it:\n\n"
         "  facet run \"What is 17 + 25?\"\n\n"
         "`facet help` lists all commands, `facet help COMMAND` the options of one.\n";
}

}  // namespace facet
