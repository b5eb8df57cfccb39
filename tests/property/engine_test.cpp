// The engine on the tiny model: what a request gets does not depend on what else runs, what came before, or how steps
// were cut.
#include <fmt/format.h>
#include <filesystem>

#include <unistd.h>

#include "api/engine.h"
#include "compose/plan.h"
#include "model/gemma4_config.h"
#include "model/types.h"
#include "support/answers.h"
#include "support/must.h"
#include "support/rewrite_gguf.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

EngineConfig config(const TinyFile& f) {
  EngineConfig c;
  c.model = f.path();
  c.n_ctx = 256;
  c.max_seq = 3;
  c.chunk = 40;
  c.margin = 16;
  c.n_threads = 1;
  return c;
}
Request request(int seed, int n_prompt, int n_out) {
  return {.prompt = random_ids(n_prompt, 96, unsigned(seed)),
          .max_tokens = n_out,
          .sampling = {.temperature = 1, .top_k = 20, .seed = uint64_t(seed)}};
}
Answer solo(const EngineConfig& c, Request r) { return answer_of(*must(Engine::open(c)), std::move(r)); }

TEST(Engine, RequestsTogetherEqualRequestsAlone) {
  const TinyFile file;
  const EngineConfig c = config(file);
  auto e = must(Engine::open(c));
  std::vector<Answer> got(7);
  for (int i = 0; i < 7; ++i) must(e->submit(request(i, 5 + 17 * i, 20 + i), into(got[size_t(i)])));
  while (e->tick()) {
  }
  for (int i = 0; i < 7; ++i) {
    const Answer want = solo(c, request(i, 5 + 17 * i, 20 + i));
    EXPECT_EQ(got[size_t(i)].tokens, want.tokens) << i;
    EXPECT_EQ(got[size_t(i)].why, Stop::kLength);
    EXPECT_EQ(got[size_t(i)].usage.generated, 20 + i);
  }
}

TEST(Engine, ChunkSizeChangesNoToken) {
  const TinyFile file(TinyModel{.moe = true});
  EngineConfig c = config(file);
  const Answer want = solo(c, request(3, 100, 30));
  for (int chunk : {1, 7, 128}) {
    c.chunk = chunk;
    EXPECT_EQ(solo(c, request(3, 100, 30)).tokens, want.tokens) << chunk;
  }
}

// A conversation that goes on is not computed again, also when its last answer comes back changed.
TEST(Engine, ContinuesFromTheSharedPrefix) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.max_seq = 1;
  auto e = must(Engine::open(c));
  Answer first, second, third;
  must(e->submit(request(1, 80, 60), into(first)));
  while (e->tick()) {
  }
  Request r = request(1, 80, 10);
  r.prompt.insert(r.prompt.end(), first.tokens.begin(), first.tokens.end());
  r.prompt.push_back(5);
  const Request copy = r;
  must(e->submit(std::move(r), into(second)));
  while (e->tick()) {
  }
  EXPECT_EQ(second.usage.cached, 80 + 59) << "all but the token that was drawn last";
  EXPECT_EQ(second.tokens, solo(c, copy).tokens);

  Request changed = request(1, 80, 10);  // differs 4 tokens before the end of the first prompt: beyond the margin
  changed.prompt.resize(76);
  changed.prompt.push_back(7);
  const Request changed_copy = changed;
  must(e->submit(std::move(changed), into(third)));
  while (e->tick()) {
  }
  EXPECT_EQ(third.usage.cached, 76) << "from the snapshot at the end of the first prompt";
  EXPECT_EQ(third.tokens, solo(c, changed_copy).tokens);
}
TEST(Engine, GoesBackThroughACheckpoint) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.max_seq = 1;
  auto e = must(Engine::open(c));
  Answer first, second;
  must(e->submit(request(1, 80, 60), into(first)));
  while (e->tick()) {
  }
  Request r = request(1, 80, 10);
  r.prompt.resize(76);
  r.prompt.push_back(7);
  const Request copy = r;
  must(e->submit(std::move(r), into(second)));
  while (e->tick()) {
  }
  EXPECT_EQ(second.usage.cached, 76);
  EXPECT_EQ(second.tokens, solo(c, copy).tokens);
}

// A new conversation takes nothing from an idle one while there is room, though both begin alike.
TEST(Engine, AlternatingConversationsKeepTheirCache) {
  const TinyFile file;
  for (const int common : {3, 30})
    for (const int n : {2, 3, 4}) {
      EngineConfig c = config(file);
      c.n_ctx = 400;
      c.max_seq = 4;
      auto e = must(Engine::open(c));
      std::vector<std::vector<int32_t>> talk(static_cast<size_t>(n));
      int known = 0, cached = 0;
      for (int turn = 0; turn < 4; ++turn)
        for (int i = 0; i < n; ++i) {
          std::vector<int32_t>& t = talk[size_t(i)];
          const size_t before = t.size();
          if (turn == 0) t = random_ids(common, 96, 1);
          for (int32_t id : random_ids(60, 96, unsigned(100 + 10 * turn + i))) t.push_back(id);
          Answer a;
          must(e->submit({.prompt = t, .max_tokens = 12, .sampling = {.temperature = 0}}, into(a)));
          while (e->tick()) {
          }
          if (turn > 0) known += int(before), cached += a.usage.cached;
          t.insert(t.end(), a.tokens.begin(), a.tokens.end());
        }
      EXPECT_GE(cached, known * 95 / 100) << n << " conversations, " << common << " tokens in common";
    }
}
// With every sequence taken, the one that was used least recently goes.
TEST(Engine, TheLeastRecentlyUsedConversationGoes) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.max_seq = 2;
  c.snapshots = 0;
  c.cache_ram = 0;
  auto e = must(Engine::open(c));
  auto ask = [&](unsigned who, int n) {
    Answer a;
    must(e->submit({.prompt = random_ids(n, 96, who), .max_tokens = 2, .sampling = {.temperature = 0}}, into(a)));
    while (e->tick()) {
    }
    return a.usage.cached;
  };
  ask(1, 50), ask(2, 50);
  EXPECT_EQ(ask(1, 60), 50);
  ask(3, 50);  // takes 2's
  EXPECT_EQ(ask(1, 70), 60);
  EXPECT_EQ(ask(2, 60), 0);
}

// What was given up goes to host memory and comes back.
TEST(Engine, ConversationsThatHadToGoComeBack) {
  for (const KvType t : {KvType::kF16, KvType::kQ8_0}) {
    const TinyFile file(TinyModel{.moe = true});
    EngineConfig c = config(file);
    c.n_ctx = 512;
    c.max_seq = 1;
    c.snapshots = 1;
    c.kv_k = c.kv_v = t;
    c.cache_ram = 64 << 20;
    auto e = must(Engine::open(c));
    auto ask = [&](Request r) {
      Answer a;
      must(e->submit(std::move(r), into(a)));
      while (e->tick()) {
      }
      return a;
    };
    std::vector<std::vector<int32_t>> talk(5);
    for (int turn = 0; turn < 3; ++turn)
      for (unsigned i = 0; i < 5; ++i) {
        const size_t before = talk[i].size();
        for (int32_t id : random_ids(90, 96, 100 * unsigned(turn) + i)) talk[i].push_back(id);
        Request r = request(int(i), 1, 20);
        r.prompt = talk[i];
        const Answer a = ask(r), cold = solo(c, r);
        EXPECT_EQ(a.tokens, cold.tokens) << turn << " " << i;
        EXPECT_GE(a.usage.cached, turn > 0 ? int(before) - 1 : 0) << turn << " " << i;
        talk[i].insert(talk[i].end(), a.tokens.begin(), a.tokens.end());
      }
    // Another salt shares nothing, here or there.
    Request other = request(0, 1, 4);
    other.prompt = talk[0];
    other.cache_salt = "x";
    EXPECT_EQ(ask(other).usage.cached, 0);
    other.cache_salt = "";
    EXPECT_GT(ask(other).usage.cached, 200);
    other.cache = false;
    EXPECT_EQ(ask(other).usage.cached, 0);
  }
}
// A pool that is too small for all at once: who came last waits in the middle, and its text is the same.
TEST(Engine, ParkedRequestsGoOnWhereTheyWere) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.n_ctx = 1024;
  c.max_seq = 4;
  c.snapshots = 0;
  auto roomy = must(Engine::open(c));
  c.kv_memory = 40 * 32768;  // of 56 pages that all would take
  for (const int64_t ram : {int64_t(0), int64_t(64) << 20}) {
    c.cache_ram = ram;
    auto e = must(Engine::open(c));
    std::vector<Answer> got(4);
    for (int i = 0; i < 4; ++i) must(e->submit(request(i, 200 + 10 * i, 300), into(got[size_t(i)])));
    while (e->tick()) {
    }
    int parked = 0;
    for (int i = 0; i < 4; ++i) {
      Answer want;
      must(roomy->submit(request(i, 200 + 10 * i, 300), into(want)));
      while (roomy->tick()) {
      }
      EXPECT_EQ(got[size_t(i)].tokens, want.tokens) << i << got[size_t(i)].error;
      EXPECT_EQ(got[size_t(i)].why, Stop::kLength) << got[size_t(i)].error;
      parked += got[size_t(i)].usage.parked;
    }
    EXPECT_GT(parked, 0);
  }
}

// Of those that wait the smallest number begins first, and of those that run the largest is parked; no text changes.
TEST(Engine, PrioritiesGoFirst) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.max_seq = 1;
  std::vector<int> order;
  auto e = must(Engine::open(c));
  const int priority[] = {0, 3, -2, 3, 0, -2};
  for (int i = 0; i < 6; ++i) {
    Request r = request(i, 20, 3);
    r.priority = priority[i];
    Sink sink;
    sink.done = [&order, i](RequestId, Stop, const Usage&, const std::string&) { order.push_back(i); };
    must(e->submit(std::move(r), std::move(sink)));
  }
  while (e->tick()) {
  }
  EXPECT_EQ(order, (std::vector<int>{2, 5, 0, 4, 1, 3}));

  c.n_ctx = 1024, c.max_seq = 4, c.snapshots = 0;
  auto roomy = must(Engine::open(c));
  c.kv_memory = 40 * 32768;  // of 56 pages that all would take
  auto tight = must(Engine::open(c));
  std::vector<Answer> got(4), want(4);
  for (int i = 0; i < 4; ++i) {
    Request r = request(i, 200 + 10 * i, 300);
    r.priority = -i;  // who came last matters most
    must(roomy->submit(r, into(want[size_t(i)])));
    must(tight->submit(std::move(r), into(got[size_t(i)])));
  }
  while (roomy->tick() || tight->tick()) {
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got[size_t(i)].tokens, want[size_t(i)].tokens) << i << got[size_t(i)].error;
  EXPECT_GT(got[0].usage.parked, 0);
  EXPECT_EQ(got[3].usage.parked, 0);
}

TEST(Engine, StopsWhereItMust) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.n_ctx = 64;
  Answer a = solo(c, request(1, 60, -1));
  EXPECT_EQ(a.why, Stop::kContext);
  EXPECT_EQ(a.tokens.size(), 4u);
  auto e = must(Engine::open(c));
  EXPECT_FALSE(e->submit(request(1, 64, 1), {}));
  EXPECT_FALSE(e->submit({}, {}));
  EXPECT_FALSE(e->submit({.prompt = {96}}, {}));

  Answer cancelled, waiting;
  EngineConfig one = c;
  one.max_seq = 1;
  auto f = must(Engine::open(one));
  const RequestId id = must(f->submit(request(1, 10, 40), into(cancelled)));
  const RequestId queued = must(f->submit(request(2, 10, 40), into(waiting)));
  for (int i = 0; i < 5; ++i) f->tick();
  f->cancel(id);
  f->cancel(queued);
  f->cancel(999);
  while (f->tick()) {
  }
  EXPECT_EQ(cancelled.why, Stop::kCancelled);
  EXPECT_EQ(waiting.why, Stop::kCancelled);
  EXPECT_EQ(cancelled.tokens.size(), 5u);
  EXPECT_EQ(waiting.tokens.size(), 0u);
}

TEST(Engine, RefusesWhatDoesNotFitAndSaysWhatWould) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.n_ctx = 1 << 20;
  c.memory = 64 << 20;
  auto e = Engine::open(c);
  ASSERT_FALSE(e);
  const std::string m = e.error().message();
  EXPECT_NE(e.error().detail.find("kv full"), std::string::npos) << e.error().detail;
  EXPECT_NE(m.find("would fit"), std::string::npos) << m;
  c.n_ctx = 0;  // chosen: halved until it fits
  auto f = must(Engine::open(c));
  EXPECT_LE(f->config().n_ctx, 4096);
}

// A greedy random model goes round in a loop soon: the guard ends the answer there, and changes nothing before.
TEST(Engine, ALoopEndsTheAnswer) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.n_ctx = 2048;
  Request r = request(1, 10, 1500);
  r.sampling = {.temperature = 0};
  const Answer free = solo(c, r);
  EXPECT_EQ(free.why, Stop::kLength);
  r.max_loops = 4;
  const Answer guarded = solo(c, r);
  ASSERT_EQ(guarded.why, Stop::kLoop);
  EXPECT_STREQ(stop_name(guarded.why), "loop");
  ASSERT_GE(guarded.tokens.size(), 128u);
  ASSERT_LT(guarded.tokens.size(), free.tokens.size());
  EXPECT_TRUE(std::equal(guarded.tokens.begin(), guarded.tokens.end(), free.tokens.begin()));
  // The same text from there on, so it was a loop.
  const size_t n = guarded.tokens.size();
  bool round = false;
  for (size_t p = 1; p <= 64 && !round; ++p)
    round = std::equal(free.tokens.begin() + ptrdiff_t(n - p), free.tokens.end() - ptrdiff_t(p),
                       free.tokens.begin() + ptrdiff_t(n));
  EXPECT_TRUE(round);
}

const std::string kModels = std::string(FACET_SOURCE_DIR) + "/models/";

// A drafter that nobody asked for goes when memory is short; one that was asked for is an error.
TEST(Engine, ADrafterThatDoesNotFitIsLeftOut) {
  EngineConfig c;
  c.model = kModels + "facet-nano-Q8_0.gguf", c.backend = "cpu", c.n_ctx = 1024, c.chunk = 512, c.n_threads = 1;
  c.snapshots = 0, c.cache_ram = 0;
  const GgufFile file = must(GgufFile::open(c.model));
  const ModelCfg m = must(gemma4_config(file));
  const std::vector<DrafterFile> drafters{must(DrafterFile::open(kModels + "facet-nano-dflash-Q8_0.gguf"))};
  EngineConfig plain = must(resolve_config(file, m, c)), drafting = c;
  drafting.draft.files = {drafters[0].path()};
  const int64_t without = plan_memory(file, m, plain).total(),
                with = plan_memory(file, m, must(resolve_config(file, m, drafting, drafters)), drafters).total();
  ASSERT_LT(without, with);
  drafting.memory = without + 1024;
  std::vector<std::string> notes;
  std::string lost;
  drafting.noted = [&](const std::string& n) { notes.push_back(n); };
  drafting.degraded = [&](const std::string& what, const std::string& why) { lost = what + ": " + why; };
  EXPECT_FALSE(Engine::open(drafting));
  drafting.draft.optional = true;
  const auto e = must(Engine::open(drafting));
  EXPECT_TRUE(e->config().draft.files.empty());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("does not fit in memory"), std::string::npos) << notes[0];
  EXPECT_NE(lost.find("facet-nano-dflash"), std::string::npos) << lost;
  drafting.memory = with + 1024;  // enough for both
  EXPECT_EQ(must(Engine::open(drafting))->config().draft.files.size(), 1u);
}

// Vocabularies of model and drafter are compared as texts, not by their number.
TEST(Engine, ADrafterOfAnotherVocabularyIsRefused) {
  const std::string model = kModels + "facet-nano-Q8_0.gguf", drafter = kModels + "facet-nano-dflash-Q8_0.gguf";
  const GgufFile file = must(GgufFile::open(model));
  const auto tokens = must(file.get_strings("tokenizer.ggml.tokens"));
  for (const size_t unlike : {size_t(0), size_t(1), tokens.size() / 50}) {
    std::vector<std::string> texts(tokens.begin(), tokens.end());
    for (size_t i = 0; i < unlike; ++i) texts[100 + i] += "x";
    const std::string other =
        (std::filesystem::temp_directory_path() / fmt::format("facet-vocab-{}-{}.gguf", getpid(), unlike)).string();
    rewrite_gguf(drafter, other, {.key = without({"tokenizer.ggml.tokens"}), .more = [&](GgufWriter& w) {
                                    w.add("tokenizer.ggml.tokens", texts);
                                  }});
    EngineConfig c;
    c.model = model, c.backend = "cpu", c.n_ctx = 256, c.n_threads = 1, c.draft.files = {other};
    std::vector<std::string> notes;
    c.noted = [&](const std::string& n) { notes.push_back(n); };
    const auto e = Engine::open(c);
    std::filesystem::remove(other);
    if (unlike > 1) {
      ASSERT_FALSE(e);
      EXPECT_EQ(e.error().where, other);
      EXPECT_NE(e.error().message().find("tokenizer.ggml.tokens: token 100: expected '"), std::string::npos);
    } else {
      EXPECT_TRUE(e);
      EXPECT_EQ(notes.size(), unlike);
    }
  }
}

TEST(Engine, TwoInOneProcess) {
  const TinyFile file;
  const EngineConfig c = config(file);
  auto a = must(Engine::open(c)), b = must(Engine::open(c));
  Answer x, y;
  must(a->submit(request(1, 50, 20), into(x)));
  must(b->submit(request(2, 50, 20), into(y)));
  bool more = true;
  while (more) {
    const bool m1 = a->tick(), m2 = b->tick();
    more = m1 || m2;
  }
  EXPECT_EQ(x.tokens, solo(c, request(1, 50, 20)).tokens);
  EXPECT_EQ(y.tokens, solo(c, request(2, 50, 20)).tokens);
}

}  // namespace
}  // namespace facet::test
