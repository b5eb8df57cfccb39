// One model over several shards: the same text to f32 rounding, the same bits in every run and in every batch.
// Long: one decorator, its laws and the planted bugs that they catch.
#include "backend/tensor_parallel.h"
#include "cache/cache_of_shards.h"
#include "support/broken.h"
#include "support/harness.h"
#include "support/merges.h"
#include "support/open_parts.h"
#include "support/sanitized.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

using Shards = TensorParallel<CpuRef>;
constexpr int kTokens = 40;  // more than a ring of the tiny models
const std::vector<int> kSteps{20, 1, 10};

KvPlan plan(KvType t = KvType::kF16, int share = 1) {
  return {.k = t, .v = t, .share = share, .max_seq = 3, .max_ctx = 256, .max_step = 96, .margin = 16};
}

// Each verb moves a result by at most what Lockstep allows; errors of verbs one after another add up.
double bound(const ModelCfg& m) {
  const double terms = std::max({m.d_model, m.max_q_cols(), m.max_d_ff()});
  const double verbs = 16.0 * m.n_layer() + 8;
  return verbs * (8 * CpuRef::kRound + 0x1p-23 * std::sqrt(terms));
}
double size(const std::vector<float>& v) {
  double s = 0;
  for (const float x : v) s += double(x) * double(x);
  return std::sqrt(s / double(v.size()));
}
// Of the rms of what one backend computes, over the bound.
template <class B = Shards, class Spoil>
double distance(const std::string& path, int n, const KvPlan& p, Spoil&& spoil) {
  Harness<CpuRef> one(path, p);
  Harness<B> many(path, p, 0, n, 1);
  spoil(many);
  const auto ids = random_ids(kTokens, one.cfg.n_vocab, 7);
  const auto want = one.logits(ids, kSteps), got = many.logits(ids, kSteps);
  return compare(got, want, one.cfg.n_vocab).rms / size(want) / bound(one.cfg);
}
template <class B = Shards>
double distance(const std::string& path, int n, const KvPlan& p = plan(KvType::kF32)) {
  return distance<B>(path, n, p, [](Harness<B>&) {});
}

const std::vector<TinyModel>& tiny_models() {
  static const std::vector<TinyModel> all{
      {},
      {.moe = true},
      {.moe = true, .split_experts = true, .d_expert = 160},
      {.ple = true},
      {.type = DType::kQ8_0},
      {.moe = true, .type = DType::kQ4_K, .width = 256, .experts = 3, .d_expert = 512},
      {.moe = true, .type = DType::kNVFP4, .width = 256, .experts = 3, .d_expert = 256},
  };
  return all;
}

TEST(TensorParallel, EqualsOneToRounding) {
  for (const TinyModel& m : tiny_models()) {
    const TinyFile file(m);
    for (const int n : {2, 4})
      EXPECT_LE(distance(file.path(), n), 1) << m.moe << m.ple << dtype_name(m.type) << " over " << n;
  }
}

// Verb by verb on equal inputs.
TEST(TensorParallel, EveryVerbAgreesWithReference) {
  for (const TinyModel& m : tiny_models()) {
    const TinyFile file(m);
    for (const int n : {2, 4}) {
      Harness<Lockstep<Shards, CpuRef>> h(file.path(), plan(KvType::kQ8_0, n == 2), 0, std::tuple(n, 1), std::tuple(1));
      h.logits(random_ids(kTokens, h.cfg.n_vocab, 7), kSteps);
      EXPECT_GT(h.backend().compared(), 100);
      for (const VerbDifference& d : h.backend().differences())
        ADD_FAILURE() << m.moe << m.ple << dtype_name(m.type) << " over " << n << " " << d.message();
    }
  }
}

TEST(TensorParallel, ShippedModels) {
  for (const char* name : {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"})
    for (const int share : {0, 512})
      EXPECT_LE(distance(shipped_path(name), 2, plan(KvType::kF32, share)), 1) << name << " " << share;
}

// What a plan of memory takes a shard for is what it gets.
class Weighed : public CpuRef {
 public:
  using CpuRef::CpuRef, CpuRef::upload;
  Weight upload(const TensorView& t) {
    given[t.name] = t.ne;
    return CpuRef::upload(t);
  }
  std::map<std::string, decltype(TensorView::ne)> given;
};
TEST(TensorParallel, PlansAreOfWhatShardsGet) {
  for (const TinyModel& m : tiny_models()) {
    const TinyFile file(m);
    for (const int n : {2, 4}) {
      Harness<TensorParallel<Weighed>> h(file.path(), plan(), 0, n, 1);
      const GgufFile f = must(GgufFile::open(file.path()));
      int divided = 0;
      for (const TensorView& t : f.tensors()) {
        if (!h.backend().shard(0).given.contains(t.name)) continue;
        const auto views = shard_views(h.cfg, n, t, f.tensors());
        for (int i = 0; i < n; ++i) {
          const auto& given = h.backend().shard(i).given;
          const auto& ne = views[size_t(i)].ne;
          if (ne[0] == 0 || ne[1] == 0)
            EXPECT_FALSE(given.contains(t.name)) << t.name;
          else
            EXPECT_EQ(given.at(t.name), ne) << t.name << " shard " << i << " of " << n;
          divided += ne != t.ne;
        }
      }
      EXPECT_GE(divided, n * h.cfg.n_layer()) << "queries at least";
    }
  }
}

// --- Planted bugs

struct LeavesAShardOut : HostLink<CpuRef> {
  void sum(std::span<const Rows> rows, unsigned has) { HostLink::sum(rows, has & ~(has > 1 ? 2u : 0u)); }
};
struct EmbedsTheNextToken : HostLink<CpuRef> {
  void embed(CpuRef& b, Rows x, Weight table, const Step& s, float scale, Range own) {
    HostLink::embed(b, x, table, s, scale, {own.begin - 1, own.end - 1});
  }
};
struct GathersOneColumnOff : HostLink<CpuRef> {
  void gather(std::span<const Rows> to, std::span<const Rows> from, ShardRanges at) {
    for (Range& r : at) r.begin -= r.begin > 0;
    HostLink::gather(to, from, at);
  }
};

TEST(TensorParallel, APartLeftOutIsFound) {
  const TinyFile file;
  EXPECT_GT((distance<TensorParallel<CpuRef, LeavesAShardOut>>(file.path(), 2)), 10);
}
TEST(TensorParallel, HeadsOfAnotherShardAreFound) {
  const TinyFile file;
  for (const bool of_v : {false, true})
    EXPECT_GT(distance(file.path(), 2, plan(KvType::kF32),
                       [&](Harness<Shards>& h) {
                         LayerW<Shards>& w = h.runner().w.layer[0];  // with two K/V heads
                         auto& part = (of_v ? w.wv : w.wk).part;
                         std::swap(part[0], part[1]);
                       }),
              10);
}
TEST(TensorParallel, AVocabularyOffsetIsFound) {
  const TinyFile file;
  EXPECT_GT((distance<TensorParallel<CpuRef, EmbedsTheNextToken>>(file.path(), 2)), 10);
  EXPECT_GT(distance(file.path(), 2, plan(KvType::kF32),
                     [](Harness<Shards>& h) { std::swap(h.runner().w.head.part[0], h.runner().w.head.part[1]); }),
            10);
}

// --- The choice of tokens

// Whether tokens chosen from divided logits are those of the logits brought together.
template <class B>
bool choices_are_of_all(const std::string& path, int n) {
  Harness<B> h(path, plan(), 0, n, 1);
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7);
  h.begin();
  h.add({.slot = 0, .token = ids, .out = Out::kAll});
  auto& r = h.runner();
  const auto logits = r.forward();
  auto want_logits = r.b.to_host(logits);
  CpuRef one;
  const auto whole = one.new_rows(kTokens, h.cfg.n_vocab);
  one.from_host(whole, want_logits);
  const Sampling greedy{.temperature = 0}, drawn{.temperature = 1, .seed = 5};
  std::vector<SampleRow> rows;
  for (int i = 0; i < kTokens; ++i) rows.push_back({.sampling = i % 2 ? &greedy : &drawn, .position = i});
  auto got = r.b.new_ids(5 * kTokens);
  auto want = one.new_ids(5 * kTokens);
  auto got_scores = r.b.new_scores(5 * kTokens), want_scores = one.new_scores(5 * kTokens);
  const auto same = [&](int count) {
    for (size_t i = 0; i < size_t(count); ++i)
      if (got[i] != want[i]) return false;
    return true;
  };
  r.b.sample(got, logits, rows), one.sample(want, whole, rows);
  if (!same(kTokens)) return false;
  r.b.top_k(got, got_scores, logits, 5), one.top_k(want, want_scores, whole, 5);
  if (!same(5 * kTokens)) return false;
  // The rows stay as they are, and part of them may be chosen from.
  r.b.sample(got, logits.rows_at(3, 4), std::span(rows).subspan(3, 4));
  one.sample(want, whole.rows_at(3, 4), std::span(rows).subspan(3, 4));
  return same(4) && bitwise_equal(r.b.to_host(logits), want_logits);
}
TEST(TensorParallel, ChoicesAreOfTheWholeVocabulary) {
  const TinyFile file;
  for (const int n : {2, 4}) EXPECT_TRUE(choices_are_of_all<Shards>(file.path(), n));
  EXPECT_FALSE((choices_are_of_all<TensorParallel<CpuRef, GathersOneColumnOff>>(file.path(), 4)));
}

// --- Bits

// A row alone, in chunks of any size, beside other sequences, and in another run.
template <class B>
bool rows_keep_their_bits(const std::string& path, int n) {
  Harness<B> h(path, plan(KvType::kQ8_0), 0, n, 1);
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7), other = random_ids(kTokens, h.cfg.n_vocab, 8);
  const auto alone = h.logits(ids, {1});
  for (const int chunk : {7, 17, kTokens})
    if (!bitwise_equal(h.logits(ids, {chunk}), alone)) return false;
  for (int s = 0; s < 2; ++s) h.cache().clear(s);
  std::vector<float> together;
  for (size_t at = 0; at < size_t(kTokens); at += 10) {
    h.begin();
    h.add({.slot = 1, .token = std::span(other).subspan(at, 9), .out = Out::kLast});
    h.add({.slot = 0, .token = std::span(ids).subspan(at, 10), .out = Out::kAll});
    const auto got = h.forward();
    together.insert(together.end(), got.begin() + h.cfg.n_vocab, got.end());
    h.cache().commit(0, 10), h.cache().commit(1, 9);
  }
  Harness<B> again(path, plan(KvType::kQ8_0), 0, n, 1);
  return bitwise_equal(together, alone) && bitwise_equal(again.logits(ids, {kTokens}), alone);
}
// Adds from the last shard down in steps of several rows.
struct OrderByRows : HostLink<CpuRef> {
  void sum(std::span<const Rows> rows, unsigned has) {
    std::vector<Rows> turned(rows.rbegin(), rows.rend());
    unsigned mirrored = 0;
    for (size_t i = 0; i < rows.size(); ++i) mirrored |= (has >> i & 1) << (rows.size() - 1 - i);
    rows[0].rows > 1 ? HostLink::sum(turned, mirrored) : HostLink::sum(rows, has);
  }
};
TEST(TensorParallel, RowsKeepTheirBits) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(m);
    for (const int n : {2, 4}) EXPECT_TRUE(rows_keep_their_bits<Shards>(file.path(), n)) << m.moe << m.ple << n;
  }
  const TinyFile file;
  EXPECT_FALSE((rows_keep_their_bits<TensorParallel<CpuRef, OrderByRows>>(file.path(), 4)));
}

// Memory that nothing was written to is never read; a decorator around shards, and merged verbs in them, change
// nothing.
static_assert(Decorates<TensorParallel<Merges>, Merges> && ChainsPasses<TensorParallel<Merges>> &&
              !ChainsPasses<Shards>);
template <class B>
std::vector<float> bits(const std::string& path, int n) {
  Harness<B> h(path, plan(), 0, n, 1);
  return h.logits(random_ids(kTokens, h.cfg.n_vocab, 7), kSteps);
}
TEST(TensorParallel, DecoratorsAndMergedVerbsChangeNothing) {
  // Of experts as many columns as some shards have of the layer's own, or fewer.
  for (const TinyModel& m : {TinyModel{.moe = true, .d_expert = 160}, TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(m);
    for (const int n : {2, 4}) {
      const auto plain = bits<Shards>(file.path(), n);
      EXPECT_TRUE(bitwise_equal(bits<TensorParallel<NewMemoryIsNaN<CpuRef>>>(file.path(), n), plain)) << m.moe << n;
      EXPECT_TRUE(bitwise_equal(bits<TensorParallel<Merges>>(file.path(), n), plain)) << m.moe << n;
      if (n == 4) continue;
      EXPECT_TRUE(bitwise_equal(bits<Traced<Shards>>(file.path(), n), plain)) << m.moe << n;
    }
  }
}

// --- The engine

// Drafts change no token, and as many are right as on one.
TEST(TensorParallel, DraftsAreAsGoodAndChangeNothing) {
  const std::pair<const char*, const char*> cases[] = {
      {"facet-nano-Q8_0.gguf", "mtp"}, {"facet-nano-Q8_0.gguf", "dflash"}, {"facet-nano-moe-Q4_K_M.gguf", "mtp"}};
  for (const auto& [name, kind] : cases) {
    EngineConfig c = shipped(name);
    auto plain = open_parts<Shards>(c, 2, 1);
    const Request r = question(*plain);
    const Answer want = answers(*plain, {r})[0];
    c.draft.max = c.draft.min = 4;
    c.draft.files = {find_drafter_beside(c.model, kind).path};
    const Answer one = answers(*open_parts<CpuRef>(c, 1), {r})[0], got = answers(*open_parts<Shards>(c, 2, 1), {r})[0];
    EXPECT_EQ(got.tokens, want.tokens) << name << " " << kind;
    EXPECT_EQ(got.tokens, one.tokens) << name << " " << kind << ": no two logits are as near as f32 rounds them";
    EXPECT_EQ(got.usage.accepted, one.usage.accepted) << name << " " << kind;
    EXPECT_GT(2 * got.usage.accepted, got.usage.drafted) << name << " " << kind;
  }
}
// Trees move rows in every shard's cache.
TEST(TensorParallel, TreesChangeNothing) {
  EngineConfig c = shipped("facet-nano-Q8_0.gguf");
  auto plain = open_parts<Shards>(c, 2, 1);
  const Request r = question(*plain);
  c.draft = {.max = 6, .min = 1, .tree = 15};
  c.draft.files = {find_drafter_beside(c.model, "dflash").path};
  const Answer want = answers(*plain, {r})[0], got = answers(*open_parts<Shards>(c, 2, 1), {r})[0];
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_GT(got.usage.accepted, 10);
}

// What is kept of a conversation is the state of every shard, in the pool and in a file.
TEST(TensorParallel, StatesAreOfAllShards) {
  const TinyFile file(TinyModel{.type = DType::kQ8_0});
  EngineConfig c;
  c.model = file.path();
  c.n_ctx = 256, c.chunk = 40, c.margin = 16, c.n_threads = 1;
  c.kv_k = c.kv_v = KvType::kF16;
  for (const int n : {2, 4})
    states_are_whole(
        file, [&] { return open_parts<Shards>(c, n, 1); }, [&] { return open_parts<Shards>(c, 6 - n, 1); });
}

TEST(TensorParallel, AnotherNumberIsRefusedWithThoseThatWork) {
  const TinyFile file;
  const GgufFile f = must(GgufFile::open(file.path()));
  const ModelCfg m = must(gemma4_config(f));
  for (const int n : {3, 8}) {
    const auto r = Runner<Shards>::open(f, m, {.kv = plan(), .max_out = 1}, n, 1);
    ASSERT_FALSE(r);
    EXPECT_NE(
        r.error().message().find(fmt::format(
            "expected a number of shards that divides its 4 query heads and 2 or 1 K/V heads a layer, found {}", n)),
        std::string::npos)
        << r.error().message();
    EXPECT_NE(r.error().message().find("use 1 or 2 or 4"), std::string::npos) << r.error().message();
  }
}

}  // namespace
}  // namespace facet::test
