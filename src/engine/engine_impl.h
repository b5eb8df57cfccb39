// Long: what other threads ask of an engine, and what a tick does, over the same members.
#pragma once
#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "api/engine.h"
#include "engine/loaded_model.h"
#include "engine/request_queue.h"
#include "engine/step_loop.h"
#include "engine/tiers.h"
#include "session/fingerprint.h"
#include "session/kv_config.h"
#include "session/lazy_mapping.h"
#include "session/session_store.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// Opens the drafters that go with a target; whatever they allocate is allocated here.
template <Backend B>
using DrafterFactory = std::function<Result<Drafters<B>>(const TargetView<B>&)>;

template <Backend B>
class EngineImpl final : public Engine, SessionMemory {
 public:
  // open_drafters: null for plain decoding.
  template <class... BackendArgs>
  static Result<std::unique_ptr<Engine>> create(LoadedModel model, const EngineConfig& c,
                                                const DrafterFactory<B>& open_drafters, BackendArgs... args) {
    std::unique_ptr<EngineImpl> e(new EngineImpl(std::move(model), c));
    auto r = Runner<B>::open(e->model_.file, e->model_.cfg,
                             {.kv = kv_plan(c),
                              .max_out = c.max_out,
                              .more_pages = e->model_.drafter_pool_bytes,
                              .kv_memory = c.kv_memory,
                              .select = select_spec(c),
                              .max_soft = e->model_.media ? kv_plan(c).max_step : 0,
                              .loading = c.loading},
                             args...);
    if (!r) return r.error();
    e->runner_ = std::move(*r);
    Runner<B>& run = *e->runner_;
    Drafters<B> drafters;
    if (open_drafters) {
      auto opened = open_drafters(
          {.b = run.b, .m = run.m, .w = run.w, .kv = run.kv, .plan = run.cache->plan(), .pool = run.pool.get()});
      if (!opened) return opened.error();
      drafters = std::move(*opened);
    }
    e->spec_ = std::make_unique<Speculator<B>>(run, c, e->model_.cfg.n_vocab, std::move(drafters),
                                               !e->model_.debug.forced_drafts.empty());
    if (auto ok = memory_status(run.b); !ok) return ok.error();
    if (auto ok = e->start(); !ok) return ok.error();
    return std::unique_ptr<Engine>(std::move(e));
  }

  ~EngineImpl() override {
    if (runner_) make_current(runner_->b);
    if (tiers_) tiers_->put_all();
    if (steps_) steps_->use_grammars(nullptr);
  }

  Result<RequestId> submit(Request r, Sink sink) override {
    if (r.prompt.empty()) return Error{"request", "prompt: expected at least one token, found none", "send some text"};
    if (auto ok = check_prompt(r); !ok) return ok.error();
    if (int(r.prompt.size()) >= cfg_.n_ctx)
      return Error{"request",
                   fmt::format("prompt: expected fewer than {} tokens, found {}", cfg_.n_ctx, r.prompt.size()),
                   "shorten it, or start with a larger -c"};
    if (const int64_t need = pages(int(r.prompt.size()) + 1), all = runner_->pool->budget() - staged_; need > all)
      return Error{
          "request",
          fmt::format("prompt: its {} tokens need {} of memory for K/V rows, found {}", r.prompt.size(),
                      human_bytes(need * runner_->pool->page_bytes()), human_bytes(all * runner_->pool->page_bytes())),
          "shorten it, or start with more memory for them (--kv-memory)"};
    if (r.echo_logprobs) r.cache = r.sparse_prefill = false;  // every row's logits are needed
    if (cfg_.sparse_prefill <= 0) r.sparse_prefill = false;
    // Rows that are approximate are another user's.
    if (r.sparse_prefill) r.cache_salt = fmt::format("\x01sparse-prefill {}\x01{}", cfg_.sparse_prefill, r.cache_salt);
    if (r.grammar)
      if (auto ok = prepare_grammars({}); !ok) return ok.error();
    return queue_.add(std::move(r), std::move(sink));
  }
  void cancel(RequestId id) override { queue_.cancel(id); }
  MediaEncoder* media() const override { return model_.media.get(); }
  Status prepare_grammars(const GrammarPtr& first) override {
    if (!model_.tokenizer) return Error{"request", "grammar: the model file has no vocabulary", "give none"};
    // The steps see it with the request, which passes the queue's lock.
    std::call_once(grammars_once_, [&] {
      grammar_masks_ = std::make_unique<GrammarMasks>(std::make_shared<GrammarVocab>(*model_.tokenizer));
      steps_->use_grammars(grammar_masks_.get());
    });
    return first ? grammar_masks_->prepare(first) : Status(Ok{});
  }
  void run() override {
    while (!queue_.stopping())
      if (!tick()) queue_.wait();
  }
  void stop() override { queue_.stop(); }
  bool tick() override {
    try {
      return step();
    } catch (const std::bad_alloc&) {
    }
    // To end a request may take some, too.
    for (int tries = 0; tries < 100; ++tries) {
      try {
        end_for_memory();
        return true;
      } catch (const std::bad_alloc&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    std::terminate();  // no memory came back: whoever waits for an answer would wait for ever
  }
  Status score(std::span<const int32_t> ids, int from,
               const std::function<void(int, std::span<const float>)>& f) override {
    if (sessions_->running() > 0) return Error{"score", "requests are running", "wait until they are done"};
    for (int32_t id : ids)
      if (id < 0 || id >= model_.cfg.n_vocab)
        return Error{"tokens", fmt::format("expected ids in [0, {}), found {}", model_.cfg.n_vocab, id),
                     "the ids belong to another vocabulary"};
    make_current(runner_->b);
    const SlotId slot = sessions_->free_slot();
    for (int at = 0, total = int(ids.size()); at < total;) {
      const bool wanted = at >= from;
      const int n =
          wanted ? std::min({cfg_.chunk, cfg_.max_out, total - at}) : std::min({cfg_.chunk, from - at, total - at});
      if (auto ok = cache().prepare(slot, n); !ok) {
        if (sessions_->make_room(slot)) continue;
        sessions_->release(slot);
        return ok;
      }
      runner_->steps.begin();
      runner_->add({.slot = slot,
                    .token = ids.subspan(size_t(at), size_t(n)),
                    .out = wanted ? Out::kAll : Out::kNone,
                    .n_select = cfg_.sparse_prefill > 0 ? std::max(0, from - kSelectQuestion - at) : 0});
      const auto logits = runner_->forward();
      cache().commit(slot, n);
      if (wanted) {
        if constexpr (requires { logits.row(0); })
          f(at, {logits.row(0), size_t(n) * size_t(model_.cfg.n_vocab)});
        else
          f(at, runner_->b.to_host(logits));
      }
      at += n;
    }
    sessions_->release(slot);
    if constexpr (requires { runner_->b.take_selected(slot); })
      if (cfg_.sparse_prefill > 0) scored_.add(runner_->b.take_selected(slot));
    return Ok{};
  }
  SparsePrefill scored_sparse() const override { return told(scored_); }

  CacheStats cache_stats() const override {
    std::unique_lock lock(stats_mutex_);
    CacheStats s = stats_;
    lock.unlock();
    tiers_->disk_now(s);
    return s;
  }
  void list_slots(std::function<void(const std::vector<SlotInfo>&)> told) override {
    queue_.post([this, told = std::move(told)] {
      std::vector<SlotInfo> slots;
      for (SlotId s = 0; s < sessions_->size(); ++s) {
        const Session& q = sessions_->at(s);
        SlotInfo& i = slots.emplace_back(SlotInfo{.id = s,
                                                  .running = q.use == Session::Use::kRunning,
                                                  .empty = q.use == Session::Use::kFree,
                                                  .snapshot = q.snapshot,
                                                  .tokens = int(q.tokens.size()),
                                                  .computed = cache().len(s)});
        if (i.running) i.request = q.work.id, i.prompt = q.work.usage.prompt, i.generated = q.work.usage.generated;
      }
      told(slots);
    });
  }
  void save_slot(int id, const std::string& path, SlotSink done) override {
    queue_.post([this, id, path, done = std::move(done)] {
      if (!is_slot(id)) return done(no_slot(id));
      tiers_->save(id, path, fingerprint(), done);
    });
  }
  void restore_slot(int id, const std::string& path, SlotSink done) override {
    queue_.post([this, id, path, done = std::move(done)] {
      if (!is_slot(id)) return done(no_slot(id));
      tiers_->load(
          id, path, fingerprint(), [this](std::function<void()> work) { queue_.post(std::move(work)); }, done);
    });
  }
  void erase_slot(int id, SlotSink done) override {
    queue_.post([this, id, done = std::move(done)] {
      if (!is_slot(id)) return done(no_slot(id));
      if (sessions_->at(id).use == Session::Use::kRunning)
        return done(Error{"slot", "a request runs there", "wait until it is done"});
      const int n = cache().len(id);
      sessions_->release(id);
      done(SlotDone{.tokens = n});
    });
  }

  const Tokenizer* tokenizer() const override { return model_.tokenizer ? &*model_.tokenizer : nullptr; }
  const ModelCfg& model() const override { return model_.cfg; }
  const EngineConfig& config() const override { return cfg_; }
  LockstepReport lockstep_report() const override {
    if constexpr (requires { runner_->b.report(); })
      return runner_->b.report();
    else
      return {};
  }
  VerbCosts verb_costs() const override {
    if constexpr (requires { runner_->b.costs(); })
      return runner_->b.costs();
    else
      return {};
  }

 private:
  // Ids of the vocabulary, and below 0 exactly where the request has pictures and sound, with a row for each.
  Status check_prompt(const Request& r) const {
    const auto no = [](std::string what, std::string hint) {
      return Error{"request", std::move(what), std::move(hint)};
    };
    size_t next = 0;
    const int n = int(r.prompt.size());
    for (int i = 0; i < n; ++i) {
      const bool inside = next < r.media.size() && i >= r.media[next].begin;
      const int32_t id = r.prompt[size_t(i)];
      if (inside != is_soft_id(id))
        return no(fmt::format("prompt: expected token ids in [0, {}), found {}", model_.cfg.n_vocab, id),
                  "the ids belong to another vocabulary");
      if (id >= model_.cfg.n_vocab)
        return no(fmt::format("prompt: expected token ids in [0, {}), found {}", model_.cfg.n_vocab, id),
                  "the ids belong to another vocabulary");
      if (inside && i == r.media[next].end() - 1) ++next;
    }
    if (next != r.media.size())
      return no(fmt::format("media: expected {} pictures and sounds within the prompt, in its order, found {}",
                            r.media.size(), next),
                "expand_media() makes prompts and their media");
    if (r.media.empty()) return Ok{};
    if (!model_.media) return no("media: this engine has no encoder of pictures and sound", "open it with --mmproj");
    if (r.echo_logprobs) return no("logprobs: expected none of a prompt with pictures or sound", "leave out echo");
    for (const MediaSpan& m : r.media) {
      if (m.n < 1 || m.begin < 1 || !m.rows || m.rows->size() != size_t(m.n) * size_t(model_.cfg.d_model))
        return no(fmt::format("media: expected {} rows of {} values at {}, found {} values", m.n, model_.cfg.d_model,
                              m.begin, m.rows ? m.rows->size() : 0),
                  "the encoder belongs to another model");
      if (const int least = m.n + 1 + cfg_.max_seq; m.is_picture && model_.cfg.pictures_ahead && cfg_.chunk < least)
        return no(
            fmt::format("a picture of {} tokens: expected a chunk of at least {}, found {}", m.n, least, cfg_.chunk),
            "start with a larger --chunk, or give pictures fewer tokens");
    }
    return Ok{};
  }
  using Clock = Job::Clock;
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  EngineImpl(LoadedModel model, const EngineConfig& c) : model_(std::move(model)), cfg_(c) {}
  KvCache& cache() const { return *runner_->cache; }
  static std::optional<SelectSpec> select_spec(const EngineConfig& c) {
    if (c.sparse_prefill <= 0) return {};
    return SelectSpec{.gamma = c.sparse_prefill};
  }

  Status start() {
    if constexpr (requires { runner_->b.trace(true); }) runner_->b.trace(true);
    staged_ = runner_->pool->used();
    if (auto* host = dynamic_cast<HostPagePool*>(runner_->pool.get())) host->slow_couriers(model_.debug.slow_copies);
    sessions_ = std::make_unique<SessionStore>(static_cast<SessionMemory&>(*this), cache().plan().resident(),
                                               cfg_.max_seq, cfg_.snapshot_every);
    std::unique_ptr<DiskTier> disk;
    if (!cfg_.cache_disk.empty() && !model_.debug.lockstep) {
      auto opened = DiskTier::open({.folder = cfg_.cache_disk,
                                    .most = cfg_.cache_disk_size,
                                    .most_waiting = std::max<int64_t>(kWaiting, cfg_.cache_ram / 4),
                                    .whose = fingerprint(),
                                    .noted = cfg_.noted});
      if (!opened) return opened.error();
      disk = std::move(*opened);
      if (!disk && cfg_.noted)
        cfg_.noted(fmt::format("cache-disk: another process uses {}; this one goes on without it", cfg_.cache_disk));
    }
    tiers_ = std::make_unique<Tiers<B>>(*runner_, *spec_, *sessions_, cfg_, phases_, std::move(disk));
    sessions_->evicting = [this](SlotId s) {
      const PhaseTimes::Scope phase(phases_, Phase::kEvict);
      tiers_->put_down(s);
    };
    steps_ = std::make_unique<StepLoop<B>>(
        *runner_, *spec_, *sessions_, cfg_, tokenizer(), model_.cfg.n_vocab, model_.debug, phases_,
        StepHooks{.finish = [this](SlotId s, Stop why, const std::string& error) { finish(s, why, error); },
                  .make_room = [this](SlotId s) { return make_room(s); },
                  .prompt_took = [this](int tokens, double seconds) { tiers_->observe_prompt(tokens, seconds); }});
    publish();
    return Ok{};
  }
  const SessionHeader::Fingerprint& fingerprint() {
    std::call_once(fingerprint_once_,
                   [&] { fingerprint_ = session_fingerprint(model_.file, model_.cfg, cfg_, model_.drafters); });
    return fingerprint_;
  }

  bool step() {
    make_current(runner_->b);
    if (std::exchange(idle_, false)) phases_.restart();
    tiers_->look_at_copies();
    admit();
    map_some();
    if (model_.debug.admitted) model_.debug.admitted();
    bool more = steps_->step(int(waiting_.size()));
    idle_ = !more;
    if (!more) runner_->pool->next_step();
    tiers_->copy_ahead();
    if (!more) more = tiers_->wait();
    if constexpr (requires { runner_->b.take_laps(); }) runner_->b.take_laps();
    publish();
    return more;
  }

  // Memory ran out on this thread: the request that has most of it ends. Behind a step's forward pass all that took
  // part may be half done.
  void end_for_memory() {
    static const std::string kError = "memory ran out (make the request smaller, or try again)";
    const bool all = steps_->settling();
    SlotId most = -1;
    for (SlotId s = 0; s < sessions_->size(); ++s) {
      if (sessions_->at(s).use != Session::Use::kRunning) continue;
      if (all) {
        sessions_->at(s).work.request.cache = false;  // rows may be there whose tokens are not
        finish(s, Stop::kError, kError);
      } else if (most < 0 || sessions_->at(s).tokens.size() > sessions_->at(most).tokens.size()) {
        most = s;
      }
    }
    if (most >= 0) finish(most, Stop::kError, kError);
  }

  // Cancellations, then waiting requests into sessions, in the order of their priority and arrival; one that waits for
  // a prefix which another computes lets those behind it pass.
  void admit() {
    auto [arrived, cancelled, posted] = queue_.take();
    for (const auto& work : posted) work();
    for (Job& w : arrived) {
      try {
        wait(std::move(w));
      } catch (const std::bad_alloc&) {
        if (w.sink.done) w.sink.done(w.id, Stop::kError, w.usage, "memory ran out");
      }
    }
    for (const RequestId id : cancelled) {
      for (SlotId s = 0; s < sessions_->size(); ++s)
        if (const Session& q = sessions_->at(s); q.use == Session::Use::kRunning && q.work.id == id)
          finish(s, Stop::kCancelled);
      const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const Job& w) { return w.id == id; });
      if (at == waiting_.end()) continue;
      const Job gone = std::move(*at);
      waiting_.erase(at);
      if (gone.sink.done) gone.sink.done(id, Stop::kCancelled, gone.usage, "");
    }
    for (auto w = waiting_.begin(); w != waiting_.end() && sessions_->running() < cfg_.max_seq;) {
      SlotId s = -1;
      Nearest nearest;
      if (tiers_->bring_up(*w)) {
        nearest = sessions_->nearest(w->tokens, w->request.cache_salt);
        tiers_->look_for(nearest, w->tokens, w->request.cache_salt);
        try {
          s = sessions_->open(*w);
        } catch (const std::bad_alloc&) {
          if (w->tokens.empty()) waiting_.erase(w);  // it is in its session already, which ends
          throw;
        }
      }
      w = s >= 0 ? waiting_.erase(w) : w + 1;
      if (s >= 0) begin(s, nearest);
    }
  }
  // Whether a request goes before another.
  static bool precedes(const Job& a, const Job& b) {
    return a.request.priority != b.request.priority ? a.request.priority < b.request.priority : a.id < b.id;
  }
  void wait(Job&& work) {  // is as before where there is no memory
    const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const Job& w) { return precedes(work, w); });
    waiting_.insert(at, std::move(work));
  }
  void begin(SlotId s, const Nearest& nearest) {
    Job& work = sessions_->at(s).work;
    if (!work.answered) work.usage.cached = cache().len(s), work.started = Clock::now();
    if (!std::exchange(work.counted, true)) count(work, nearest);
    if (!work.usage.parked) work.usage.queue_s = seconds(work.started - work.arrived);
    if (!work.loops && work.request.max_loops > 0) work.loops.emplace(work.request.max_loops);
    if (!work.thought && work.request.thought_budget >= 0 && tokenizer())
      work.thought.emplace(*tokenizer(), work.request.thought_budget, work.request.in_thought);
    if (work.no_end.empty() && work.request.min_tokens > 0) work.no_end = no_end(work.request);
    work.filled = false;
    spec_->begin(s);
    if constexpr (requires { runner_->b.take_selected(s); })
      if (work.request.sparse_prefill) (void)runner_->b.take_selected(s);  // of whoever was there before
    if (work.sink.prefill) work.sink.prefill(work.id, cache().len(s), int(sessions_->at(s).tokens.size()));
  }

  // What a request goes on from, told once, and why it is not more.
  void count(Job& work, const Nearest& nearest) {
    CacheUse& use = work.usage.cache;
    if (!work.request.cache) return void(use.miss = CacheUse::Miss::kOff);
    const int prompt = work.usage.prompt, hit = work.usage.cached;
    CacheStats& all = tiers_->stats();
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
  void publish() {
    const std::lock_guard lock(stats_mutex_);
    stats_ = tiers_->stats_now();
  }
  bool is_slot(int id) const { return id >= 0 && id < sessions_->size(); }
  Error no_slot(int id) const {
    return {"slot", fmt::format("expected one in [0, {}), found {}", sessions_->size(), id), "ask which there are"};
  }

  // What is never drawn while an answer may not end.
  std::vector<int32_t> no_end(const Request& r) const {
    std::vector<int32_t> ids = r.stop_ids;
    if (const Tokenizer* t = tokenizer()) {
      if (!r.ignore_eos) ids.insert(ids.end(), t->eog().begin(), t->eog().end());
      if (r.suppress_special) ids.insert(ids.end(), t->suppressed().begin(), t->suppressed().end());
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  // A step needs memory for session s: an idle session goes, else the running one that is last by priority and arrival
  // is parked. It waits with its tokens, and goes on where it was when there is room.
  bool make_room(SlotId s) {
    if (sessions_->make_room()) return true;
    SlotId last = -1;
    for (SlotId i = 0; i < sessions_->size(); ++i)
      if (const Session& q = sessions_->at(i);
          q.use == Session::Use::kRunning && (last < 0 || precedes(sessions_->at(last).work, q.work)))
        last = i;
    if (sessions_->running() < 2) return tiers_->finish_fills();  // what came is idle, and may go
    Session& q = sessions_->at(last);
    Job work = std::move(q.work);
    work.tokens = q.tokens;
    work.need = owned(last);
    ++work.usage.parked, ++tiers_->stats().parked;
    spec_->end(last);
    q.work = {};
    q.work.request.cache = work.request.cache;
    sessions_->close(last);
    wait(std::move(work));
    // One that leaves nothing for later requests has given its pages up already.
    if (last != s) sessions_->make_room();
    return true;
  }

  void finish(SlotId s, Stop why, const std::string& error = "") {
    Job& w = sessions_->at(s).work;
    const auto now = Clock::now();
    w.usage.prefill_s = seconds((w.answered ? w.first_token : now) - w.started);
    w.usage.decode_s = w.answered ? seconds(now - w.first_token) : 0;
    w.usage.draft_inactive_reason = spec_->inactive_reason(w.request.draft, w.usage);
    const Job done = std::move(w);
    sessions_->at(s).work.request.cache = done.request.cache;
    spec_->end(s);
    sessions_->close(s);
    if (done.sink.done) done.sink.done(done.id, why, done.usage, error);
    tell_useless_drafter();
  }

  void tell_useless_drafter() {
    const int m = spec_->never_right();
    if (m < 0 || !model_.debug.forced_drafts.empty()) return;
    if (std::string_view(spec_->method_name(m)) == "ngram") return;  // of text that repeats nothing
    const char* why = "none of its drafts was right so far; it seems to be made for another model";
    const std::string name = size_t(m) < cfg_.draft.files.size() ? cfg_.draft.files[size_t(m)] : spec_->method_name(m);
    if (cfg_.noted) cfg_.noted(fmt::format("{}: {}", name, why));
    if (cfg_.degraded) cfg_.degraded(fmt::format("drafter {}", spec_->method_name(m)), why);
  }

  // What forks still lack (KvCache::fork), a little before every step: first those in which requests run.
  void map_some() {
    const PhaseTimes::Scope phase(phases_, Phase::kMap);
    const PagePool& pool = *runner_->pool;
    for (SlotId s = 0; s < sessions_->size(); ++s)
      while (sessions_->at(s).use == Session::Use::kRunning && pool.left_a_step() > 0 && cache().asleep(s)) {
        const auto n = cache().wake_some(s, pool.left_a_step());
        if (n) break;
        if (!make_room(s)) finish(s, Stop::kError, n.error().message());
      }
    map_ahead(cache(), *sessions_);
  }

  // --- SessionMemory

  int len(SlotId s) const override { return cache().len(s); }
  bool reaches(SlotId s, int len) const override { return cache().reaches(s, len) && spec_->reaches(s, len); }
  // As many rows as target and drafters all have.
  int go_back(SlotId s, int len) override {
    while (len > 0 && cache().rewind(s, len) == Rewind::kDone) {
      const int kept = spec_->rewind(s, len);
      if (kept == len) return len;
      len = kept;
    }
    release(s);
    return 0;
  }
  Status fork(SlotId from, SlotId to) override {
    const PhaseTimes::Scope phase(phases_, Phase::kFork);
    if (auto ok = cache().fork(from, to, KvCache::Fork::kAsleep); !ok) return ok;
    if (auto ok = spec_->fork(from, to); !ok) {
      release(to);
      return ok;
    }
    ++tiers_->stats().gpu.restores;
    return Ok{};
  }
  void release(SlotId s) override {
    const PhaseTimes::Scope phase(phases_, Phase::kEvict);
    finish_read(s);
    cache().release(s);
    spec_->forget(s);
  }
  bool is_read(SlotId s) const override { return tiers_ && tiers_->is_read(s); }
  void finish_read(SlotId s) override {
    if (tiers_) tiers_->finish(s);
  }
  int64_t pages(int rows) const override { return cache().pages(rows) + spec_->pages(rows); }
  int64_t owned(SlotId s) const override { return cache().owned_pages(s) + spec_->owned_pages(s); }
  int64_t free_pages() const override { return runner_->pool->budget() - runner_->pool->used(); }

  LoadedModel model_;
  EngineConfig cfg_;
  PhaseTimes phases_;
  bool idle_ = true;  // nothing ran in the last tick
  std::unique_ptr<Runner<B>> runner_;
  std::unique_ptr<Speculator<B>> spec_;
  std::unique_ptr<SessionStore> sessions_;
  std::unique_ptr<StepLoop<B>> steps_;
  int64_t staged_ = 0;                           // pages that are no sequence's
  static constexpr int64_t kWaiting = 64 << 20;  // bytes that may wait for the disk at least
  std::once_flag fingerprint_once_;
  SessionHeader::Fingerprint fingerprint_ = {};
  mutable std::mutex stats_mutex_;
  CacheStats stats_;  // as other threads see it
  Selected scored_;   // by score()
  std::once_flag grammars_once_;
  std::unique_ptr<GrammarMasks> grammar_masks_;
  RequestQueue queue_;
  std::deque<Job> waiting_;
  std::unique_ptr<Tiers<B>> tiers_;  // first to go: its threads use the queue
};

}  // namespace facet
