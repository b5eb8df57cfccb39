// Laws of the forward pass and the cache, bit for bit on every host backend: what a step holds beside a row, and how
// rows were cut into steps, changes nothing. Each law is a function of the backend; a planted bug must break it.
// Long: a law and its planted bug stand side by side, over one harness.
#include "backend/cpu/cpu_fast.h"
#include "support/broken.h"
#include "support/harness.h"
#include "support/rewrite_gguf.h"
#include "support/sanitized.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

constexpr int kTokens = 90;
constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0};

KvPlan plan(KvType t = KvType::kQ8_0) {
  return {.k = t, .v = t, .share = true, .max_seq = 3, .max_ctx = 256, .max_step = 96, .margin = 16};
}
std::vector<float> rows(const std::vector<float>& logits, int vocab, size_t from, size_t n) {
  return {logits.begin() + ptrdiff_t(from) * vocab, logits.begin() + ptrdiff_t(from + n) * vocab};
}

template <class B>
class Property : public testing::Test {};
using Backends = testing::Types<CpuRef, CpuFast>;
TYPED_TEST_SUITE(Property, Backends);

// What is special about the fast backend is how it treats quantised weights.
template <class B>
TinyModel suited(TinyModel m = {}) {
  if (std::is_same_v<B, CpuFast>) m.type = DType::kQ8_0;
  return m;
}

// 16 is the window and the rings' margin; 17 is staged.
template <class B>
bool chunking_changes_nothing(const std::string& model, const KvPlan& p) {
  Harness<B> h(model, p);
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7);
  const auto one = h.logits(ids, {1});
  for (const std::vector<int>& chunks : {std::vector<int>{2}, {7}, {15}, {16}, {17}, {64}, {90}, {5, 40, 1, 30, 3}})
    if (!bitwise_equal(h.logits(ids, chunks), one)) return false;
  return true;
}
template <class B>
bool chunking_changes_nothing(const std::string& model, KvType t) {
  return chunking_changes_nothing<B>(model, plan(t));
}

TYPED_TEST(Property, ChunkingChangesNothing) {
  int at = 0;
  for (const TinyModel& m :
       {TinyModel{}, TinyModel{.moe = true}, TinyModel{.moe = true, .split_experts = true}, TinyModel{.ple = true}}) {
    const TinyFile file(suited<TypeParam>(m));
    for (KvType t : kTypes) {
      if (kSanitized && ++at % 3 != 0) continue;
      EXPECT_TRUE(chunking_changes_nothing<TypeParam>(file.path(), t)) << m.moe << m.ple << kv_type_name(t);
    }
  }
}
TYPED_TEST(Property, ChunkingBitesOnARingOneRowShort) {
  const TinyFile file(suited<TypeParam>());
  EXPECT_FALSE(chunking_changes_nothing<RingOneRowShort<TypeParam>>(file.path(), KvType::kF16));
}

// Layers with K/V types of their own: wider and narrower ones, full and sliding, one with two types.
KvPlan mixed_plan() {
  KvPlan p = plan(KvType::kQ8_0);
  p.layers = {{0, 0, {KvType::kQ8_0, KvType::kQ4_0}},
              {1, 2, {KvType::kTQ3_0, KvType::kTQ3_0}},
              {3, 3, {KvType::kF16, KvType::kF32}},
              {4, 4, {KvType::kF32, KvType::kTQ3_0}}};
  return p;
}
TYPED_TEST(Property, LayersOfTheirOwnTypes) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.ple = true}}) {
    const TinyFile file(suited<TypeParam>(m));
    EXPECT_TRUE(chunking_changes_nothing<TypeParam>(file.path(), mixed_plan())) << m.ple;
    EXPECT_FALSE(chunking_changes_nothing<RingOneRowShort<TypeParam>>(file.path(), mixed_plan())) << m.ple;
    // Every layer named is the type of all, and each of them counts.
    KvPlan named = plan(KvType::kF32);
    named.layers = {{0, 9, {KvType::kQ8_0, KvType::kQ8_0}}};
    const auto ids = random_ids(40, 96, 7);
    EXPECT_TRUE(bitwise_equal(Harness<TypeParam>(file.path(), named).logits(ids, {25}),
                              Harness<TypeParam>(file.path(), plan()).logits(ids, {25})));
    Harness<TypeParam> plain(file.path(), plan(KvType::kF32));
    const auto want = plain.logits(ids, {25});
    for (int l = 0; l < int(plain.cfg.layer.size()); l += kSanitized ? 4 : 1) {
      named.layers = {{l, l, {KvType::kTQ3_0, KvType::kTQ3_0}}};
      EXPECT_EQ(bitwise_equal(Harness<TypeParam>(file.path(), named).logits(ids, {25}), want),
                plain.cfg.layer[size_t(l)].query_only)
          << "layer " << l;
    }
  }
}
TEST(Lockstep, FastAgreesWithReferenceInLayersOfTheirOwnTypes) {
  const TinyFile file({.type = DType::kQ8_0});
  const auto ids = random_ids(kTokens, 96, 7);
  Harness<Lockstep<CpuFast, CpuRef>> h(file.path(), mixed_plan());
  h.logits(ids, {30, 1, 20});
  for (const VerbDifference& d : h.backend().differences()) ADD_FAILURE() << d.message();
  Harness<Lockstep<KeepsKeysAsValues<CpuFast>, CpuRef>> wrong(file.path(), mixed_plan());
  wrong.logits(ids, {30, 1, 20});
  ASSERT_FALSE(wrong.backend().differences().empty());
  EXPECT_EQ(wrong.backend().differences().front().name, "attend");
}

// A sequence's rows are the same alone and beside a prompt, a draft block and padding.
template <class B>
bool neighbours_change_nothing(const std::string& model) {
  Harness<B> h(model, plan());
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7), other = random_ids(60, h.cfg.n_vocab, 8),
             third = random_ids(40, h.cfg.n_vocab, 9);
  const auto alone = h.logits(ids, {30});
  for (int s = 0; s < 3; ++s) h.cache().clear(s);
  std::vector<float> together;
  for (int at = 0, step = 0; at < kTokens; at += 10, ++step) {
    h.begin();
    if (step < 6) h.add({.slot = 2, .token = std::span(other).subspan(size_t(step) * 10, 10), .out = Out::kLast});
    h.add({.slot = 0, .token = std::span(ids).subspan(size_t(at), 10), .out = Out::kAll});
    if (step < 8) h.add({.slot = 1, .token = std::span(third).subspan(size_t(step) * 5, 5), .mask = Mask::kBlock});
    h.runner().steps.pad_to(28);
    const auto got = h.forward();
    const size_t skip = step < 6 ? 1 : 0;
    const auto mine = rows(got, h.cfg.n_vocab, skip, 10);
    together.insert(together.end(), mine.begin(), mine.end());
    h.cache().commit(0, 10);
    if (step < 6) h.cache().commit(2, 10);
    if (step < 8) h.cache().commit(1, 5);
  }
  return bitwise_equal(together, alone);
}
TYPED_TEST(Property, NeighboursChangeNothing) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(suited<TypeParam>(m));
    EXPECT_TRUE(neighbours_change_nothing<TypeParam>(file.path()));
  }
}
TYPED_TEST(Property, NeighboursBiteOnALeak) {
  const TinyFile file(suited<TypeParam>());
  EXPECT_FALSE(neighbours_change_nothing<LeaksNeighbour<TypeParam>>(file.path()));
}

// Verifying a draft gives the rows of decoding; what is rejected never existed.
template <class B>
bool rejected_rows_vanish(const std::string& model) {
  Harness<B> h(model, plan());
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7), junk = random_ids(kTokens * 8, h.cfg.n_vocab, 11);
  const auto plain = h.logits(ids, {1});
  h.cache().clear(0);
  std::vector<float> got;
  for (size_t at = 0, round = 0; at < ids.size(); ++round) {  // n right tokens, then wrong ones
    const size_t n = std::min(1 + round % 5, ids.size() - at), wrong = (round * 7) % 11;
    std::vector<int32_t> draft(ids.begin() + ptrdiff_t(at), ids.begin() + ptrdiff_t(at + n));
    draft.insert(draft.end(), junk.begin() + ptrdiff_t(round), junk.begin() + ptrdiff_t(round + wrong));
    h.begin();
    h.add({.slot = 0, .token = draft, .out = Out::kAll});
    const auto keep = rows(h.forward(), h.cfg.n_vocab, 0, n);
    got.insert(got.end(), keep.begin(), keep.end());
    h.cache().commit(0, int(n));
    at += n;
  }
  return bitwise_equal(got, plain);
}
TYPED_TEST(Property, RejectedRowsVanish) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(suited<TypeParam>(m));
    EXPECT_TRUE(rejected_rows_vanish<TypeParam>(file.path()));
  }
}
TYPED_TEST(Property, RejectionBitesOnRowsLeftVisible) {
  const TinyFile file(suited<TypeParam>());
  EXPECT_FALSE(rejected_rows_vanish<KeepsRejected<TypeParam>>(file.path()));
}

// A tree's path has the rows of a chain, also in the same step as a prompt; its compaction leaves a plain cache.
TYPED_TEST(Property, TreesEqualChains) {
  for (const KvType t : kTypes) {
    const TinyFile file(suited<TypeParam>());
    Harness<TypeParam> h(file.path(), plan(t));
    const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7), other = random_ids(30, h.cfg.n_vocab, 8);
    const auto plain = h.logits(ids, {1});
    for (int s = 0; s < 3; ++s) h.cache().clear(s);
    h.more_logits(std::span(ids).first(40), {40});
    for (size_t at = 40; at + 4 <= 80; at += 4) {
      // The right path is nodes 0, 2, 3, 6; the others are siblings with other tokens.
      const int32_t a = ids[at], b = ids[at + 1], c = ids[at + 2], d = ids[at + 3];
      const std::vector<int32_t> tree{a, (b + 1) % 96, b, c, (c + 5) % 96, (d + 3) % 96, d, a};
      const std::vector<int16_t> parent{-1, 0, 0, 2, 2, 4, 3, 1};
      h.begin();
      if (at == 40) h.add({.slot = 1, .token = other, .out = Out::kNone});
      h.add({.slot = 0, .token = tree, .out = Out::kAll, .mask = Mask::kTree, .parent = parent});
      const auto got = h.forward();
      size_t row = at;
      for (const size_t node : {0u, 2u, 3u, 6u})
        EXPECT_TRUE(bitwise_equal(rows(got, h.cfg.n_vocab, node, 1), rows(plain, h.cfg.n_vocab, row++, 1)))
            << kv_type_name(t) << " at " << at;
      const int16_t path[] = {0, 2, 3, 6};
      h.cache().commit_path(0, path);
    }
    const auto rest = h.more_logits(std::span(ids).subspan(80), {3});
    EXPECT_TRUE(bitwise_equal(rest, rows(plain, h.cfg.n_vocab, 80, 10))) << kv_type_name(t);
  }
}

// Going back and doing it again is never having left; a fork and what it was taken of go on apart.
TYPED_TEST(Property, RewindAndFork) {
  const TinyFile file(suited<TypeParam>());
  for (const KvType t : {KvType::kF32, KvType::kQ8_0}) {
    Harness<TypeParam> h(file.path(), plan(t));
    const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7), other = random_ids(80, h.cfg.n_vocab, 8);
    const auto plain = h.logits(ids, {1});
    auto mixed = std::vector(ids.begin(), ids.begin() + 50);
    mixed.insert(mixed.end(), other.begin(), other.end());
    const auto plain_mixed = h.logits(mixed, {1});
    h.cache().clear(0);
    h.more_logits(std::span(ids).first(50), {50});
    must(h.cache().fork(0, 1));
    h.more_logits(std::span(other).first(40), {13});
    EXPECT_EQ(h.cache().rewind(0, 50), Rewind::kNeedsPrefill) << "the rings hold a margin of 16 rows, 40 were written";
    ASSERT_TRUE(h.cache().reaches(1, 44));
    EXPECT_FALSE(h.cache().reaches(1, 30));
    must(h.cache().fork(1, 2));
    ASSERT_EQ(h.cache().rewind(1, 44), Rewind::kDone) << "the fork has a margin of its own";
    EXPECT_TRUE(
        bitwise_equal(h.more_logits(std::span(ids).subspan(44), {9}, 1), rows(plain, h.cfg.n_vocab, 44, kTokens - 44)));
    EXPECT_TRUE(
        bitwise_equal(h.more_logits(std::span(mixed).subspan(90), {7}), rows(plain_mixed, h.cfg.n_vocab, 90, 40)));
    EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(50), {11}, 2),
                              rows(plain, h.cfg.n_vocab, 50, kTokens - 50)));
    h.cache().release(0);
    ASSERT_EQ(h.cache().rewind(1, 80), Rewind::kDone);
    EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(80), {10}, 1), rows(plain, h.cfg.n_vocab, 80, 10)));
    EXPECT_EQ(h.cache().rewind(1, 0), Rewind::kDone);
    EXPECT_TRUE(bitwise_equal(h.more_logits(ids, {90}, 1), plain));
  }
}

// Forks share the pages of full layers until one of them writes there.
TYPED_TEST(Property, ForksShareWholePages) {
  const TinyFile file(suited<TypeParam>());
  KvPlan p = plan(KvType::kF32);
  p.max_ctx = 1024;
  Harness<TypeParam> h(file.path(), p);
  const auto ids = random_ids(400, h.cfg.n_vocab, 7);
  const auto plain = h.logits(ids, {90});
  PagePool& pool = h.cache().pool();
  const int64_t before = pool.used(), one = h.cache().pages(400), alone = h.cache().owned_pages(0);
  EXPECT_EQ(one, alone);
  must(h.cache().fork(0, 1));
  EXPECT_LT(pool.used() - before, one) << "some pages are shared";
  EXPECT_LT(h.cache().owned_pages(0), alone);
  // Rows of shared pages are written by both: each gets its own.
  ASSERT_EQ(h.cache().rewind(1, 390), Rewind::kDone);
  const auto other = random_ids(60, h.cfg.n_vocab, 9);
  h.more_logits(other, {16}, 1);
  h.cache().clear(1);
  h.more_logits(other, {16}, 1);
  ASSERT_EQ(h.cache().rewind(0, 390), Rewind::kDone);
  EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(390), {10}), rows(plain, h.cfg.n_vocab, 390, 10)));
  h.cache().release(0);
  h.cache().release(1);
  EXPECT_LT(pool.used(), before) << "all is given back";
}

// A fork whose shared pages are not mapped yet is the same sequence: it runs, is forked again and goes, whenever.
TYPED_TEST(Property, ForksSleep) {
  const TinyFile file(suited<TypeParam>());
  KvPlan p = plan(KvType::kF32);
  p.max_ctx = 1024;
  Harness<TypeParam> h(file.path(), p);
  KvCache& c = h.cache();
  const auto ids = random_ids(400, h.cfg.n_vocab, 7), other = random_ids(60, h.cfg.n_vocab, 9);
  const auto plain = h.logits(ids, {90});
  const int64_t before = c.pool().used();
  // Ten rows before this length the last row lies in a page that a fork shares.
  int64_t row = 0;
  for (const KvLayer& k : c.layers())
    if (k.window == 0) row = k.k_row;
  int at = 390;
  while (at * row / c.pool().page_bytes() == (at - 10) * row / c.pool().page_bytes()) --at;
  ASSERT_GT(at, 100);
  const auto from = [&](int first) { return rows(plain, h.cfg.n_vocab, first, 400 - first); };
  for (const int64_t woken : {0, 1, 1000}) {
    c.clear(0);
    h.more_logits(std::span(ids).first(size_t(at)), {90});
    must(c.fork(0, 1, KvCache::Fork::kUnmapped));
    EXPECT_TRUE(c.unmapped(1));
    if (woken > 0) {
      EXPECT_EQ(must(c.map_pages(1, 1)), 1);
    }
    if (woken > 1) {
      EXPECT_GT(must(c.map_pages(1, woken)), 1);
      EXPECT_FALSE(c.unmapped(1));
      EXPECT_EQ(must(c.map_pages(1, woken)), 0);
    }
    ASSERT_EQ(c.rewind(1, at - 10), Rewind::kDone);
    must(c.fork(1, 2, woken == 0 ? KvCache::Fork::kUnmapped : KvCache::Fork::kMapped));
    EXPECT_FALSE(woken > 0 && c.unmapped(2));
    EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(size_t(at - 10)), {10}, 2), from(at - 10)));
    h.more_logits(other, {16}, 1);
    EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(size_t(at)), {10}), from(at)));
    c.release(2);
    must(c.fork(0, 2, KvCache::Fork::kUnmapped));
    c.release(2);
    c.release(1);
    EXPECT_LE(c.pool().used(), before);
  }
}

// Rings take what they take however long a sequence gets, and a snapshot its rings and the pages that are partly
// filled.
TEST(Pages, RingsDoNotGrowAndSnapshotsShare) {
  const TinyFile file;
  for (const KvType t : {KvType::kF16, KvType::kQ4_0}) {
    KvPlan p = plan(t);
    p.max_ctx = 4096, p.snapshots = 1;
    Harness<CpuRef> h(file.path(), p);
    KvCache& c = h.cache();
    int64_t full_row = 0, ring = 0, parts = 0;
    for (int l = 0; l < h.cfg.n_layer(); ++l) {
      const KvLayer& k = c.layers()[size_t(l)];
      k.window > 0 ? ring += k.cap * (k.k_row + k.v_row) : full_row += k.k_row + (k.shared ? 0 : k.v_row);
      parts += k.window > 0 ? 0 : k.shared ? 1 : 2;
    }
    const int64_t page = c.pool().page_bytes(), rings = (ring + page - 1) / page, none = c.pool().used();
    const auto used_at = [&](int rows) {
      while (c.len(0) < rows) {
        const int n = std::min(96, rows - c.len(0));
        must(c.prepare(0, n));
        c.commit(0, n);
      }
      return c.pool().used() - none;
    };
    for (const int rows : {10, 31, 32, 100, 1000, 4000}) {
      const int64_t used = used_at(rows), full = rows * full_row / page;
      EXPECT_GE(used, full + rings) << rows;
      EXPECT_LE(used, full + rings + 2 * parts) << rows << " rows: rings have " << rings << " pages";
    }
    const int64_t before = c.pool().used();
    must(c.fork(0, 1));
    EXPECT_LE(c.pool().used() - before, rings + parts) << "of " << before << " pages";
    EXPECT_EQ(c.pages(4000), before - none);
  }
}

// Whatever came and went, the memory holds what it held when it was new: whole sequences in every slot.
TEST(Pages, NothingFragments) {
  const TinyFile file;
  KvPlan p = plan();
  p.max_ctx = 2048, p.max_seq = 4;
  Harness<CpuRef> h(file.path(), p);
  KvCache& c = h.cache();
  const int64_t none = c.pool().used();
  const auto fill = [&] {
    for (int slot = 0; slot < 4; ++slot)
      while (c.len(slot) < p.max_ctx) {
        const int n = std::min(96, p.max_ctx - c.len(slot));
        must(c.prepare(slot, n));
        c.commit(slot, n);
      }
    const int64_t all = c.pool().used();
    for (int slot = 0; slot < 4; ++slot) c.release(slot);
    EXPECT_EQ(c.pool().used(), none);
    return all;
  };
  const int64_t fresh = fill();
  std::mt19937 rng(1);
  int steps = 0, forks = 0, rewinds = 0;
  for (int i = 0; i < 5000; ++i) {
    const int slot = int(rng() % 4), other = int(rng() % 4);
    const int len = c.len(slot), n = 1 + int(rng() % 96);
    switch (rng() % 8) {
      case 0:
        c.release(slot);
        break;
      case 1:
        if (slot == other || len == 0) break;
        c.release(other);
        forks += bool(c.fork(slot, other));
        break;
      case 2:
        rewinds += c.rewind(slot, std::max(0, len - int(rng() % 16))) == Rewind::kDone;
        break;
      default:
        if (len + n > p.max_ctx) break;
        must(c.prepare(slot, n));
        c.commit(slot, n);
        ++steps;
    }
  }
  EXPECT_TRUE(steps > 1000 && forks > 100 && rewinds > 100) << steps << " " << forks << " " << rewinds;
  EXPECT_LE(c.pool().peak(), c.pool().budget());
  for (int slot = 0; slot < 4; ++slot) c.release(slot);
  EXPECT_EQ(c.pool().used(), none) << "all is given back";
  EXPECT_EQ(fill(), fresh);
}

// A copy of a sequence's parts goes on like the sequence.
TYPED_TEST(Property, PartsAreAllThereIs) {
  const TinyFile file(suited<TypeParam>());
  for (const int n : {9, 50, 90}) {
    Harness<TypeParam> h(file.path(), plan());
    const auto ids = random_ids(kTokens + 20, h.cfg.n_vocab, 7);
    const auto plain = h.logits(ids, {1});
    h.cache().clear(0);
    h.more_logits(std::span(ids).first(size_t(n)), {30});
    KvCache& c = h.cache();
    std::vector<std::byte> saved;
    const KvState state = c.state(0);
    for (const KvCache::Part& part : c.parts(0)) saved.insert(saved.end(), part.at, part.at + part.bytes());
    c.release(0);
    must(c.restore(2, state));
    size_t at = 0;
    for (const KvCache::Part& part : c.parts(2)) {
      std::memcpy(part.at, saved.data() + at, size_t(part.bytes()));
      at += size_t(part.bytes());
    }
    EXPECT_EQ(at, saved.size());
    EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(size_t(n)), {6}, 2),
                              rows(plain, h.cfg.n_vocab, n, kTokens + 20 - n)))
        << n;
  }
}

// Memory for it comes in pieces, and so may the rows.
TYPED_TEST(Property, RestoredInPieces) {
  const TinyFile file(suited<TypeParam>());
  KvPlan p = plan(KvType::kF32);
  p.max_ctx = 1024;
  const auto ids = random_ids(400, 96, 7);
  for (const int64_t pages : {1, 2, 3, 1000}) {
    Harness<TypeParam> h(file.path(), p);  // of its own: a slot that was used keeps some pages
    const auto plain = h.logits(ids, {90});
    KvCache& c = h.cache();
    ASSERT_EQ(c.rewind(0, 390), Rewind::kDone);
    const KvState state = c.state(0);
    std::vector<std::vector<std::byte>> saved;
    for (const KvCache::Part& part : c.parts(0)) saved.emplace_back(part.at, part.at + part.bytes());
    std::vector<int64_t> had(saved.size());
    int calls = 0;
    for (bool whole = false; !whole; ++calls) {
      const int64_t used = c.pool().used();
      const KvCache::Mapped m = must(c.restore_some(1, state, pages));
      EXPECT_LE(c.pool().used() - used, pages);
      EXPECT_GT(c.pool().used(), used) << "a call that maps nothing";
      int i = 0;
      for (const KvCache::Part& part : c.parts(1, state)) {
        const int64_t has = part.ring ? (m.rings ? part.rows : 0) : i < m.parts ? part.rows : i == m.parts ? m.rows : 0;
        int64_t& from = had[size_t(i)];
        ASSERT_EQ(int64_t(saved[size_t(i)].size()), part.bytes());
        if (has > from)
          std::memcpy(part.at + from * part.row, saved[size_t(i)].data() + from * part.row,
                      size_t((has - from) * part.row));
        from = std::max(from, has), ++i;
      }
      whole = m.whole;
      EXPECT_EQ(c.state(1), whole ? state : KvState{});
    }
    EXPECT_EQ(calls == 1, pages == 1000) << pages;
    EXPECT_TRUE(bitwise_equal(h.more_logits(std::span(ids).subspan(390), {10}, 1), rows(plain, h.cfg.n_vocab, 390, 10)))
        << pages;
  }
}

TYPED_TEST(Property, ThreadsChangeNothing) {
  const TinyFile file(suited<TypeParam>({.moe = true}));
  const auto ids = random_ids(kTokens, 96, 7);
  const auto one = Harness<TypeParam>(file.path(), plan(), 0, 1).logits(ids, {30});
  for (int n : {2, 3})
    EXPECT_TRUE(bitwise_equal(Harness<TypeParam>(file.path(), plan(), 0, n).logits(ids, {30}), one)) << n;
}

TYPED_TEST(Property, LaterTokensDoNotChangeEarlierRows) {
  const TinyFile file(suited<TypeParam>());
  Harness<TypeParam> h(file.path(), plan());
  auto ids = random_ids(kTokens, h.cfg.n_vocab, 7);
  const auto before = h.logits(ids, {90});
  for (size_t i = 60; i < ids.size(); ++i) ids[i] = (ids[i] + 1) % h.cfg.n_vocab;
  EXPECT_TRUE(bitwise_equal(rows(h.logits(ids, {90}), h.cfg.n_vocab, 0, 60), rows(before, h.cfg.n_vocab, 0, 60)));
}

// Memory that nothing was written to is never read: NaN everywhere, before every step, changes nothing.
template <class B>
void poison(Harness<B>& h, size_t n_tok) {
  for (const KvLayer& l : h.cache().layers()) {
    if (l.window == 0) {  // rows of the tokens that are still to come
      const size_t held = size_t(h.cache().len(0));
      std::memset(l.k + held * size_t(l.k_row), 0xFF, (n_tok - held) * size_t(l.k_row));
      if (!l.shared) std::memset(l.v + held * size_t(l.v_row), 0xFF, (n_tok - held) * size_t(l.v_row));
      continue;
    }
    if (h.cache().len(0) == 0) {
      std::memset(l.k, 0xFF, size_t(l.cap) * size_t(l.k_row));
      std::memset(l.v, 0xFF, size_t(l.cap) * size_t(l.v_row));
    }
    std::memset(l.k_stage, 0xFF, size_t(l.k_row) * 96);
    std::memset(l.v_stage, 0xFF, size_t(l.v_row) * 96);
  }
  auto& w = h.runner().work;
  for (const auto& r : {w.x, w.h, w.y, w.q, w.a, w.k, w.v, w.g, w.e, w.r, w.ple, w.ple_ctx, w.out, w.logits})
    for (int t = 0; r && t < r.rows; ++t) std::fill_n(r.row(t), r.cols, std::numeric_limits<float>::quiet_NaN());
}
template <class B>
bool poison_changes_nothing(const std::string& model) {
  Harness<B> h(model, plan(KvType::kF16));
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7);
  const auto plain = h.logits(ids, {20});
  h.cache().clear(0);
  std::vector<float> got;
  for (size_t at = 0; at < ids.size();) {
    const size_t n = std::min<size_t>(at < 20 ? 1 : at < 60 ? 20 : 3, ids.size() - at);
    poison(h, ids.size());
    const auto piece = h.more_logits(std::span(ids).subspan(at, n), {int(n)});
    got.insert(got.end(), piece.begin(), piece.end());
    at += n;
  }
  return bitwise_equal(got, plain);
}
TYPED_TEST(Property, PoisonedMemoryIsNeverRead) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(suited<TypeParam>(m));
    EXPECT_TRUE(poison_changes_nothing<TypeParam>(file.path())) << m.moe << m.ple;
    EXPECT_TRUE(poison_changes_nothing<NewMemoryIsNaN<TypeParam>>(file.path())) << m.moe << m.ple;
  }
}
TYPED_TEST(Property, PoisonBitesOnARowLeftOut) {
  const TinyFile file(suited<TypeParam>());
  EXPECT_FALSE(poison_changes_nothing<LeavesARowOut<TypeParam>>(file.path()));
}

TYPED_TEST(Property, DecoratorsChangeNothing) {
  const TinyFile file(suited<TypeParam>({.moe = true}));
  const auto ids = random_ids(kTokens, 96, 7);
  const auto plain = Harness<TypeParam>(file.path(), plan()).logits(ids, {20});
  Harness<Traced<TypeParam>> traced(file.path(), plan());
  EXPECT_TRUE(bitwise_equal(traced.logits(ids, {20}), plain));
  EXPECT_EQ(traced.backend().costs().at("attend").calls, 5 * 6);
  Harness<Lockstep<TypeParam, TypeParam>> pair(file.path(), plan());
  EXPECT_TRUE(bitwise_equal(pair.logits(ids, {20}), plain));
  EXPECT_GT(pair.backend().compared(), 5 * 6 * 8);
  EXPECT_TRUE(pair.backend().differences().empty());
}
// A device whose clock moves by one at every verb, and by a thousand while it is held.
class Marks : public CpuRef {
 public:
  using CpuRef::CpuRef;
  void use_graphs(bool on) { graphs = on; }
  void mark() { marks.push_back(double(++now)); }
  void hold() { now += 1000; }
  std::vector<double> laps() {
    std::vector<double> ms;
    for (size_t i = 1; i < marks.size(); ++i) ms.push_back(marks[i] - marks[i - 1]);
    marks.clear();
    return ms;
  }
  void begin_step(const Step&) {}
  bool graphs = true;
  int now = 0;
  std::vector<double> marks;
};
// Planted: a verb that takes a mark of its own.
class MarksTwice : public Marks {
 public:
  using Marks::Marks;
  void rms_norm(Rows y, Rows x, Vec gain, float eps) {
    mark();
    Marks::rms_norm(y, x, gain, eps);
  }
};
TEST(Traced, VerbsOfADeviceHaveTheTimesBetweenTheirMarks) {
  const TinyFile file(TinyModel{.moe = true});
  const auto ids = random_ids(kTokens, 96, 7);
  const auto plain = Harness<CpuRef>(file.path(), plan()).logits(ids, {kTokens});
  Harness<Traced<Marks>> h(file.path(), plan());
  EXPECT_TRUE(bitwise_equal(h.logits(ids, {kTokens}), plain));
  EXPECT_TRUE(h.backend().costs().empty() && h.backend().inner().marks.empty())
      << "nothing is marked until it is asked for";
  h.cache().clear(0);
  h.backend().trace(true);
  EXPECT_FALSE(h.backend().inner().graphs);
  EXPECT_TRUE(bitwise_equal(h.logits(ids, {kTokens}), plain));
  h.backend().take_laps();
  h.backend().trace(false);
  EXPECT_TRUE(h.backend().inner().graphs);
  EXPECT_EQ(h.backend().costs().at("attend").calls, 6);
  for (const auto& [name, v] : h.backend().costs()) EXPECT_EQ(v.ms, double(v.calls)) << name;

  Harness<Traced<MarksTwice>> wrong(file.path(), plan());
  wrong.backend().trace(true);
  wrong.logits(ids, {kTokens});
  EXPECT_DEATH(wrong.backend().take_laps(), "marked verbs");
}

// Verb by verb on equal inputs, within the rounding of the activations.
TEST(Lockstep, FastAgreesWithReference) {
  for (const DType type : {DType::kF32, DType::kQ8_0, DType::kQ4_0})
    for (TinyModel m :
         {TinyModel{}, TinyModel{.moe = true}, TinyModel{.moe = true, .split_experts = true}, TinyModel{.ple = true}}) {
      m.type = type;
      const TinyFile file(m);
      Harness<Lockstep<CpuFast, CpuRef>> h(file.path(), plan());
      h.logits(random_ids(kTokens, h.cfg.n_vocab, 7), {30, 1, 20});
      for (const VerbDifference& d : h.backend().differences())
        ADD_FAILURE() << dtype_name(type) << m.moe << m.ple << " " << d.message();
    }
}
// Types that are only read, of matrices with 256 columns; NVFP4 with factors beside its matrices.
class ReadOnlyTypes : public testing::TestWithParam<DType> {};
TEST_P(ReadOnlyTypes, FastAgreesWithReference) {
  for (TinyModel m : {TinyModel{}, TinyModel{.moe = true, .split_experts = true, .d_expert = 256}}) {
    if (kSanitized && m.moe) continue;
    m.type = GetParam(), m.width = 256;
    const TinyFile file(m);
    const auto ids = random_ids(kSanitized ? 4 : 12, 96, 7);
    const std::vector<int> pieces = kSanitized ? std::vector{3, 1} : std::vector{8, 1, 3};
    Harness<Lockstep<CpuFast, CpuRef>> h(file.path(), plan());
    const auto logits = h.logits(ids, pieces);
    for (const VerbDifference& d : h.backend().differences()) ADD_FAILURE() << m.moe << " " << d.message();
    for (const float v : logits) ASSERT_TRUE(std::isfinite(v));
    if (kSanitized) continue;
    const auto scalar = Harness<CpuFast>(file.path(), plan(), 0, 1, CpuIsa::kScalar).logits(ids, {7});
    for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx}) {
      if (!has_isa(isa)) continue;
      EXPECT_TRUE(bitwise_equal(Harness<CpuFast>(file.path(), plan(), 0, 2, isa).logits(ids, pieces), scalar))
          << isa_name(isa);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, ReadOnlyTypes,
                         testing::Values(DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS, DType::kIQ2_XS, DType::kIQ2_S,
                                         DType::kIQ3_XXS, DType::kIQ3_S, DType::kMXFP4, DType::kNVFP4),
                         [](const auto& p) { return std::string(dtype_name(p.param)); });

// Factors of matrices are multiplied in, and those that Gemma 4 calls '.scale' for other reasons are not taken for
// some.
TEST(ReadOnly, FactorsOfMatricesCount) {
  const TinyFile file({.moe = true, .type = DType::kNVFP4, .width = 256, .d_expert = 256});
  const std::string doubled = file.path() + ".doubled";
  rewrite_gguf(file.path(), doubled, {.bytes = [](const TensorView& t) {
                 std::vector<std::byte> b(t.data.begin(), t.data.end());
                 if (!t.name.ends_with("attn_v.scale") && !t.name.ends_with("ffn_gate_up_exps.scale")) return b;
                 for (size_t at = 0; at < b.size(); at += 4) {
                   float f;
                   std::memcpy(&f, b.data() + at, 4);
                   f *= 2;
                   std::memcpy(b.data() + at, &f, 4);
                 }
                 return b;
               }});
  const auto ids = random_ids(20, 96, 7);
  const auto once = Harness<CpuFast>(file.path(), plan()).logits(ids, {20});
  const auto twice = Harness<CpuFast>(doubled, plan()).logits(ids, {20});
  std::filesystem::remove(doubled);
  EXPECT_GT(compare(twice, once, 96).rms, 1e-3);  // of experts; V is normalised, its factor changes nothing
  const GgufFile f = must(GgufFile::open(file.path()));
  EXPECT_EQ(f.find("blk.0.attn_v.weight")->scale.size(), 1u);
  EXPECT_EQ(f.find("blk.0.ffn_gate_up_exps.weight")->scale.size(), 6u);
  EXPECT_TRUE(f.find("blk.0.ffn_down_exps.weight")->scale.empty());
  EXPECT_TRUE(f.find("blk.0.ffn_gate_inp.weight")->scale.empty());
}

// A factor that is none for its matrix is an error that names it.
TEST(ReadOnly, AFactorOfAnotherShapeIsRefused) {
  const TinyFile file({.type = DType::kQ8_0});
  const std::string bad = file.path() + ".bad";
  rewrite_gguf(file.path(), bad, {.extra = {{"blk.0.attn_q.scale", DType::kF32, {3}}}});
  const GgufFile f = must(GgufFile::open(bad));
  const ModelCfg cfg = must(gemma4_config(f));
  const auto r = Runner<CpuRef>::open(f, cfg, {.kv = plan(), .max_out = 1}, 1);
  std::filesystem::remove(bad);
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message().find("blk.0.attn_q.scale: expected F32 [1]"), std::string::npos) << r.error().message();
}

TYPED_TEST(Property, LockstepNamesTheVerbThatDiffers) {
  const TinyFile file(suited<TypeParam>());
  Harness<Lockstep<RotatesEverything<TypeParam>, TypeParam>> h(file.path(), plan());
  h.logits(random_ids(30, 96, 7), {30});
  ASSERT_FALSE(h.backend().differences().empty());
  for (const VerbDifference& d : h.backend().differences()) EXPECT_EQ(d.name, "head_norm_rope") << d.message();
}

}  // namespace
}  // namespace facet::test
