#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "spec/drafter.h"

namespace facet {

// The state of sequences, by slot: rows of the model in its cache, and what its drafters have of the same tokens. They
// are forked, cut and given up together.
class SessionRows {
 public:
  SessionRows(KvCache& cache, std::vector<AnyDrafter*> drafters) : cache_(cache), drafters_(std::move(drafters)) {}
  KvCache& cache() const { return cache_; }
  PagePool& pool() const { return cache_.pool(); }
  std::span<AnyDrafter* const> drafters() const { return drafters_; }

  int len(SlotId s) const { return cache_.len(s); }
  bool reaches(SlotId s, int len, int more = 0) const;  // whether go_back() can, after so many rows more
  // Of a session in which nothing runs. Returns how many rows are left: as many as the model and all drafters have of
  // `len`. With none its memory is given up.
  int go_back(SlotId s, int len);
  // `to`, which holds nothing, gets the state of `from`. On failure it holds nothing. kUnmapped: it will most likely not
  // run in the next steps.
  Status fork(SlotId from, SlotId to, KvCache::Fork how = KvCache::Fork::kUnmapped);
  void release(SlotId s);
  int64_t pages(int rows) const;  // of a session with so many rows of its own
  int64_t owned(SlotId s) const;  // pages that release() would give back
  int64_t free_pages() const { return pool().budget() - pool().used(); }

 private:
  KvCache& cache_;
  std::vector<AnyDrafter*> drafters_;
};

}  // namespace facet
