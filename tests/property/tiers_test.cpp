// The state of a sequence is whole wherever it comes from, without an engine: rows of a cache and what a drafter has
// beside them go down while another state comes up, and stay apart when two requests go on from them.
#include <algorithm>
#include <thread>

#include "base/check.h"
#include "model/gemma4_config.h"
#include "session/session_store.h"
#include "session/tiers.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

// Holds a few numbers of every sequence, as a drafter that has state beside rows does.
class Notes : public AnyDrafter {
 public:
  explicit Notes(int slots) : of_(size_t(slots)) {}
  std::vector<float>& of(SlotId s) { return of_[size_t(s)]; }
  SlotId saves_instead = -1;  // planted: what is saved is another slot's

  const char* name() const override { return "notes"; }
  int max_draft() const override { return 1; }
  std::span<const int> tap_layers() const override { return {}; }
  bool wants_final_hidden() const override { return false; }
  void propose(std::span<Draft>) override {}
  int held(SlotId s) const override { return int(of_[size_t(s)].size()); }
  int rewind(SlotId s, int len) override {
    of(s).resize(std::min(of(s).size(), size_t(len)));
    return held(s);
  }
  void forget(SlotId s) override { of(s).clear(); }
  Status fork(SlotId from, SlotId to) override {
    of(to) = of(from);
    return Ok{};
  }
  std::vector<float> save(SlotId s) override { return of(saves_instead >= 0 ? saves_instead : s); }
  bool load(SlotId s, int, std::span<const float> beside) override {
    of(s).assign(beside.begin(), beside.end());
    return true;
  }

 private:
  std::vector<std::vector<float>> of_;
};

std::vector<int32_t> tokens_of(unsigned conversation, int n) { return random_ids(n, 96, conversation); }
ActiveRequest request(std::vector<int32_t> tokens) {
  ActiveRequest w;
  w.request.prompt = w.tokens = std::move(tokens);
  return w;
}

// Slots of a tiny model's cache over a pool of so many sequences of 400 rows.
class World {
 public:
  explicit World(double sequences)
      : gguf_(must(GgufFile::open(file_.path()))),
        cfg_(must(gemma4_config(gguf_))),
        pool_(must(HostPagePool::create(1 << 30, host_page_bytes(cfg_, kPlan)))) {
    cache_ = must(HostKvCache::create(cfg_, kPlan, pool_.get()));
    const int64_t page = pool_->page_bytes(), pages = pool_->used() + int64_t(sequences * double(cache_->pages(400)));
    cache_ = nullptr;
    pool_ = must(HostPagePool::create(pages * page, page));
    pool_->slow_copies(std::chrono::microseconds(200));
    cache_ = must(HostKvCache::create(cfg_, kPlan, pool_.get()));
    rows_.emplace(*cache_, std::vector<AnyDrafter*>{&notes});
    store_.emplace(*rows_, kPlan.resident(), kPlan.max_seq, 0);
    tiers_.emplace(*rows_, *store_, true, int64_t(64) << 20, phases_, nullptr);
  }

  // Rows of a conversation are written behind those that the slot has.
  void write(SlotId s, unsigned conversation, int n) {
    while (cache_->len(s) < n) {
      const int some = std::min(n - cache_->len(s), kPlan.max_step), from = cache_->len(s);
      for (auto ok = cache_->prepare(s, some); !ok; ok = cache_->prepare(s, some))
        CHECK(tiers().evict_one(s), "no memory for {} rows", n);
      cache_->commit(s, some);
      each_byte(s, conversation, from, [](std::byte& b, std::byte value) { b = value; });
    }
    notes.of(s).assign(size_t(n), float(conversation));
  }
  // Bytes and numbers that are not the conversation's, among so many rows.
  int wrong(SlotId s, unsigned conversation, int n) {
    must(cache_->map_all(s));
    int bad = cache_->len(s) != n;
    each_byte(s, conversation, 0, [&](const std::byte& b, std::byte value) { bad += b != value; });
    for (const float x : notes.of(s)) bad += x != float(conversation);
    return bad + int(notes.of(s).size() != size_t(n));
  }
  SlotId keep(unsigned conversation, int n) {
    const SlotId s = tiers().take_slot();
    write(s, conversation, n);
    store().adopt(s, tokens_of(conversation, n), "");
    return s;
  }
  // The slot from which a request of the conversation goes on, when its state is back.
  SlotId bring_back(unsigned conversation, int n) {
    ActiveRequest w = request(tokens_of(conversation, n));
    w.tokens.push_back(5);
    while (!tiers().restore(w)) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // copies take theirs
      pool_->next_step();
      tiers().look_at_copies();
    }
    const auto p = store().place(w);
    return p && p->len == n ? p->from : -1;
  }

  HostKvCache& cache() { return *cache_; }
  SessionRows& rows() { return *rows_; }
  SessionStore& store() { return *store_; }
  Tiers& tiers() { return *tiers_; }
  Notes notes{kPlan.resident()};

 private:
  static inline const KvPlan kPlan{
      .k = KvType::kF32, .v = KvType::kF32, .max_seq = 2, .max_ctx = 512, .max_step = 64, .margin = 64, .snapshots = 4};
  // f(a byte of rows, what it is in the conversation): full layers from row `from` on; rings where they have not wrapped
  // are part of every sequence alike.
  template <class F>
  void each_byte(SlotId s, unsigned conversation, int from, F f) {
    unsigned part = 0;
    for (const KvCache::Part& p : cache_->parts(s)) {
      ++part;
      for (int64_t row = p.ring ? 0 : from; row < p.rows; ++row)
        for (int64_t i = 0; i < p.row; ++i)
          f(p.at[row * p.row + i],
            std::byte((uint32_t(row * 131 + i) * 2654435761u + conversation * 97u + part) >> 13));
    }
  }

  TinyFile file_;
  GgufFile gguf_;
  ModelCfg cfg_;
  std::unique_ptr<HostPagePool> pool_;
  std::unique_ptr<HostKvCache> cache_;
  PhaseTimes phases_;
  std::optional<SessionRows> rows_;
  std::optional<SessionStore> store_;
  std::optional<Tiers> tiers_;
};

// There is memory for one state and a half: one goes down while the other comes up, page by page, both ways.
TEST(Tiers, AStateIsWholeThatCameWhileAnotherWent) {
  for (const bool planted : {false, true}) {
    World w(1.5);
    w.keep(1, 400);
    const SlotId second = w.keep(2, 400);  // the first goes down for it
    EXPECT_EQ(w.tiers().stats().gpu.evictions, 1);
    if (planted) w.notes.saves_instead = second == 0 ? 1 : 0;
    const SlotId first = w.bring_back(1, 400);
    EXPECT_EQ(w.tiers().stats().gpu.evictions, 2);
    ASSERT_GE(first, 0);
    EXPECT_EQ(w.wrong(first, 1, 400), 0);
    w.notes.saves_instead = -1;
    const SlotId again = w.bring_back(2, 400);
    EXPECT_EQ(w.tiers().stats().gpu.evictions, 3);
    EXPECT_EQ(w.tiers().stats().ram.restores, 2);
    const bool whole = again >= 0 && w.wrong(again, 2, 400) == 0;
    EXPECT_EQ(whole, !planted);
  }
}

// An answer was parked and went down. A request with the same beginning brings it back and runs in the slot that is
// ready, writing behind where the two part; the answer then goes on in the copy, which has what it left.
TEST(Tiers, AParkedAnswerFindsItsRowsInTheCopy) {
  struct Peek : KvCache {
    static auto sequences() { return &Peek::seq_; }
  };
  for (const bool planted : {false, true}) {
    World w(3.5);
    w.keep(1, 400);
    ASSERT_TRUE(w.tiers().evict_one());
    const SlotId slot = w.bring_back(1, 400);
    ASSERT_GE(slot, 0);
    ActiveRequest third = request(tokens_of(1, 340));
    for (int i = 0; i < 8; ++i) third.tokens.push_back(60 + i);
    const auto p = w.store().place(third);
    ASSERT_TRUE(p && p->from == slot && p->stays);
    const SlotId copy = must(w.tiers().fork(slot));
    w.store().keep_copy(copy, slot);
    const int have = w.rows().go_back(slot, p->len);
    ASSERT_EQ(have, 340);
    w.store().begin(slot, third, have);
    if (planted) (w.cache().*Peek::sequences())[size_t(slot)].shared_below = 0;
    w.write(slot, 7, 348);
    const SlotId parked = w.bring_back(1, 400);
    EXPECT_EQ(parked, copy);
    EXPECT_EQ(w.wrong(parked, 1, 400) == 0, !planted);
  }
}

}  // namespace
}  // namespace facet::test
