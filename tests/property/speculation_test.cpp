// Drafting changes how fast an answer comes and nothing else: every way to draft gives the tokens of plain decoding.
// The drafters are scripts that know those tokens and err on purpose; planted bugs must break the identity.
// Long: one law, with the drafters and planted bugs that all of its tests are made of.
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

#include "backend/cpu/cpu_fast.h"
#include "engine/speculate.h"
#include "support/broken.h"
#include "support/sanitized.h"
#include "support/scripted_drafter.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

constexpr int kPart = kSanitized ? 40 : 5;  // one case of so many
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
  r.sampling = {.temperature = temperature,
                .top_k = 20,
                .presence_penalty = 12,
                .repeat_last_n = 24,
                .seed = seed};  // or it would repeat a few tokens
  return r;
}

struct Way {
  const char* name;
  DraftConfig draft;
  std::vector<ScriptOptions> drafters = {{}};
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
template <class B, class Plain = B, class Scripted = ScriptedDrafter<B, Plain>>
Evidence compare_with_plain(EngineConfig c, const std::vector<Request>& requests, DraftConfig draft,
                            const std::vector<ScriptOptions>& o = {{}}) {
  Script<Plain> script(c.model, *c.kv_k, c.kv_layers);
  std::vector<Answer> want;
  for (const Request& r : requests) {
    want.push_back(answers(*open_engine_with<Plain>(c, nullptr), {r})[0]);
    std::vector<int32_t> all = r.prompt;
    all.insert(all.end(), want.back().tokens.begin(), want.back().tokens.end());
    script.add(all);
  }
  Evidence e;
  c.draft = draft;
  auto engine = open_engine_with<B>(c, scripted<B, Plain, Scripted>(script, o, e.report));
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

void expect_plain(const Evidence& e, int answers, const Way& way, const std::string& what) {
  EXPECT_EQ(e.different, 0) << what;
  const bool timed = way.draft.min == 0;  // time decides how much is drafted
  EXPECT_GT(2 * e.counted + (timed ? answers + 1 : 0), answers)
      << what << ": answers are dull, or drafts were all right or all wrong";
  EXPECT_EQ(e.report.unknown, 0) << what << ": features of " << e.report.unknown << " of " << e.report.absorbed
                                 << " rows";
  EXPECT_EQ(e.report.out_of_order, 0) << what;
  EXPECT_EQ(e.report.lost, 0) << what;
}

const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {"chain 1", chain(1)},
      {"chain 2", chain(2)},
      {"chain 3", chain(3)},
      {"chain 4", chain(4)},
      {"chain 5", chain(5)},
      {"chain 6", chain(6)},
      {"chain 7", chain(7)},
      {"chain 8", chain(8)},
      {"chain 15", chain(15)},
      {"tree 2", tree(2)},
      {"tree 7", tree(7)},
      {"tree 15", tree(15)},
      {"tree 63", tree(63, 15)},
      {"auto", {}},
      {"auto tree", {.max = 6, .tree = 15}},
      {"auto of taps", {}, {{.final_hidden = false}}},
      {"auto of a bad one", {}, {{.wrong = .7, .final_hidden = false}}},
      {"auto of three",
       {},
       {{.wrong = .9, .final_hidden = false}, {.wrong = .2}, {.wrong = .5, .final_hidden = false}}}};
  return all;
}
constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0};
constexpr int kPrompts[] = {5, 33, 150};  // shorter than a window, than a ring, longer than both

// Every way, type, prompt length, temperature and number of sequences; all of it with --full, else each pair of the
// first two once, and of models with experts or per-layer embeddings some.
template <class B>
void every_way_gives_plain_text(const TinyModel& m, int part = kPart) {
  const TinyFile file(m);
  int at = 0, cases = 0, given = 0, counted = 0;
  for (const Way& way : ways())
    for (const KvType kv : kTypes)
      for (const int n_seq : {1, 4}) {
        ++at;
        if (!full() && (at / 2 + n_seq) % part != 0) continue;
        std::vector<Request> requests;
        for (int i = 0; i < n_seq; ++i)
          requests.push_back(request(kPrompts[(at + i) % 3], unsigned(at + i), i % 2 ? .8f : 0.f));
        if (n_seq == 1 && at % 3 == 0) requests[0].sampling.temperature = 1;
        const Evidence e = compare_with_plain<B>(config(file, kv, n_seq), requests, way.draft, way.drafters);
        expect_plain(e, n_seq, way, fmt::format("{} {} {} sequences, case {}", way.name, kv_type_name(kv), n_seq, at));
        ++cases, given += n_seq, counted += e.counted;
      }
  std::printf("%d cases, %d answers, %d of them with 16 distinct tokens and drafts both right and wrong\n", cases,
              given, counted);
}
TYPED_TEST(Speculation, EveryWayGivesPlainTextDense) {
  every_way_gives_plain_text<TypeParam>({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32});
}
TYPED_TEST(Speculation, EveryWayGivesPlainTextMoe) {
  every_way_gives_plain_text<TypeParam>({.moe = true}, 6 * kPart + 1);
}
TYPED_TEST(Speculation, EveryWayGivesPlainTextEdge) {
  every_way_gives_plain_text<TypeParam>({.ple = true}, 6 * kPart + 1);
}

// Layers with K/V types of their own, full and sliding ones, one of them with two.
TYPED_TEST(Speculation, LayersOfTheirOwnTypesGivePlainText) {
  const TinyFile file({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32});
  for (const Way& way : {Way{"chain 4", chain(4)}, Way{"tree 15", tree(15)}})
    for (const int n_seq : kSanitized ? std::vector{3} : std::vector{1, 3}) {
      EngineConfig c = config(file, KvType::kF16, n_seq);
      c.kv_layers = {{0, 0, {KvType::kQ8_0, KvType::kQ4_0}},
                     {2, 3, {KvType::kTQ3_0, KvType::kTQ3_0}},
                     {4, 4, {KvType::kF32, KvType::kF32}}};
      std::vector<Request> requests;
      for (int i = 0; i < n_seq; ++i) requests.push_back(request(kPrompts[2 - i], unsigned(i + 1), i % 2 ? .8f : 0.f));
      expect_plain(compare_with_plain<TypeParam>(c, requests, way.draft), n_seq, way, way.name);
    }
}

// --- where answers end

TYPED_TEST(Speculation, AnswersEndAtTheRightToken) {
  const TinyFile file;
  EngineConfig c = config(file);
  const Request r = request(20, 3);
  const Answer plain = answers(*open_engine_with<TypeParam>(c, nullptr), {r})[0];
  Script<TypeParam> script(c.model, *c.kv_k);
  std::vector<int32_t> all = r.prompt;
  all.insert(all.end(), plain.tokens.begin(), plain.tokens.end());
  script.add(all);
  for (const DraftConfig& draft : {chain(5), tree(15)}) {
    c.draft = draft;
    ScriptReport report;
    auto e = open_engine_with<TypeParam>(c, scripted<TypeParam>(script, {{.wrong = .15}}, report));
    for (int n = 1; n <= 20; ++n) {  // at each place of a draft; the next request goes back into the last one's drafts
      Request some = r;
      some.max_tokens = n;
      const Answer a = answers(*e, {some})[0];
      EXPECT_EQ(a.tokens, std::vector<int32_t>(plain.tokens.begin(), plain.tokens.begin() + n)) << n;
      EXPECT_EQ(a.why, Stop::kLength);
      EXPECT_EQ(a.usage.generated, n);
    }
    for (const int stop_at : {3, 7, 12}) {  // a client that leaves while it reads
      Answer a;
      RequestId id = 0;
      Sink sink = into(a);
      sink.tokens = [&](RequestId, std::span<const int32_t> t) {
        a.tokens.insert(a.tokens.end(), t.begin(), t.end());
        if (int(a.tokens.size()) >= stop_at) e->cancel(id);
      };
      id = must(e->submit(r, sink));
      while (e->tick()) {
      }
      EXPECT_EQ(a.why, Stop::kCancelled);
      ASSERT_LT(a.tokens.size(), size_t(stop_at) + 7) << "the rest of a step";
      EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), plain.tokens.begin()));
    }
    EXPECT_EQ(report.unknown + report.out_of_order + report.lost, 0);

    EngineConfig small = c;
    small.n_ctx = 40;
    Request endless = r;
    endless.max_tokens = -1;
    const Answer a = answers(*open_engine_with<TypeParam>(small, scripted<TypeParam>(script, {{.wrong = .15}}, report)),
                             {endless})[0];
    EXPECT_EQ(a.why, Stop::kContext);
    EXPECT_EQ(a.tokens, std::vector<int32_t>(plain.tokens.begin(), plain.tokens.begin() + 20));
  }
}

// --- conversations that go on

// A drafter whose state ends some rows before the place it is asked to go back to.
template <class B>
struct LosesRows : ScriptedDrafter<B> {
  using ScriptedDrafter<B>::ScriptedDrafter;
  void absorb(std::span<const Committed> rows, const Features<typename B::Rows>& f) override {
    lost = false;
    ScriptedDrafter<B>::absorb(rows, f);
  }
  int rewind(SlotId s, int len) override {
    return ScriptedDrafter<B>::rewind(s, std::exchange(lost, true) ? len : std::max(0, len - 7));
  }
  bool lost = false;
};

template <class B, class Scripted>
void continues(int rows_lost) {
  const TinyFile file;
  EngineConfig c = config(file);
  Request first = request(80, 1), second = first;
  const Answer plain = answers(*open_engine_with<B>(c, nullptr), {first})[0];
  second.prompt.insert(second.prompt.end(), plain.tokens.begin(), plain.tokens.end());
  Script<B> script(c.model, *c.kv_k);
  script.add(second.prompt);
  second.prompt.push_back(5);
  const Answer plain_second = answers(*open_engine_with<B>(c, nullptr), {second})[0];
  std::vector<int32_t> all = second.prompt;
  all.insert(all.end(), plain_second.tokens.begin(), plain_second.tokens.end());
  script.add(all);

  for (const DraftConfig& draft : {chain(4), tree(15)}) {
    c.draft = draft;
    ScriptReport report, fresh_report;
    auto e = open_engine_with<B>(c, scripted<B, B, Scripted>(script, {{}}, report));
    EXPECT_EQ(answers(*e, {first})[0].tokens, plain.tokens);
    const Answer kept = answers(*e, {second})[0];
    const Answer fresh =
        answers(*open_engine_with<B>(c, scripted<B, B, Scripted>(script, {{}}, fresh_report)), {second})[0];
    EXPECT_EQ(kept.tokens, plain_second.tokens);
    EXPECT_GE(kept.usage.cached, 143 - rows_lost);
    EXPECT_EQ(kept.usage.accepted, fresh.usage.accepted) << "a cache hit costs no acceptance";
    EXPECT_EQ(kept.usage.rounds, fresh.usage.rounds);
    EXPECT_EQ(report.unknown + report.out_of_order + report.lost, 0);
    EXPECT_LE(report.absorbed, 144 + (145 - kept.usage.cached) + 64) << "each row once, beside those that were lost";
  }
}
TYPED_TEST(Speculation, ConversationsGoOn) { continues<TypeParam, ScriptedDrafter<TypeParam>>(0); }
TYPED_TEST(Speculation, ConversationsGoOnWhereTheDrafterLostRows) { continues<TypeParam, LosesRows<TypeParam>>(7); }

TYPED_TEST(Speculation, SaysWhyNothingIsDrafted) {
  const TinyFile file;
  EngineConfig c = config(file);
  Script<TypeParam> script(c.model, *c.kv_k);
  ScriptReport report;
  auto e = open_engine_with<TypeParam>(c, scripted<TypeParam>(script, {{}}, report));
  Request r = request(20, 3);
  r.draft = false;
  Answer a = answers(*e, {r})[0];
  EXPECT_EQ(a.usage.rounds, 0);
  EXPECT_NE(a.usage.draft_inactive_reason, "");
  r.draft = true;
  r.max_tokens = 1;
  EXPECT_NE(answers(*e, {r})[0].usage.draft_inactive_reason, "");
  r.max_tokens = 200;
  const Answer plain = answers(*open_engine_with<TypeParam>(c, nullptr), {r})[0];
  std::vector<int32_t> all = r.prompt;
  all.insert(all.end(), plain.tokens.begin(), plain.tokens.end());
  script.add(all);
  a = answers(*open_engine_with<TypeParam>(c, scripted<TypeParam>(script, {{.wrong = 1}}, report)), {r})[0];
  EXPECT_EQ(a.tokens, plain.tokens);
  EXPECT_EQ(a.usage.accepted, 0);
  EXPECT_LT(a.usage.rounds, 150) << "of 199 steps; how soon depends on what they take";
  EXPECT_TRUE(std::any_of(a.usage.methods.begin(), a.usage.methods.end(),
                          [](const Usage::Change& m) { return m.method == "none"; }));
  EXPECT_EQ(answers(*open_engine_with<TypeParam>(c, nullptr), {r})[0].usage.draft_inactive_reason, "");
}
TEST(PlainReason, DraftsAreGivenUpOnlyWhereTheAnswerGoesOn) {
  Usage u;
  EXPECT_EQ(plain_reason(true, u), "the answer ended before a draft was due");
  u.generated = 9, u.rounds = 3, u.methods = {{0, "mtp"}, {9, "none"}};
  EXPECT_EQ(plain_reason(true, u), "the last tokens came without drafts");
  EXPECT_EQ(plain_reason(false, u), "the request asks for plain decoding");
  u.generated = 25;
  EXPECT_EQ(plain_reason(true, u), "drafts did not pay and were given up");
  u.rounds = 0;
  EXPECT_EQ(plain_reason(true, u), "drafts would not pay");
  u.methods.push_back({20, "mtp"});
  EXPECT_EQ(plain_reason(true, u), "");
}
// A drafter of another model looks like one of this model's and costs time.
TYPED_TEST(Speculation, SaysThatADrafterIsNeverRight) {
  const TinyFile file;
  EngineConfig c = config(file);
  c.draft.max = c.draft.min = 4;
  std::vector<std::string> notes;
  c.noted = [&](const std::string& n) { notes.push_back(n); };
  Request r = request(20, 3);
  r.max_tokens = 11;
  Script<TypeParam> script(c.model, *c.kv_k);
  std::vector<int32_t> all = r.prompt;
  const Answer plain = answers(*open_engine_with<TypeParam>(c, nullptr), {r})[0];
  all.insert(all.end(), plain.tokens.begin(), plain.tokens.end());
  script.add(all);
  for (const float wrong : {1.f, 0.f}) {
    ScriptReport report;
    const ScriptOptions options{.wrong = wrong, .right_in_top = false};
    auto e = open_engine_with<TypeParam>(c, scripted<TypeParam, TypeParam>(script, {options}, report));
    notes.clear();
    EXPECT_EQ(answers(*e, {r})[0].tokens, plain.tokens);
    EXPECT_TRUE(notes.empty()) << "ten rounds";
    for (int i = 0; i < 3; ++i) answers(*e, {r});
    ASSERT_EQ(notes.size(), wrong > 0 ? 1u : 0u);
    for (const std::string& n : notes) EXPECT_TRUE(n.starts_with("script: none of its drafts was right")) << n;
  }
}
// Never right, and it takes its time.
template <class B, class Plain = B>
struct SlowAndWrong : ScriptedDrafter<B, Plain> {
  using ScriptedDrafter<B, Plain>::ScriptedDrafter;
  void propose(std::span<Draft> drafts) override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    while (std::chrono::steady_clock::now() < end) {
    }
    ScriptedDrafter<B, Plain>::propose(drafts);
  }
};
TYPED_TEST(Speculation, LeavesADrafterThatIsNeverRight) {
  const TinyFile file;
  const EngineConfig c = config(file);
  Request r = request(20, 3);
  r.max_tokens = 1 + 32 + 256;
  const Answer plain = answers(*open_engine_with<TypeParam>(c, nullptr), {r})[0];
  Script<TypeParam> script(c.model, *c.kv_k);
  std::vector<int32_t> all = r.prompt;
  all.insert(all.end(), plain.tokens.begin(), plain.tokens.end());
  script.add(all);
  for (const bool final_hidden : {true, false}) {
    ScriptReport report, early;
    const ScriptOptions never{.wrong = 1, .right_in_top = false, .final_hidden = final_hidden};
    auto e = open_engine_with<TypeParam>(
        c, scripted<TypeParam, TypeParam, SlowAndWrong<TypeParam>>(script, {never}, report));
    Answer a;
    Sink sink = into(a);
    sink.tokens = [&](RequestId, std::span<const int32_t> t) {
      a.tokens.insert(a.tokens.end(), t.begin(), t.end());
      if (a.tokens.size() <= 33) early = report;
    };
    must(e->submit(r, sink));
    while (e->tick()) {
    }
    EXPECT_EQ(a.tokens, plain.tokens);
    EXPECT_EQ(a.usage.accepted, 0);
    EXPECT_EQ(a.usage.decode_steps, 32 + 256);
    const int asked = report.proposals - early.proposals, absorbs = report.absorbs - early.absorbs;
    EXPECT_LE(asked, 16) << "of 256 steps after the first 32, " << early.proposals << " in those";
    EXPECT_EQ(report.unknown + report.out_of_order + report.lost, 0);
    if (final_hidden) continue;
    EXPECT_LE(absorbs, 256 / 48 + 2 * asked + 1)
        << "features wait until there are many, it is asked (before that and after), or the answer ends";
    EngineConfig with = c;
    with.draft.files = {"script"};
    EXPECT_GE(report.absorbed,
              20 + 32 + 256 - std::min(waiting_features(64 * int(kScriptTaps.size())), kv_plan(with).max_step));
  }
}

// Features that wait are those of plain decoding, whatever comes in between: see EveryWay. These must not pass.
bool waits(CpuRef::Rows y) { return y.cols == 64 * int(kScriptTaps.size()); }  // all taps of a row, not one
template <class Base>
struct LosesAWaitingRow : Base {  // another row stays in its place
  using Base::Base;
  using typename Base::Rows;
  void copy_rows(Rows y, Rows x) {
    if (waits(y) && ++copies % 5 == 0) return;
    Base::copy_rows(y, x);
  }
  int copies = 0;
};
template <class Base>
struct WaitsOneRowOff : Base {
  using Base::Base;
  using typename Base::Rows;
  void copy_rows(Rows y, Rows x) {
    if (waits(y)) x.p += x.stride;
    Base::copy_rows(y, x);
  }
};
template <class B, class Plain>
Evidence waiting() {
  const TinyFile file;
  return compare_with_plain<B, Plain, SlowAndWrong<B, Plain>>(config(file), {request(33, 3)}, {},
                                                              {{.wrong = 1, .final_hidden = false}});
}
TYPED_TEST(Speculation, WaitingFeaturesBiteOnPlantedBugs) {
  using B = TypeParam;
  const Evidence right = waiting<B, B>(), lost = waiting<LosesAWaitingRow<B>, B>(),
                 off = waiting<WaitsOneRowOff<B>, B>();
  for (const Evidence* e : {&right, &lost, &off}) EXPECT_EQ(e->different, 0);
  EXPECT_LT(right.report.absorbs, 2 * right.report.proposals + 8) << "of 64 steps";
  EXPECT_EQ(right.report.unknown, 0);
  EXPECT_GT(lost.report.unknown, 0);
  EXPECT_GT(off.report.unknown, 0);
}

// A drafter that has no memory for a row gives the sequence up; text goes on without it.
template <class B>
struct RunsOutOfMemory : SlowAndWrong<B> {
  using SlowAndWrong<B>::SlowAndWrong;
  void absorb(std::span<const Committed> rows, const Features<typename B::Rows>& f) override {
    SlowAndWrong<B>::absorb(rows, f);
    for (const Committed& c : rows)
      if (this->held(c.slot) > 60) this->forget(c.slot);
  }
};
TYPED_TEST(Speculation, GoesOnWithoutADrafterThatGaveUp) {
  const TinyFile file;
  Request r = request(33, 3);
  r.max_tokens = 128;  // longer than features may wait (48) behind the 60 rows that it has memory for
  for (const bool final_hidden : {true, false}) {
    const Evidence e = compare_with_plain<TypeParam, TypeParam, RunsOutOfMemory<TypeParam>>(
        config(file), {r}, {}, {{.wrong = 1, .final_hidden = final_hidden}});
    EXPECT_EQ(e.different, 0);
    EXPECT_EQ(e.report.unknown + e.report.out_of_order + e.report.lost, 0);
    EXPECT_GT(e.report.absorbed, 60 - 33);
    EXPECT_LT(e.report.absorbed, 33 + 128 - 1) << "it gave up before the end";
  }
}
TYPED_TEST(Speculation, CountsWhatItDoes) {
  const TinyFile file;
  const Evidence e = compare_with_plain<TypeParam>(config(file), {request(33, 3)}, chain(4));
  const Usage& u = e.usage[0];
  ASSERT_EQ(u.offered_at.size(), 4u);
  EXPECT_EQ(u.offered_at[0], u.rounds);
  int accepted = 0;
  for (size_t k = 0; k < 4; ++k) {
    accepted += u.accepted_at[k];
    EXPECT_LE(u.offered_at[k], k > 0 ? u.accepted_at[k - 1] : u.rounds);
  }
  EXPECT_EQ(accepted, u.accepted);
  EXPECT_EQ(u.decoded, u.generated - 1);
  EXPECT_EQ(u.decoded, u.decode_steps + u.accepted) << "each step adds what it accepts and a token of its own";
  EXPECT_EQ(u.methods.front().method, "script");
  ASSERT_EQ(u.by_method.size(), 1u);
  EXPECT_EQ(u.by_method[0].name, "script");
  EXPECT_EQ(u.by_method[0].offered_at, u.offered_at);
  EXPECT_EQ(u.by_method[0].accepted_at, u.accepted_at);
}

// --- planted bugs

template <class Base>
struct SiblingsSeeEachOther : Base {  // a tree's mask is off by one
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    std::vector<uint64_t> ancestor(s.ancestor, s.ancestor + s.shape.n_tok);
    for (uint64_t& x : ancestor) x |= x >> 1;
    Step wrong = s;
    wrong.ancestor = ancestor.data();
    Base::attend(o, q, kv, wrong, a);
  }
};
template <class Base>
struct OneKeyPerStep : Base {  // all rows of a verification drawn with the first one's number
  using Base::Base;
  using typename Base::Rows, typename Base::Ids;
  void sample(Ids ids, Rows x, std::span<const SampleRow> rows) {
    std::vector<SampleRow> same(rows.begin(), rows.end());
    for (SampleRow& r : same) r.position -= int64_t(r.draft.size());
    Base::sample(ids, x, same);
  }
};
template <class Base>
struct PenaltiesForgetThePath : Base {
  using Base::Base;
  using typename Base::Rows, typename Base::Ids;
  void sample(Ids ids, Rows x, std::span<const SampleRow> rows) {
    std::vector<SampleRow> same(rows.begin(), rows.end());
    for (SampleRow& r : same) r.draft = {};
    Base::sample(ids, x, same);
  }
};

template <class B, class Plain>
int differences(const DraftConfig& draft, float temperature) {
  const TinyFile file({.type = std::is_same_v<Plain, CpuFast> ? DType::kQ8_0 : DType::kF32});
  return compare_with_plain<B, Plain>(
             config(file, KvType::kF16, 3),
             {request(33, 1, temperature), request(60, 2, temperature), request(150, 3, temperature)}, draft)
      .different;
}
TYPED_TEST(Speculation, BitesOnPlantedBugs) {
  using B = TypeParam;
  EXPECT_EQ((differences<B, B>(tree(15), 1)), 0);
  EXPECT_GT((differences<KeepsRejected<B>, B>(chain(5), 0)), 0);
  EXPECT_GT((differences<SiblingsSeeEachOther<B>, B>(tree(15), 0)), 0);
  EXPECT_GT((differences<OneKeyPerStep<B>, B>(chain(5), 1)), 0);
  EXPECT_GT((differences<PenaltiesForgetThePath<B>, B>(chain(5), 0)), 0);
}

template <class B>
struct FeaturesOneRowOff : ScriptedDrafter<B> {
  using ScriptedDrafter<B>::ScriptedDrafter;
  void absorb(std::span<const Committed> rows, const Features<typename B::Rows>& f) override {
    std::vector<Committed> wrong(rows.begin(), rows.end());
    for (Committed& c : wrong) ++c.row;
    ScriptedDrafter<B>::absorb(wrong, f);
  }
};
template <class B>
struct FirstRowsForThePath : ScriptedDrafter<B> {  // a tree's siblings are taken for its path
  using ScriptedDrafter<B>::ScriptedDrafter;
  void absorb(std::span<const Committed> rows, const Features<typename B::Rows>& f) override {
    std::vector<Committed> wrong(rows.begin(), rows.end());
    for (Committed& c : wrong) c.path = {};
    ScriptedDrafter<B>::absorb(wrong, f);
  }
};
template <class B>
struct KeepsARejectedRow : ScriptedDrafter<B> {  // stale rows after a rejection
  using ScriptedDrafter<B>::ScriptedDrafter;
  void absorb(std::span<const Committed> rows, const Features<typename B::Rows>& f) override {
    std::vector<Committed> wrong(rows.begin(), rows.end());
    for (Committed& c : wrong)
      if (!c.path.empty()) c.path = {}, ++c.n;
    ScriptedDrafter<B>::absorb(wrong, f);
  }
};
// Text is right with all of them: the features tell.
TYPED_TEST(Speculation, FeaturesBiteOnPlantedBugs) {
  using B = TypeParam;
  const TinyFile file;
  const EngineConfig c = config(file);
  const std::vector<Request> r{request(33, 3)};
  const Evidence off = compare_with_plain<B, B, FeaturesOneRowOff<B>>(c, r, chain(4));
  const Evidence first = compare_with_plain<B, B, FirstRowsForThePath<B>>(c, r, tree(15));
  const Evidence stale = compare_with_plain<B, B, KeepsARejectedRow<B>>(c, r, chain(4));
  for (const Evidence* e : {&off, &first, &stale}) EXPECT_EQ(e->different, 0);
  EXPECT_GT(off.report.unknown, 0);
  EXPECT_GT(first.report.unknown, 0);
  EXPECT_GT(stale.report.unknown, 0);
}

// --- the law of sampled text

// Proposes the same tokens always: for each of two positions the two that are the likeliest there.
template <class B>
struct Stubborn final : Drafter<B> {
  explicit Stubborn(std::vector<int32_t> likely) : likely_(std::move(likely)) {}
  const char* name() const override { return "stubborn"; }
  int max_draft() const override { return 2; }
  std::span<const int> tap_layers() const override { return {}; }
  bool wants_final_hidden() const override { return false; }
  void absorb(std::span<const Committed> rows, const Features<typename B::Rows>&) override {
    for (const Committed& c : rows) held_[c.slot] = c.position + c.n;
  }
  void propose(std::span<Draft> drafts) override {
    for (Draft& d : drafts)
      for (int i = 0; i < d.max_draft; ++i) {
        d.token.push_back(likely_[size_t(2 * i)]);
        for (int r = 0; r < d.n_top; ++r) {
          d.top.push_back(r > 1 ? -1 : likely_[size_t(2 * i + r)]);
          d.top_log_prob.push_back(-1.f - .1f * float(r));
        }
      }
  }
  int held(SlotId s) const override { return held_.contains(s) ? held_.at(s) : 0; }
  int rewind(SlotId s, int len) override { return held_[s] = len; }
  void forget(SlotId s) override { held_[s] = 0; }
  Status fork(SlotId from, SlotId to) override {
    held_[to] = held_[from];
    return Ok{};
  }
  bool load(SlotId, int, std::span<const float>) override { return false; }
  std::vector<int32_t> likely_;
  std::map<SlotId, int> held_;
};

double chi_square_p(double x, double df) {  // Wilson and Hilferty
  const double z = (std::cbrt(x / df) - (1 - 2 / (9 * df))) / std::sqrt(2 / (9 * df));
  return .5 * std::erfc(z / std::sqrt(2.));
}

// Draws n times four tokens after a prompt, with drafts for the second and third, and compares the joint counts of
// those two with the model's own probabilities.
template <class B>
double law_p(const DraftConfig& draft, float temperature, int n) {
  const TinyFile file({.vocab = 16});
  const std::vector<int32_t> prompt = random_ids(12, 16, 4);
  EngineConfig c = config(file, KvType::kF32, 4);
  c.draft = draft;
  Harness<CpuRef> h(file.path());
  auto softmax = [&](std::span<const int32_t> ids) {
    const std::vector<float> l = h.logits(ids, {64});
    std::vector<double> p(16);
    double total = 0;
    for (size_t i = 0; i < 16; ++i) total += p[i] = std::exp(double(l[l.size() - 16 + i]) / double(temperature));
    for (double& x : p) x /= total;
    return p;
  };
  std::vector<double> want(256);
  const auto p1 = softmax(prompt);
  for (int32_t a = 0; a < 16; ++a) {
    std::vector<int32_t> ids = prompt;
    ids.push_back(a);
    const auto p2 = softmax(ids);
    for (int32_t b = 0; b < 16; ++b) {
      std::vector<int32_t> more = ids;
      more.push_back(b);
      const auto p3 = softmax(more);
      for (int32_t x = 0; x < 16; ++x) want[size_t(b * 16 + x)] += p1[size_t(a)] * p2[size_t(b)] * p3[size_t(x)] * n;
    }
  }
  std::vector<int32_t> likely;
  for (const int place : {16, 1}) {
    std::vector<double> p(16);
    for (int i = 0; i < 256; ++i) p[size_t(i / place % 16)] += want[size_t(i)];
    for (int k = 0; k < 2; ++k) {
      likely.push_back(int32_t(std::max_element(p.begin(), p.end()) - p.begin()));
      p[size_t(likely.back())] = 0;
    }
  }

  auto e = open_engine_with<B>(c, [&](const TargetView<B>&) -> Result<Drafters<B>> {
    Drafters<B> d;
    d.push_back(std::make_unique<Stubborn<B>>(likely));
    return d;
  });
  std::vector<int> count(256);
  for (int i = 0; i < n; i += 4) {
    std::vector<Request> r;
    for (int k = 0; k < 4; ++k)
      r.push_back({.prompt = prompt,
                   .max_tokens = 4,
                   .sampling = {.temperature = temperature, .top_k = 0, .top_p = 1, .seed = uint64_t(i + k)}});
    for (const Answer& a : answers(*e, r)) ++count[size_t(a.tokens[1] * 16 + a.tokens[2])];
  }
  double chi = 0, rest = 0, rest_want = 0;
  int cells = 0;
  for (size_t i = 0; i < 256; ++i) {
    if (want[i] < 5) {
      rest += count[i], rest_want += want[i];
      continue;
    }
    chi += (count[i] - want[i]) * (count[i] - want[i]) / want[i];
    ++cells;
  }
  if (rest_want >= 5) chi += (rest - rest_want) * (rest - rest_want) / rest_want, ++cells;
  return chi_square_p(chi, cells - 1);
}
TEST(SampledSpeculation, KeepsTheModelsLaw) {
  const int n = kSanitized ? 2500 : 25000;  // 100,000 tokens
  for (const float t : {.7f, 1.f}) {
    if (kSanitized && t == 1) continue;
    EXPECT_GT(law_p<CpuFast>(chain(2), t, n), .01) << t;
    EXPECT_LT(law_p<OneKeyPerStep<CpuFast>>(chain(2), t, full() ? n : n / 2), 1e-6) << t;
    EXPECT_GT(law_p<CpuFast>(tree(6, 2), t, full() ? n : n / 4), .01) << t;
  }
}

}  // namespace
}  // namespace facet::test
