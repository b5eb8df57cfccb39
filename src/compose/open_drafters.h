#pragma once
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compose/plan.h"
#include "engine/open_engine.h"
#include "spec/dflash.h"
#include "spec/eagle3.h"
#include "spec/mtp.h"
#include "spec/suffix_drafter.h"

namespace facet {

template <class D, Backend B>
Status open_drafter(DrafterFile& file, const TargetView<B>& t, Drafters<B>& all) {
  auto d = D::open(file, t);
  if (!d) return d.error();
  if constexpr (requires { (*d)->cfg().notes; })
    for (const std::string& n : (*d)->cfg().notes) file.notes.push_back(n);
  all.push_back(std::move(*d));
  return Ok{};
}

// All of them, in their order.
template <Backend B>
Result<Drafters<B>> open_drafters(std::vector<DrafterFile>& files, const DraftConfig& c, const TargetView<B>& t,
                                  const std::function<void(const std::string&)>& noted) {
  Drafters<B> all;
  if constexpr (requires { t.b.take_drafters(); }) t.b.take_drafters();
  for (DrafterFile& f : files) {
    const Status ok = f.kind() == DrafterKind::kDflash   ? open_drafter<Dflash<B>>(f, t, all)
                      : f.kind() == DrafterKind::kEagle3 ? open_drafter<Eagle3<B>>(f, t, all)
                                                         : open_drafter<Mtp<B>>(f, t, all);
    if (!ok) return ok.error();
    if (noted)
      for (const std::string& n : f.notes) noted(fmt::format("{}: {}", f.path(), n));
  }
  if (c.suffix) all.push_back(std::make_unique<SuffixDrafter<B>>(t, size_t(c.memory)));
  return all;
}

// An engine on B with the drafters whose files were loaded with the model.
template <Backend B, class... BackendArgs>
Result<std::unique_ptr<Engine>> create_engine(LoadedModel model, const EngineConfig& c, BackendArgs... args) {
  model.drafter_pool_bytes = drafter_pool_bytes(model.file, model.cfg, c, model.drafters);
  if (!c.draft.any()) return open_engine<B>(std::move(model), c, {}, args...);
  // The model's copies keep the files mapped as long as the engine lives.
  std::vector<DrafterFile> files = model.drafters;
  const DrafterFactory<B> open_all = [&files, &c](const TargetView<B>& t) {
    return open_drafters<B>(files, c.draft, t, c.noted);
  };
  return open_engine<B>(std::move(model), c, open_all, args...);
}

}  // namespace facet
