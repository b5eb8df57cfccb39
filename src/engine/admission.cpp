#include "engine/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string_view>
#include <utility>

#include "session/lazy_mapping.h"

namespace facet {
namespace {

using Clock = ActiveRequest::Clock;
double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// Whether a request goes before another.
bool precedes(const ActiveRequest& a, const ActiveRequest& b) {
  return a.request.priority != b.request.priority ? a.request.priority < b.request.priority : a.id < b.id;
}

}  // namespace

// --- who begins

void Admission::admit(RequestQueue::Taken taken) {
  for (const auto& work : taken.posted) work();
  for (ActiveRequest& w : taken.arrived) {
    try {
      wait(std::move(w));
    } catch (const std::bad_alloc&) {
      if (w.sink.done) w.sink.done(w.id, Stop::kError, w.usage, "memory ran out");
    }
  }
  for (const RequestId id : taken.cancelled) cancel(id);
  for (auto w = waiting_.begin(); w != waiting_.end() && sessions_.running() < cfg_.max_seq;) {
    SlotId s = -1;
    Nearest nearest;
    if (tiers_.restore(*w)) {
      nearest = sessions_.nearest(w->tokens, w->request.cache_salt);
      tiers_.look_for(nearest, w->tokens, w->request.cache_salt);
      try {
        s = place(*w);
      } catch (const std::bad_alloc&) {
        if (w->tokens.empty()) waiting_.erase(w);  // it is in its session already, which ends
        throw;
      }
    }
    w = s >= 0 ? waiting_.erase(w) : w + 1;
    if (s >= 0) begin(s, nearest);
  }
}

void Admission::cancel(RequestId id) {
  for (SlotId s = 0; s < sessions_.size(); ++s)
    if (const Sequence& q = sessions_.at(s); q.running() && q.work.id == id) finish(s, Stop::kCancelled);
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const ActiveRequest& w) { return w.id == id; });
  if (at == waiting_.end()) return;
  const ActiveRequest gone = std::move(*at);
  waiting_.erase(at);
  if (gone.sink.done) gone.sink.done(id, Stop::kCancelled, gone.usage, "");
}

void Admission::wait(ActiveRequest&& work) {  // is as before where there is no memory
  const auto at =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const ActiveRequest& w) { return precedes(work, w); });
  waiting_.insert(at, std::move(work));
}

// A session in which the work runs, and which has its tokens then; -1: not now.
SlotId Admission::place(ActiveRequest& work) {
  const std::optional<Placement> p = sessions_.place(work);
  if (!p) return -1;
  SlotId slot = p->from;
  const bool takes_over = slot >= 0 && !p->stays && !tiers_.is_read(slot);
  if (!takes_over && !tiers_.is_slot_ready(slot)) return -1;
  if (slot < 0) {
    slot = tiers_.take_slot();
    if (slot < 0) return -1;
  } else {
    sessions_.touch(slot);
    if (sessions_.at(slot).running()) return place_beside(slot, p->len, work);
    if (!takes_over) {
      if (const auto forked = fork(slot); forked) {
        // The fork is what stays: the slot is ready to run. One that is being read stays as it is.
        if (tiers_.is_read(slot))
          slot = *forked;
        else
          sessions_.keep_copy(*forked, slot);
      }
    } else if (const int end = std::exchange(sessions_.at(slot).prompt_end, 0); end > 0 && end < p->len) {
      snapshot(slot, end, true);
    }
    tiers_.finish(slot);
  }
  sessions_.begin(slot, work, p->len > 0 ? rows_.go_back(slot, p->len) : 0);
  return slot;
}

// The same, of a session in which a request runs.
SlotId Admission::place_beside(SlotId running, int len, ActiveRequest& work) {
  spec_.flush(running);
  const auto forked = fork(running);
  const SlotId slot = forked ? *forked : tiers_.take_slot();
  if (slot >= 0) sessions_.begin(slot, work, forked ? rows_.go_back(slot, len) : 0);
  return slot;
}

Result<SlotId> Admission::fork(SlotId from) {
  auto to = tiers_.fork(from);
  if (to) sessions_.at(*to).draft.chooser = sessions_.at(from).draft.chooser;
  return to;
}

void Admission::begin(SlotId s, const Nearest& nearest) {
  ActiveRequest& work = sessions_.at(s).work;
  if (!work.answered) work.usage.cached = rows_.len(s), work.started = Clock::now();
  if (!std::exchange(work.counted, true)) count(work, nearest);
  if (!work.usage.parked) work.usage.queue_s = seconds(work.started - work.arrived);
  if (!work.loops && work.request.max_loops > 0) work.loops.emplace(work.request.max_loops);
  if (!work.thought && work.request.thought_budget >= 0 && tokenizer_)
    work.thought.emplace(*tokenizer_, work.request.thought_budget, work.request.in_thought);
  if (work.no_end.empty() && work.request.min_tokens > 0) work.no_end = no_end(work.request);
  work.filled = false, work.wanted = nullptr;
  const std::string owner = fmt::format("{}\x01{}", work.request.cache_salt, work.request.owner);
  spec_.begin(s, work.request.cache ? &owner : nullptr);
  if (work.request.sparse_prefill) (void)ops_.take_selected(s);  // of the sequence that was there before
  if (work.sink.prefill) work.sink.prefill(work.id, rows_.len(s), int(sessions_.at(s).tokens.size()));
}

// What a request goes on from, reported once, and why it is not more.
void Admission::count(ActiveRequest& work, const Nearest& nearest) {
  CacheUse& use = work.usage.cache;
  if (!work.request.cache) return void(use.miss = CacheUse::Miss::kOff);
  const int prompt = work.usage.prompt, hit = work.usage.cached;
  CacheStats& all = tiers_.stats();
  ++all.queries, all.query_tokens += prompt;
  if (hit == 0) use.source = CacheUse::Source::kNone;
  if (hit > 0) {
    if (use.source == CacheUse::Source::kNone) use.source = CacheUse::Source::kGpu;
    CacheStats::Tier& tier = use.source == CacheUse::Source::kGpu   ? all.gpu
                             : use.source == CacheUse::Source::kRam ? all.ram
                                                                    : all.disk;
    for (int64_t* n : {&all.hits, &tier.hits}) ++*n;
    for (int64_t* n : {&all.hit_tokens, &tier.hit_tokens}) *n += hit;
  }
  if (hit >= prompt - 1) return;
  if (nearest.len == 0)
    use.miss = CacheUse::Miss::kNew, use.miss_at = 0;
  else if (nearest.differs)
    use.miss = CacheUse::Miss::kDiffers, use.miss_at = nearest.len;
  else if (hit < nearest.len)
    use.miss = CacheUse::Miss::kNotKept, use.miss_at = hit;
}

// What is never drawn while an answer may not end.
std::vector<int32_t> Admission::no_end(const Request& r) const {
  std::vector<int32_t> ids = r.stop_ids;
  if (tokenizer_) {
    if (!r.ignore_eos) ids.insert(ids.end(), tokenizer_->eog().begin(), tokenizer_->eog().end());
    if (r.suppress_special) ids.insert(ids.end(), tokenizer_->suppressed().begin(), tokenizer_->suppressed().end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// --- who gives way

void Admission::map_some() {
  const PhaseTimes::Scope phase(phases_, Phase::kMap);
  KvCache& cache = rows_.cache();
  const PagePool& pool = cache.pool();
  for (SlotId s = 0; s < sessions_.size(); ++s)
    while (sessions_.at(s).running() && pool.left_a_step() > 0 && cache.unmapped(s)) {
      const auto n = cache.map_pages(s, pool.left_a_step());
      if (n) break;
      if (!make_room(s)) finish(s, Stop::kError, n.error().message());
    }
}

bool Admission::map_ahead() {
  const PhaseTimes::Scope phase(phases_, Phase::kMap);
  const bool any = facet::map_ahead(rows_.cache(), sessions_, cfg_.max_seq);
  ops_.make_current();  // pages of other GPUs may have been made
  return any;
}

bool Admission::make_room(SlotId s) {
  if (tiers_.evict_one()) return true;
  SlotId last = -1;
  for (SlotId i = 0; i < sessions_.size(); ++i)
    if (const Sequence& q = sessions_.at(i); q.running() && (last < 0 || precedes(sessions_.at(last).work, q.work)))
      last = i;
  if (sessions_.running() < 2) return tiers_.finish_fills();  // what came is idle, and may go
  Sequence& q = sessions_.at(last);
  ActiveRequest work = std::move(q.work);
  work.tokens = q.tokens;
  work.need = rows_.owned(last);
  ++work.usage.parked, ++tiers_.stats().parked;
  spec_.end(last);
  q.work = {};
  q.work.request.cache = work.request.cache;
  close(last);
  wait(std::move(work));
  // One that leaves nothing for later requests has given its pages up already.
  if (last != s) tiers_.evict_one();
  return true;
}

void Admission::close(SlotId s) {
  if (!sessions_.end(s)) tiers_.release(s);
}

void Admission::snapshot(SlotId s, int len, bool at_once) {
  const bool runs = sessions_.at(s).running();
  if (!rows_.reaches(s, len) || !sessions_.wants_snapshot(s, len)) return;
  if (at_once && sessions_.running() > int(runs) && !tiers_.has_slot_at_once(s)) return;
  if (runs) spec_.flush(s);
  const auto forked = fork(s);
  if (forked && rows_.go_back(*forked, len) > 0) sessions_.keep_snapshot(*forked, s);
}

void Admission::keep_prompt(SlotId s) {
  Sequence& q = sessions_.at(s);
  const int next = 1 + (cfg_.draft.any() ? cfg_.draft.rows() : 0);
  // A request that has most of the prompt goes back a little further: at least by its last token.
  const int least = std::max(1, q.prompt_end - cfg_.margin / 2);
  if (q.prompt_end == 0 || rows_.reaches(s, least, next)) return;
  snapshot(s, std::exchange(q.prompt_end, 0), true);
}

void Admission::finish(SlotId s, Stop why, const std::string& error) {
  ActiveRequest& w = sessions_.at(s).work;
  const auto now = Clock::now();
  w.usage.prefill_s = seconds((w.answered ? w.first_token : now) - w.started);
  w.usage.decode_s = w.answered ? seconds(now - w.first_token) : 0;
  w.usage.draft_inactive_reason = spec_.inactive_reason(w.request.draft, w.usage);
  const ActiveRequest done = std::move(w);
  Sequence& q = sessions_.at(s);
  q.work.request.cache = done.request.cache;
  const bool is_answer = done.request.cache && why != Stop::kError && why != Stop::kCancelled;
  const size_t generated = std::min(size_t(done.usage.generated), q.tokens.size());
  spec_.end(s, std::span(q.tokens).last(is_answer ? generated : 0));
  close(s);
  if (done.sink.done) done.sink.done(done.id, why, done.usage, error);
  report_useless_drafter();
}

void Admission::end_for_memory(bool all) {
  static const std::string kError = "memory ran out (make the request smaller, or try again)";
  SlotId most = -1;
  for (SlotId s = 0; s < sessions_.size(); ++s) {
    if (!sessions_.at(s).running()) continue;
    if (all) {
      sessions_.at(s).work.request.cache = false;  // rows may be there whose tokens are not
      finish(s, Stop::kError, kError);
    } else if (most < 0 || sessions_.at(s).tokens.size() > sessions_.at(most).tokens.size()) {
      most = s;
    }
  }
  if (most >= 0) finish(most, Stop::kError, kError);
}

void Admission::report_useless_drafter() {
  const int m = spec_.never_right();
  if (m < 0 || drafts_are_forced_) return;
  const char* why = "none of its drafts was right so far; it seems to be made for another model";
  const std::string name = size_t(m) < cfg_.draft.files.size() ? cfg_.draft.files[size_t(m)] : spec_.method_name(m);
  if (cfg_.noted) cfg_.noted(fmt::format("{}: {}", name, why));
  if (cfg_.degraded) cfg_.degraded(fmt::format("drafter {}", spec_.method_name(m)), why);
}

}  // namespace facet
