#include "session/session_store.h"

#include <algorithm>

#include "base/check.h"

namespace facet {

int SessionStore::running() const {
  return int(std::count_if(sessions_.begin(), sessions_.end(),
                           [](const Session& s) { return s.use == Session::Use::kRunning; }));
}

// The last token is always computed: its logits are wanted.
SessionStore::Match SessionStore::best_match(std::span<const int32_t> tokens, const std::string& salt) const {
  Match best;
  for (SlotId s = 0; s < size(); ++s) {
    const Session& q = at(s);
    if (q.use != Session::Use::kIdle || q.salt != salt) continue;
    const int len = soft_token_border(tokens, int(std::min(shared_prefix(q.tokens, tokens), tokens.size() - 1)));
    if (len == 0 || !memory_.reaches(s, len)) continue;
    // Of equals, the one that need not be forked.
    if (len > best.len || (len == best.len && memory_.len(s) == len && !q.snapshot)) best = {s, len};
  }
  return best;
}

Nearest SessionStore::nearest(std::span<const int32_t> tokens, const std::string& salt) const {
  Nearest best;
  for (const Session& q : sessions_)
    if (q.use != Session::Use::kFree && q.salt == salt) best.look_at(q.tokens, tokens);
  return best;
}

// A running prompt will have computed more of this one's beginning than there is.
bool SessionStore::waits_for_a_prefix(const Job& work, int have) {
  for (SlotId s = 0; s < size(); ++s) {
    Session& q = at(s);
    if (q.use != Session::Use::kRunning || q.decoding || q.salt != work.request.cache_salt || !q.work.request.cache)
      continue;
    const int shared =
        soft_token_border(work.tokens, int(std::min(shared_prefix(q.tokens, work.tokens), work.tokens.size() - 1)));
    if (shared - have < kWorthASnapshot || shared <= memory_.len(s)) continue;
    if (shared < int(q.tokens.size()) && std::find(q.cuts.begin(), q.cuts.end(), shared) == q.cuts.end())
      q.cuts.insert(std::lower_bound(q.cuts.begin(), q.cuts.end(), shared), shared);
    return true;
  }
  return false;
}

// Where the prompt parts from another that is known, and every so many tokens.
void SessionStore::plan_cuts(Session& session, int have) const {
  session.cuts.clear();
  if (!session.work.request.cache) return;
  const int size = int(session.tokens.size());
  int parts = 0;
  for (const Session& q : sessions_)
    if (&q != &session && q.use != Session::Use::kFree && q.salt == session.salt)
      parts = std::max(parts, int(shared_prefix(q.tokens, session.tokens)));
  parts = soft_token_border(session.tokens, parts);
  if (parts - have >= kWorthASnapshot && parts < size) session.cuts.push_back(parts);
  if (snapshot_every_ > 0)
    for (int at = (have / snapshot_every_ + 1) * snapshot_every_; at < size; at += snapshot_every_)
      if (const int cut = soft_token_border(session.tokens, at); cut > have) session.cuts.push_back(cut);
  std::sort(session.cuts.begin(), session.cuts.end());
  session.cuts.erase(std::unique(session.cuts.begin(), session.cuts.end()), session.cuts.end());
}

bool SessionStore::has_room(const Job& work, int have) const {
  int64_t pages = memory_.free_pages();
  for (SlotId s = 0; s < size(); ++s)
    if (at(s).use == Session::Use::kIdle) pages += memory_.owned(s);
  return std::max(work.need, memory_.pages(int(work.tokens.size()) - have)) <= pages;
}

SlotId SessionStore::free_slot(SlotId keep) {
  for (int tries = 0; tries < 2; ++tries) {
    for (SlotId s = 0; s < size(); ++s)
      if (at(s).use == Session::Use::kFree) return s;
    if (!make_room(keep)) break;
  }
  return -1;
}

bool SessionStore::make_room(SlotId keep) {
  SlotId oldest = -1;
  for (SlotId s = 0; s < size(); ++s)
    if (s != keep && at(s).use == Session::Use::kIdle && (oldest < 0 || at(s).used < at(oldest).used)) oldest = s;
  if (oldest < 0) return false;
  if (evicting) evicting(oldest);
  release(oldest);
  return true;
}

void SessionStore::release(SlotId s) {
  memory_.release(s);
  at(s) = {};
}

Result<SlotId> SessionStore::fork(SlotId from) {
  const SlotId to = free_slot(from);
  if (to < 0) return Error{"sessions", "all slots are taken", ""};
  Status ok = memory_.fork(from, to);
  while (!ok && make_room(from)) ok = memory_.fork(from, to);
  if (!ok) return ok.error();
  return to;
}

SlotId SessionStore::open(Job& work) {
  if (running() >= max_running_) return -1;
  Match best;
  if (work.request.cache) best = best_match(work.tokens, work.request.cache_salt);
  if (work.request.cache && waits_for_a_prefix(work, best.len)) return -1;
  if (running() > 0 && !has_room(work, best.len)) return -1;
  SlotId slot = best.slot;
  if (slot >= 0) {
    touch(slot);
    if (at(slot).snapshot || memory_.is_read(slot) || memory_.len(slot) > best.len) {  // it stays, for others
      if (auto forked = fork(slot); forked) {
        // The fork is what stays: the slot is ready to run. One that is being read stays as it is.
        if (memory_.is_read(slot))
          slot = *forked;
        else
          keep_as(*forked, slot);
      }
    }
    memory_.finish_read(slot);
  } else {
    slot = free_slot();
    if (slot < 0) return -1;
  }
  const int have = best.len > 0 ? memory_.go_back(slot, best.len) : 0;
  Session& s = at(slot);
  s.salt = work.request.cache_salt;  // what may fail first
  s.use = Session::Use::kRunning;
  s.snapshot = false;
  s.tokens = std::move(work.tokens);
  s.decoding = false;
  s.work = std::move(work);
  touch(slot);
  plan_cuts(s, have);
  return slot;
}

void SessionStore::keep_as(SlotId to, SlotId from) {
  const Session& s = at(from);
  at(to) = {.use = Session::Use::kIdle, .tokens = s.tokens, .salt = s.salt, .used = s.used, .snapshot = s.snapshot};
}

void SessionStore::adopt(SlotId slot, std::vector<int32_t> tokens, const std::string& salt) {
  Session& s = at(slot);
  s.use = Session::Use::kIdle;
  s.snapshot = true;
  s.tokens = std::move(tokens);
  s.salt = salt;
  touch(slot);
}

void SessionStore::close(SlotId slot) {
  Session& s = at(slot);
  const bool keep = s.work.request.cache && memory_.len(slot) > 0;
  s.work = {};
  s.cuts.clear();
  if (!keep) return release(slot);
  s.use = Session::Use::kIdle;
  s.tokens.resize(size_t(std::min(int(s.tokens.size()), memory_.len(slot))));
  touch(slot);
}

void SessionStore::snapshot(SlotId slot) {
  const Session& s = at(slot);
  if (!s.work.request.cache || size() == max_running_) return;
  const auto known = std::span(s.tokens).first(size_t(memory_.len(slot)));
  for (SlotId i = 0; i < size(); ++i)
    if (const Session& q = at(i); q.use == Session::Use::kIdle && q.salt == s.salt &&
                                  memory_.len(i) == int(known.size()) &&
                                  std::equal(known.begin(), known.end(), q.tokens.begin()))
      return touch(i);
  auto forked = fork(slot);
  if (!forked) return;
  Session& copy = at(*forked);
  copy.use = Session::Use::kIdle;
  copy.snapshot = true;
  copy.tokens.assign(known.begin(), known.end());
  copy.salt = s.salt;
  touch(*forked);
}

int SessionStore::limit(SlotId slot, int pending) const {
  const int len = memory_.len(slot);
  for (const int cut : at(slot).cuts)
    if (cut > len) return std::min(pending, cut - len);
  return pending;
}

void SessionStore::snapshot_if_due(SlotId slot) {
  std::vector<int>& cuts = at(slot).cuts;
  if (const auto due = std::find(cuts.begin(), cuts.end(), memory_.len(slot)); due != cuts.end()) {
    cuts.erase(cuts.begin(), due + 1);
    snapshot(slot);
  }
}

}  // namespace facet
