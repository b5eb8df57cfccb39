// The law of caches: wherever a conversation's beginning comes from (computed afresh, the pool, host memory, a file
// that another process left), its text and the drafts accepted in every step are the same.
// Long: one law, with the tiers, engines and conversations that all of its tests are made of.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "compose/load_model.h"
#include "model/find_drafter.h"
#include "model/gemma4_config.h"
#include "session/fingerprint.h"
#include "support/sanitized.h"
#include "support/scripted_drafter.h"
#include "support/session_edit.h"
#include "support/tiny_model.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"

namespace facet::test {
namespace {

bool full() { return std::getenv("FACET_TEST_FULL") != nullptr; }
std::string model_path(const std::string& name) { return fmt::format("{}/models/{}", FACET_SOURCE_DIR, name); }

// An answer with the tokens of each of its steps.
struct Told {
  std::vector<int32_t> tokens;
  std::vector<int> steps;
  Usage usage;
  std::string error;
};
std::vector<Told> ask(Engine& e, const std::vector<Request>& requests) {
  std::vector<Told> told(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Told& t = told[i];
    must(e.submit(requests[i], {.tokens =
                                    [&t](RequestId, std::span<const int32_t> ids) {
                                      t.tokens.insert(t.tokens.end(), ids.begin(), ids.end());
                                      t.steps.push_back(int(ids.size()));
                                    },
                                .done = [&t](RequestId, Stop, const Usage& u,
                                             const std::string& error) { t.usage = u, t.error = error; }}));
  }
  while (e.tick()) {
  }
  return told;
}

struct Case {
  std::string model, draft;  // draft: none, dflash, mtp, suffix, both (dflash and suffix) or auto
  KvType kv = KvType::kF16;
  int n_seq = 1;
  bool tree = false;
  std::string name() const {
    return fmt::format("{} {} {} x{}{}", model, draft, kv_type_name(kv), n_seq, tree ? " tree" : "");
  }
};

// Times decide which drafter is asked, and so how many tokens a step brings.
bool timed(const Case& c) { return c.draft == "auto" || c.draft == "both"; }

EngineConfig config(const Case& c) {
  EngineConfig e;
  e.model = model_path(c.model);
  e.backend = "cpu";
  e.n_ctx = 1024;
  e.max_seq = c.n_seq;
  e.chunk = 256;
  e.n_threads = 1;  // threads that wait for each other are slow beside other programs
  e.kv_k = e.kv_v = c.kv;
  e.cache_ram = 256 << 20;
  if (c.draft == "none") return e;
  e.draft.suffix = c.draft == "suffix" || c.draft == "both";
  for (const char* kind : {"dflash", "mtp"})
    if (c.draft == kind || c.draft == "auto" || (c.draft == "both" && kind == std::string("dflash")))
      e.draft.files.push_back(find_drafter_beside(e.model, kind).path);
  if (c.draft == "auto") return e;  // times decide
  e.draft.max = e.draft.min = 4;
  if (c.tree) e.draft.tree = 15;
  if (c.tree && c.draft == "suffix") e.draft.min = 15;  // else times decide how much of a tree is verified
  return e;
}

// What a client asks in two turns. The first prompts are longer than the window of 256 tokens, some than its ring.
struct Talk {
  Request first, second, changed;  // changed: the answer comes back without its beginning, as thoughts are dropped
};
std::vector<Talk> talks(Engine& e, int n, size_t least = 260) {
  const auto docs = must(read_eval_set(model_path("facet-nano-eval.jsonl")));
  std::vector<Talk> all;
  for (const EvalDoc& d : docs) {
    if (int(all.size()) == n) break;
    if (!d.kind.starts_with("remember") && !d.kind.starts_with("tools")) continue;
    Talk t;
    t.first = {.prompt = e.tokenizer()->encode(d.context, false, true), .max_tokens = 24, .ignore_eos = true};
    if (t.first.prompt.size() < least || t.first.prompt.size() > 500) continue;
    t.first.sampling = {.temperature = 0};
    all.push_back(std::move(t));
  }
  CHECK(int(all.size()) == n, "{} documents", all.size());
  return all;
}
void answer_first(Engine& e, std::vector<Talk>& talks) {
  std::vector<Request> first;
  for (const Talk& t : talks) first.push_back(t.first);
  const auto told = ask(e, first);
  for (size_t i = 0; i < talks.size(); ++i) {
    const auto more = e.tokenizer()->encode(
        fmt::format("<turn|>\n<|turn>user\nWrite job, age, name and city of person {} as JSON.<turn|>\n<|turn>model\n",
                    i),
        false, true);
    for (const bool changed : {false, true}) {
      Request& r = changed ? talks[i].changed : talks[i].second;
      r = talks[i].first;
      r.prompt.insert(r.prompt.end(), told[i].tokens.begin() + (changed ? 8 : 0), told[i].tokens.end());
      r.prompt.insert(r.prompt.end(), more.begin(), more.end());
      r.max_tokens = 30;
    }
  }
}
std::vector<Request> of(const std::vector<Talk>& talks, Request Talk::*which) {
  std::vector<Request> r;
  for (const Talk& t : talks) r.push_back(t.*which);
  return r;
}
std::vector<Request> cold(std::vector<Request> r) {
  for (Request& q : r) q.cache = false;
  return r;
}

using Source = CacheUse::Source;
// The answers of `got` are those of `want`, with as many tokens in every step; the beginnings came from `source`.
int differences(const std::vector<Told>& got, const std::vector<Told>& want, std::optional<Source> source, bool steps,
                const std::string& what) {
  int n = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool text = got[i].tokens == want[i].tokens, same_steps = !steps || got[i].steps == want[i].steps;
    const bool from = !source || got[i].usage.cache.source == *source;
    if (!text || !same_steps || !from)
      std::printf("%s, conversation %zu: text %d steps %d (accepted %d for %d) from %s%s\n", what.c_str(), i, text,
                  same_steps, got[i].usage.accepted, want[i].usage.accepted,
                  cache_source_name(got[i].usage.cache.source), got[i].error.c_str());
    n += !text || !same_steps || !from;
  }
  return n;
}
// Other requests take every place in the pool.
void push_out(Engine& e, int n, int first = 900) {
  std::vector<Request> r;
  for (int i = first; i < first + n; ++i)
    r.push_back({.prompt = random_ids(280, 200, unsigned(i)), .max_tokens = 1, .sampling = {.temperature = 0}});
  ask(e, r);
}

void check_law(const Case& c) {
  const bool steps = !timed(c);
  const TempFolder dir;
  EngineConfig e = config(c);
  auto fresh = must(Engine::open(e));
  std::vector<Talk> t = talks(*fresh, c.n_seq);
  answer_first(*fresh, t);
  const auto second = of(t, &Talk::second), changed = of(t, &Talk::changed);
  const auto want = ask(*fresh, cold(second)), want_changed = ask(*fresh, cold(changed));
  int accepted = 0;
  for (const Told& w : want) accepted += w.usage.accepted;
  if (steps && c.draft != "none") {
    EXPECT_GT(accepted, 0) << c.name() << ": nothing was drafted right";
  }

  // In the pool: what ran, and for a changed answer the snapshot at the end of the prompt.
  EXPECT_EQ(differences(ask(*fresh, changed), want_changed, Source::kGpu, steps, c.name() + " changed, pool"), 0);
  EXPECT_EQ(differences(ask(*fresh, second), want, Source::kGpu, steps, c.name() + " pool"), 0);
  // Twice the same at once: the second waits for the first, and forks it.
  if (c.n_seq > 1) {
    std::vector<Request> forks = {second[0], second[0]};
    for (Request& r : forks) r.cache_salt = "fork";
    forks[1].prompt.insert(forks[1].prompt.end() - 4, 100);
    const auto forked = ask(*fresh, forks), alone = ask(*fresh, cold(forks));
    EXPECT_EQ(differences(forked, alone, std::nullopt, steps, c.name() + " fork"), 0);
    EXPECT_GT(forked[1].usage.cached, 200);
  }
  fresh = nullptr;

  // Host memory, and a file of a process that ended.
  e.snapshots = 2;
  e.cache_disk = dir.path();
  {
    auto first = must(Engine::open(e));
    ask(*first, of(t, &Talk::first));
    push_out(*first, 2 * c.n_seq + 2);
    EXPECT_EQ(differences(ask(*first, second), want, Source::kRam, steps, c.name() + " RAM"), 0);
  }
  EXPECT_GE(dir.sessions().size(), size_t(c.n_seq));
  auto restarted = must(Engine::open(e));
  EXPECT_EQ(differences(ask(*restarted, changed), want_changed, Source::kDisk, steps, c.name() + " changed, disk"), 0);
  restarted = nullptr;
  restarted = must(Engine::open(e));
  const auto told = ask(*restarted, second);
  EXPECT_EQ(differences(told, want, std::nullopt, steps, c.name() + " disk"), 0);
  EXPECT_GT(restarted->cache_stats().disk.hits, 0);
}

// Requests that had to wait in the middle for memory go on as they would have.
void check_parking(const Case& c) {
  EngineConfig e = config(c);
  e.snapshots = 0;
  auto roomy = must(Engine::open(e));
  std::vector<Talk> t = talks(*roomy, c.n_seq);
  std::vector<Request> r = cold(of(t, &Talk::first));
  for (Request& q : r) q.max_tokens = 400;
  const auto want = ask(*roomy, r);
  const int64_t used = roomy->cache_stats().gpu.limit;
  roomy = nullptr;
  for (size_t i = 0; i < r.size(); ++i) r[i].cache = i != 2;  // one leaves nothing behind when it is parked
  // At how much memory a request runs out, for rows of the model or of a drafter, is another at every limit.
  struct Limit {
    int64_t ram, percent;
  };
  std::vector<Limit> limits = {{0, 60}, {256 << 20, 60}};
  if (c.draft == "dflash") limits.insert(limits.end(), {{0, 50}, {256 << 20, 70}});
  if (full()) limits = {{0, 45}, {0, 50}, {0, 55}, {0, 60}, {0, 65}, {0, 70}, {0, 80}};
  if (full())
    for (size_t i = 0, n = limits.size(); i < n; ++i) limits.push_back({256 << 20, limits[i].percent});
  for (const Limit& l : limits) {
    e.cache_ram = l.ram;
    e.kv_memory = used * l.percent / 100;
    auto tight = must(Engine::open(e));
    const auto told = ask(*tight, r);
    EXPECT_EQ(differences(told, want, std::nullopt, !timed(c), fmt::format("{} parked at {} %", c.name(), l.percent)),
              0);
    EXPECT_GT(tight->cache_stats().parked, 0) << c.name() << " at " << l.percent;
  }
}

const char* const kModels[] = {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"};
constexpr KvType kTypes[] = {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0, KvType::kF32};

TEST(CacheLaw, HoldsForEveryWayBack) {
  std::vector<Case> cases;
  if (full())
    for (const char* model : kModels)
      for (const char* draft : {"none", "dflash", "mtp", "suffix", "both", "auto"})
        for (const KvType kv : kTypes)
          for (const int n_seq : {1, 8})
            for (const bool tree : {false, true})
              if (!tree || draft == std::string("dflash") || draft == std::string("mtp"))
                cases.push_back({model, draft, kv, n_seq, tree});
  if (!full())
    cases = {{kModels[0], "dflash", KvType::kF16, 1, false}, {kModels[0], "mtp", KvType::kQ8_0, 3, true},
             {kModels[1], "dflash", KvType::kQ4_0, 3, true}, {kModels[1], "mtp", KvType::kTQ3_0, 1, false},
             {kModels[0], "auto", KvType::kF32, 1, false},   {kModels[1], "none", KvType::kF16, 8, false},
             {kModels[0], "suffix", KvType::kTQ3_0, 3, true}};
  if (!full() && kSanitized)
    cases = {{kModels[0], "mtp", KvType::kQ8_0, 2, true}, {kModels[1], "dflash", KvType::kTQ3_0, 1, false}};
  for (const Case& c : cases) check_law(c);
}

TEST(CacheLaw, HoldsAfterParking) {
  std::vector<Case> cases = {{kModels[0], "dflash", KvType::kF16, 4, false},
                             {kModels[1], "mtp", KvType::kQ8_0, 4, false}};
  if (full())
    for (const KvType kv : kTypes)
      for (const char* draft : {"none", "dflash", "mtp", "auto"}) cases.push_back({kModels[0], draft, kv, 4, false});
  if (!full() && kSanitized) cases.pop_back();
  for (const Case& c : cases) check_parking(c);
}

// Copies of states take their time, and no running request's: a reader goes on while two conversations come back, and
// what goes next was copied before its memory is wanted.
TEST(CacheLaw, HoldsBesideSlowCopies) {
  EngineConfig c = config({kModels[0], "dflash", KvType::kF16, 3, false});
  c.chunk = 256 + 64;
  auto plain = must(Engine::open(c));
  std::vector<Talk> t = talks(*plain, 3);
  answer_first(*plain, t);
  auto second = of(t, &Talk::second);
  second.resize(2);
  const auto want = ask(*plain, cold(second));
  plain = nullptr;

  c.snapshots = 3;
  auto e = must(Engine::open(c, {.slow_copies = std::chrono::milliseconds(20)}));
  ask(*e, of(t, &Talk::first));
  push_out(*e, 8);
  // Nobody asks for anything: the two that would go next are copied.
  for (int i = 0; i < 2; ++i) e->tick(), std::this_thread::sleep_for(std::chrono::milliseconds(500));
  e->tick();
  const CacheStats before = e->cache_stats();
  push_out(*e, 1, 950);  // not back from a copy: its time would say that computing is faster
  EXPECT_GT(e->cache_stats().gpu.evictions, before.gpu.evictions);
  EXPECT_EQ(e->cache_stats().copies_waited, before.copies_waited);

  int steps = 0, begun_at[2] = {-1, -1};
  std::vector<Told> told(2);
  Request reader = t[2].first;
  reader.max_tokens = 400, reader.cache = false;
  must(e->submit(reader, {.tokens = [&](RequestId, std::span<const int32_t>) { ++steps; }, .done = {}}));
  while (steps < 3) e->tick();
  const int asked_at = steps;
  for (size_t i = 0; i < 2; ++i)
    must(e->submit(second[i],
                   {.tokens =
                        [&told, i](RequestId, std::span<const int32_t> ids) {
                          told[i].tokens.insert(told[i].tokens.end(), ids.begin(), ids.end());
                          told[i].steps.push_back(int(ids.size()));
                        },
                    .done = [&told, i](RequestId, Stop, const Usage& u,
                                       const std::string& error) { told[i].usage = u, told[i].error = error; },
                    .prefill =
                        [&, i](RequestId, int cached, int) {
                          if (cached > 0 && begun_at[i] < 0) begun_at[i] = steps;
                        }}));
  while (e->tick()) {
  }
  EXPECT_EQ(differences(told, want, Source::kRam, true, "slow copies"), 0);
  for (const int at : begun_at) EXPECT_GE(at, asked_at + 3) << "the reader waited for the copies";
}

// A request needs the memory that a state takes which is on its way for another: it gets it, and neither fails.
TEST(CacheLaw, AStateOnItsWayMakesRoom) {
  EngineConfig c = config({kModels[0], "none", KvType::kF16, 2, false});
  c.snapshots = 0;
  auto roomy = must(Engine::open(c));
  std::vector<Talk> t = talks(*roomy, 1);
  answer_first(*roomy, t);
  Request reader = {.prompt = random_ids(40, 200, 3), .max_tokens = 900, .ignore_eos = true};
  reader.sampling = {.temperature = 0}, reader.cache = false;
  const auto want = ask(*roomy, cold({t[0].second, reader}));
  const int64_t page = 32 << 10, rows = roomy->cache_stats().gpu.limit;  // of both, as far as the context goes
  roomy = nullptr;

  c.kv_memory = rows * 55 / 100 / page * page;
  auto e = must(Engine::open(c, {.slow_copies = std::chrono::milliseconds(50)}));
  ask(*e, {t[0].first});
  push_out(*e, 3);
  std::vector<Told> told(2);
  auto submit = [&](const Request& r, Told& out) {
    must(e->submit(r, {.tokens =
                           [&out](RequestId, std::span<const int32_t> ids) {
                             out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
                             out.steps.push_back(int(ids.size()));
                           },
                       .done = [&out](RequestId, Stop, const Usage& u,
                                      const std::string& error) { out.usage = u, out.error = error; }}));
  };
  submit(reader, told[1]);
  while (told[1].tokens.empty()) e->tick();
  submit(t[0].second, told[0]);
  while (e->tick()) {
  }
  EXPECT_EQ(told[0].error, "");
  EXPECT_EQ(told[1].error, "");
  EXPECT_EQ(differences(told, want, std::nullopt, false, "a state on its way"), 0);
  EXPECT_GT(e->cache_stats().ram.restores, 0);
}

// A file is read at any speed: also one that is read between a look at the request that waits for it and the end of
// that look's tick, which is then not the last.
TEST(CacheLaw, AStateThatComesWhileNobodyLooks) {
  const TempFolder dir;
  EngineConfig c = config({kModels[0], "none", KvType::kF16, 1, false});
  c.cache_disk = dir.path();
  std::vector<Talk> t;
  Told want;
  {
    auto e = must(Engine::open(c));
    t = talks(*e, 1);
    answer_first(*e, t);
    want = ask(*e, cold({t[0].second}))[0];
  }
  ASSERT_FALSE(dir.sessions().empty());
  int ticks = 0;
  auto e = must(Engine::open(c, {.admitted = [&] {
                               if (++ticks < 4) std::this_thread::sleep_for(std::chrono::milliseconds(300));
                             }}));
  EXPECT_EQ(differences(ask(*e, {t[0].second}), {want}, Source::kDisk, true, "read meanwhile"), 0);
}

// --- planted bugs: what the law must catch

// A conversation whose state lies in a file, what its second turn says cold, and what it says after the file was
// changed.
class Planted : public testing::Test {
 protected:
  void SetUp() override { prepare({kModels[0], "dflash", KvType::kF16, 1, false}); }
  void prepare(const Case& c) {
    case_ = c;
    config_ = config(c);
    config_.cache_disk = dir_.path();
    auto e = must(Engine::open(config_));
    talk_ = talks(*e, 1, 380);  // longer than a ring
    answer_first(*e, talk_);
    want_ = ask(*e, cold({talk_[0].second}))[0];
  }
  // Differences of the second turn, from the file as it is now.
  int answers_differ(const EngineConfig& c, std::optional<Source> source = Source::kDisk) {
    auto e = must(Engine::open(c));
    return differences(ask(*e, {talk_[0].second}), {want_}, source, true, "planted");
  }
  // The file of the longest state: of the whole first turn.
  std::string longest() const {
    std::string best;
    size_t n = 0;
    for (const std::string& f : dir_.sessions())
      if (const SessionBytes s = open_session_bytes(f); s.header.tokens.size() > n)
        best = f, n = s.header.tokens.size();
    return best;
  }
  Case case_;
  EngineConfig config_;
  TempFolder dir_;
  std::vector<Talk> talk_;
  Told want_;
};

TEST_F(Planted, NothingIsNoBug) { EXPECT_EQ(answers_differ(config_), 0); }

// The rings hold what came a little later: newer rows lie where older ones are still seen.
TEST_F(Planted, RingsTakenLate) {
  const std::string file = longest();
  SessionBytes s = open_session_bytes(file);
  const SessionHeader::Owner& model = s.header.owners[0];
  for (const SessionHeader::Section& p : model.sections) {
    if (p.rows == uint64_t(model.len)) continue;  // a full layer
    const auto rows = s.section(p);
    const size_t at = size_t(uint64_t(model.len) % p.rows * p.row_bytes), row = size_t(p.row_bytes);
    // The places of the next 150 rows: some 70 that the window still has are gone.
    for (size_t i = 0; i < 150; ++i) {
      const size_t to = (at + i * row) % rows.size(), from = (at + rows.size() - row) % rows.size();
      std::copy_n(rows.begin() + ptrdiff_t(from), row, rows.begin() + ptrdiff_t(to));
    }
  }
  seal_session_bytes(file, s);
  EXPECT_EQ(answers_differ(config_), 1);
}

TEST_F(Planted, ARowOfTheModelIsAnothers) {
  const std::string file = longest();
  SessionBytes s = open_session_bytes(file);
  for (const SessionHeader::Section& p : s.header.owners[0].sections)
    if (p.rows == uint64_t(s.header.owners[0].len))
      for (std::byte& b : s.section(p)) b = std::byte(uint8_t(b) ^ (uint8_t(b) & 2 ? 0 : 0x40));
  seal_session_bytes(file, s);
  EXPECT_EQ(answers_differ(config_), 1);
}

// The features that waited were never absorbed: the drafter's last rows are not those of the tokens.
TEST_F(Planted, ASnapshotWithoutWaitingFeatures) {
  const std::string file = longest();
  SessionBytes s = open_session_bytes(file);
  const SessionHeader::Owner& drafter = s.header.owners[1];
  ASSERT_EQ(drafter.len, s.header.owners[0].len);
  std::mt19937 rng(1);
  for (const SessionHeader::Section& p : drafter.sections) {
    const auto rows = s.section(p);
    const size_t row = size_t(p.row_bytes);
    for (int i = 1; i <= 64; ++i) {  // whatever the memory held before: numbers between 1 and 8 in f16
      const auto at = rows.subspan(size_t(uint64_t(drafter.len - i) % p.rows) * row, row);
      for (size_t b = 1; b < row; b += 2) at[b] = std::byte(0x3c + rng() % 12 + (rng() & 1 ? 0x80 : 0));
    }
  }
  seal_session_bytes(file, s);
  EXPECT_EQ(answers_differ(config_), 1);
}

// A drafter that knows less than the model says so: the tokens between are computed again, and nothing is lost.
TEST_F(Planted, AShorterDrafterIsNoBug) {
  const std::string file = longest();
  SessionBytes s = open_session_bytes(file);
  cut_session_bytes(file, s, 1, s.header.owners[1].len - 5);
  EXPECT_EQ(answers_differ(config_), 0);
}

// A salt that is ignored, a drafter that the fingerprint forgets: the file is used where it must not be.
TEST_F(Planted, AnIgnoredSalt) {
  talk_[0].second.cache_salt = "mine";
  EXPECT_EQ(answers_differ(config_, Source::kNone), 0) << "what another salt left is not used";
  talk_[0].second.cache_salt = "";  // as if nobody had given one
  EXPECT_EQ(answers_differ(config_, Source::kNone), 1);
}

TEST_F(Planted, AFingerprintWithoutTheDrafter) {
  EngineConfig other = config_;
  other.draft.files = {find_drafter_beside(config_.model, "mtp").path};
  const auto fingerprint = [](const EngineConfig& c, bool with_drafters) {
    LoadedModel m = must(load_model(c.model));
    for (const std::string& f : c.draft.files) m.drafters.push_back(must(DrafterFile::open(f)));
    const EngineConfig decided = must(resolve_config(m.file, m.cfg, c, m.drafters));
    if (!with_drafters) m.drafters.clear();
    return session_fingerprint(m.file, m.cfg, decided, m.drafters);
  };
  EXPECT_NE(fingerprint(config_, true), fingerprint(other, true));
  EXPECT_EQ(fingerprint(config_, true), fingerprint(config_, true));
  EXPECT_EQ(fingerprint(config_, false), fingerprint(other, false)) << "the drafter alone tells them apart";
  for (const auto& change : std::vector<std::function<void(EngineConfig&)>>{
           [](EngineConfig& c) { c.kv_k = KvType::kQ8_0; }, [](EngineConfig& c) { c.kv_v = KvType::kF32; },
           [](EngineConfig& c) {
             c.kv_layers = {{1, 1, {KvType::kQ8_0, KvType::kQ8_0}}};
           },
           [](EngineConfig& c) { c.margin = 80; }, [](EngineConfig& c) { c.model = model_path(kModels[1]); },
           [](EngineConfig& c) { c.backend = "ref"; }, [](EngineConfig& c) { c.draft.files.clear(); }}) {
    EngineConfig c = config_;
    change(c);
    EXPECT_NE(fingerprint(config_, true), fingerprint(c, true));
  }
  // A file of the other drafter is not used, and one whose fingerprint lies has not this engine's sections.
  auto e = must(Engine::open(other));
  EXPECT_EQ(ask(*e, {talk_[0].second})[0].usage.cached, 0);
  e = nullptr;
  for (const std::string& f : dir_.sessions()) {
    SessionBytes s = open_session_bytes(f);
    const auto mine = fingerprint(other, true);
    if (s.header.fingerprint == mine) continue;
    s.header.fingerprint = mine;
    seal_session_bytes(f, s);
  }
  e = must(Engine::open(other));
  talk_[0].second.prompt.push_back(5);
  EXPECT_EQ(ask(*e, {talk_[0].second})[0].error, "");
}

// Rows of a page that a fork shares are written by the one that goes on.
TEST(CacheLawPlanted, APageWrittenWhileShared) {
  struct Peek : KvCache {
    static auto sequences() { return &Peek::seq_; }
  };
  const TinyFile file;
  const auto ids = random_ids(220, 96, 1), more = random_ids(20, 96, 2);
  for (const bool planted : {false, true}) {
    Harness<CpuRef> h(
        file.path(),
        {.k = KvType::kF32, .v = KvType::kF32, .max_seq = 2, .max_ctx = 512, .max_step = 64, .margin = 16});
    const auto want = h.logits(ids, {30});
    h.cache().clear(0);
    h.logits(std::span(ids).first(200), {30});
    must(h.cache().fork(0, 1));
    // The fork goes back and on with something else, in rows that both have.
    ASSERT_EQ(h.cache().rewind(1, 186), Rewind::kDone);
    if (planted) (h.cache().*Peek::sequences())[1].shared_below = 0;
    h.begin();
    h.add({.slot = 1, .token = std::span(more).first(14), .out = Out::kLast});
    h.forward();
    h.cache().commit(1, 14);
    h.begin();
    h.add({.slot = 0, .token = std::span(ids).subspan(200), .out = Out::kAll});
    const auto got = h.forward();
    const bool same = bitwise_equal(got, std::span(want).subspan(want.size() - got.size()));
    EXPECT_EQ(same, !planted);
  }
}

}  // namespace
}  // namespace facet::test
