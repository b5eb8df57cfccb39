#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/kv_plan.h"
#include "cache/page_pool.h"

namespace facet {

using SlotId = int32_t;
enum class Rewind : uint8_t {
  kDone,
  kNeedsPrefill
};  // kNeedsPrefill: the ring no longer holds the window before `len`

// How far a sequence's rows go; with its parts, all that a copy of them needs.
struct KvState {
  int len = 0;   // committed rows
  int high = 0;  // one past the newest row written to the rings
  bool operator==(const KvState&) const = default;
};

// K/V rows of every layer and resident sequence. A step writes rows [len, len + n) through kv_append; commit makes some
// of them permanent and the rest never existed: rejecting a draft is free.
//
// Invariant: the rings hold every row in [high - cap, high), where high is one past the newest row ever written, so a
// sequence may go back to any length whose window lies in there.
//
// Memory is taken from a PagePool as rows are written. Full layers have an address range a slot and K or V part; its
// pages may be shared with forks, and a page that is shared is never written. The rings of a slot lie side by side in
// one range.
class KvCache {
 public:
  virtual ~KvCache() = default;

  // One view per model layer; a layer that shares K/V has its source's.
  std::span<const KvLayer> layers() const { return layers_; }
  const KvPlan& plan() const { return plan_; }
  PagePool& pool() const { return *pool_; }
  // Another cache that does whatever this one does (lockstep of two backends, shards); a chain of them.
  void mirror(std::unique_ptr<KvCache> other) {
    if (mirror_)
      mirror_->mirror(std::move(other));
    else
      mirror_ = std::move(other);
  }
  KvCache* mirrored() const { return mirror_.get(); }
  int len(SlotId s) const { return seq_[size_t(s)].len; }

  // Between steps, before rows [len, len + n) are written: takes memory for them, alone owned. Fails when the context
  // is full or memory is out, with the rows as they were.
  Status prepare(SlotId s, int n);
  void commit(SlotId s, int n);                               // chain: the first n rows of the step
  void commit_path(SlotId s, std::span<const int16_t> path);  // tree: moves the path's rows together; path[0] = 0
  Rewind rewind(SlotId s, int len);
  bool reaches(SlotId s, int len) const;  // whether rewind can go back to `len`
  bool reaches(KvState state, int len) const { return len <= state.len && window_held(len, state.high); }
  void clear(SlotId s);    // no rows; its memory stays
  void release(SlotId s);  // no rows and no memory

  // `to`, which has been released, holds what `from` holds, and from then on they are apart. Rows of full layers are
  // shared, rings are copied. On failure `to` is released. kUnmapped: the shared pages are not mapped yet, which takes
  // longer than a step where there are many; prepare() and map_all() map what is left.
  enum class Fork : uint8_t { kMapped, kUnmapped };
  Status fork(SlotId from, SlotId to, Fork how = Fork::kMapped);
  bool unmapped(SlotId s) const;
  // Maps so many pages at most, of this and of mirrored caches each; returns how many of this one.
  Result<int64_t> map_pages(SlotId s, int64_t pages);
  Status map_all(SlotId s);
  // Maps so many pages at most of an empty slot's rings and of its first rows of full layers, for whoever comes next,
  // while there are plenty; returns how many.
  static constexpr int kPremapped = 1024;  // rows
  int64_t premap(SlotId s, int64_t most);
  int64_t pages(int rows) const;        // of a sequence with so many rows of its own
  int64_t owned_pages(SlotId s) const;  // of the slot alone: what release would give back

  // The bytes of a sequence's rows, for copies in other memory. The same state on a cache of the same plan has parts of
  // the same sizes in the same order.
  struct Part {
    std::byte* at = nullptr;    // in the pool's memory
    int64_t rows = 0, row = 0;  // row: its bytes
    bool ring = false;
    int64_t bytes() const { return rows * row; }
  };
  KvState state(SlotId s) const { return {seq_[size_t(s)].len, seq_[size_t(s)].high}; }
  std::vector<Part> parts(SlotId s) const { return parts(s, state(s)); }
  std::vector<Part> parts(SlotId s, KvState state) const;  // as if it were in this state
  std::vector<Part> parts_of(KvState state) const;         // likewise, of a sequence in no slot: `at` is null
  // A released slot gets this state and memory for its parts, which the caller fills. On failure it is released.
  Status restore(SlotId s, KvState state);
  // The same in pieces of so many pages: mapping many takes longer than a step. Rings come first, then one part of full
  // layers after another. What there is memory for afterwards; `whole`: of all, and the slot is in this state. After an
  // error it may be tried again, or released.
  struct Mapped {
    bool rings = false, whole = false;
    int parts = 0;  // of full layers, with all their rows
    int rows = 0;   // of the part behind these
    bool operator==(const Mapped&) const = default;
  };
  Result<Mapped> restore_some(SlotId s, KvState state, int64_t pages);

 protected:
  KvCache(const ModelCfg& m, const KvPlan& p);
  // Lays the layers out in the pool's memory: a pool of its own, as large as the plan can become, where `shared` is
  // null.
  Status allocate(const ModelCfg& m, PagePool* shared, std::unique_ptr<PagePool> own);
  virtual void move_row(int layer, SlotId s, int from, int to) = 0;  // between places of one slot
  virtual void moves_done(SlotId) {}                                 // after the last move_row of a path

  // Pages [from, to) of a part, which are there and not mapped.
  struct Unmapped {
    int64_t from = 0, to = 0;
  };
  struct FullPages {
    std::vector<PageId> pages = {};
    Unmapped unmapped = {};
  };
  // All that the cache has of a sequence, by slot.
  struct Sequence {
    int len = 0, high = 0;
    int prepared = 0;      // rows for which full layers have memory
    int shared_below = 0;  // rows below may lie in shared pages
    std::vector<PageId> rings = {};
    std::vector<FullPages> full = {};  // by part of full layers
    bool spare = false;                // released, with pages that stay mapped for the next sequence
  };
  // K, V or both of a full layer, of all slots.
  struct FullPart {
    size_t number = 0;  // in full_
    std::byte* base = nullptr;
    int64_t stride = 0, row = 0;  // bytes between slots, of a row
  };
  FullPages& pages_of(const FullPart& f, SlotId s) { return seq_[size_t(s)].full[f.number]; }
  const FullPages& pages_of(const FullPart& f, SlotId s) const { return seq_[size_t(s)].full[f.number]; }
  void release_all();  // at the end
  bool window_held(int len, int high) const;
  void move_path(SlotId s, std::span<const int16_t> path);
  Result<Mapped> restore_own(SlotId s, KvState state, int64_t pages);
  int64_t slot_pages(SlotId s) const;
  bool keep_spare(SlotId s);
  bool keep_rings(SlotId s);
  void take_up(SlotId s);  // a released slot is used again
  void give_back(SlotId s);
  void unmap(const FullPart& f, SlotId s);
  Status take_rings(SlotId s) { return take_rings(s, ring_stride_); }
  Status take_rings(SlotId s, int64_t most_pages);
  Status grow(SlotId s, int rows);
  Status grow(const FullPart& f, SlotId s, int rows, int64_t most_pages);
  Status own(SlotId s, int from, int to);
  Result<std::vector<PageId>> take(int64_t n);
  void drop(std::vector<PageId>& pages);
  int64_t pages_for(const FullPart& p, int rows) const;

  KvPlan plan_;
  std::vector<KvLayer> layers_;
  std::vector<int> owners_;  // layers that own rows
  std::vector<Sequence> seq_;
  std::vector<FullPart> full_;
  struct RingPart {
    int64_t offset = 0, row = 0, cap = 0;
  };
  std::vector<RingPart> ring_parts_;
  std::byte* ring_base_ = nullptr;
  int64_t ring_stride_ = 0;  // bytes of a slot's rings, whole pages
  std::byte* copy_window_ = nullptr;
  std::byte* stage_base_ = nullptr;
  std::vector<PageId> stage_pages_;
  int min_slack_ = 0;  // rows a ring holds beyond its window, over sliding layers
  int min_ring_ = 0;   // rows of the shortest ring
  std::unique_ptr<PagePool> own_pool_;
  PagePool* pool_ = nullptr;
  std::unique_ptr<KvCache> mirror_;
};

// In host memory.
class HostKvCache final : public KvCache {
 public:
  static Result<std::unique_ptr<HostKvCache>> create(const ModelCfg& m, const KvPlan& p, PagePool* pool = nullptr);
  ~HostKvCache() override;

 private:
  HostKvCache(const ModelCfg& m, const KvPlan& p) : KvCache(m, p) {}
  void move_row(int layer, SlotId s, int from, int to) override;
};

}  // namespace facet
