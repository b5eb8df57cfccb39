// The whole model on a GPU: verb by verb against the reference, and laws of its bits. Skips without a device.
#include <cuda_runtime.h>

#include "cache/cuda_kv_cache.h"
#include "support/harness.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

#define NEEDS_GPU()                                                              \
  if (const Status ok = Cuda::usable(0); !ok) GTEST_SKIP() << ok.error().message()

const std::string kModels = std::string(FACET_SOURCE_DIR) + "/models/";
std::vector<std::string> models() {
  return {data_path("fixtures/dense/model.gguf"), data_path("fixtures/moe/model.gguf"), data_path("fixtures/edge/model.gguf"),
          kModels + "facet-nano-Q8_0.gguf", kModels + "facet-nano-moe-Q4_K_M.gguf"};
}

KvPlan plan(KvType t) { return {.k = t, .v = t, .max_seq = 4, .max_ctx = 512, .max_step = 192, .margin = 16, .checkpoints = 1}; }

template <class B>
struct Model {
  GgufFile file;
  ModelCfg cfg;
  std::unique_ptr<Runner<B>> r;
  Model(const std::string& path, KvPlan kv) : file(must(GgufFile::open(path))), cfg(must(gemma4_config(file))) {
    r = must(Runner<B>::open(file, cfg, {.kv = kv, .max_out = kv.max_step}));
  }
  std::vector<int32_t> ids(int n, uint32_t seed) const { return random_ids(n, cfg.n_vocab, seed); }
  void add(SeqStep q) {
    must(r->cache->prepare(q.slot, int(q.token.size())));
    r->add(q);
  }
  // Logits of every token, in chunks of `chunk`.
  std::vector<float> logits(std::span<const int32_t> tokens, int chunk, int slot = 0) {
    r->cache->clear(slot);
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); at += size_t(chunk)) {
      const size_t n = std::min(size_t(chunk), tokens.size() - at);
      r->steps.begin();
      add({.slot = slot, .token = tokens.subspan(at, n), .out = Out::kAll});
      const auto rows = r->forward();
      if constexpr (requires { r->b.to_host(rows); }) {
        const auto v = r->b.to_host(rows);
        all.insert(all.end(), v.begin(), v.end());
      }
      r->cache->commit(slot, int(n));
    }
    return all;
  }
};

TEST(CudaModel, EveryVerbAsReference) {
  NEEDS_GPU();
  for (const std::string& path : models())
    for (KvType t : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0}) {
      Model<Lockstep<Cuda, CpuRef>> m(path, plan(t));
      const auto ids = m.ids(100, 3);
      m.logits(std::span(ids).first(30), 10);
      m.logits(std::span(ids), 90);  // the kernels of long chunks, staged rows
      EXPECT_GT(m.r->b.compared(), 0);
      const auto& over = m.r->b.differences();
      EXPECT_TRUE(over.empty()) << path << " " << kv_type_name(t) << ": " << over.size() << " of " << m.r->b.compared() << ", first: " << over.front().message();
    }
}

// A backend whose bits depend on how many tokens a step has: every law below must notice.
class DependsOnStep : public Cuda {
 public:
  using Cuda::Cuda;
  void begin_step(const Step& s) {
    n_tok_ = s.shape.n_tok;
    Cuda::begin_step(s);
  }
  void rms_norm(Rows y, Rows x, Vec gain, float eps) { Cuda::rms_norm(y, x, gain, eps + 1e-3f * float(n_tok_)); }
  template <class Pass>
  Rows replay(const void* key, Pass&& pass) {
    if (graphs_on_) n_tok_ += 7;  // what is captured differs from what runs without graphs
    return Cuda::replay(key, pass);
  }
  void use_graphs(bool on) {
    graphs_on_ = on;
    Cuda::use_graphs(on);
  }

 private:
  int n_tok_ = 0;
  bool graphs_on_ = false;
};
}  // namespace
}  // namespace facet::test
namespace facet {
template <>
struct CacheOf<test::DependsOnStep> : CacheOf<Cuda> {};
}  // namespace facet
namespace facet::test {
namespace {

template <class B>
bool one_row_is_a_row_of_many(const std::string& path, KvType t) {
  Model<B> m(path, plan(t));
  const auto ids = m.ids(64, 5);
  const auto one = m.logits(ids, 1);
  for (int chunk : {2, 5, 8, 9, 16})
    if (!bitwise_equal(m.logits(ids, chunk), one)) return false;
  return bitwise_equal(m.logits(ids, 1), one);  // and the same request twice
}
TEST(CudaModel, OneRowIsARowOfMany) {
  NEEDS_GPU();
  for (const std::string& path : models())
    for (KvType t : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0}) EXPECT_TRUE(one_row_is_a_row_of_many<Cuda>(path, t)) << path << kv_type_name(t);
  EXPECT_FALSE(one_row_is_a_row_of_many<DependsOnStep>(models()[0], KvType::kF16));
}

// A graph that is replayed and the same launches one by one.
template <class B>
bool replayed_is_eager(const std::string& path) {
  Model<B> m(path, plan(KvType::kQ8_0));
  const auto ids = m.ids(40, 6);
  m.r->b.use_graphs(false);
  const auto eager = m.logits(ids, 4);
  m.r->b.use_graphs(true);
  const auto replayed = m.logits(ids, 4);
  EXPECT_GT(m.r->b.counters().graph_launches, 5);
  EXPECT_EQ(m.r->b.counters().captures, 1);
  return bitwise_equal(eager, replayed);
}
TEST(CudaModel, ReplayedIsEager) {
  NEEDS_GPU();
  for (const std::string& path : models()) EXPECT_TRUE(replayed_is_eager<Cuda>(path)) << path;
  EXPECT_FALSE(replayed_is_eager<DependsOnStep>(models()[0]));
}

// A short sequence alone, and beside other sequences, a long prompt chunk and a draft block.
template <class B>
bool neighbours_do_not_matter(const std::string& path) {
  Model<B> m(path, plan(KvType::kQ8_0));
  const auto ids = m.ids(24, 7), other = m.ids(24, 8), prompt = m.ids(288, 9);
  const auto alone = m.logits(ids, 6);
  for (int s = 0; s < 4; ++s) m.r->cache->clear(s);
  std::vector<float> beside;
  for (size_t at = 0; at < ids.size(); at += 6) {
    m.r->steps.begin();
    m.add({.slot = 1, .token = std::span(other).subspan(at, 3), .out = Out::kNone});
    m.add({.slot = 0, .token = std::span(ids).subspan(at, 6), .out = Out::kAll});
    m.add({.slot = 2, .token = std::span(other).subspan(at, 6), .out = Out::kLast, .mask = Mask::kBlock});
    m.add({.slot = 3, .token = std::span(prompt).subspan(at * 12, 72), .out = Out::kNone});  // the kernels of long chunks
    const auto v = m.r->b.to_host(m.r->forward());
    beside.insert(beside.end(), v.begin(), v.begin() + ptrdiff_t(6) * m.cfg.n_vocab);
    m.r->cache->commit(1, 3), m.r->cache->commit(0, 6), m.r->cache->commit(3, 72);
  }
  return bitwise_equal(alone, beside);
}
TEST(CudaModel, NeighboursDoNotMatter) {
  NEEDS_GPU();
  for (const std::string& path : models()) EXPECT_TRUE(neighbours_do_not_matter<Cuda>(path)) << path;
  EXPECT_FALSE(neighbours_do_not_matter<DependsOnStep>(models()[0]));
}

// Official logits of the fixtures in the tree. The bound is what llama.cpp's own kernels miss by on such files
// (tests/data/README.md), and a quarter more.
TEST(CudaModel, OfficialLogits) {
  NEEDS_GPU();
  struct Case {
    const char* name;
    double bound;
  };
  for (const Case& c : {Case{"dense", 1.25 * .191}, Case{"moe", 1.25 * .676}, Case{"edge", 1.25 * .396}}) {
    Model<Cuda> m(data_path(std::string("fixtures/") + c.name + "/model.gguf"), plan(KvType::kF16));
    const auto golden = must(SafetensorsFile::open(data_path(std::string("fixtures/") + c.name + "/golden.safetensors")));
    const auto ids = tensor_values<int32_t>(golden, "ids");
    const auto want = tensor_values<float>(golden, "logits");
    for (int chunk : {1, 13, 96}) {
      const Difference d = compare(m.logits(ids, chunk), want, m.cfg.n_vocab);
      EXPECT_LE(d.rms, c.bound) << c.name << " in chunks of " << chunk;
      EXPECT_GE(d.same_top, d.rows - 6) << c.name;
      fmt::print("| {} | cuda, chunks of {} | max {:.2e} | rms {:.2e} of {:.2e} | top-1 {}/{} |\n", c.name, chunk, d.max, d.rms, c.bound, d.same_top, d.rows);
    }
  }
}

}  // namespace
}  // namespace facet::test
