#include "server/ollama_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/sha.h"
#include "formats/gguf.h"
#include "formats/mixture.h"
#include "server/writer.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr int64_t kStays = int64_t(10) * 365 * 86400;  // seconds: as long as the server runs

// 4633.6e6 to 4.6B, as Ollama writes it.
std::string short_count(uint64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.1f}B", double(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.2f}M", double(n) / 1e6);
  return fmt::format("{:.2f}K", double(n) / 1e3);
}

Json details(const ModelFacts& f) {
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", "gemma4"},
          {"families", Json::array({"gemma4"})},
          {"parameter_size", f.parameters > 0 ? short_count(f.parameters) : f.size_label},
          {"quantization_level", f.quantization.empty() ? "unknown" : f.quantization}};
}

Json capabilities(const OllamaModel& m) {
  Json j = Json::array({"completion", "tools", "thinking"});
  if (m.takes_pictures) j.push_back("vision");
  if (m.takes_sound) j.push_back("audio");
  return j;
}

}  // namespace

ModelFacts model_facts(const std::string& path) {
  ModelFacts facts;
  const auto file = GgufFile::open(path);
  if (!file) return facts;
  facts.bytes = file->file_bytes();
  Sha sha;
  for (const auto& [key, value] : file->meta()) {
    sha.add(std::as_bytes(std::span(key)));
    if (const auto* s = std::get_if<std::string_view>(&value.v)) sha.add(std::as_bytes(std::span(*s)));
    if (const auto* n = std::get_if<int64_t>(&value.v)) sha.add(std::as_bytes(std::span(n, 1)));
  }
  for (const TensorView& t : file->tensors()) {
    facts.parameters += uint64_t(t.n_elements());
    sha.add(std::as_bytes(std::span(t.name)));
    const int64_t n = t.n_elements() * 64 + int64_t(t.type);
    sha.add(std::as_bytes(std::span(&n, 1)));
  }
  sha.add(std::as_bytes(std::span(&facts.bytes, 1)));
  facts.digest = sha.hex();
  if (const auto s = file->get_string("general.basename"))
    facts.basename = *s;
  else if (const auto name = file->get_string("general.name"))
    facts.basename = *name;
  if (const auto s = file->get_string("general.size_label")) facts.size_label = *s;
  if (const auto type = file->get_int("general.file_type"))
    for (const Mixture& m : mixtures())
      if (m.file_type == *type) facts.quantization = m.name;
  return facts;
}

Json ollama_version() { return {{"version", kOllamaVersion}, {"facet", FACET_VERSION}}; }

Json ollama_entry(const OllamaModel& m) {
  return {{"name", m.name},
          {"model", m.name},
          {"modified_at", rfc3339(m.created)},
          {"size", m.facts.bytes},
          {"digest", m.facts.digest},
          {"details", details(m.facts)},
          {"capabilities", capabilities(m)}};
}

Json ollama_tags(const OllamaModel& m) { return {{"models", Json::array({ollama_entry(m)})}}; }

Json ollama_running(const OllamaModel& m, uint64_t bytes, int64_t now) {
  Json j = ollama_entry(m);
  j.erase("modified_at");
  j.erase("capabilities");
  j["size"] = std::max(bytes, m.facts.bytes);
  j["size_vram"] = 0;
  j["context_length"] = m.n_ctx;
  j["expires_at"] = rfc3339(now + kStays);
  return j;
}

Json ollama_show(const OllamaModel& m) {
  Json info = {{"general.architecture", "gemma4"},
               {"general.basename", m.facts.basename.empty() ? m.name : m.facts.basename},
               {"gemma4.context_length", m.n_ctx}};
  if (m.facts.parameters > 0) info["general.parameter_count"] = m.facts.parameters;
  return {{"modelfile", ""},
          {"parameters", ""},
          {"template", m.chat_template},
          {"modified_at", rfc3339(m.created)},
          {"details", details(m.facts)},
          {"model_info", std::move(info)},
          {"capabilities", capabilities(m)}};
}

}  // namespace facet
