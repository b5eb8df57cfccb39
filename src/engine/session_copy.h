#pragma once
#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cache/row_copier.h"
#include "engine/runner.h"
#include "engine/speculate.h"
#include "session/session_image.h"
#include "session/session_store.h"

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
    std::shared_ptr<SessionImage> image = {};  // complete when the job is done; null: no memory for it, or no mapping
    RowCopier::JobPtr job = {};
  };
  // The session's rows stay as they are until the job is done.
  Out begin_out(SlotId s) {
    Out out;
    if constexpr (kPossible) {
      auto image = std::make_shared<SessionImage>();
      const Session& q = sessions_.at(s);
      if (!runner_.cache->wake(s)) return out;
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

  // A state on its way into a slot that holds nothing: memory is mapped in pieces, between steps, and rows follow.
  struct In {
    SlotId slot = -1;
    std::shared_ptr<const SessionImage> image = {};
    size_t owner = 0;            // the one whose memory is being mapped
    KvCache::Mapped given = {};  // of it, to the copier
    bool failed = false;
    std::vector<RowCopier::JobPtr> jobs = {};
    bool mapped() const { return owner == image->owners.size(); }
  };
  // False: it is no state of this engine.
  bool begin_in(In& in, SlotId s, std::shared_ptr<const SessionImage> image) {
    in.slot = s, in.image = std::move(image);
    return fits(*in.image);
  }
  // Once between two steps; `failed`: there is no memory for it.
  void map_in(In& in) { map_in(in, runner_.pool->left_a_step()); }
  // All that is left of it, now.
  void finish_in(In& in) {
    while (!in.mapped() && !in.failed) map_in(in, std::numeric_limits<int32_t>::max());
    for (const auto& job : in.jobs) copier_.wait(job);
  }
  static bool is_over(const In& in) {
    return (in.mapped() || in.failed) && std::all_of(in.jobs.begin(), in.jobs.end(), RowCopier::done);
  }
  // The slot is idle with the image's state, for any number of requests; false: it is released.
  bool end_in(const In& in) {
    const SlotId s = in.slot;
    const SessionImage& image = *in.image;
    bool ok = !in.failed;
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
  // A shard's rows lie in a cache of its own; all of them are one state.
  template <class F>
  static void each_cache(const KvCache& first, F&& f) {
    for (const KvCache* c = &first; c; c = c->mirrored()) f(*c);
  }
  bool describe(const KvCache& c, SlotId s, SessionImage::Owner& o, std::vector<RowCopier::Range>& ranges) const {
    o.state = c.state(s);
    int64_t n = 0;
    const size_t first = ranges.size();
    each_cache(c, [&](const KvCache& k) {
      for (const KvCache::Part& p : k.parts(s)) {
        o.parts.push_back({p.rows, p.row});
        ranges.push_back({p.at, nullptr, p.bytes(), &k.pool()});
        n += p.bytes();
      }
    });
    o.rows = HostBytes(size_t(n));
    if (int64_t(o.rows.size()) != n) return false;
    std::byte* at = o.rows.data();
    for (size_t i = first; i < ranges.size(); ++i) ranges[i].in_host = at, at += ranges[i].bytes;
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
        each_cache(*c, [&](const KvCache& k) {
          for (const KvCache::Part& p : k.parts_of(o.state)) want.push_back({p.rows, p.row});
        });
      }
      if (want != o.parts) return false;
    }
    return true;
  }
  void map_in(In& in, int64_t pages) {
    const auto used = [&] { return runner_.pool->used(); };
    while (!in.mapped() && !in.failed && pages > 0) {
      KvCache* c = in.owner == 0 ? runner_.cache.get() : kept_[in.owner - 1]->rows();
      const SessionImage::Owner& o = in.image->owners[in.owner];
      if (c) {
        const int64_t before = used();
        auto m = c->restore_some(in.slot, o.state, pages);
        while (!m && sessions_.make_room(in.slot)) m = c->restore_some(in.slot, o.state, pages);
        if (!m) {
          in.failed = true;
          return;
        }
        copy_in(in, *c, o, *m);
        if (!m->whole) return;
        pages -= std::max<int64_t>(0, used() - before);
      }
      ++in.owner, in.given = {};
    }
  }
  // Rows of a part that have memory; parts of full layers come first.
  static int64_t given_of(const KvCache::Mapped& m, const KvCache::Part& p, int part) {
    if (m.whole) return p.rows;
    if (p.ring) return m.rings ? p.rows : 0;
    return part < m.parts ? p.rows : part == m.parts ? m.rows : 0;
  }
  // The rows that have memory now and had none before.
  void copy_in(In& in, const KvCache& c, const SessionImage::Owner& o, const KvCache::Mapped& m) {
    std::vector<RowCopier::Range> ranges;
    std::byte* from = o.rows.data();
    each_cache(c, [&](const KvCache& k) {
      int part = 0;
      for (const KvCache::Part& p : k.parts(in.slot, o.state)) {
        const int64_t had = given_of(in.given, p, part), has = given_of(m, p, part);
        if (has > had) ranges.push_back({p.at + had * p.row, from + had * p.row, (has - had) * p.row, &k.pool()});
        from += p.bytes(), ++part;
      }
    });
    in.given = m;
    if (!ranges.empty()) in.jobs.push_back(copier_.start(RowCopier::Direction::kFromHost, std::move(ranges)));
  }

  Runner<B>& runner_;
  Speculator<B>& spec_;
  SessionStore& sessions_;
  RowCopier copier_;
  std::vector<Drafter<B>*> kept_;  // those with a state
};

}  // namespace facet
