// States that come back while others have to go. A restore maps its memory in pieces between steps, and what it needs
// may have to be evicted first; and a state that a parked answer left may come back for somebody else first.
#include <algorithm>

#include "api/engine.h"
#include "base/check.h"
#include "model/find_drafter.h"
#include "support/sanitized.h"
#include "support/tiny_model.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"

namespace facet::test {
namespace {

struct Heard {
  std::vector<int32_t> tokens;
  Usage usage;
  std::string error;
  bool done = false;
};
RequestId send(Engine& e, Request r, Heard& to) {
  return must(e.submit(
      std::move(r),
      {.tokens = [&to](RequestId,
                       std::span<const int32_t> ids) { to.tokens.insert(to.tokens.end(), ids.begin(), ids.end()); },
       .done = [&to](RequestId, Stop, const Usage& u,
                     const std::string& error) { to.usage = u, to.error = error, to.done = true; }}));
}
Heard answer(Engine& e, Request r, bool cache = false) {
  Heard h;
  r.cache = cache;
  send(e, std::move(r), h);
  while (e.tick()) {
  }
  return h;
}

std::string model_path() { return fmt::format("{}/models/facet-nano-Q8_0.gguf", FACET_SOURCE_DIR); }
EngineConfig config(int max_seq, int snapshots) {
  EngineConfig c;
  c.model = model_path();
  c.backend = "cpu";
  c.n_ctx = 2048;
  c.max_seq = max_seq;
  c.snapshots = snapshots;
  c.n_threads = 1;
  c.cache_ram = 256 << 20;
  c.kv_k = c.kv_v = KvType::kF32;
  c.draft.files = {find_drafter_beside(model_path(), "mtp").path};
  c.draft.min = c.draft.max = 4;
  return c;
}
// Prompts of so many tokens at least, of a document or of several.
std::vector<Request> questions(const Engine& e, size_t n, size_t least, int max_tokens) {
  std::vector<Request> all;
  Request q{.max_tokens = max_tokens, .ignore_eos = true};
  q.sampling = {.temperature = 0};
  for (const EvalDoc& d : must(read_eval_set(fmt::format("{}/models/facet-nano-eval.jsonl", FACET_SOURCE_DIR)))) {
    const std::vector<int32_t> ids = e.tokenizer()->encode(d.context, false, true);
    if (!d.kind.starts_with("remember") || ids.size() > 500) continue;
    q.prompt.insert(q.prompt.end(), ids.begin(), ids.end());
    if (q.prompt.size() < least) continue;
    all.push_back(q);
    q.prompt.clear();
    if (all.size() == n) break;
  }
  CHECK(all.size() == n, "{} prompts", all.size());
  return all;
}
Request next_turn(const Request& first, const std::vector<int32_t>& said, int more) {
  Request r = first;
  r.prompt.insert(r.prompt.end(), said.begin(), said.end());
  for (int i = 0; i < more; ++i) r.prompt.push_back(200 + i);
  return r;
}

// Ticks until all are done. Counts the sessions that were evicted in ticks between which a state was on its way.
int evicted_while_restoring(Engine& e, std::span<const Heard> heard) {
  int64_t evicted = 0, before = e.cache_stats().gpu.evictions;
  const auto over = [&] { return std::ranges::all_of(heard, [](const Heard& h) { return h.done; }); };
  for (bool filling = false; !over();) {
    bool fills = false;
    e.list_slots([&](const std::vector<SlotInfo>& slots) {
      for (const SlotInfo& s : slots) fills |= !s.running && !s.empty && s.tokens == 0;
    });
    e.tick();
    const int64_t now = e.cache_stats().gpu.evictions;
    if (filling && fills) evicted += now - before;
    before = now, filling = fills;
  }
  return int(evicted);
}

// The pool holds little more than one conversation and a reader, and two come back at once while others lie in it: what
// is idle goes down while a state comes up, and a state that has just come may have to go for the other. Without the
// reader all of it happens within a tick.
TEST(Restore, EvictsOnTheWay) {
  EngineConfig c = config(3, 9);
  auto roomy = must(Engine::open(c));
  const std::vector<Request> first = questions(*roomy, 4, 1200, 40);
  std::vector<Request> second;
  std::vector<Heard> want;
  for (const Request& q : first) {
    second.push_back(next_turn(q, answer(*roomy, q).tokens, 8));
    want.push_back(answer(*roomy, second.back()));
  }
  const Request reader{.prompt = {first[0].prompt.begin(), first[0].prompt.begin() + 40},
                       .max_tokens = 1500,
                       .sampling = {.temperature = 0},
                       .ignore_eos = true,
                       .cache = false};
  const std::vector<int32_t> read = answer(*roomy, reader).tokens;
  const int64_t all = roomy->cache_stats().gpu.limit;
  roomy = nullptr;

  int evicted = 0, restores = 0;
  for (const int percent : kSanitized ? std::vector{40} : std::vector{40, 54})
    for (const bool beside : {true, false}) {
      c.kv_memory = all * percent / 100;
      auto e = must(Engine::open(c, {.slow_copies = std::chrono::microseconds(300)}));
      for (const Request& q : first) answer(*e, q, true);
      Heard reads;
      if (beside) send(*e, reader, reads);
      while (beside && reads.tokens.empty()) e->tick();
      for (const size_t pair : {0, 2}) {
        Heard heard[2];
        const size_t other = (pair + 1) % first.size();
        send(*e, second[pair], heard[0]), send(*e, second[other], heard[1]);
        evicted += evicted_while_restoring(*e, heard);
        for (const auto& [h, of] : {std::pair(&heard[0], pair), std::pair(&heard[1], other)}) {
          EXPECT_EQ(h->error, "") << percent << " %";
          EXPECT_EQ(h->tokens, want[of].tokens) << percent << " %, conversation " << of;
        }
      }
      EXPECT_TRUE(std::equal(reads.tokens.begin(), reads.tokens.end(), read.begin())) << percent << " %, the reader";
      EXPECT_EQ(reads.error, "");
      restores += int(e->cache_stats().ram.restores);
    }
  EXPECT_GT(restores, kSanitized ? 3 : 6);
  EXPECT_GT(evicted, kSanitized ? 1 : 3) << "no state made room for itself on its way";
}

// A long prompt, an answer that is parked beside it and then evicted, and a request that begins as the answer does.
struct Requests {
  Request first, parked, third;
};

// Whether the answer was parked and evicted to host memory, and the third went on from that state, before or beside it.
// Where there is room for both the answer takes the copy that the third left (tiers_test.cpp has that case alone).
bool went_on_behind_another(const EngineConfig& c, const Requests& r, const std::vector<int32_t>& want, bool beside) {
  auto e = must(Engine::open(c));
  Heard first, parked, third;
  const RequestId id = send(*e, r.first, first);
  send(*e, r.parked, parked);
  while (e->cache_stats().parked == 0 && e->tick()) {
  }
  if (parked.done || parked.tokens.empty()) return false;
  // The first goes on until what the parked one left has to go.
  bool kept = true;
  while (kept && !first.done) {
    kept = false;
    e->list_slots([&](const std::vector<SlotInfo>& slots) {
      for (const SlotInfo& s : slots) kept |= !s.running && s.tokens > int(r.parked.prompt.size());
    });
    e->tick();
  }
  if (kept || first.done || e->cache_stats().ram.entries == 0) return false;
  if (!beside) e->cancel(id);
  const Request again = next_turn(r.third, {parked.tokens.begin(), parked.tokens.end() - 4}, 8);
  send(*e, again, third);
  while (!third.done || !parked.done) e->tick();
  e->cancel(id);
  while (e->tick()) {
  }
  EXPECT_EQ(parked.error, "");
  EXPECT_EQ(third.error, "");
  EXPECT_EQ(parked.tokens, want);
  EXPECT_GT(parked.usage.accepted, 0);
  EXPECT_EQ(third.tokens, answer(*e, again).tokens);
  return third.usage.cache.source == CacheUse::Source::kRam && third.usage.cached >= int(r.parked.prompt.size());
}

TEST(Restore, AParkedAnswerWhoseStateAnotherBroughtBack) {
  EngineConfig c = config(2, 4);
  auto roomy = must(Engine::open(c));
  const std::vector<Request> two = questions(*roomy, 2, 260, 400);
  Requests r{.first = two[0], .parked = two[1], .third = two[1]};
  r.first.max_tokens = 1200;
  r.parked.priority = 1;
  r.third.priority = -1, r.third.max_tokens = 8;
  const std::vector<int32_t> want = answer(*roomy, r.parked).tokens;
  const int64_t all = roomy->cache_stats().gpu.limit;
  roomy = nullptr;

  // Which of the two needs the page that is missing is another at every limit.
  int reached = 0;
  for (int percent = 28; percent <= 60 && reached < 2; percent += 2) {
    c.kv_memory = all * percent / 100;
    reached += went_on_behind_another(c, r, want, false);
  }
  EXPECT_EQ(reached, 2);
}

}  // namespace
}  // namespace facet::test
