#pragma once
#include "backend/pipeline_parallel.h"
#include "cache/cache_of.h"
#include "cache/kv_plan.h"
#include "model/stages.h"

namespace facet {

// A cache in each stage, of the layers that it has; the first leads. A layer that reads another one's rows reads them
// where they are.
template <class B, class Move>
struct CacheOf<PipelineParallel<B, Move>> {
  using Stages = PipelineParallel<B, Move>;
  static int count(Stages& b) { return int(b.n_stage()); }
  // limit: of all stages together, by what their layers take. more: of drafters, on the last stage.
  static Result<std::unique_ptr<PagePool>> pool(Stages& b, const ModelCfg& m, const KvPlan& p, int64_t more,
                                                int64_t limit) {
    std::vector<ModelCfg> own;
    for (size_t i = 0; i < b.n_stage(); ++i) own.push_back(config(b, m, i));
    std::vector<int64_t> limits(own.size());
    if (limit > 0) limits = stage_limits(limit, own, p, more);
    return chain<PagePool>(b, [&](size_t i) {
      return b.with_stage(i, [&]<class S>(auto, S& stage) {
        return CacheOf<S>::pool(stage, own[i], p, i + 1 == own.size() ? more : 0, limits[i]);
      });
    });
  }
  static Result<std::unique_ptr<KvCache>> create(Stages& b, const ModelCfg& m, const KvPlan& p,
                                                 PagePool* pool = nullptr) {
    return chain<KvCache>(b, [&](size_t i) {
      return b.with_stage(i, [&]<class S>(auto, S& stage) {
        return CacheOf<S>::create(stage, config(b, m, i), p, nth_mirrored(pool, int(i)));
      });
    });
  }
  static std::vector<typename Stages::KvLayer> views(Stages& b, const KvCache& c) {
    std::vector<typename Stages::KvLayer> v(c.layers().size());
    for (size_t i = 0; i < b.n_stage(); ++i) {
      const KvCache& own = *nth_mirrored(&c, int(i));
      b.with_stage(i, [&]<class S>(auto at, S& stage) {
        const auto layers = CacheOf<S>::views(stage, own);
        for (size_t l = 0; l < v.size(); ++l) {
          const auto& kv = own.layers()[l];
          if (kv.n_head == 0) continue;
          v[l].part[at] = layers[l], v[l].stage = i, v[l].head_dim = kv.head_dim, v[l].bytes = kv.row_bytes();
        }
      });
    }
    return v;
  }

 private:
  static ModelCfg config(Stages& b, const ModelCfg& m, size_t i) {
    return rows_of_stage(m, [&](int layer) { return b.stage_of(layer) == i; });
  }
  template <class T, class F>
  static Result<std::unique_ptr<T>> chain(Stages& b, F&& make) {
    auto first = make(0);
    for (size_t i = 1; first && i < b.n_stage(); ++i) {
      auto next = make(i);
      if (!next) return next.error();
      (*first)->mirror(std::move(*next));
    }
    return first;
  }
};

}  // namespace facet
