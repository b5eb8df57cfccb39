#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "backend/lockstep.h"
#include "backend/traced.h"
#include "cache/kv_cache.h"

namespace facet {

// The cache of a backend, the pool of its memory, and its layers as that backend sees them. A backend made of several
// has a chain of caches (KvCache::mirror).
template <class B>
struct CacheOf {
  static int count(B&) { return 1; }
  static Result<std::unique_ptr<PagePool>> pool(B&, const ModelCfg& m, const KvPlan& p, int64_t more, int64_t limit) {
    const int64_t page = host_page_bytes(m, p);
    auto pool = HostPagePool::create(limit > 0 ? limit : pool_bytes(m, p, page, 0) + more, page);
    if (!pool) return pool.error();
    return std::unique_ptr<PagePool>(std::move(*pool));
  }
  // pool: null for one of its own.
  static Result<std::unique_ptr<KvCache>> create(B&, const ModelCfg& m, const KvPlan& p, PagePool* pool = nullptr) {
    auto c = HostKvCache::create(m, p, pool);
    if (!c) return c.error();
    return std::unique_ptr<KvCache>(std::move(*c));
  }
  static std::vector<typename B::KvLayer> views(B&, const KvCache& c) { return {c.layers().begin(), c.layers().end()}; }
};

// The n-th of a chain of caches or pools; null where there is none.
template <class T>
T* nth_mirrored(T* t, int n) {
  for (; t && n > 0; --n) t = t->mirrored();
  return t;
}

template <class B>
struct CacheOf<Traced<B>> {
  static int count(Traced<B>& b) { return CacheOf<B>::count(b.inner()); }
  static std::vector<typename B::KvLayer> views(Traced<B>& b, const KvCache& c) {
    return CacheOf<B>::views(b.inner(), c);
  }
  static Result<std::unique_ptr<PagePool>> pool(Traced<B>& b, const ModelCfg& m, const KvPlan& p, int64_t more,
                                                int64_t limit) {
    return CacheOf<B>::pool(b.inner(), m, p, more, limit);
  }
  static Result<std::unique_ptr<KvCache>> create(Traced<B>& b, const ModelCfg& m, const KvPlan& p,
                                                 PagePool* pool = nullptr) {
    return CacheOf<B>::create(b.inner(), m, p, pool);
  }
};
template <class A, class R>
struct CacheOf<Lockstep<A, R>> {
  static int count(Lockstep<A, R>& b) { return CacheOf<A>::count(b.tested()) + CacheOf<R>::count(b.reference()); }
  static Result<std::unique_ptr<PagePool>> pool(Lockstep<A, R>& b, const ModelCfg& m, const KvPlan& p, int64_t more,
                                                int64_t limit) {
    auto a = CacheOf<A>::pool(b.tested(), m, p, more, limit);
    if (!a) return a.error();
    auto r = CacheOf<R>::pool(b.reference(), m, p, more, limit);
    if (!r) return r.error();
    (*a)->mirror(std::move(*r));
    return a;
  }
  static Result<std::unique_ptr<KvCache>> create(Lockstep<A, R>& b, const ModelCfg& m, const KvPlan& p,
                                                 PagePool* pool = nullptr) {
    auto a = CacheOf<A>::create(b.tested(), m, p, pool);
    if (!a) return a.error();
    auto r = CacheOf<R>::create(b.reference(), m, p, nth_mirrored(pool, CacheOf<A>::count(b.tested())));
    if (!r) return r.error();
    (*a)->mirror(std::move(*r));
    return a;
  }
  static std::vector<typename Lockstep<A, R>::KvLayer> views(Lockstep<A, R>& b, const KvCache& c) {
    const auto a = CacheOf<A>::views(b.tested(), c);
    const auto r = CacheOf<R>::views(b.reference(), *nth_mirrored(&c, CacheOf<A>::count(b.tested())));
    std::vector<typename Lockstep<A, R>::KvLayer> v;
    for (size_t l = 0; l < a.size(); ++l) v.push_back({a[l], r[l]});
    return v;
  }
};

}  // namespace facet
