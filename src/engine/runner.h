#pragma once
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "api/engine.h"
#include "backend/pass.h"
#include "backend/step_builder.h"
#include "cache/cache_of.h"
#include "model/gemma4.h"
#include "model/gemma4_bind.h"

namespace facet {

struct RunnerOptions {
  KvPlan kv;
  int max_out = 1;                          // rows of logits in one step
  int64_t more_pages = 0;                   // bytes of the page pool for drafters' rows
  int64_t kv_memory = 0;                    // bytes of the page pool in all; 0: what the plan can come to
  std::optional<SelectSpec> select = {};    // block-sparse prefill, for sequences of a step that ask for it
  int max_soft = 0;                         // tokens of one step whose embeddings encoders made
  LoadProgress loading = {};                // called as weights arrive
  std::shared_ptr<ExpertUsage> usage = {};  // of experts, where the backend counts them
};

inline SparsePrefill sparse_prefill_of(const Selected& s) {
  return {.approximate = s.blocks < s.seen,
          .kept = s.share(),
          .recall = s.recall(),
          .tiles = s.tiles,
          .repaired = s.repaired};
}

// A model bound to a backend, with its cache, scratch and step arrays: everything a forward pass needs.
template <Backend B>
class Runner {
 public:
  template <class... Args>
  static Result<std::unique_ptr<Runner>> open(const GgufFile& file, const ModelCfg& m, const RunnerOptions& o,
                                              Args&&... args) {
    std::unique_ptr<Runner> r(new Runner(m, o, std::forward<Args>(args)...));
    if constexpr (requires { r->b.take_file(file.tensors()); }) r->b.take_file(file.tensors());
    auto w = bind_gemma4(r->b, file, m, o.kv.share, o.loading);
    if (!w) return w.error();
    if (auto ok = memory_status(r->b); !ok) return ok.error();
    r->w = std::move(*w);
    auto pool = CacheOf<B>::pool(r->b, m, o.kv, o.more_pages, o.kv_memory);
    if (!pool) return pool.error();
    r->pool = std::move(*pool);
    auto cache = CacheOf<B>::create(r->b, m, o.kv, r->pool.get());
    if (!cache) return cache.error();
    r->cache = std::move(*cache);
    r->kv = CacheOf<B>::views(r->b, *r->cache);
    BackendLimits limits = backend_limits(m, o.kv.max_step, o.kv.max_ctx);
    if (o.select) limits.n_select = o.kv.resident(), r->steps.select(*o.select);
    limits.shared_codes = kv_shared_codes(m, o.kv);
    r->b.reserve(limits);
    r->work = make_work(r->b, m, o.kv.max_step, o.max_out, o.max_soft);
    r->ids = r->b.new_ids(o.max_out);
    if constexpr (CountsExperts<B>)
      if (o.usage) r->b.count_experts(o.usage);
    if (auto ok = memory_status(r->b); !ok) return ok.error();
    return r;
  }

  // Adds a sequence to the step being built; the cache must have been prepared for its tokens.
  void add(SeqStep q) {
    q.kv_len = cache->len(q.slot);
    steps.add(q);
  }
  // Embeddings [n, D] of the step being built, which its tokens name (SeqStep::soft): the number of the first.
  int add_soft(std::span<const float> rows) {
    const int first = int(soft_.size()) / m.d_model;
    soft_.insert(soft_.end(), rows.begin(), rows.end());
    return first;
  }
  // Logits [O, V] of the step that was built.
  typename B::Rows forward(const Taps<B>& taps = {}) {
    const Step& s = steps.finish();
    if (!soft_.empty()) b.from_host(work.soft.view(int(soft_.size()) / m.d_model, m.d_model), soft_), soft_.clear();
    const char* key = reinterpret_cast<const char*>(this) + (taps.final_hidden || !taps.layer.empty() ? 1 : 0);
    return run_pass(b, s, key,
                    [&] { return gemma4_forward(b, m, w, s, std::span<const typename B::KvLayer>(kv), taps, work); });
  }

  B b;
  ModelCfg m;
  ModelW<B> w;
  std::unique_ptr<PagePool> pool;  // of the rows of the model and its drafters
  std::unique_ptr<KvCache> cache;
  std::vector<typename B::KvLayer> kv;
  Work<B> work;
  StepBuilder steps;
  typename B::Ids ids;

 private:
  std::vector<float> soft_;

  template <class... Args>
  Runner(const ModelCfg& cfg, const RunnerOptions& o, Args&&... args)
      : b(std::forward<Args>(args)...), m(cfg), steps(o.kv.max_step, o.kv.max_seq, o.kv.margin) {}
};

}  // namespace facet
