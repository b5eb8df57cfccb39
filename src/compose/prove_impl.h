#pragma once
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory_use.h"
#include "compose/memory_proof.h"
#include "compose/open_drafters.h"
#include "compose/open_media.h"
#include "engine/device_ops.h"
#include "engine/speculate.h"
#include "session/sequence.h"
#include "session/session_rows.h"

namespace facet {

// A model with its cache and drafters, as an engine has them, filled by hand.
class FullMemory {
 public:
  FullMemory(std::unique_ptr<DeviceOps> ops, const EngineConfig& c);

  Status memory() const { return ops_->memory(); }  // an error if some ran out while it was opened
  // Sequences, then copies of the first beside them, until there is no room.
  void fill(MemoryProof& proof);
  // All sequences take as many rows as a step may have of each.
  Status step(int sequences);

 private:
  int rows_of(SlotId s) const;
  bool fill(SlotId s, int rows);
  bool fill(KvCache& c, SlotId s, KvState state);

  const EngineConfig& c_;
  std::unique_ptr<DeviceOps> ops_;
  SessionRows rows_;
  std::vector<Sequence> sequences_;
  Speculator spec_;
  std::vector<std::byte> random_;
};

Result<MemoryProof> prove_cuda_plan(LoadedModel model, const EngineConfig& c);

// A picture of as many tokens as there may be, and 30 s of sound.
Status encode_most(MediaEncoder& encoders);

// use(): bytes that this process has taken now.
template <Backend B, class Use, class... Args>
Result<MemoryProof> prove_on(LoadedModel model, const EngineConfig& c, int64_t mapped, Use use, Args... args) {
  MemoryProof proof{.planned = plan_memory(model.file, model.cfg, c, model.drafters).total()};
  // Nothing of it is there yet.
  if (c.draft.suffix && c.backend != "cuda")
    for (const MemoryLine& l : suffix_lines(c)) proof.planned -= l.bytes;
  const int64_t before = use();
  const DrafterFactory<B> open_all = [&](const TargetView<B>& t) {
    return open_drafters<B>(model.drafters, c.draft, t, {});
  };
  const RunnerOptions o{.kv = kv_plan(c),
                        .max_out = c.max_out,
                        .more_pages = drafter_pool_bytes(model.file, model.cfg, c, model.drafters),
                        .kv_memory = c.kv_memory};
  auto ops = DeviceOpsOn<B>::open(model, o, open_all, args...);
  if (!ops) return ops.error();
  FullMemory full(std::move(*ops), c);
  if (auto ok = full.memory(); !ok) return ok.error();
  full.fill(proof);
  if (auto ok = full.step(proof.sequences); !ok) return ok.error();
  const auto encoders = open_media(model, c);
  if (!encoders) return encoders.error();
  if (*encoders)
    if (auto ok = encode_most(**encoders); !ok) return ok.error();
  proof.measured = use() - before + mapped;
  return proof;
}

}  // namespace facet
