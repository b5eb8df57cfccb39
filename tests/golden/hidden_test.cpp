// What drafters are given: the residual stream behind a layer, and the row behind the output norm, against a forward
// pass in float64 whose logits are the official ones (tools/make_hidden_golden.py).
#include "backend/arithmetic.h"
#include "backend/cpu/cpu_fast.h"
#include "base/hash.h"
#include "support/harness.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

struct Captured {
  std::vector<std::vector<float>> layers;
  std::vector<float> final_hidden;
  int cols = 0;
};
template <class B>
Captured capture(const std::string& model, std::span<const int32_t> ids, int chunk) {
  Harness<B> h(model, Harness<B>::kExact);
  const int D = h.cfg.d_model, L = h.cfg.n_layer();
  Captured all{.layers = std::vector<std::vector<float>>(size_t(L)), .final_hidden = {}, .cols = D};
  std::vector<int> taps;
  std::vector<typename B::Rows> to;
  for (int l = 0; l < L; ++l) taps.push_back(l), to.push_back(h.backend().new_rows(chunk, D));
  const auto final_rows = h.backend().new_rows(chunk, D);
  for (size_t at = 0; at < ids.size();) {
    const int n = std::min(chunk, int(ids.size() - at));
    h.begin();
    h.add({.slot = 0, .token = ids.subspan(at, size_t(n))});
    std::vector<typename B::Rows> dst;
    for (const auto& r : to) dst.push_back(r.view(n, D));
    h.runner().forward({.layer = taps, .dst = dst, .final_hidden = final_rows.view(n, D)});
    h.cache().commit(0, n);
    const auto append = [&](std::vector<float>& v, const typename B::Rows& r) {
      const auto more = h.backend().to_host(r.view(n, D));
      v.insert(v.end(), more.begin(), more.end());
    };
    for (int l = 0; l < L; ++l) append(all.layers[size_t(l)], to[size_t(l)]);
    append(all.final_hidden, final_rows);
    at += size_t(n);
  }
  return all;
}

struct Golden {
  std::vector<int32_t> ids, rows;
  std::vector<float> layers, final_hidden;
};
Golden golden(const std::string& name) {
  const auto g = must(SafetensorsFile::open(fmt::format("{}/fixtures/{}/golden.safetensors", FACET_TEST_DATA, name))),
             h = must(SafetensorsFile::open(fmt::format("{}/fixtures/{}/hidden.safetensors", FACET_TEST_DATA, name)));
  return {tensor_values<int32_t>(g, "ids"), tensor_values<int32_t>(h, "rows"), tensor_values<float>(h, "layers"),
          tensor_values<float>(h, "final")};
}
// The largest distance of a golden row from the captured one, over the golden row's rms.
double distance(const Golden& g, std::span<const float> want, std::span<const float> got, int D) {
  double worst = 0;
  for (size_t i = 0; i < g.rows.size(); ++i) {
    const auto w = want.subspan(i * size_t(D), size_t(D)), x = got.subspan(size_t(g.rows[i]) * size_t(D), size_t(D));
    const Difference d = compare(x, w, D);
    double sum = 0;
    for (const float v : w) sum += double(v) * v;
    worst = std::max(worst, d.rms / std::sqrt(sum / D));
  }
  return worst;
}

// Of logits and K/V rows of a prompt and a few tokens behind it.
std::string bits_of(const std::string& model) {
  Hash128 h;
  for (const KvType t : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0}) {
    Harness<CpuFast> b(model,
                       {.k = t, .v = t, .share = 256, .max_seq = 1, .max_ctx = 256, .max_step = 64, .margin = 16});
    const std::vector<int32_t> ids = random_ids(70, b.cfg.n_vocab, 3);
    for (size_t at = 0; at < ids.size();) {
      const size_t n = at == 0 ? 60 : 1;
      b.begin();
      b.add({.slot = 0, .token = std::span(ids).subspan(at, n), .out = Out::kLast});
      const auto logits = b.backend().to_host(b.runner().forward());
      h.add(std::as_bytes(std::span(logits)));
      b.cache().commit(0, int(n));
      at += n;
    }
    for (const KvCache::Part& p : b.cache().parts(0)) h.add(std::span(p.at, size_t(p.bytes())));
  }
  return hex(h.digest());
}

const char* const kFixtures[] = {"dense", "moe", "edge"};

template <class B>
void are_official(double bound) {
  for (const std::string name : kFixtures) {
    const Golden g = golden(name);
    for (const int chunk : {64, 7}) {
      const Captured c = capture<B>(fmt::format("{}/fixtures/{}/model.gguf", FACET_TEST_DATA, name), g.ids, chunk);
      const size_t layer = g.rows.size() * size_t(c.cols);
      ASSERT_EQ(g.layers.size(), c.layers.size() * layer);
      for (size_t l = 0; l < c.layers.size(); ++l) {
        const auto want = std::span(g.layers).subspan(l * layer, layer);
        const double d = distance(g, want, c.layers[l], c.cols);
        EXPECT_LE(d, bound) << name << " layer " << l << " in chunks of " << chunk;
        // Planted: the layer before or after, which only this tells apart.
        for (size_t other = 0; other < c.layers.size(); ++other)
          if (other != l) {
            EXPECT_GT(distance(g, want, c.layers[other], c.cols), .05) << name << " layer " << l << " as " << other;
          }
      }
      EXPECT_LE(distance(g, g.final_hidden, c.final_hidden, c.cols), bound) << name;
      EXPECT_GT(distance(g, g.final_hidden, c.layers.back(), c.cols), .05) << name << ": before the norm";
    }
  }
}
// Sums of some 10,000 products in f32, and what they come to behind a few layers.
TEST(HiddenStates, AreTheOfficialOnes) { are_official<CpuRef>(2e-5); }
// Activations in 8 bits: nearer than any other layer, which is what a drafter would notice.
TEST(HiddenStates, FastIsClose) { are_official<CpuFast>(.05); }

// The number and these bits change together: kept states of another number are refused, those of this one are read.
TEST(Arithmetic, ItsNumberNamesTheBits) {
  Hash128 all;
  for (const std::string name : kFixtures)
    all.add(bits_of(fmt::format("{}/fixtures/{}/model.gguf", FACET_TEST_DATA, name)));
  EXPECT_EQ(fmt::format("{} {}", kArithmetic, hex(all.digest())), "5 f361fab1dffb968c0b37cf0dd5da6f55")
      << "raise kArithmetic (src/backend/arithmetic.h) and write its bits here";
}

}  // namespace
}  // namespace facet::test
