#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/service.h"

namespace facet {

// An option of `facet serve` by its long name without dashes.
struct GivenOption {
  std::string name = {};
  std::vector<std::string> values = {};  // none: a flag
};

// One model of a router: what its process is started with, and how it is kept.
struct ModelConfig {
  std::string name = {};                  // in requests and answers
  std::vector<std::string> aliases = {};  // other names that requests may use
  std::string path = {};                  // what the process gets as -m
  std::vector<GivenOption> options = {};  // what it gets beside that; each once
  bool pinned = false;                    // loaded at the start, and never unloaded unless somebody asks
  bool load_on_startup = false;
  int stop_s = 30;  // from SIGTERM to SIGKILL
};

struct RouterConfig {
  ServiceConfig front = {};  // address, keys, origins, the page, the queue of each model
  std::vector<ModelConfig> models = {};
  int models_max = 4;    // in memory at once; 0: any number
  int sleep_idle_s = 0;  // a model that nobody asked for so long gives its memory up; 0: never
  int load_s = 600;      // until a model has to be loaded, and a request to be handed to it
  bool autoload = true;  // a request loads the model it names
};

// A model's name: 1 to 128 visible characters, as they appear in JSON, logs and labels.
bool is_model_name(std::string_view name);

// One option of a model as somebody wrote it.
struct ModelOption {
  std::string name = {}, value = {};
  std::string where = {};  // begins an error's text
  bool from_file = false;  // cache-ram without a suffix then counts MiB, as in llama-server's presets
};

// What the application knows of the options of `facet serve`.
class ServeOptions {
 public:
  virtual ~ServeOptions() = default;
  virtual std::string long_name(const std::string& name) const = 0;  // empty: there is none
  virtual bool is_flag(const std::string& long_name) const = 0;
};

// "NAME=PATH[,option[=value]...]", as -m has it. False: the text has no such form, and is a path.
bool parse_model_argument(const std::string& text, ModelConfig& model, std::vector<ModelOption>& options);

// A preset file: [NAME] or ["NAME"], and below it key = value; [*] counts for every model. Values may be quoted as in
// TOML; ; and # begin comments. Lines before the first section have the name "".
struct PresetSection {
  std::string name = {};
  std::vector<ModelOption> options = {};
};
Result<std::vector<PresetSection>> parse_preset(std::string_view text, const std::string& where);

// Replaces what `model` has of that name: one of the router's own (pinned, load-on-startup, stop-timeout, alias,
// model), one of `facet serve`, or what llama-server calls it, there also as LLAMA_ARG_...
Status apply_option(ModelConfig& model, const ModelOption& option, const ServeOptions& known,
                    std::vector<std::string>& notes);
void set_option(ModelConfig& model, GivenOption option);
std::vector<std::string> command_line(const ModelConfig& model);  // of its options

// The first part of each model file of a folder, and of the folders in it: names and paths. Drafters are left out.
Result<std::vector<ModelConfig>> find_models(const std::string& folder);

// Bytes of a model's files; 0: there are none.
uint64_t model_bytes(const std::string& path);

// Names that two models share, a limit below the pinned models, and such.
Status check_router(const RouterConfig& config);

}  // namespace facet
