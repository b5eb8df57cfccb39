#pragma once
#include "backend/tensor_parallel.h"
#include "cache/cache_of.h"
#include "model/shards.h"

namespace facet {

// A cache in each shard, of the K/V heads that it has; the first leads.
template <class B, class Link>
struct CacheOf<TensorParallel<B, Link>> {
  using Shards = TensorParallel<B, Link>;
  static int count(Shards& b) { return b.n_shard(); }
  // limit: of all shards together.
  static Result<std::unique_ptr<PagePool>> pool(Shards& b, const ModelCfg& m, const KvPlan& p, int64_t more,
                                                int64_t limit) {
    const ModelCfg own = shard_config(m, b.n_shard());
    return chain<PagePool>(b, [&](int i) { return CacheOf<B>::pool(b.shard(i), own, p, more, limit / b.n_shard()); });
  }
  static Result<std::unique_ptr<KvCache>> create(Shards& b, const ModelCfg& m, const KvPlan& p,
                                                 PagePool* pool = nullptr) {
    const ModelCfg own = shard_config(m, b.n_shard());
    return chain<KvCache>(b, [&](int i) { return CacheOf<B>::create(b.shard(i), own, p, nth_mirrored(pool, i)); });
  }
  static std::vector<typename Shards::KvLayer> views(Shards& b, const KvCache& c) {
    std::vector<typename Shards::KvLayer> v(c.layers().size());
    for (int i = 0; i < b.n_shard(); ++i) {
      const auto own = CacheOf<B>::views(b.shard(i), *nth_mirrored(&c, i));
      for (size_t l = 0; l < v.size(); ++l)
        v[l].part[size_t(i)] = own[l], v[l].head_dim = own[l].head_dim, v[l].bytes += own[l].row_bytes();
    }
    return v;
  }

 private:
  template <class T, class F>
  static Result<std::unique_ptr<T>> chain(Shards& b, F&& make) {
    auto first = make(0);
    for (int i = 1; first && i < b.n_shard(); ++i) {
      auto next = make(i);
      if (!next) return next.error();
      (*first)->mirror(std::move(*next));
    }
    return first;
  }
};

}  // namespace facet
