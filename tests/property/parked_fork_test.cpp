// A request that was parked in the middle of its answer goes on in a fork that nothing has mapped yet: another request
// with the same beginning took the session that it left, and what stays of that is a copy without addresses.
#include "api/engine.h"
#include "model/find_drafter.h"
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
std::vector<int32_t> answer(Engine& e, const Request& r) {
  Heard h;
  send(e, r, h);
  while (e.tick()) {
  }
  return h.tokens;
}

// A long prompt, an answer that runs out of memory beside it, and what begins as the two do.
struct Requests {
  Request first, parked, third;
};

// Whether the answer was parked and kept its session, and then gave it to the third.
bool went_on_in_a_fork(const EngineConfig& c, const Requests& r, const std::vector<int32_t>& want) {
  auto e = must(Engine::open(c));
  Heard first, parked, third;
  const RequestId id = send(*e, r.first, first);
  send(*e, r.parked, parked);
  while (e->cache_stats().parked == 0 && e->tick()) {
  }
  if (parked.done || parked.tokens.empty()) return false;
  bool kept = false;
  e->list_slots([&](const std::vector<SlotInfo>& slots) {
    for (const SlotInfo& s : slots) kept |= !s.running && s.tokens > int(r.parked.prompt.size());
  });
  e->cancel(id);
  Request again = r.third;
  again.prompt.insert(again.prompt.end(), parked.tokens.begin(), parked.tokens.end() - 4);
  for (int i = 0; i < 8; ++i) again.prompt.push_back(200 + i);
  send(*e, again, third);
  while (e->tick()) {
  }
  EXPECT_EQ(parked.error, "");
  EXPECT_EQ(third.error, "");
  EXPECT_EQ(parked.tokens, want);
  EXPECT_GT(parked.usage.accepted, 0);
  again.cache = false;
  EXPECT_EQ(third.tokens, answer(*e, again));
  return kept && third.usage.cached >= int(r.parked.prompt.size());
}

TEST(ParkedFork, GoesOnWithDraftsBeforeItIsMapped) {
  const std::string model = fmt::format("{}/models/facet-nano-Q8_0.gguf", FACET_SOURCE_DIR);
  EngineConfig c;
  c.model = model;
  c.backend = "cpu";
  c.n_ctx = 2048;
  c.max_seq = 2;
  c.snapshots = 4;
  c.n_threads = 1;
  c.max_stall = 0;  // steps are the same on a fast machine and on a slow one
  c.cache_ram = 0;  // a session that is being copied out is forked the other way round
  c.kv_k = c.kv_v = KvType::kF32;
  c.draft.files = {find_drafter_beside(model, "mtp").path};
  c.draft.min = c.draft.max = 4;

  Requests r;
  auto roomy = must(Engine::open(c));
  for (const EvalDoc& d : must(read_eval_set(fmt::format("{}/models/facet-nano-eval.jsonl", FACET_SOURCE_DIR)))) {
    std::vector<int32_t> prompt = roomy->tokenizer()->encode(d.context, false, true);
    if (!d.kind.starts_with("remember") || prompt.size() < 260 || prompt.size() > 500) continue;
    Request q{.prompt = prompt, .max_tokens = 400, .ignore_eos = true};
    q.sampling = {.temperature = 0};
    if (r.first.prompt.empty()) {
      r.first = q;
    } else {
      r.parked = q;
      break;
    }
  }
  r.parked.priority = 1;
  r.third = r.parked;
  r.third.priority = -1, r.third.max_tokens = 8;
  const std::vector<int32_t> want = answer(*roomy, r.parked);
  const int64_t all = roomy->cache_stats().gpu.limit;
  roomy = nullptr;

  // Which of the two needs the page that is missing is another at every limit.
  int reached = 0;
  for (int percent = 26; percent <= 40 && reached < 2; ++percent) {
    c.kv_memory = all * percent / 100;
    reached += went_on_in_a_fork(c, r, want);
  }
  EXPECT_EQ(reached, 2);
}

}  // namespace
}  // namespace facet::test
