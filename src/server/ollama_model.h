#pragma once
#include <cstdint>
#include <string>

#include "tokenizer/json_fwd.h"

// What Ollama's clients ask about a model: /api/tags, /api/ps, /api/show.
namespace facet {

// The version of Ollama's API that this server speaks. Clients refuse servers that name an older one than they need:
// VS Code wants 0.6.4, Codex 0.13.4.
inline constexpr const char* kOllamaVersion = "0.14.0";

// What a model's file says of it, all empty where it cannot be read.
struct ModelFacts {
  uint64_t bytes = 0, parameters = 0;
  std::string basename = {}, quantization = {}, size_label = {};
  std::string digest = {};  // 64 hex digits of the file's head and size: its name, and no sum of all its bytes
};
ModelFacts model_facts(const std::string& path);

struct OllamaModel {
  std::string name = {}, chat_template = {};
  int64_t created = 0;
  int n_ctx = 0;
  ModelFacts facts = {};
  bool takes_pictures = false, takes_sound = false;
};
Json ollama_version();
Json ollama_entry(const OllamaModel& m);  // of /api/tags
Json ollama_tags(const OllamaModel& m);
Json ollama_running(const OllamaModel& m, uint64_t bytes, int64_t now);  // of /api/ps; bytes: planned, 0: of its file
Json ollama_show(const OllamaModel& m);

}  // namespace facet
