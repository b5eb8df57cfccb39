#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/row_copier.h"
#include "engine/runner.h"
#include "engine/session_image.h"
#include "engine/session_store.h"
#include "engine/speculate.h"

namespace facet {

// Copies of sessions out of the pool and back: rows of the model and of every drafter, and what drafters keep beside
// them. The rows go beside the steps; whoever asked looks at the job. Of the engine's thread.
template <Backend B>
class SessionCopy {
 public:
  // A second engine beside the first (lockstep) has two of everything, and no copies.
  static constexpr bool kPossible = !requires(B & b) { b.report(); };

  SessionCopy(Runner<B>& runner, Speculator<B>& spec, SessionStore& sessions)
      : runner_(runner), spec_(spec), sessions_(sessions), copier_(*runner.pool) {
    for (const auto& d : spec.drafters())
      if (d->has_state()) kept_.push_back(d.get());
  }

  struct Out {
    std::shared_ptr<SessionImage> image = {};  // complete when the job is done; null: no memory for it
    RowCopier::JobPtr job = {};
  };
  // The session's rows stay as they are until the job is done.
  Out begin_out(SlotId s) {
    Out out;
    if constexpr (kPossible) {
      auto image = std::make_shared<SessionImage>();
      const Session& q = sessions_.at(s);
      spec_.settle(s);
      image->tokens.assign(q.tokens.begin(), q.tokens.begin() + runner_.cache->len(s));
      image->salt = q.salt;
      std::vector<RowCopier::Range> ranges;
      SessionImage::Owner& model = image->owners.emplace_back();
      model.held = runner_.cache->len(s);
      if (!describe(*runner_.cache, s, model, ranges)) return out;
      for (Drafter<B>* d : kept_) {
        SessionImage::Owner& o = image->owners.emplace_back();
        o.held = d->held(s), o.beside = d->save(s);
        if (const KvCache* rows = d->rows(); rows && !describe(*rows, s, o, ranges)) return out;
      }
      out = {std::move(image), copier_.start(RowCopier::Direction::kToHost, std::move(ranges))};
    }
    return out;
  }

  // Into a slot that holds nothing. Null: it is no state of this engine, or there is no memory for it; the slot is
  // released then. When the job is done, end_in().
  RowCopier::JobPtr begin_in(SlotId s, const SessionImage& image) {
    std::vector<RowCopier::Range> ranges;
    bool ok = fits(image) && take_memory(*runner_.cache, s, image.owners[0], ranges);
    for (size_t i = 1; ok && i < image.owners.size(); ++i)
      if (KvCache* rows = kept_[i - 1]->rows()) ok = take_memory(*rows, s, image.owners[i], ranges);
    if (ok) return copier_.start(RowCopier::Direction::kFromHost, std::move(ranges));
    sessions_.release(s);
    return nullptr;
  }
  // The slot is idle with the image's state, for any number of requests; false: it is released.
  bool end_in(SlotId s, const SessionImage& image) {
    bool ok = true;
    for (size_t i = 1; ok && i < image.owners.size(); ++i)
      ok = kept_[i - 1]->load(s, image.owners[i].held, image.owners[i].beside);
    for (const auto& d : spec_.drafters())
      if (ok && !d->has_state()) ok = d->load(s, image.owners[0].state.len, {});
    if (ok)
      sessions_.adopt(s, image.tokens, image.salt);
    else
      sessions_.release(s);
    return ok;
  }

  static bool done(const RowCopier::JobPtr& job) { return RowCopier::done(job); }
  void wait(const RowCopier::JobPtr& job) { copier_.wait(job); }

  // Whether a state of which the owners' rows go so far can go back to `len` rows.
  bool reaches(std::span<const KvState> owners, int len) const {
    if (owners.size() != 1 + kept_.size()) return false;
    if (len > owners[0].len || !runner_.cache->reaches(owners[0], len)) return false;
    for (size_t i = 1; i < owners.size(); ++i)
      if (const KvCache* c = kept_[i - 1]->rows(); c && owners[i].len > len && !c->reaches(owners[i], len))
        return false;
    return true;
  }

 private:
  bool describe(const KvCache& c, SlotId s, SessionImage::Owner& o, std::vector<RowCopier::Range>& ranges) const {
    o.state = c.state(s);
    int64_t n = 0;
    const std::vector<KvCache::Part> parts = c.parts(s);
    for (const KvCache::Part& p : parts) o.parts.push_back({p.rows, p.row}), n += p.bytes();
    o.rows = HostBytes(size_t(n));
    if (int64_t(o.rows.size()) != n) return false;
    std::byte* at = o.rows.data();
    for (const KvCache::Part& p : parts) ranges.push_back({p.at, at, p.bytes()}), at += p.bytes();
    return true;
  }

  // Whether it is a state of this engine, whoever wrote it.
  bool fits(const SessionImage& image) const {
    if (image.owners.size() != 1 + kept_.size()) return false;
    const SessionImage::Owner& model = image.owners[0];
    if (int(image.tokens.size()) != model.state.len || model.state.len == 0) return false;
    for (size_t i = 0; i < image.owners.size(); ++i) {
      const SessionImage::Owner& o = image.owners[i];
      const KvCache* c = i == 0 ? runner_.cache.get() : kept_[i - 1]->rows();
      if (o.held < 0 || o.held > model.state.len) return false;
      std::vector<SessionImage::Part> want;
      if (c) {
        if (o.state.len > model.state.len || o.state.high > c->plan().max_ctx || !c->reaches(o.state, o.state.len))
          return false;
        for (const KvCache::Part& p : c->parts_of(o.state)) want.push_back({p.rows, p.row});
      }
      if (want != o.parts) return false;
    }
    return true;
  }
  bool take_memory(KvCache& c, SlotId s, const SessionImage::Owner& o, std::vector<RowCopier::Range>& ranges) {
    while (!c.restore(s, o.state))
      if (!sessions_.make_room(s)) return false;
    std::byte* from = o.rows.data();
    for (const KvCache::Part& p : c.parts(s)) ranges.push_back({p.at, from, p.bytes()}), from += p.bytes();
    return true;
  }

  Runner<B>& runner_;
  Speculator<B>& spec_;
  SessionStore& sessions_;
  RowCopier copier_;
  std::vector<Drafter<B>*> kept_;  // those with a state
};

}  // namespace facet
