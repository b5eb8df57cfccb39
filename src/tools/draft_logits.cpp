#include "tools/draft_logits.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>

#include "backend/cpu/cpu_fast.h"
#include "base/threads.h"
#include "engine/runner.h"
#include "model/gemma4_config.h"
#include "spec/dflash.h"
#include "spec/mtp.h"

namespace facet {
namespace {

// The target with its runner, and tokens to stand on.
template <Backend B>
struct Target {
  GgufFile file;
  ModelCfg cfg;
  std::vector<int32_t> ids;
  std::unique_ptr<Runner<B>> runner;

  TargetView<B> view() { return {runner->b, runner->m, runner->w, runner->kv, runner->cache->plan()}; }

  // Computes ids[0 .. at) and hands their features to the drafter.
  Status commit(int at, Drafter<B>& d, typename B::Rows taps, typename B::Rows final_hidden) {
    const int n_tap = int(d.tap_layers().size()), D = cfg.d_model;
    for (int from = 0; from < at;) {
      const int n = std::min(at - from, runner->cache->plan().max_step);
      if (auto ok = runner->cache->prepare(0, n); !ok) return ok;
      runner->steps.begin();
      runner->add({.slot = 0, .token = std::span(ids).subspan(size_t(from), size_t(n))});
      std::vector<typename B::Rows> dst;
      for (int i = 0; i < n_tap; ++i) dst.push_back(taps.cols_at(i * D, D).view(n, D));
      Taps<B> wanted{.layer = d.tap_layers(), .dst = dst, .final_hidden = {}};
      if (d.wants_final_hidden()) wanted.final_hidden = final_hidden.view(n, D);
      runner->forward(wanted);
      runner->cache->commit(0, n);
      const Committed rows{.slot = 0, .position = from, .row = 0, .n = n};
      d.absorb({&rows, 1}, {.taps = taps, .final_hidden = final_hidden});
      from += n;
    }
    return Ok{};
  }
};

void append(std::vector<float>& all, std::vector<float> rows) { all.insert(all.end(), rows.begin(), rows.end()); }

// [block, rows of the head]: every slot of the block at position `at`, without what a Markov head adds.
template <Backend B>
Result<std::vector<float>> dflash_logits(Target<B>& t, const DrafterFile& f, const DraftLogitsConfig& o, int& n_row) {
  auto cfg = dflash_config(f, t.cfg, o.block_mask);
  if (!cfg) return cfg.error();
  auto d = Dflash<B>::open(f, std::move(*cfg), t.view());
  if (!d) return d.error();
  n_row = (*d)->cfg().body.n_vocab;
  const int rows = t.runner->cache->plan().max_step, n_tap = int((*d)->tap_layers().size());
  if (auto ok = t.commit(o.at, **d, t.runner->b.new_rows(rows, n_tap * t.cfg.d_model), {}); !ok) return ok.error();
  const Draft draft{.position = o.at, .max_draft = (*d)->max_draft(), .token = {t.ids[size_t(o.at)]}};
  return t.runner->b.to_host((*d)->logits({&draft, 1}));
}

// [steps, V]: a chain of greedy passes after ids[at].
template <Backend B>
Result<std::vector<float>> mtp_logits(Target<B>& t, const DrafterFile& f, const DraftLogitsConfig& o,
                                      std::vector<std::string>& notes) {
  auto d = Mtp<B>::open(f, t.view(), o.window_extra);
  if (!d) return d.error();
  notes.insert(notes.end(), (*d)->cfg().notes.begin(), (*d)->cfg().notes.end());
  if (auto ok = t.commit(o.at, **d, {}, t.runner->b.new_rows(t.runner->cache->plan().max_step, t.cfg.d_model)); !ok)
    return ok.error();
  std::vector<float> all;
  Draft draft{.position = o.at, .max_draft = o.steps, .token = {t.ids[size_t(o.at)]}};
  for (int i = 0; i < o.steps; ++i) {
    const std::vector<float> row = t.runner->b.to_host((*d)->logits({&draft, 1}, i == 0));
    draft.token.push_back(int32_t(std::max_element(row.begin(), row.end()) - row.begin()));
    append(all, row);
  }
  return all;
}

template <Backend B>
Result<DraftLogits> run(const DraftLogitsConfig& c, KvType usual) {
  Target<B> t;
  auto file = open_gemma4(c.model);
  if (!file) return file.error();
  t.file = std::move(*file);
  auto cfg = gemma4_config(t.file);
  if (!cfg) return cfg.error();
  t.cfg = *cfg;
  t.ids = c.ids;
  for (int32_t id : t.ids)
    if (id < 0 || id >= t.cfg.n_vocab)
      return Error{"tokens", fmt::format("expected ids in [0, {}), found {}", t.cfg.n_vocab, id),
                   "the ids belong to another vocabulary"};
  if (c.at < 1 || c.at >= int(t.ids.size()))
    return Error{"at", fmt::format("expected a position in [1, {}), found {}", t.ids.size(), c.at),
                 "that token and all before it must be given"};
  auto drafter = DrafterFile::open(c.draft);
  if (!drafter) return drafter.error();
  if (drafter->kind() == DrafterKind::kEagle3)
    return Error{c.draft, "expected a DFlash or MTP drafter, found EAGLE-3", "its logits are not written yet"};
  const KvType kv = c.kv.value_or(usual);
  auto runner =
      Runner<B>::open(t.file, t.cfg, {.kv = {.k = kv, .v = kv, .max_ctx = int(t.ids.size()) + 64, .max_step = c.chunk}},
                      c.n_threads > 0 ? c.n_threads : physical_cores());
  if (!runner) return runner.error();
  t.runner = std::move(*runner);
  DraftLogits out{
      .logits = {}, .rows = 0, .n_vocab = t.cfg.n_vocab, .dialect = drafter->dialect(), .notes = drafter->notes};
  auto logits = drafter->kind() == DrafterKind::kDflash ? dflash_logits(t, *drafter, c, out.n_vocab)
                                                        : mtp_logits(t, *drafter, c, out.notes);
  if (!logits) return logits.error();
  out.logits = std::move(*logits);
  out.rows = int(out.logits.size()) / out.n_vocab;
  return out;
}

}  // namespace

Result<DraftLogits> draft_logits(const DraftLogitsConfig& c) {
  if (c.backend == "ref") return run<CpuRef>(c, KvType::kF32);
  if (c.backend == "cpu") return run<CpuFast>(c, KvType::kF16);
  return Error{"--backend", fmt::format("expected cpu or ref, found {}", c.backend),
               "this program was built without it"};
}

}  // namespace facet
