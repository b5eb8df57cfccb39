#include "engine/engine_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "engine/open_engine.h"
#include "session/kv_config.h"

namespace facet {

RunnerOptions runner_options(const LoadedModel& model, const EngineConfig& c) {
  RunnerOptions o{.kv = kv_plan(c),
                  .max_out = c.max_out,
                  .more_pages = model.drafter_pool_bytes,
                  .kv_memory = c.kv_memory,
                  .max_soft = model.media ? kv_plan(c).max_step : 0,
                  .loading = c.loading,
                  .usage = c.count_experts};
  if (c.sparse_prefill > 0) o.select = SelectSpec{.gamma = c.sparse_prefill};
  return o;
}

Result<std::unique_ptr<Engine>> make_engine(std::unique_ptr<LoadedModel> model, const EngineConfig& c,
                                            std::unique_ptr<DeviceOps> ops) {
  auto e = std::make_unique<EngineLoop>(std::move(model), c, std::move(ops));
  if (auto ok = e->start(); !ok) return ok.error();
  return std::unique_ptr<Engine>(std::move(e));
}

EngineLoop::EngineLoop(std::unique_ptr<LoadedModel> model, const EngineConfig& c, std::unique_ptr<DeviceOps> ops)
    : model_(std::move(model)),
      cfg_(c),
      ops_(std::move(ops)),
      rows_(ops_->cache(), {ops_->drafters().begin(), ops_->drafters().end()}),
      sessions_(rows_, ops_->cache().plan().resident(), c.max_seq, c.snapshot_every),
      spec_(*ops_, cfg_, sessions_.all(), !model_->debug.forced_drafts.empty()) {}

EngineLoop::~EngineLoop() {
  ops_->make_current();
  if (tiers_ && tiers_->has_disk())
    for (SlotId s = 0; s < sessions_.size(); ++s) flush(s);
  if (tiers_) tiers_->put_all();
  if (steps_) steps_->use_grammars(nullptr);
}

Status EngineLoop::start() {
  if (auto ok = ops_->memory(); !ok) return ok;
  ops_->trace();
  staged_ = ops_->pool().used();
  if (auto* host = dynamic_cast<HostPagePool*>(&ops_->pool())) host->slow_copies(model_->debug.slow_copies);
  auto disk = open_disk();
  if (!disk) return disk.error();
  tiers_ = std::make_unique<Tiers>(rows_, sessions_, ops_->can_copy(), cfg_.cache_ram, phases_, std::move(*disk));
  admission_ =
      std::make_unique<Admission>(cfg_, model_->debug, tokenizer(), *ops_, spec_, rows_, sessions_, *tiers_, phases_);
  steps_ = std::make_unique<StepLoop>(cfg_, model_->debug, tokenizer(), *ops_, spec_, sessions_, *tiers_, *admission_,
                                      phases_);
  publish();
  return Ok{};
}

// Null: no folder was named, or another process has it.
Result<std::unique_ptr<DiskTier>> EngineLoop::open_disk() {
  if (cfg_.cache_disk.empty() || model_->debug.lockstep) return std::unique_ptr<DiskTier>();
  auto opened = DiskTier::open({.folder = cfg_.cache_disk,
                                .most = cfg_.cache_disk_size,
                                .most_waiting = std::max<int64_t>(kWaiting, cfg_.cache_ram / 4),
                                .whose = fingerprint(),
                                .on_note = cfg_.noted});
  if (!opened) return opened.error();
  if (!*opened && cfg_.noted)
    cfg_.noted(fmt::format("cache-disk: another process uses {}; this one goes on without it", cfg_.cache_disk));
  return opened;
}

const SessionHeader::Fingerprint& EngineLoop::fingerprint() {
  std::call_once(fingerprint_once_,
                 [&] { fingerprint_ = session_fingerprint(model_->file, model_->cfg, cfg_, model_->drafters); });
  return fingerprint_;
}

// --- requests

Result<RequestId> EngineLoop::submit(Request r, Sink sink) {
  if (r.prompt.empty()) return Error{"request", "prompt: expected at least one token, found none", "send some text"};
  if (auto ok = check_prompt(r); !ok) return ok.error();
  if (int(r.prompt.size()) >= cfg_.n_ctx)
    return Error{"request", fmt::format("prompt: expected fewer than {} tokens, found {}", cfg_.n_ctx, r.prompt.size()),
                 "shorten it, or start with a larger -c"};
  if (const int64_t need = rows_.pages(int(r.prompt.size()) + 1), all = ops_->pool().budget() - staged_; need > all)
    return Error{
        "request",
        fmt::format("prompt: its {} tokens need {} of memory for K/V rows, found {}", r.prompt.size(),
                    human_bytes(need * ops_->pool().page_bytes()), human_bytes(all * ops_->pool().page_bytes())),
        "shorten it, or start with more memory for them (--kv-memory)"};
  if (r.echo_logprobs) r.cache = r.sparse_prefill = false;  // every row's logits are needed
  if (cfg_.sparse_prefill <= 0) r.sparse_prefill = false;
  // Rows that are approximate are another user's.
  if (r.sparse_prefill) r.cache_salt = fmt::format("\x01sparse-prefill {}\x01{}", cfg_.sparse_prefill, r.cache_salt);
  if (r.grammar)
    if (auto ok = prepare_grammars({}); !ok) return ok.error();
  return queue_.add(std::move(r), std::move(sink));
}

Status EngineLoop::check_prompt(const Request& r) const {
  const auto no = [](std::string what, std::string hint) { return Error{"request", std::move(what), std::move(hint)}; };
  size_t next = 0;
  const int n = int(r.prompt.size());
  for (int i = 0; i < n; ++i) {
    const bool inside = next < r.media.size() && i >= r.media[next].begin;
    const int32_t id = r.prompt[size_t(i)];
    if (inside != is_soft_id(id))
      return no(fmt::format("prompt: expected token ids in [0, {}), found {}", model_->cfg.n_vocab, id),
                "the ids belong to another vocabulary");
    if (id >= model_->cfg.n_vocab)
      return no(fmt::format("prompt: expected token ids in [0, {}), found {}", model_->cfg.n_vocab, id),
                "the ids belong to another vocabulary");
    if (inside && i == r.media[next].end() - 1) ++next;
  }
  if (next != r.media.size())
    return no(fmt::format("media: expected {} pictures and sounds within the prompt, in its order, found {}",
                          r.media.size(), next),
              "expand_media() makes prompts and their media");
  if (r.media.empty()) return Ok{};
  if (!model_->media) return no("media: this engine has no encoder of pictures and sound", "open it with --mmproj");
  if (r.echo_logprobs) return no("logprobs: expected none of a prompt with pictures or sound", "leave out echo");
  for (const MediaSpan& m : r.media) {
    if (m.n < 1 || m.begin < 1 || !m.rows || m.rows->size() != size_t(m.n) * size_t(model_->cfg.d_model))
      return no(fmt::format("media: expected {} rows of {} values at {}, found {} values", m.n, model_->cfg.d_model,
                            m.begin, m.rows ? m.rows->size() : 0),
                "the encoder belongs to another model");
    if (const int least = m.n + 1 + cfg_.max_seq; m.is_picture && model_->cfg.pictures_ahead && cfg_.chunk < least)
      return no(
          fmt::format("a picture of {} tokens: expected a chunk of at least {}, found {}", m.n, least, cfg_.chunk),
          "start with a larger --chunk, or give pictures fewer tokens");
  }
  return Ok{};
}

Status EngineLoop::prepare_grammars(const GrammarPtr& first) {
  if (!model_->tokenizer) return Error{"request", "grammar: the model file has no vocabulary", "give none"};
  // The steps see it with the request, which passes the queue's lock.
  std::call_once(grammars_once_, [&] {
    grammar_masks_ = std::make_unique<GrammarMasks>(std::make_shared<GrammarVocab>(*model_->tokenizer));
    steps_->use_grammars(grammar_masks_.get());
  });
  return first ? grammar_masks_->prepare(first) : Status(Ok{});
}

// --- the engine's thread

void EngineLoop::run() {
  while (!queue_.stopping())
    if (!tick() && !map_ahead()) queue_.wait();
}

// When there is nothing to do.
bool EngineLoop::map_ahead() {
  ops_->make_current();
  ops_->pool().next_step();
  try {
    return admission_->map_ahead();
  } catch (const std::bad_alloc&) {  // whoever needs it tries again
    return false;
  }
}

bool EngineLoop::tick() {
  try {
    return step();
  } catch (const std::bad_alloc&) {
  }
  // To end a request may take some, too.
  for (int tries = 0; tries < 100; ++tries) {
    try {
      // Behind a step's forward pass all that took part may be half done.
      admission_->end_for_memory(steps_->is_finishing());
      return true;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  throw std::bad_alloc();  // ends the program: none came back, and the callers would wait for their answers for ever
}

bool EngineLoop::step() {
  ops_->make_current();
  if (std::exchange(idle_, false)) phases_.restart();
  tiers_->look_at_copies();
  admission_->admit(queue_.take());
  admission_->map_some();
  if (model_->debug.admitted) model_->debug.admitted();
  bool more = steps_->step();
  idle_ = !more;
  if (!more) ops_->pool().next_step();
  tiers_->copy_ahead();
  if (!more) more = tiers_->wait();
  ops_->take_laps();
  publish();
  return more;
}

Status EngineLoop::score(std::span<const int32_t> ids, int from,
                         const std::function<void(int, std::span<const float>)>& f) {
  if (sessions_.running() > 0) return Error{"score", "requests are running", "wait until they are done"};
  for (int32_t id : ids)
    if (id < 0 || id >= model_->cfg.n_vocab)
      return Error{"tokens", fmt::format("expected ids in [0, {}), found {}", model_->cfg.n_vocab, id),
                   "the ids belong to another vocabulary"};
  ops_->make_current();
  const SlotId slot = tiers_->take_slot();
  for (int at = 0, total = int(ids.size()); at < total;) {
    const bool wanted = at >= from;
    const int n =
        wanted ? std::min({cfg_.chunk, cfg_.max_out, total - at}) : std::min({cfg_.chunk, from - at, total - at});
    if (auto ok = ops_->cache().prepare(slot, n); !ok) {
      if (tiers_->evict_one(slot)) continue;
      tiers_->release(slot);
      return ok;
    }
    ops_->steps().begin();
    ops_->add({.slot = slot,
               .token = ids.subspan(size_t(at), size_t(n)),
               .out = wanted ? Out::kAll : Out::kNone,
               .n_select = cfg_.sparse_prefill > 0 ? std::max(0, from - kSelectQuestion - at) : 0});
    ops_->forward(/*with_features=*/false);
    ops_->cache().commit(slot, n);
    if (wanted) f(at, ops_->logits(0, n));
    at += n;
  }
  tiers_->release(slot);
  if (cfg_.sparse_prefill > 0)
    if (const auto selected = ops_->take_selected(slot)) scored_.add(*selected);
  return Ok{};
}

// --- reports and slots

CacheStats EngineLoop::cache_stats() const {
  std::unique_lock lock(stats_mutex_);
  CacheStats s = stats_;
  lock.unlock();
  tiers_->disk_now(s);
  return s;
}

void EngineLoop::list_slots(std::function<void(const std::vector<SlotInfo>&)> done) {
  queue_.post([this, done = std::move(done)] {
    std::vector<SlotInfo> slots;
    for (SlotId s = 0; s < sessions_.size(); ++s) {
      const Sequence& q = sessions_.at(s);
      SlotInfo& i = slots.emplace_back(SlotInfo{.id = s,
                                                .running = q.running(),
                                                .empty = q.use == Sequence::Use::kFree,
                                                .snapshot = q.snapshot,
                                                .tokens = int(q.tokens.size()),
                                                .computed = ops_->cache().len(s)});
      if (i.running) i.request = q.work.id, i.prompt = q.work.usage.prompt, i.generated = q.work.usage.generated;
    }
    done(slots);
  });
}

void EngineLoop::save_slot(int id, const std::string& path, SlotSink done) {
  queue_.post([this, id, path, done = std::move(done)] {
    if (!is_slot(id)) return done(no_slot(id));
    flush(id);
    tiers_->save(id, path, fingerprint(), done);
  });
}

void EngineLoop::restore_slot(int id, const std::string& path, SlotSink done) {
  queue_.post([this, id, path, done = std::move(done)] {
    if (!is_slot(id)) return done(no_slot(id));
    tiers_->load(
        id, path, fingerprint(), [this](std::function<void()> work) { queue_.post(std::move(work)); }, done);
  });
}

void EngineLoop::erase_slot(int id, SlotSink done) {
  queue_.post([this, id, done = std::move(done)] {
    if (!is_slot(id)) return done(no_slot(id));
    if (sessions_.at(id).running()) return done(Error{"slot", "a request runs there", "wait until it is done"});
    const int n = ops_->cache().len(id);
    tiers_->release(id);
    done(SlotDone{.tokens = n});
  });
}

void EngineLoop::publish() {
  const std::lock_guard lock(stats_mutex_);
  stats_ = tiers_->stats_now();
}

Error EngineLoop::no_slot(int id) const {
  return {"slot", fmt::format("expected one in [0, {}), found {}", sessions_.size(), id), "ask which there are"};
}

// Before the state of a running session is copied.
void EngineLoop::flush(SlotId s) {
  if (sessions_.at(s).running() && ops_->cache().map_all(s)) spec_.flush(s);
}

}  // namespace facet
