// Suffix decoding: drafts out of the sequence itself and of earlier answers change no token, whatever they are worth, as
// chains and trees of any size, alone, beside a drafter and behind its drafts.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "backend/cpu/cpu_fast.h"
#include "model/find_drafter.h"
#include "session/loop_guard.h"
#include "spec/suffix_drafter.h"
#include "support/sanitized.h"
#include "support/scripted_drafter.h"
#include "support/tiny_model.h"
#include "tokenizer/tokenizer.h"
#include "tools/eval.h"

namespace facet::test {
namespace {

constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0};
bool full() { return std::getenv("FACET_TEST_FULL") != nullptr; }
std::string model_path(const std::string& name) { return fmt::format("{}/models/{}", FACET_SOURCE_DIR, name); }

// What a comparison was worth.
struct Worth {
  int answers = 0, with_drafts = 0, accepted = 0, rejected = 0;
  void add(const Usage& u) {
    ++answers, with_drafts += u.accepted > 0;
    accepted += u.accepted, rejected += u.drafted - u.accepted;
  }
};

template <class B>
class Suffixes : public testing::Test {};
using Backends = testing::Types<CpuRef, CpuFast>;
TYPED_TEST_SUITE(Suffixes, Backends);

template <class B>
DrafterFactory<B> lookup(size_t memory = 0) {
  return [memory](const TargetView<B>& t) -> Result<Drafters<B>> {
    Drafters<B> d;
    d.push_back(std::make_unique<SuffixDrafter<B>>(t, memory));
    return d;
  };
}

// A random model soon goes round in a few tokens, or would, if a penalty did not keep it from that: drafts are right
// here and wrong there.
Request request(int n_prompt, unsigned seed, float temperature, float penalty) {
  Request r{.prompt = random_ids(n_prompt, 96, seed), .max_tokens = 40};
  const std::vector<int32_t> again(r.prompt.begin(), r.prompt.begin() + n_prompt / 2);
  r.prompt.insert(r.prompt.end(), again.begin(), again.end());
  r.sampling = {.temperature = temperature, .top_k = 4, .repeat_penalty = penalty, .repeat_last_n = 8, .seed = seed};
  return r;
}

// Every type and number of sequences, greedy and sampled. Window 16 and a margin of 16: rings go round.
TYPED_TEST(Suffixes, GiveThePlainText) {
  const DraftConfig ways[] = {{.max = 1, .min = 1},
                              {.max = 4, .min = 4},
                              {.max = 15, .min = 1},
                              {.max = 63, .min = 1},
                              {.max = 40, .min = 12},
                              {},
                              {.max = 6, .min = 1, .tree = 7},
                              {.max = 15, .min = 1, .tree = 63}};
  const TinyFile file({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32});
  Worth worth;
  int at = 0;
  for (const DraftConfig& way : ways)
    for (const KvType kv : kTypes)
      for (const int n_seq : {1, 8}) {
        if (++at % (full() ? 1 : kSanitized ? 19 : 3) != 0) continue;
        EngineConfig c;
        c.model = file.path();
        c.n_ctx = 512, c.max_seq = n_seq, c.chunk = 40, c.margin = 16, c.n_threads = 1;
        c.kv_k = c.kv_v = kv;
        std::vector<Request> requests;
        for (int i = 0; i < n_seq; ++i)
          requests.push_back(request(5 + 30 * ((at + i) % 3), unsigned(at + i), (at + i) % 2 ? .7f : 0.f,
                                     (at + i) % 4 < 2 ? 1.f : 1.5f));
        const auto want = answers(*open_engine_with<TypeParam>(c, nullptr), requests);
        c.draft = way;
        const auto got = answers(*open_engine_with<TypeParam>(c, lookup<TypeParam>()), requests);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(got[i].tokens, want[i].tokens) << kv_type_name(kv) << ", " << n_seq << " at once, max " << way.max
                                                   << " tree " << way.tree << ", request " << i;
          EXPECT_EQ(got[i].why, want[i].why);
          worth.add(got[i].usage);
        }
      }
  std::printf("%d answers, %d with right drafts; drafts right %d, wrong %d\n", worth.answers, worth.with_drafts,
              worth.accepted, worth.rejected);
  EXPECT_GT(3 * worth.with_drafts, worth.answers);
  EXPECT_GT(worth.accepted, worth.answers);
  EXPECT_GT(worth.rejected, kSanitized ? 0 : worth.answers);  // few cases with sanitizers
}

// Answers that were given before are drafted whole, and come out as they are, for their owner alone.
TYPED_TEST(Suffixes, DraftFromEarlierAnswers) {
  const TinyFile file({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32});
  EngineConfig c;
  c.model = file.path();
  c.n_ctx = 512, c.max_seq = 3, c.chunk = 40, c.margin = 16, c.n_threads = 1;
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(request(20 + 9 * i, unsigned(i), i % 2 ? .7f : 0.f, 1.5f));
    requests.back().owner = "one";
  }
  const auto want = answers(*open_engine_with<TypeParam>(c, nullptr), requests);
  c.draft = {.max = 31, .min = 31};  // whatever a step takes here
  auto engine = open_engine_with<TypeParam>(c, lookup<TypeParam>(4000));
  const auto steps = [&](const char* owner, const char* salt, bool cache = true) {
    int n = 0;
    for (Request& r : requests) r.owner = owner, r.cache_salt = salt, r.cache = cache;
    const auto got = answers(*engine, requests);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << owner << ", request " << i;
      n += got[i].usage.decode_steps;
    }
    return n;
  };
  const int first = steps("one", ""), again = steps("one", "");
  EXPECT_LT(2 * again, first);
  EXPECT_GT(2 * steps("two", ""), first) << "another key";
  EXPECT_GT(2 * steps("one", "salt"), first) << "another salt";
  EXPECT_GT(2 * steps("one", "", /*cache=*/false), first) << "a request that shares nothing";
  EXPECT_LT(2 * steps("one", "salt"), first);
}

// The shipped model on prompts whose answers repeat them, alone and beside its drafter: drafts that count.
TEST(ShippedSuffix, GivesPlainText) {
  const std::string model = model_path("facet-nano-Q8_0.gguf");
  const std::string dflash = find_drafter_beside(model, "dflash").path;
  ASSERT_FALSE(dflash.empty());
  const auto docs = must(read_eval_set(model_path("facet-nano-eval.jsonl")));
  struct Way {
    DraftConfig draft;
    KvType kv;
    int n_seq;
    float temperature;
  };
  std::vector<Way> ways{{{.suffix = true, .min = 1}, KvType::kF16, 1, 0},
                        {{.suffix = true}, KvType::kQ8_0, 3, 1},
                        {{.suffix = true, .max = 7, .min = 1, .tree = 15}, KvType::kQ4_0, 3, 0},
                        {{.files = {dflash}, .suffix = true}, KvType::kF16, 1, 0},
                        {{.files = {dflash}, .suffix = true, .max = 6, .min = 1, .tree = 15}, KvType::kTQ3_0, 3, 1},
                        {{.files = {dflash}, .suffix = true, .min = 3, .suffix_rows = 40}, KvType::kQ8_0, 1, 0},
                        {{.suffix = true, .min = 1, .suffix_rows = 63, .memory = 5000}, KvType::kF16, 2, 1}};
  if (kSanitized) ways = {ways[2]};
  Worth worth;
  for (const Way& way : ways) {
    EngineConfig c;
    c.model = model, c.backend = "cpu";
    c.n_ctx = 2048, c.chunk = 256, c.n_threads = 1;
    c.max_seq = way.n_seq, c.kv_k = c.kv_v = way.kv;
    auto plain = must(Engine::open(c));
    c.draft = way.draft;
    std::set<std::string> methods;
    c.drafted = [&](const DraftRound& r) {
      methods.insert(r.method);
      EXPECT_EQ(r.token.size(), r.drawn.size());
    };
    auto drafting = must(Engine::open(c));
    std::vector<Request> requests;
    for (const char* of : {"json", "code", "retrieval"}) {
      const auto doc = std::find_if(docs.begin(), docs.end(), [&](const EvalDoc& x) { return x.kind.starts_with(of); });
      ASSERT_NE(doc, docs.end()) << of;
      Request r{.prompt = plain->tokenizer()->encode(doc->context, false, true),
                .max_tokens = kSanitized ? 12 : 40,
                .ignore_eos = true};
      r.sampling = {.temperature = way.temperature, .seed = 3};
      if (r.prompt.size() < 1500) requests.push_back(std::move(r));
    }
    const auto want = answers(*plain, requests), got = answers(*drafting, requests);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << kv_type_name(way.kv) << ", prompt " << i;
      worth.add(got[i].usage);
    }
    EXPECT_TRUE(!way.draft.files.empty() || way.draft.min == 0 || methods == std::set<std::string>{"suffix"});
  }
  std::printf("%d answers, %d with right drafts; drafts right %d, wrong %d\n", worth.answers, worth.with_drafts,
              worth.accepted, worth.rejected);
  EXPECT_GT(4 * worth.with_drafts, worth.answers);
  EXPECT_GT(worth.accepted, (kSanitized ? 1 : 4) * worth.answers);
}

// The shipped questions, answers included, hold no loop that --max-loops 4 would end.
TEST(ShippedLoops, AnswersAreNone) {
  const auto docs = must(read_eval_set(model_path("facet-nano-eval.jsonl")));
  EngineConfig c;
  c.model = model_path("facet-nano-Q8_0.gguf"), c.backend = "cpu", c.n_ctx = 256, c.n_threads = 1;
  const auto engine = must(Engine::open(c));
  ASSERT_GT(docs.size(), 400u);
  for (size_t i = 0; i < docs.size(); i += kSanitized ? 20 : 1) {
    const auto ids = engine->tokenizer()->encode(docs[i].context + docs[i].answer, false, true);
    LoopGuard guard(4);
    for (size_t n = 1; n <= ids.size(); ++n) ASSERT_FALSE(guard.advance(std::span(ids).first(n))) << docs[i].context;
  }
}

}  // namespace
}  // namespace facet::test
