// Passes of several shards that are captured and replayed, as on GPUs: the same bits as without, whatever buffers hold
// before a pass. A tape of verbs stands for what a GPU captures.
#include <functional>
#include <map>
#include <memory>

#include "backend/tensor_parallel.h"
#include "cache/cache_of_shards.h"
#include "support/harness.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

// What all shards do, in the order of the host.
struct Tape {
  std::vector<std::function<void()>> did;
  int shards = 0, launched = 0;
};
std::shared_ptr<Tape> recording;
template <class F>
void now_or_later(F&& f) {
  if (recording)
    recording->did.emplace_back(f);
  else
    f();
}

class Replays : public CpuRef {
 public:
  using CpuRef::CpuRef;
  enum class Way : uint8_t { kRun, kCapture, kLaunch };
  int captures = 0, launches = 0;

  void begin_step(const Step& s) { shape_ = s.shape, shape_.longest = 0; }
  const StepShape& shape() const { return shape_; }
  Way look(const void* key) {
    at_ = nullptr;
    for (Captured& c : captured_)
      if (c.key == key && c.shape == shape_) at_ = &c;
    if (!at_) at_ = &captured_.emplace_back(Captured{key, shape_, 0, nullptr});
    if (!at_->tape && at_->seen++ == 0) return Way::kRun;
    return at_->tape ? Way::kLaunch : Way::kCapture;
  }
  void begin_pass(Way way) {
    if (way == Way::kRun) return;
    if (!recording) recording = std::make_shared<Tape>();
    next_ = recording, ++recording->shards, ++captures;
  }
  void end_pass(Way) { recording = nullptr; }
  void instantiate_pass() {
    EXPECT_EQ(recording, nullptr) << "a graph is made, or dropped, while another is captured";
    at_->tape = std::move(next_);
  }
  void launch_pass() {  // all shards' when the last one comes
    ++launches;
    if (++at_->tape->launched % at_->tape->shards != 0) return;
    for (const auto& f : at_->tape->did) f();
  }
  void forget() { captured_.clear(); }

#define VERB(name, parameters, arguments, ...)           \
  void name parameters {                                 \
    now_or_later([=, this] { CpuRef::name arguments; }); \
  }
#include "backend/verbs.def"

 private:
  struct Captured {
    const void* key;
    StepShape shape;
    int seen;
    std::shared_ptr<Tape> tape;
  };
  StepShape shape_;
  std::deque<Captured> captured_;
  Captured* at_ = nullptr;
  std::shared_ptr<Tape> next_;
};

struct TapeLink : HostLink<Replays> {
  using Link = HostLink<Replays>;
  using Parts = std::vector<Rows>;
  void sum(std::span<const Rows> rows, unsigned has) {
    now_or_later([this, all = Parts(rows.begin(), rows.end()), has] { Link::sum(all, has); });
  }
  void gather(std::span<const Rows> to, std::span<const Rows> from, const ShardRanges& at) {
    now_or_later(
        [this, t = Parts(to.begin(), to.end()), f = Parts(from.begin(), from.end()), at] { Link::gather(t, f, at); });
  }
  void embed(Replays& b, Rows x, Weight table, const Step& s, float scale, Range own) {
    now_or_later([=, this, &b] { Link::embed(b, x, table, s, scale, own); });
  }
};
using Shards = TensorParallel<Replays, TapeLink>;

KvPlan plan() {
  return {.k = KvType::kQ8_0, .v = KvType::kQ8_0, .max_seq = 3, .max_ctx = 256, .max_step = 96, .margin = 16};
}

TEST(ShardedReplay, ReplayedIsEager) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true, .d_expert = 160}, TinyModel{.ple = true}}) {
    const TinyFile file(m);
    Harness<TensorParallel<CpuRef>> plain(file.path(), plan(), 0, 2, 1);
    Harness<Shards> h(file.path(), plan(), 0, 2, 1);
    const auto ids = random_ids(40, h.cfg.n_vocab, 7);
    const auto want = plain.logits(ids, {1});
    Replays &a = h.backend().shard(0), &b = h.backend().shard(1);
    EXPECT_TRUE(bitwise_equal(h.logits(ids, {1}), want));
    EXPECT_EQ(a.captures, 1);
    EXPECT_EQ(a.launches, 39);
    // Other passes in between, which leave buffers divided in other ways or whole.
    EXPECT_TRUE(bitwise_equal(h.logits(ids, {7, 1, 3, 1}), want));
    const std::vector<float> zeros(size_t(3 * h.cfg.n_vocab));
    h.backend().from_host(h.runner().work.logits.view(3, h.cfg.n_vocab), zeros);
    h.backend().rms_norm(h.runner().work.h.view(3, h.cfg.d_model), h.runner().work.x.view(3, h.cfg.d_model), {}, 1e-6f);
    EXPECT_TRUE(bitwise_equal(h.logits(ids, {1}), want));
    EXPECT_EQ(a.launches, b.launches);
    // One shard lost what it captured: all run, then all capture again.
    for (Replays* lost : {&a, &b}) {
      const int captures = a.captures;
      lost->forget();
      EXPECT_TRUE(bitwise_equal(h.logits(ids, {1}), want));
      EXPECT_EQ(a.captures, captures + 1);
      EXPECT_EQ(b.captures, captures + 1);
    }
  }
}

// Divided logits whose buffer is noted as whole, and the other way round.
TEST(ShardedReplay, WhatAPassLeavesIsNoted) {
  const TinyFile file;
  Harness<Shards> h(file.path(), plan(), 0, 2, 1);
  const auto ids = random_ids(8, h.cfg.n_vocab, 7);
  const auto want = h.logits(ids, {1});
  auto& logits = *h.runner().work.logits.buffer;
  ASSERT_NE(logits.held, nullptr);
  logits.held = nullptr;  // as a pass of something else leaves it
  EXPECT_TRUE(bitwise_equal(h.logits(ids, {1}), want));
  h.begin();
  h.cache().clear(0);
  h.add({.slot = 0, .token = std::span(ids).first(1), .out = Out::kAll});
  const auto rows = h.runner().forward();
  EXPECT_NE(logits.held, nullptr);
  logits.held = nullptr;
  EXPECT_FALSE(bitwise_equal(h.backend().to_host(rows), std::span(want).first(size_t(h.cfg.n_vocab))))
      << "a note that is wrong is found";
}

}  // namespace
}  // namespace facet::test
