#include "compose/prove.h"

#include <cmath>

#include "backend/cpu/cpu_fast.h"
#include "compose/load_model.h"
#include "compose/prove_impl.h"
#include "media/patches.h"
#include "media/sound.h"

namespace facet {

Status encode_most(MediaEncoder& encoders) {
  if (encoders.sees()) {
    int rows = int(std::sqrt(encoders.budget()));
    while (encoders.budget() % rows != 0) --rows;
    Picture picture{.width = encoders.budget() / rows * kUnifiedPatch, .height = rows * kUnifiedPatch, .rgb = {}};
    picture.rgb.resize(size_t(picture.width) * size_t(picture.height) * 3);
    if (auto soft = encoders.encode(picture); !soft) return soft.error();
  }
  if (encoders.hears())
    if (auto soft = encoders.encode(std::vector<float>(kPieceSamples)); !soft) return soft.error();
  return Ok{};
}

Result<MemoryProof> prove_plan(const EngineConfig& c) {
  auto loaded = load_model(c.model);
  if (!loaded) return loaded.error();
  LoadedModel& model = *loaded;
  for (const std::string& path : c.draft.files) {
    auto drafter = DrafterFile::open(path);
    if (!drafter) return drafter.error();
    if (c.draft.embed_scale > 0) drafter->set_embedding_scale(c.draft.embed_scale);
    model.drafters.push_back(std::move(*drafter));
  }
#if FACET_CUDA
  if (c.backend == "cuda") return prove_cuda_plan(std::move(model), c);
#endif
  int64_t mapped = int64_t(model.file.file_bytes());
  for (const DrafterFile& d : model.drafters) mapped += int64_t(d.file_bytes());
  if (!c.mmproj.empty()) {
    const auto encoders = MmprojFile::open(c.mmproj);
    if (!encoders) return encoders.error();
    mapped += int64_t(encoders->weight_bytes());
  }
  if (c.backend == "ref") return prove_on<CpuRef>(std::move(model), c, mapped, own_memory, c.n_threads);
  return prove_on<CpuFast>(std::move(model), c, mapped, own_memory, c.n_threads, c.cpu_isa);
}

}  // namespace facet
