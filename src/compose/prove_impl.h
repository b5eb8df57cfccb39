#pragma once
#include <algorithm>
#include <random>
#include <vector>

#include "base/memory_use.h"
#include "compose/memory_proof.h"
#include "compose/open_drafters.h"
#include "engine/engine_impl.h"
#include "engine/speculate.h"

namespace facet {

// A model with its cache and drafters, as an engine has them, filled by hand.
template <Backend B>
class FullMemory {
 public:
  template <class... Args>
  static Result<std::unique_ptr<FullMemory>> open(LoadedModel& model, const EngineConfig& c, Args... args) {
    std::unique_ptr<FullMemory> f(new FullMemory(c));
    auto r = Runner<B>::open(model.file, model.cfg,
                             {.kv = kv_plan(c),
                              .max_out = c.max_out,
                              .more_pages = drafter_pool_bytes(model.file, model.cfg, c, model.drafters),
                              .kv_memory = c.kv_memory},
                             args...);
    if (!r) return r.error();
    f->runner_ = std::move(*r);
    Runner<B>& run = *f->runner_;
    const TargetView<B> view{
        .b = run.b, .m = run.m, .w = run.w, .kv = run.kv, .plan = run.cache->plan(), .pool = run.pool.get()};
    auto drafters = open_drafters<B>(model.drafters, c.draft.ngram, view, {});
    if (!drafters) return drafters.error();
    f->spec_ = std::make_unique<Speculator<B>>(run, c, model.cfg.n_vocab, std::move(*drafters), false);
    if (auto ok = memory_status(run.b); !ok) return ok.error();
    return f;
  }

  // Sequences, then copies of the first beside them, until there is no room.
  void fill(MemoryProof& proof) {
    for (SlotId s = 0; s < c_.max_seq; ++s) {
      if (!fill(s, c_.n_ctx - rows_of(s))) break;
      ++proof.sequences;
    }
    for (SlotId s = c_.max_seq; s < runner_->cache->plan().resident() && proof.sequences > 0; ++s) {
      if (!runner_->cache->fork(0, s)) break;
      if (!spec_->fork(0, s)) {
        runner_->cache->release(s);
        break;
      }
      ++proof.kept;
    }
    runner_->pool->wait();
  }

  // All sequences take as many rows as a step may have of each.
  Status step(int sequences) {
    Runner<B>& run = *runner_;
    std::vector<Committed> committed;
    std::vector<int32_t> tokens(size_t(run.cache->plan().max_step), 1);
    run.steps.begin();
    int row = 0, out = c_.max_out;
    for (SlotId s = 0; s < sequences; ++s) {
      const int n = rows_of(s);
      if (auto ok = run.cache->prepare(s, n); !ok) return ok;
      const bool all = s > 0 && n <= out;
      run.add({.slot = s, .token = std::span(tokens).first(size_t(n)), .out = all ? Out::kAll : Out::kLast});
      out -= all ? n : 1;
      spec_->begin(s);
      committed.push_back({.slot = s, .position = run.cache->len(s), .row = row, .n = n});
      row += n;
    }
    const auto logits = run.forward(spec_->taps(run.steps.n_tok()));
    const Sampling greedy{.temperature = 0};
    const std::vector<SampleRow> rows(size_t(c_.max_out - out), SampleRow{.sampling = &greedy});
    run.b.sample(run.ids, logits, rows);
    const int32_t drawn = run.ids[0];  // the host waits
    if (drawn >= run.m.n_vocab) return Error{"--prove", "a step drew a token that is none", "the build is broken"};
    for (const Committed& c : committed) run.cache->commit(c.slot, c.n);
    spec_->absorb(committed);
    run.pool->wait();
    return Ok{};
  }

 private:
  explicit FullMemory(const EngineConfig& c) : c_(c) {}
  // Of a sequence in the step: the first has a piece of a prompt, the others a draft.
  int rows_of(SlotId s) const {
    const int draft = c_.draft.any() ? 1 + c_.draft.rows() : 1;
    return s == 0 ? std::max(1, std::min(c_.chunk, c_.n_ctx / 2) - (c_.max_seq - 1)) : draft;
  }
  bool fill(SlotId s, int rows) {
    const KvState state{.len = rows, .high = rows};
    if (!fill(*runner_->cache, s, state)) return false;
    for (const auto& d : spec_->drafters()) {
      KvCache* own = d->rows();
      if ((own && !fill(*own, s, state)) || !d->load(s, rows, {})) {
        spec_->forget(s);
        runner_->cache->release(s);
        return false;
      }
    }
    return true;
  }
  // Random bytes that are small numbers in every type of rows.
  bool fill(KvCache& c, SlotId s, KvState state) {
    if (!c.restore(s, state)) return false;
    if (random_.empty()) {
      std::mt19937 rng(1);
      for (int i = 0; i < 1 << 20; ++i) random_.push_back(std::byte(0x20 + rng() % 16));
    }
    const auto courier = c.pool().courier();
    courier->after(c.pool().mark());
    const int64_t most = std::min(int64_t(random_.size()), c.pool().courier_bytes());
    for (const KvCache::Part& p : c.parts(s))
      for (int64_t at = 0; at < p.bytes(); at += most)
        courier->from_host(p.at + at, random_.data(), std::min(most, p.bytes() - at));
    return true;
  }

  const EngineConfig& c_;
  std::unique_ptr<Runner<B>> runner_;
  std::unique_ptr<Speculator<B>> spec_;
  std::vector<std::byte> random_;
};

Result<MemoryProof> prove_cuda_plan(LoadedModel model, const EngineConfig& c);

// use(): bytes that this process has taken now.
template <Backend B, class Use, class... Args>
Result<MemoryProof> prove_on(LoadedModel model, const EngineConfig& c, int64_t mapped, Use use, Args... args) {
  MemoryProof proof{.planned = plan_memory(model.file, model.cfg, c, model.drafters).total()};
  const int64_t before = use();
  auto full = FullMemory<B>::open(model, c, args...);
  if (!full) return full.error();
  (*full)->fill(proof);
  if (auto ok = (*full)->step(proof.sequences); !ok) return ok.error();
  proof.measured = use() - before + mapped;
  return proof;
}

}  // namespace facet
