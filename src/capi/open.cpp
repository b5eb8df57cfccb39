// What facet_model_params say, as the engine's configuration.
#include <fmt/format.h>

#include <algorithm>

#include "capi/handles.h"
#include "formats/gguf.h"
#include "hub/environment.h"
#include "media/picture.h"
#include "model/find_drafter.h"
#include "model/gemma4_config.h"
#include "model/mmproj.h"

namespace facet::capi {
namespace {

constexpr const char* kParams = "facet_model_params";

// A path, of "hf:..." after the download. The notes go where the model's go.
Result<std::string> fetched(const facet_model_params& p, const std::string& path, HubUse use) {
  if (!path.starts_with("hf:")) return path;
  HubConfig hub = hub_config_of_environment();
  hub.offline |= (p.flags & FACET_OFFLINE) != 0;
  if (p.log)
    hub.note = [log = p.log, user = p.log_user](const std::string& s) { log(user, FACET_LOG_NOTE, s.c_str()); };
  return fetch_from_hub(hub, path, use);
}

Status set_drafters(const facet_model_params& p, EngineConfig& c) {
  if (p.n_drafters > 0 && !p.drafters)
    return Error{kParams, fmt::format("drafters: expected {} paths, found NULL", p.n_drafters), ""};
  for (size_t i = 0; i < p.n_drafters; ++i) {
    if (!p.drafters[i]) return Error{kParams, fmt::format("drafters: expected a path, found NULL at {}", i), ""};
    auto path = fetched(p, p.drafters[i], HubUse::kDrafter);
    if (!path) return path.error();
    c.draft.files.push_back(std::move(*path));
  }
  if (!(p.flags & FACET_FIND_DRAFTERS) || p.n_drafters > 0) return Ok{};
  c.draft.optional = true;
  for (const char* kind : {"dflash", "mtp"})
    if (const DrafterSearch s = find_drafter_beside(c.model, kind); !s.path.empty()) c.draft.files.push_back(s.path);
  return Ok{};
}

Status set_encoders(const facet_model_params& p, EngineConfig& c) {
  if (p.image_tokens != 0 && (p.image_tokens < kImageTokenBudgets[0] || p.image_tokens > 1 << 24))
    return Error{
        kParams,
        fmt::format("image_tokens: expected 0 or at least {}, found {}", kImageTokenBudgets[0], p.image_tokens), ""};
  if (p.image_tokens > 0) c.image_tokens = image_token_budget(p.image_tokens);
  if (!p.mmproj) return Ok{};
  auto file = GgufFile::open(c.model);
  if (!file) return Ok{};  // opening the model says what is wrong with it
  auto cfg = gemma4_config(*file);
  if (!cfg) return Ok{};
  std::vector<std::string> notes;
  auto found = find_mmproj(p.mmproj, c.model, *cfg, &notes);
  if (!found) return found.error();
  c.mmproj = std::move(*found);
  if (p.log)
    for (const std::string& note : notes) p.log(p.log_user, FACET_LOG_NOTE, note.c_str());
  return Ok{};
}

}  // namespace

Result<EngineConfig> config_of(const facet_model_params& p) {
  EngineConfig c;
  if (p.backend) c.backend = p.backend;
  if (c.backend != "auto" && c.backend != "cuda" && c.backend != "cpu" && c.backend != "ref")
    return Error{kParams, fmt::format("backend: expected auto, cuda, cpu or ref, found '{}'", c.backend), ""};
  if (p.kv_type) {
    const auto type = kv_type_from_name(p.kv_type);
    if (!type)
      return Error{kParams, fmt::format("kv_type: expected f16, q8_0, q4_0, tq3_0 or f32, found '{}'", p.kv_type), ""};
    c.kv_k = c.kv_v = *type;
  }
  if (p.context < 0 || p.sequences < 0 || p.threads < 0 || p.gpu < 0 || p.memory < 0)
    return Error{kParams, "expected numbers that are not negative, found another one", ""};
  c.n_ctx = p.context, c.n_threads = p.threads, c.gpu = p.gpu, c.memory = p.memory;
  if (p.sequences > 0) c.max_seq = p.sequences;
  if (p.flags & ~uint32_t(FACET_FIND_DRAFTERS | FACET_OFFLINE))
    return Error{kParams, fmt::format("flags: expected FACET_FIND_DRAFTERS and FACET_OFFLINE, found {:#x}", p.flags),
                 "use the header of this library or an earlier one"};
  auto path = fetched(p, p.path, HubUse::kModel);
  if (!path) return path.error();
  c.model = std::move(*path);
  if (auto ok = set_drafters(p, c); !ok) return ok.error();
  if (auto ok = set_encoders(p, c); !ok) return ok.error();
  if (p.log) {
    c.noted = [log = p.log, user = p.log_user](const std::string& s) { log(user, FACET_LOG_NOTE, s.c_str()); };
    c.degraded = [log = p.log, user = p.log_user](const std::string& what, const std::string& why) {
      log(user, FACET_LOG_WARNING, fmt::format("without {}: {}", what, why).c_str());
    };
  }
  return c;
}

}  // namespace facet::capi
