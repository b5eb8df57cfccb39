#pragma once
#include <memory>
#include <span>
#include <vector>

#include "cache/row_copier.h"
#include "session/session_image.h"
#include "session/session_rows.h"
#include "session/session_store.h"

namespace facet {

// Copies of sessions out of the pool and back: rows of the model and of every drafter, and what drafters keep beside
// them. The rows go beside the steps; the caller looks at the task. For the engine's thread.
class SessionCopy {
 public:
  explicit SessionCopy(SessionRows& rows);

  struct Out {
    std::shared_ptr<SessionImage> image = {};  // complete when the task is done; null: no memory for it, or no mapping
    RowCopier::TaskPtr task = {};
  };
  // The session's rows stay as they are until the task is done. No features wait for its drafters.
  Out begin_out(SlotId s, const Sequence& sequence);

  // A state on its way into a slot that holds nothing: memory is mapped in pieces, between steps, and rows follow.
  struct In {
    SlotId slot = -1;
    std::shared_ptr<const SessionImage> image = {};
    size_t owner = 0;            // the one whose memory is being mapped
    KvCache::Mapped given = {};  // of it, to the copier
    bool failed = false;         // there is no memory for it
    std::vector<RowCopier::TaskPtr> tasks = {};
    bool mapped() const { return owner == image->owners.size(); }
  };
  // False: it is no state of this engine.
  bool begin_in(In& in, SlotId s, std::shared_ptr<const SessionImage> image);
  // Maps so many pages at most, once between two steps. False: memory is short; when some was given up it may be tried
  // again.
  bool map_in(In& in, int64_t pages);
  static bool is_over(const In& in);
  void wait(const In& in);  // until all that was mapped is copied
  // The slot has the image's state now; false: it has not, and is to be released.
  bool end_in(const In& in);

  static bool done(const RowCopier::TaskPtr& task) { return RowCopier::done(task); }
  void wait(const RowCopier::TaskPtr& task) { copier_.wait(task); }

  // Whether a state of which the owners' rows go so far can go back to `len` rows.
  bool reaches(std::span<const KvState> owners, int len) const;

 private:
  bool describe(const KvCache& c, SlotId s, SessionImage::Owner& o, std::vector<RowCopier::Range>& ranges) const;
  bool fits(const SessionImage& image) const;
  void copy_in(In& in, const KvCache& c, const SessionImage::Owner& o, const KvCache::Mapped& m);

  SessionRows& rows_;
  RowCopier copier_;
  std::vector<AnyDrafter*> kept_;  // those with a state
};

}  // namespace facet
