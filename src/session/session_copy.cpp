#include "session/session_copy.h"

#include <algorithm>
#include <utility>

namespace facet {
namespace {

// A shard's rows lie in a cache of its own; all of them are one state.
template <class F>
void each_cache(const KvCache& first, F&& f) {
  for (const KvCache* c = &first; c; c = c->mirrored()) f(*c);
}

// Rows of a part that have memory; parts of full layers come first.
int64_t given_of(const KvCache::Mapped& m, const KvCache::Part& p, int part) {
  if (m.whole) return p.rows;
  if (p.ring) return m.rings ? p.rows : 0;
  return part < m.parts ? p.rows : part == m.parts ? m.rows : 0;
}

}  // namespace

SessionCopy::SessionCopy(SessionRows& rows) : rows_(rows), copier_(rows.pool()) {
  for (AnyDrafter* d : rows.drafters())
    if (d->has_state()) kept_.push_back(d);
}

SessionCopy::Out SessionCopy::begin_out(SlotId s, const Sequence& sequence) {
  KvCache& cache = rows_.cache();
  auto image = std::make_shared<SessionImage>();
  if (!cache.map_all(s)) return {};
  image->tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + cache.len(s));
  image->salt = sequence.salt;
  std::vector<RowCopier::Range> ranges;
  SessionImage::Owner& model = image->owners.emplace_back();
  model.held = cache.len(s);
  if (!describe(cache, s, model, ranges)) return {};
  for (AnyDrafter* d : kept_) {
    SessionImage::Owner& o = image->owners.emplace_back();
    o.held = d->held(s), o.beside = d->save(s);
    if (const KvCache* rows = d->rows(); rows && !describe(*rows, s, o, ranges)) return {};
  }
  return {std::move(image), copier_.start(RowCopier::Direction::kToHost, std::move(ranges))};
}

bool SessionCopy::begin_in(In& in, SlotId s, std::shared_ptr<const SessionImage> image) {
  in.slot = s, in.image = std::move(image);
  return fits(*in.image);
}

bool SessionCopy::is_over(const In& in) {
  return (in.mapped() || in.failed) && std::ranges::all_of(in.tasks, RowCopier::done);
}

void SessionCopy::wait(const In& in) {
  for (const auto& task : in.tasks) copier_.wait(task);
}

bool SessionCopy::end_in(const In& in) {
  const SessionImage& image = *in.image;
  bool ok = !in.failed;
  for (size_t i = 1; ok && i < image.owners.size(); ++i)
    ok = kept_[i - 1]->load(in.slot, image.owners[i].held, image.owners[i].beside);
  for (AnyDrafter* d : rows_.drafters())
    if (ok && !d->has_state()) ok = d->load(in.slot, image.owners[0].state.len, {});
  return ok;
}

bool SessionCopy::reaches(std::span<const KvState> owners, int len) const {
  if (owners.size() != 1 + kept_.size()) return false;
  int all = len;  // SessionRows::go_back() ends there
  if (len < owners[0].len)
    for (const AnyDrafter* d : kept_) all = std::min(all, d->rows_left(len));
  if (len > owners[0].len || !rows_.cache().reaches(owners[0], all)) return false;
  for (size_t i = 1; i < owners.size(); ++i) {
    const int left = kept_[i - 1]->rows_left(len);
    if (const KvCache* c = kept_[i - 1]->rows(); c && owners[i].len > left && !c->reaches(owners[i], left))
      return false;
  }
  return true;
}

bool SessionCopy::describe(const KvCache& c, SlotId s, SessionImage::Owner& o,
                           std::vector<RowCopier::Range>& ranges) const {
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

// Whether it is a state of this engine, no matter who wrote it.
bool SessionCopy::fits(const SessionImage& image) const {
  if (image.owners.size() != 1 + kept_.size()) return false;
  const SessionImage::Owner& model = image.owners[0];
  if (int(image.tokens.size()) != model.state.len || model.state.len == 0) return false;
  for (size_t i = 0; i < image.owners.size(); ++i) {
    const SessionImage::Owner& o = image.owners[i];
    const KvCache* c = i == 0 ? &rows_.cache() : kept_[i - 1]->rows();
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

bool SessionCopy::map_in(In& in, int64_t pages) {
  const PagePool& pool = rows_.pool();
  while (!in.mapped() && !in.failed && pages > 0) {
    KvCache* c = in.owner == 0 ? &rows_.cache() : kept_[in.owner - 1]->rows();
    const SessionImage::Owner& o = in.image->owners[in.owner];
    if (c) {
      const int64_t before = pool.used();
      const auto m = c->restore_some(in.slot, o.state, pages);
      if (!m) return false;
      copy_in(in, *c, o, *m);
      if (!m->whole) return true;
      pages -= std::max<int64_t>(0, pool.used() - before);
    }
    ++in.owner, in.given = {};
  }
  return true;
}

// The rows that have memory now and had none before.
void SessionCopy::copy_in(In& in, const KvCache& c, const SessionImage::Owner& o, const KvCache::Mapped& m) {
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
  if (!ranges.empty()) in.tasks.push_back(copier_.start(RowCopier::Direction::kFromHost, std::move(ranges)));
}

}  // namespace facet
