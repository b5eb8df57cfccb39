#pragma once
#include <string_view>

#include "server/writer.h"

namespace facet {

enum class Target {
  kHealth,
  kMetrics,
  kPage,
  kDocs,
  kOpenApi,
  kModels,
  kTokenizerInfo,
  kModel,  // one of them, by its name in the path
  kProps,
  kSlots,
  kSlot,        // one of them, by its number in the path
  kEmbeddings,  // refused
  kTokenize,
  kDetokenize,
  kTemplate,
  kCountTokens,
  kGenerate,  // Route::kind says what
  kVersion,
  kTags,
  kRunning,  // models in memory, as Ollama lists them
  kShow,
  kLoadModel,  // of a router
  kUnloadModel,
};

struct Route {
  std::string_view path, method;
  Target target;
  ApiKind kind = ApiKind::kChat;
};

// Null: no such path. A path that ends in / stands for everything below it, but for / itself.
const Route* find_route(std::string_view path);
bool allows(const Route& route, std::string_view method);  // HEAD is allowed where GET is
std::string_view allowed(const Route& route);              // as the header Allow has it
Dialect dialect_of_path(std::string_view path);

}  // namespace facet
