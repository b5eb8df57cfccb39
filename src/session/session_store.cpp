#include "session/session_store.h"

#include <algorithm>

namespace facet {

int SessionStore::running() const {
  return int(std::count_if(sequences_.begin(), sequences_.end(),
                           [](const Sequence& s) { return s.use == Sequence::Use::kRunning; }));
}

// The last token is always computed: its logits are wanted. A fork has to save some, and one of what answers a request
// a snapshot's worth.
SessionStore::Match SessionStore::best_match(std::span<const int32_t> tokens, const std::string& salt) const {
  Match best;
  for (SlotId s = 0; s < size(); ++s) {
    const Sequence& q = at(s);
    const bool answers = q.running() && q.decoding && q.work.request.cache;
    if (!(q.idle() || answers) || q.salt != salt) continue;
    const size_t shared = std::min({shared_prefix(q.tokens, tokens), tokens.size() - 1, size_t(rows_.len(s))});
    const int len = soft_token_border(tokens, int(shared));
    const bool extends = q.idle() && rows_.len(s) == len && !q.snapshot;
    const int least = answers ? kWorthASnapshot : extends ? 1 : rows_.pool().worth_a_fork();
    if (len < least || !rows_.reaches(s, len)) continue;
    // Of equals, one that is idle, and the one that need not be forked.
    if (len > best.len || (len == best.len && q.idle() && (extends || at(best.slot).running()))) best = {s, len};
  }
  return best;
}

Nearest SessionStore::nearest(std::span<const int32_t> tokens, const std::string& salt) const {
  Nearest best;
  for (const Sequence& q : sequences_)
    if (q.use != Sequence::Use::kFree && q.salt == salt) best.look_at(q.tokens, tokens);
  return best;
}

// A running prompt will have computed more of this one's beginning than there is.
bool SessionStore::waits_for_a_prefix(const ActiveRequest& work, int have) {
  for (SlotId s = 0; s < size(); ++s) {
    Sequence& q = at(s);
    if (q.use != Sequence::Use::kRunning || q.decoding || q.salt != work.request.cache_salt || !q.work.request.cache)
      continue;
    const int shared =
        soft_token_border(work.tokens, int(std::min(shared_prefix(q.tokens, work.tokens), work.tokens.size() - 1)));
    if (shared - have < kWorthASnapshot || shared <= rows_.len(s)) continue;
    if (shared < int(q.tokens.size()) &&
        std::find(q.snapshot_at.begin(), q.snapshot_at.end(), shared) == q.snapshot_at.end())
      q.snapshot_at.insert(std::lower_bound(q.snapshot_at.begin(), q.snapshot_at.end(), shared), shared);
    return true;
  }
  return false;
}

// Where the prompt parts from another that is known, and every so many tokens.
void SessionStore::plan_snapshots(Sequence& session, int have) const {
  session.snapshot_at.clear();
  if (!session.work.request.cache) return;
  const int size = int(session.tokens.size());
  int parts = 0;
  for (const Sequence& q : sequences_)
    if (&q != &session && q.use != Sequence::Use::kFree && q.salt == session.salt)
      parts = std::max(parts, int(shared_prefix(q.tokens, session.tokens)));
  parts = soft_token_border(session.tokens, parts);
  if (parts - have >= kWorthASnapshot && parts < size) session.snapshot_at.push_back(parts);
  if (snapshot_every_ > 0)
    for (int at = (have / snapshot_every_ + 1) * snapshot_every_; at < size; at += snapshot_every_)
      if (const int len = soft_token_border(session.tokens, at); len > have) session.snapshot_at.push_back(len);
  std::sort(session.snapshot_at.begin(), session.snapshot_at.end());
  session.snapshot_at.erase(std::unique(session.snapshot_at.begin(), session.snapshot_at.end()),
                            session.snapshot_at.end());
}

bool SessionStore::has_room(const ActiveRequest& work, int have) const {
  int64_t pages = rows_.free_pages();
  for (SlotId s = 0; s < size(); ++s)
    if (at(s).use == Sequence::Use::kIdle) pages += rows_.owned(s);
  return std::max(work.need, rows_.pages(int(work.tokens.size()) - have)) <= pages;
}

SlotId SessionStore::free_slot() const {
  for (SlotId s = 0; s < size(); ++s)
    if (at(s).use == Sequence::Use::kFree) return s;
  return -1;
}

SlotId SessionStore::least_recent(SlotId keep) const {
  SlotId oldest = -1;
  for (SlotId s = 0; s < size(); ++s)
    if (s != keep && at(s).use == Sequence::Use::kIdle && (oldest < 0 || at(s).used < at(oldest).used)) oldest = s;
  return oldest;
}

std::optional<Placement> SessionStore::place(const ActiveRequest& work) {
  if (running() >= max_running_) return std::nullopt;
  Match best;
  if (work.request.cache) best = best_match(work.tokens, work.request.cache_salt);
  if (work.request.cache && waits_for_a_prefix(work, best.len)) return std::nullopt;
  if (running() > 0 && !has_room(work, best.len)) return std::nullopt;
  if (best.slot < 0) return Placement{};
  const Sequence& from = at(best.slot);
  return Placement{
      .from = best.slot, .len = best.len, .stays = from.running() || from.snapshot || rows_.len(best.slot) > best.len};
}

void SessionStore::begin(SlotId slot, ActiveRequest& work, int have) {
  Sequence& s = at(slot);
  s.salt = work.request.cache_salt;  // what may fail first
  s.use = Sequence::Use::kRunning;
  s.snapshot = false;
  s.tokens = std::move(work.tokens);
  s.decoding = false;
  s.prompt_end = 0;
  s.work = std::move(work);
  touch(slot);
  plan_snapshots(s, have);
}

void SessionStore::keep_copy(SlotId to, SlotId from) {
  const Sequence& s = at(from);
  Sequence& copy = at(to);
  copy.tokens = s.tokens, copy.salt = s.salt;
  copy.use = Sequence::Use::kIdle, copy.used = s.used, copy.snapshot = s.snapshot, copy.prompt_end = s.prompt_end;
}

void SessionStore::keep_snapshot(SlotId to, SlotId from) {
  const Sequence& s = at(from);
  adopt(to, {s.tokens.begin(), s.tokens.begin() + rows_.len(to)}, s.salt);
}

void SessionStore::adopt(SlotId slot, std::vector<int32_t> tokens, const std::string& salt) {
  Sequence& s = at(slot);
  s.use = Sequence::Use::kIdle;
  s.snapshot = true;
  s.tokens = std::move(tokens);
  s.salt = salt;
  touch(slot);
}

bool SessionStore::end(SlotId slot) {
  Sequence& s = at(slot);
  const bool keep = s.work.request.cache && rows_.len(slot) > 0;
  s.work = {};
  s.snapshot_at.clear();
  if (!keep) return false;
  s.use = Sequence::Use::kIdle;
  s.tokens.resize(size_t(std::min(int(s.tokens.size()), rows_.len(slot))));
  touch(slot);
  return true;
}

bool SessionStore::wants_snapshot(SlotId slot, int len) {
  const Sequence& s = at(slot);
  if ((s.running() && !s.work.request.cache) || size() == max_running_) return false;
  const auto known = std::span(s.tokens).first(size_t(len));
  for (SlotId i = 0; i < size(); ++i)
    if (const Sequence& q = at(i); q.use == Sequence::Use::kIdle && q.salt == s.salt &&
                                   rows_.len(i) == int(known.size()) &&
                                   std::equal(known.begin(), known.end(), q.tokens.begin())) {
      touch(i);
      return false;
    }
  return true;
}

int SessionStore::limit(SlotId slot, int pending) const {
  const int len = rows_.len(slot);
  for (const int next : at(slot).snapshot_at)
    if (next > len) return std::min(pending, next - len);
  return pending;
}

bool SessionStore::snapshot_is_due(SlotId slot) {
  std::vector<int>& all = at(slot).snapshot_at;
  const auto due = std::find(all.begin(), all.end(), rows_.len(slot));
  if (due == all.end()) return false;
  all.erase(all.begin(), due + 1);
  return true;
}

}  // namespace facet
