#pragma once
#include <string>

#include "backend/cpu/cpu_ref.h"
#include "model/dflash_bind.h"
#include "model/drafter_file.h"
#include "model/eagle3_bind.h"
#include "model/mtp_bind.h"

namespace facet::test {

// What is said of a drafter file for a target; nothing if it is taken.
inline std::string drafter_refusal(const std::string& path, const ModelCfg& target) {
  const auto file = DrafterFile::open(path);
  if (!file) return file.error().message();
  CpuRef b(1);
  if (file->kind() == DrafterKind::kDflash) {
    const auto c = dflash_config(*file, target);
    if (!c) return c.error().message();
    const auto w = bind_dflash(b, *file, *c);
    return w ? "" : w.error().message();
  }
  if (file->kind() == DrafterKind::kEagle3) {
    const auto c = eagle3_config(*file, target);
    if (!c) return c.error().message();
    const auto w = bind_eagle3(b, *file, *c);
    return w ? "" : w.error().message();
  }
  const auto c = mtp_config(*file, target);
  if (!c) return c.error().message();
  const auto w = bind_mtp(b, *file, *c, ModelW<CpuRef>{});
  return w ? "" : w.error().message();
}

}  // namespace facet::test
