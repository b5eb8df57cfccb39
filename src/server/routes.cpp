#include "server/routes.h"

namespace facet {
namespace {

// llama-server knows its paths with and without /v1; only the completion differs between them.
constexpr Route kRoutes[] = {
    {"/", "GET", Target::kPage},
    {"/docs", "GET", Target::kDocs},
    {"/openapi.json", "GET", Target::kOpenApi},
    {"/health", "GET", Target::kHealth},
    {"/v1/health", "GET", Target::kHealth},
    {"/metrics", "GET", Target::kMetrics},
    {"/models", "GET", Target::kModels},
    {"/v1/models", "GET", Target::kModels},
    {"/models/load", "POST", Target::kLoadModel},
    {"/models/unload", "POST", Target::kUnloadModel},
    {"/models/", "GET", Target::kModel},
    {"/v1/models/", "GET", Target::kModel},
    {"/props", "GET", Target::kProps},
    {"/slots", "GET", Target::kSlots},
    {"/slots/", "POST", Target::kSlot},
    {"/v1/chat/completions", "POST", Target::kGenerate, ApiKind::kChat},
    {"/chat/completions", "POST", Target::kGenerate, ApiKind::kChat},
    {"/v1/completions", "POST", Target::kGenerate, ApiKind::kCompletion},
    {"/v1/chat/completions/input_tokens", "POST", Target::kCountTokens, ApiKind::kChat},
    {"/chat/completions/input_tokens", "POST", Target::kCountTokens, ApiKind::kChat},
    {"/v1/responses", "POST", Target::kGenerate, ApiKind::kResponses},
    {"/responses", "POST", Target::kGenerate, ApiKind::kResponses},
    {"/v1/responses/input_tokens", "POST", Target::kCountTokens, ApiKind::kResponses},
    {"/responses/input_tokens", "POST", Target::kCountTokens, ApiKind::kResponses},
    {"/completion", "POST", Target::kGenerate, ApiKind::kNative},
    {"/completions", "POST", Target::kGenerate, ApiKind::kNative},
    {"/tokenize", "POST", Target::kTokenize},
    {"/detokenize", "POST", Target::kDetokenize},
    {"/tokenizer_info", "GET", Target::kTokenizerInfo},
    {"/apply-template", "POST", Target::kTemplate},
    {"/embedding", "POST", Target::kEmbeddings},
    {"/embeddings", "POST", Target::kEmbeddings},
    {"/v1/embeddings", "POST", Target::kEmbeddings},
    {"/v1/messages", "POST", Target::kGenerate, ApiKind::kMessages},
    {"/v1/messages/count_tokens", "POST", Target::kCountTokens, ApiKind::kMessages},
    {"/api/version", "GET", Target::kVersion},
    {"/api/tags", "GET", Target::kTags},
    {"/api/ps", "GET", Target::kRunning},
    {"/api/embed", "POST", Target::kEmbeddings},
    {"/api/embeddings", "POST", Target::kEmbeddings},
    {"/api/show", "POST", Target::kShow},
    {"/api/chat", "POST", Target::kGenerate, ApiKind::kOllamaChat},
    {"/api/generate", "POST", Target::kGenerate, ApiKind::kOllamaGenerate},
};

}  // namespace

const Route* find_route(std::string_view path) {
  for (const Route& r : kRoutes) {
    const bool folder = r.path.size() > 1 && r.path.ends_with('/');
    if (folder ? path.starts_with(r.path) && path.size() > r.path.size() : path == r.path) return &r;
  }
  return nullptr;
}

bool allows(const Route& r, std::string_view method) {
  return method == r.method || (method == "HEAD" && r.method == "GET");
}

std::string_view allowed(const Route& r) { return r.method == "GET" ? "GET, HEAD" : r.method; }

Dialect dialect_of_path(std::string_view path) {
  if (path.starts_with("/api/")) return Dialect::kOllama;
  return path.starts_with("/v1/messages") ? Dialect::kAnthropic : Dialect::kOpenAi;
}

}  // namespace facet
