#pragma once
#include "backend/pipeline.h"
#include "cache/cache_of.h"

namespace facet {

// A cache in each stage, of the layers that it has; the first leads. A layer that reads another one's rows reads them
// where they are.
template <class B, class Move>
struct CacheOf<Pipeline<B, Move>> {
  using Stages = Pipeline<B, Move>;
  static int count(Stages& b) { return int(b.n_stage()); }
  // limit: of all stages together, by what their layers take.
  static Result<std::unique_ptr<PagePool>> pool(Stages& b, const ModelCfg& m, const KvPlan& p, int64_t more,
                                                int64_t limit) {
    const int64_t all = std::max<int64_t>(1, kv_bytes(m, p).total());
    return chain<PagePool>(b, [&](size_t i) {
      const ModelCfg own = config(b, m, i);
      const int64_t mine = limit * kv_bytes(own, p).total() / all;
      return CacheOf<B>::pool(b.stage(i), own, p, more, limit > 0 ? std::max<int64_t>(mine, 1) : 0);
    });
  }
  static Result<std::unique_ptr<KvCache>> create(Stages& b, const ModelCfg& m, const KvPlan& p,
                                                 PagePool* pool = nullptr) {
    return chain<KvCache>(
        b, [&](size_t i) { return CacheOf<B>::create(b.stage(i), config(b, m, i), p, nth_mirrored(pool, int(i))); });
  }
  static std::vector<typename Stages::KvLayer> views(Stages& b, const KvCache& c) {
    std::vector<typename Stages::KvLayer> v(c.layers().size());
    for (size_t i = 0; i < b.n_stage(); ++i) {
      const KvCache& own = *nth_mirrored(&c, int(i));
      const auto layers = CacheOf<B>::views(b.stage(i), own);
      for (size_t l = 0; l < v.size(); ++l)
        if (own.layers()[l].n_head > 0) v[l] = {layers[l], i, own.layers()[l].head_dim};
    }
    return v;
  }

 private:
  // The model as far as stage i has rows: its own layers, and views of them for those that read them.
  static ModelCfg config(Stages& b, const ModelCfg& m, size_t i) {
    ModelCfg own = m;
    for (size_t l = 0; l < m.layer.size(); ++l) {
      const int source = m.layer[l].query_only ? m.layer[l].kv_source : int(l);
      if (b.stage_of(source) == i) continue;
      own.layer[l].query_only = true, own.layer[l].kv_source = int(l);
    }
    return own;
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
