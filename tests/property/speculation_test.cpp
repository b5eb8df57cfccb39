// Drafting changes how fast an answer comes and nothing else: every way to draft gives the tokens of plain decoding.
// The drafters are scripts that know those tokens and err on purpose; planted bugs must break the identity.
#include <cstdlib>
#include <set>

#include "backend/cpu/cpu_fast.h"
#include "support/broken.h"
#include "support/scripted_drafter.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

bool full() { return std::getenv("FACET_TEST_FULL") != nullptr; }

template <class B>
class Speculation : public testing::Test {};
using Backends = testing::Types<CpuRef, CpuFast>;
TYPED_TEST_SUITE(Speculation, Backends);

// Window 16 and a margin of 16: the rings hold 31 rows and those of a draft.
EngineConfig config(const TinyFile& f, KvType kv = KvType::kF16, int n_seq = 1) {
  EngineConfig c;
  c.model = f.path();
  c.n_ctx = 512;
  c.max_seq = n_seq;
  c.chunk = 40;
  c.margin = 16;
  c.n_threads = 1;
  c.kv_k = c.kv_v = kv;
  return c;
}
Request request(int n_prompt, unsigned seed, float temperature = 0) {
  Request r{.prompt = random_ids(n_prompt, 96, seed), .max_tokens = 64};
  r.sampling = {.temperature = temperature, .top_k = 20, .presence_penalty = 12, .repeat_last_n = 24, .seed = seed};  // or it would repeat a few tokens
  return r;
}

struct Way {
  const char* name;
  DraftConfig draft;
};
DraftConfig chain(int n) { return {.max = n, .min = n}; }
DraftConfig tree(int n, int depth = 6) { return {.max = depth, .min = 1, .tree = n}; }

// What a comparison was worth.
struct Evidence {
  int answers = 0, different = 0, counted = 0;  // counted: 16 distinct tokens or more, drafts accepted and rejected
  ScriptReport report;
  std::vector<Usage> usage;
};

// Answers with drafts on B, compared with plain ones on Plain (the same backend without a planted bug).
template <class B, class Plain>
Evidence compare_with_plain(EngineConfig c, const std::vector<Request>& requests, DraftConfig draft, ScriptOptions o = {}, const std::vector<Request>& then = {}) {
  Script<Plain> script(c.model, *c.kv_k);
  std::vector<Answer> want;
  for (const Request& r : requests) {
    want.push_back(answers(*open_engine_with<Plain>(c, nullptr), {r})[0]);
    std::vector<int32_t> all = r.prompt;
    all.insert(all.end(), want.back().tokens.begin(), want.back().tokens.end());
    script.add(all);
  }
  (void)then;
  Evidence e;
  c.draft = draft;
  DrafterFactory<B> drafters;
  if constexpr (std::is_same_v<B, Plain>) {
    drafters = scripted<B>(script, o, e.report);
  } else {
    // A broken backend has the rows of the one it is made of.
    drafters = [&](const TargetView<B>& t) -> Result<Drafters<B>> {
      struct Adapter final : Drafter<B> {
        Adapter(const Script<Plain>& s, ScriptOptions opt, ScriptReport& r, int n) : inner(s, opt, r, n) {}
        const char* name() const override { return inner.name(); }
        int max_draft() const override { return inner.max_draft(); }
        std::span<const int> tap_layers() const override { return inner.tap_layers(); }
        bool wants_final_hidden() const override { return true; }
        void absorb(std::span<const Committed> rows, const Features<typename B::Rows>& f) override { inner.absorb(rows, {.taps = f.taps, .final_hidden = f.final_hidden}); }
        void propose(std::span<Draft> d) override { inner.propose(d); }
        int held(SlotId s) const override { return inner.held(s); }
        int rewind(SlotId s, int len) override { return inner.rewind(s, len); }
        void forget(SlotId s) override { inner.forget(s); }
        ScriptedDrafter<Plain> inner;
      };
      Drafters<B> d;
      d.push_back(std::make_unique<Adapter>(script, o, e.report, t.plan.max_seq));
      return d;
    };
  }
  auto engine = open_engine_with<B>(c, drafters);
  const std::vector<Answer> got = answers(*engine, requests);
  for (size_t i = 0; i < got.size(); ++i) {
    ++e.answers;
    e.different += got[i].tokens != want[i].tokens || got[i].why != want[i].why;
    const Usage& u = got[i].usage;
    const std::set<int32_t> distinct(got[i].tokens.begin(), got[i].tokens.end());
    e.counted += distinct.size() >= 16 && u.accepted > 0 && u.accepted < u.drafted;
    e.usage.push_back(u);
  }
  return e;
}

void expect_plain(const Evidence& e, int answers, const std::string& what) {
  EXPECT_EQ(e.different, 0) << what;
  EXPECT_EQ(e.counted, answers) << what << ": an answer is too dull, or drafts were all right or all wrong";
  EXPECT_EQ(e.report.unknown, 0) << what << ": features of " << e.report.unknown << " of " << e.report.absorbed << " rows";
  EXPECT_EQ(e.report.out_of_order, 0) << what;
  EXPECT_EQ(e.report.lost, 0) << what;
}

const std::vector<Way>& ways() {
  static const std::vector<Way> all{{"chain 1", chain(1)}, {"chain 2", chain(2)}, {"chain 3", chain(3)}, {"chain 4", chain(4)}, {"chain 5", chain(5)}, {"chain 6", chain(6)},
                                    {"chain 7", chain(7)}, {"chain 8", chain(8)}, {"chain 15", chain(15)}, {"tree 2", tree(2)}, {"tree 7", tree(7)}, {"tree 15", tree(15)},
                                    {"tree 63", tree(63, 15)}, {"auto", {}}, {"auto tree", {.max = 6, .tree = 15}}};
  return all;
}
constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0};
constexpr int kPrompts[] = {5, 33, 150};  // shorter than a window, than a ring, longer than both

// Every way, type, prompt length, temperature and number of sequences; all of it with --full, else each pair of the
// first two once.
template <class B>
void every_way_gives_plain_text(const TinyModel& m) {
  const TinyFile file(m);
  int at = 0;
  for (const Way& way : ways())
    for (const KvType kv : kTypes)
      for (const int n_seq : {1, 4}) {
        ++at;
        if (!full() && (at / 2 + n_seq) % 5 != 0) continue;
        std::vector<Request> requests;
        for (int i = 0; i < n_seq; ++i) requests.push_back(request(kPrompts[(at + i) % 3], unsigned(at + i), i % 2 ? .8f : 0.f));
        if (n_seq == 1 && at % 3 == 0) requests[0].sampling.temperature = 1;
        const Evidence e = compare_with_plain<B, B>(config(file, kv, n_seq), requests, way.draft);
        expect_plain(e, n_seq, fmt::format("{} {} {} sequences, case {}", way.name, kv_type_name(kv), n_seq, at));
      }
}
TYPED_TEST(Speculation, EveryWayGivesPlainTextDense) { every_way_gives_plain_text<TypeParam>({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32}); }
TYPED_TEST(Speculation, EveryWayGivesPlainTextMoe) {
  if (full()) every_way_gives_plain_text<TypeParam>({.moe = true});
}
TYPED_TEST(Speculation, EveryWayGivesPlainTextEdge) {
  if (full()) every_way_gives_plain_text<TypeParam>({.ple = true});
}

}  // namespace
}  // namespace facet::test
