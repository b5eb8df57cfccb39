#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/reserve.h"
#include "base/result.h"
#include "cache/kv_plan.h"

namespace facet {

using SlotId = int32_t;
enum class Rewind : uint8_t {
  kDone,
  kNeedsPrefill
};  // kNeedsPrefill: the ring no longer holds the window before `len`

// K/V rows of every layer and sequence slot. A step writes rows [len, len + n) through kv_append; commit makes some
// of them permanent and the rest never existed: rejecting a draft is free.
//
// Invariant: the rings hold every row in [high - cap, high), where high is one past the newest row ever written, so a
// sequence may go back to any length whose window lies in there.
//
// Book-keeping is here; one subclass per device memory moves bytes.
class KvCache {
 public:
  virtual ~KvCache() = default;

  // One view per model layer; a layer that shares K/V has its source's.
  std::span<const KvLayer> layers() const { return layers_; }
  const KvPlan& plan() const { return plan_; }
  // A second cache that does whatever this one does (lockstep of two backends).
  void mirror(std::unique_ptr<KvCache> other) { mirror_ = std::move(other); }
  KvCache* mirrored() const { return mirror_.get(); }
  int len(SlotId s) const { return seq_[size_t(s)].len; }

  // Between steps, before rows [len, len + n) are written: makes their memory present. Fails when the context is
  // full or memory is out, with the cache as it was.
  Status prepare(SlotId s, int n);
  void commit(SlotId s, int n);                               // chain: the first n rows of the step
  void commit_path(SlotId s, std::span<const int16_t> path);  // tree: moves the path's rows together; path[0] = 0
  Rewind rewind(SlotId s, int len);
  void clear(SlotId s);

  // Keeps a copy of the slot's rings as they are now, replacing the oldest of plan().checkpoints.
  void checkpoint(SlotId s);
  // Goes back to `len` through the latest checkpoint from which it can be reached.
  Rewind restore(SlotId s, int len);

 protected:
  struct Checkpoint {
    int len = 0, high = 0;
    uint64_t age = 0;  // 0: empty
  };
  struct Sequence {
    int len = 0;
    int high = 0;      // one past the newest row written to the rings
    int prepared = 0;  // rows of full layers whose memory is present
    std::vector<Checkpoint> saved;
  };
  KvCache(const ModelCfg& m, const KvPlan& p);
  virtual Status make_present(SlotId s, int from, int to) = 0;       // rows of full layers
  virtual void move_row(int layer, SlotId s, int from, int to) = 0;  // between places of one slot
  virtual void moves_done(SlotId) {}                                 // after the last move_row of a path
  virtual void copy_rings(SlotId s, int checkpoint, bool save) = 0;
  bool window_held(int len, int high) const;
  static void go_back(Sequence& q, int len);

  KvPlan plan_;
  std::vector<KvLayer> layers_;
  std::vector<int> owners_;  // layers that own rows
  std::vector<Sequence> seq_;
  int min_slack_ = 0;  // rows a ring holds beyond its window, over sliding layers
  bool any_ring_ = false;
  uint64_t clock_ = 0;
  std::unique_ptr<KvCache> mirror_;
};

// In host memory.
class HostKvCache final : public KvCache {
 public:
  static Result<std::unique_ptr<HostKvCache>> create(const ModelCfg& m, const KvPlan& p);

 private:
  HostKvCache(const ModelCfg& m, const KvPlan& p) : KvCache(m, p) {}
  Status make_present(SlotId s, int from, int to) override;
  void move_row(int layer, SlotId s, int from, int to) override;
  void copy_rings(SlotId s, int checkpoint, bool save) override;

  ReservedMemory full_, rings_, saved_;
  int64_t saved_slot_ = 0;  // bytes of one checkpoint
};

}  // namespace facet
