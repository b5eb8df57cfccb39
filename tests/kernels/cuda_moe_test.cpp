// The experts' kernels against CpuRef::moe, for few tokens and for many. Everything the kernels write is poisoned with
// NaN first. Routers and their inputs are small whole numbers, so that logits are exact in any order and ties are
// common.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backend/cpu/cpu_ref.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/kernels/ops.h"
#include "backend/cuda/kernels/probe.h"
#include "base/half.h"
#include "formats/dtype.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

// Random blocks with scales that give values near 1 / sqrt(n_in).
std::vector<std::byte> random_blocks(DType t, int64_t rows, int64_t n_in, std::mt19937& rng) {
  std::vector<std::byte> v(size_t(rows) * row_bytes(t, n_in));
  for (size_t i = 0; i + 4 <= v.size(); i += 4) {
    const uint32_t r = rng();
    std::memcpy(v.data() + i, &r, 4);
  }
  const float unit = 1.f / std::sqrt(float(n_in));
  auto half = [&](size_t at, float f) {
    const uint16_t h = f32_to_f16(f);
    std::memcpy(v.data() + at, &h, 2);
  };
  auto each = [&](size_t block, auto&& f) {
    for (size_t at = 0; at < v.size(); at += block) f(at, 0.5f + float(rng() % 1000) / 1000.f);
  };
  switch (t) {
    case DType::kQ4_K:
      each(144, [&](size_t at, float s) { half(at, s * unit / 200.f), half(at + 2, s * unit / 30.f); });
      break;
    case DType::kQ5_K:
      each(176, [&](size_t at, float s) { half(at, s * unit / 400.f), half(at + 2, s * unit / 30.f); });
      break;
    case DType::kQ6_K:
      each(210, [&](size_t at, float s) { half(at + 208, s * unit / 1200.f); });
      break;
    case DType::kQ4_0:
      each(18, [&](size_t at, float s) { half(at, s * unit / 4.5f); });
      break;
    case DType::kQ5_0:
      each(22, [&](size_t at, float s) { half(at, s * unit / 9.f); });
      break;
    case DType::kQ8_0:
      each(34, [&](size_t at, float s) { half(at, s * unit / 73.f); });
      break;
    case DType::kBF16:
      for (size_t i = 0; i < v.size(); i += 2) {
        const uint16_t b = f32_to_bf16((float(rng() % 2001) / 1000.f - 1.f) * 1.7f * unit);
        std::memcpy(v.data() + i, &b, 2);
      }
      break;
    default:
      ADD_FAILURE();
  }
  return v;
}

enum class Routes { kAny, kUneven };  // kUneven: every token uses expert 1, none uses the last three
struct Dims {
  int D = 256, F = 128, N = 16, used = 4;
  DType up = DType::kQ4_K, down = DType::kQ8_0;
  bool merged = true;
  Routes routes = Routes::kAny;
  Act act = Act::kGelu;
  bool fine = false;  // experts of few tokens read their inputs in two bytes
  float size = 1;     // of activations
};

struct Joined {
  std::vector<float> before, x, h;
};
struct Case {
  Dims d;
  int T;
  std::vector<std::byte> gate_up, gate, up, down;
  std::vector<float> router, scale, e, r, want;
  std::vector<uint16_t> e_bf;
  std::vector<std::unique_ptr<OnDevice<uint8_t>>> tiles;
  std::unique_ptr<OnDevice<float>> dev_router, dev_scale, dev_r;
  std::unique_ptr<OnDevice<uint16_t>> dev_e;
  cuda::MoeExperts m;

  Case(Dims dims, int n_tok, unsigned seed = 1) : d(dims), T(n_tok) {
    std::mt19937 rng(seed);
    auto whole = [&](size_t n, int most, float unit) {
      std::vector<float> v(n);
      for (float& x : v) x = float(int(rng() % unsigned(2 * most + 1)) - most) * unit;
      return v;
    };
    router = whole(size_t(d.N * d.D), 2, 1.f / 32), r = whole(size_t(T * d.D), 3, 1.f);
    if (d.routes == Routes::kUneven) {
      for (int t = 0; t < T; ++t) r[size_t(t * d.D)] = 4;
      for (int i = 0; i < d.N; ++i) router[size_t(i * d.D)] = i == 1 ? 16 : i >= d.N - 3 ? -16 : 0;
    }
    for (int i = 0; i < d.N; ++i) scale.push_back(0.5f + float(i % 5) / 4);
    e.resize(size_t(T * d.D)), e_bf.resize(e.size());
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < e.size(); ++i) e_bf[i] = f32_to_bf16(normal(rng) * d.size), e[i] = bf16_to_f32(e_bf[i]);

    CpuRef ref(16);
    BackendLimits l;
    l.max_tok = T, l.max_rows = 1, l.max_cols = std::max(2 * d.F, d.D), l.n_expert = d.N, l.n_expert_used = d.used,
    l.d_expert = d.F, l.d_moe = d.D;
    ref.reserve(l);
    MoeWeights<CpuRef::Weight, CpuRef::Vec> w;
    w.router = {reinterpret_cast<const std::byte*>(router.data()), DType::kF32, d.N, d.D, 1, "router"};
    w.scale = {scale.data(), d.N};
    auto stack = [&](std::vector<std::byte>& v, DType t, int n_out, int n_in, const char* name) {
      v = random_blocks(t, int64_t(d.N) * n_out, n_in, rng);
      return CpuRef::Weight{v.data(), t, n_out, n_in, d.N, name};
    };
    if (d.merged)
      w.gate_up = stack(gate_up, d.up, 2 * d.F, d.D, "gate_up");
    else
      w.gate = stack(gate, d.up, d.F, d.D, "gate"), w.up = stack(up, d.up, d.F, d.D, "up");
    w.down = stack(down, d.down, d.D, d.F, "down");
    want.resize(e.size());
    auto rows = [&](std::vector<float>& v) { return CpuRef::Rows{v.data(), T, d.D, d.D}; };
    ref.moe(rows(want), rows(e), rows(r), w, d.used, d.act);
    if (!have_gpu()) return;

    m.d_expert = d.F;
    if (d.merged)
      m.gate = m.up = upload(w.gate_up), m.up_strip = d.F / cuda::kTileRows;
    else
      m.gate = upload(w.gate), m.up = upload(w.up);
    m.down = upload(w.down);
    dev_router = std::make_unique<OnDevice<float>>(router), dev_scale = std::make_unique<OnDevice<float>>(scale),
    dev_r = std::make_unique<OnDevice<float>>(r);
    dev_e = std::make_unique<OnDevice<uint16_t>>(e_bf);
    m.router = dev_router->p(), m.scale = dev_scale->p(), m.n_expert = d.N, m.n_used = d.used, m.act = d.act;
  }
  cuda::TiledMatrix upload(const CpuRef::Weight& w) {
    const cuda::Tile tile = w.type == DType::kQ4_K   ? cuda::Tile::kQ4_K
                            : w.type == DType::kQ5_K ? cuda::Tile::kQ5_K
                            : w.type == DType::kQ6_K ? cuda::Tile::kQ6_K
                            : w.type == DType::kQ4_0 ? cuda::Tile::kQ4_0
                            : w.type == DType::kQ5_0 ? cuda::Tile::kQ5_0
                            : w.type == DType::kQ8_0 ? cuda::Tile::kQ8_0
                                                     : cuda::Tile::kBF16;
    cuda::TiledMatrix t{
        .p = nullptr, .tile = tile, .n_out = int(w.n_out), .n_in = int(w.n_in), .n_stack = int(w.n_stack)};
    t.fine = d.fine && cuda::may_be_fine(tile);
    tiles.push_back(std::make_unique<OnDevice<uint8_t>>(size_t(t.matrix_bytes() * w.n_stack)));
    t.p = tiles.back()->p();
    std::vector<uint8_t> bytes(size_t(w.n_stack * w.n_out) * row_bytes(w.type, w.n_in));
    std::memcpy(bytes.data(), w.p, bytes.size());
    const OnDevice<uint8_t> raw(bytes);
    cuda::repack(nullptr, t, raw.p(), w.type);
    ok(cudaDeviceSynchronize());
    return t;
  }
  cuda::Mat rows(const OnDevice<float>& f, int first, int n) const {
    return {.p = f.p() + int64_t(first) * d.D, .rows = n, .cols = d.D, .stride = d.D};
  }
  cuda::Mat input(int first, int n) const {
    return {.p = nullptr,
            .rows = n,
            .cols = d.D,
            .stride = d.D,
            .bf = reinterpret_cast<__nv_bfloat16*>(dev_e->p()) + int64_t(first) * d.D,
            .bf_stride = d.D};
  }

  std::vector<float> many(int64_t panel_bytes = int64_t(1) << 40) const {
    const cuda::MoeSizes s{.d = d.D, .d_expert = d.F, .n_expert = d.N, .n_used = d.used, .n_tok = T};
    const OnDevice<uint8_t> memory(size_t(cuda::moe_large_batch_bytes(s, panel_bytes)));
    const OnDevice<float> y(want.size());
    cuda::moe_large_batch(nullptr, m, rows(y, 0, T), input(0, T), rows(*dev_r, 0, T),
                          cuda::moe_large_batch_buffers(memory.p(), s, panel_bytes));
    ok(cudaGetLastError());
    return y.get();
  }
  // x and its norm after the join with a dense branch; leave: outputs stay in panels until then.
  Joined joined(bool leave) const {
    const cuda::MoeSizes s{.d = d.D, .d_expert = d.F, .n_expert = d.N, .n_used = d.used, .n_tok = T};
    const OnDevice<uint8_t> memory(size_t(cuda::moe_large_batch_bytes(s, int64_t(1) << 40)));
    const OnDevice<float> y(std::vector<float>(want.size(), NAN)), h(want.size()), x(e), dense(r),
        gain(std::vector<float>(size_t(d.D), 0.75f));
    const cuda::MoePanelRows panels =
        cuda::moe_large_batch(nullptr, m, rows(y, 0, T), input(0, T), rows(*dev_r, 0, T),
                              cuda::moe_large_batch_buffers(memory.p(), s, int64_t(1) << 40), leave);
    EXPECT_EQ(panels.rows != nullptr, leave);
    cuda::moe_join(nullptr, rows(x, 0, T), rows(h, 0, T), rows(dense, 0, T), rows(y, 0, T),
                   {.shared_post = gain.p(),
                    .routed_post = gain.p(),
                    .post = nullptr,
                    .next = gain.p(),
                    .out_scale = .7f,
                    .slots = {},
                    .panels = panels});
    ok(cudaGetLastError());
    return {e, x.get(), h.get()};
  }
  // Rows [first, first + n).
  std::vector<float> few(int first, int n) const {
    const size_t pairs = size_t(n * d.used), entries = size_t(cuda::routing_entries(d.N, int64_t(pairs)));
    const OnDevice<uint64_t> logits(size_t(n * d.N));
    const OnDevice<float> weight(pairs), out(pairs * size_t(d.D)), y(size_t(n * d.D));
    const OnDevice<int32_t> expert(pairs), active(entries), begin(entries + 1), n_active(1), pair(pairs);
    const OnDevice<uint16_t> hidden(pairs * size_t(d.F));
    const OnDevice<unsigned> number(std::vector<unsigned>{0});
    const cuda::MoeBuffers b{
        .routing = {logits.p(), weight.p(), expert.p(), active.p(), begin.p(), n_active.p(), pair.p(), number.p()},
        .hidden = reinterpret_cast<__nv_bfloat16*>(hidden.p()),
        .out = out.p()};
    const cuda::RouterArgs job = cuda::router_args(m, rows(*dev_r, first, n), n, b.routing);
    n > cuda::kMoeRows ? cuda::route_small_batch(nullptr, job) : cuda::route(nullptr, job);
    cuda::moe_small_batch(nullptr, m, input(first, n), n, b);
    cuda::moe_small_batch_combine(nullptr, rows(y, 0, n), b.out, b.routing.weight, m.n_used);
    ok(cudaGetLastError());
    return y.get();
  }

  // One token after another as a step of one row launches them: the routing beside a dense product, experts looked for
  // while they are chosen, beside the dense product that follows. Every third token waits for its experts instead.
  std::vector<std::vector<float>> beside_dense(const std::vector<int>& tokens, int dense_rows) {
    std::mt19937 rng(2);
    std::vector<std::byte> v;
    auto dense = [&](DType t, int n_out, int n_in) {
      v = random_blocks(t, n_out, n_in, rng);
      return upload(CpuRef::Weight{v.data(), t, n_out, n_in, 1, "dense"});
    };
    const cuda::TiledMatrix gate_w = dense(d.up, dense_rows, d.D), up_w = dense(d.up, dense_rows, d.D),
                            down_w = dense(d.down, d.D, dense_rows);
    const size_t pairs = size_t(d.used), entries = size_t(cuda::routing_entries(d.N, int64_t(pairs)));
    const OnDevice<uint64_t> logits(size_t(d.N));
    const OnDevice<float> weight(pairs), out(pairs * size_t(d.D)), g(static_cast<size_t>(dense_rows)),
        partial(size_t(4) << 20);
    const OnDevice<int32_t> expert(pairs), active(entries), begin(entries + 1), n_active(1), pair(pairs);
    const OnDevice<uint16_t> hidden(pairs * size_t(d.F)), g_bf(static_cast<size_t>(dense_rows));
    const OnDevice<unsigned> number(std::vector<unsigned>{0}),
        counter(std::vector<unsigned>(size_t(cuda::skinny_counters(cuda::device())), 0));
    const OnDevice<uint8_t> image(size_t(1) << 20);
    const cuda::MoeBuffers b{
        .routing = {logits.p(), weight.p(), expert.p(), active.p(), begin.p(), n_active.p(), pair.p(), number.p()},
        .hidden = reinterpret_cast<__nv_bfloat16*>(hidden.p()),
        .out = out.p()};
    std::vector<std::unique_ptr<OnDevice<float>>> y, dense_y;
    for (size_t i = 0; i < tokens.size(); ++i)
      y.push_back(std::make_unique<OnDevice<float>>(size_t(d.D))),
          dense_y.push_back(std::make_unique<OnDevice<float>>(size_t(d.D)));
    cuda::pass_time(nullptr, 20);  // in which all is launched: kernels follow one another as in a graph
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool ahead = i % 3 != 2;
      const int t = tokens[i];
      const cuda::Mat in = input(t, 1);
      cuda::RouterArgs job = cuda::router_args(m, rows(*dev_r, t, 1), 1, b.routing);
      job.ahead = ahead;
      cuda::SkinnyWork work{.partial = partial.p(),
                            .counter = counter.p(),
                            .image = image.p(),
                            .beside = &job,
                            .in_turn = ahead,
                            .thirds = 1};
      cuda::SkinnyMatrix both[2] = {{.w = gate_w}, {.w = up_w}}, last{.w = down_w};
      both[0].y = g.p(), both[0].y_stride = dense_rows, both[0].y_bf = reinterpret_cast<__nv_bfloat16*>(g_bf.p()),
      both[0].y_bf_stride = dense_rows;
      last.y = dense_y[i]->p(), last.y_stride = d.D;
      cuda::skinny(nullptr, both, 2, true, d.act, in.bf, d.D, 1, work);
      work.beside = nullptr, work.in_turn = !ahead, work.ahead = ahead;
      cuda::skinny(nullptr, &last, 1, false, d.act, both[0].y_bf, dense_rows, 1, work);
      cuda::moe_small_batch(nullptr, m, in, 1, b, true);
      cuda::moe_small_batch_combine(nullptr, rows(*y[i], 0, 1), b.out, b.routing.weight, m.n_used);
    }
    ok(cudaGetLastError());
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < tokens.size(); ++i) {
      all.push_back(y[i]->get());
      const auto beside = dense_y[i]->get();
      all.back().insert(all.back().end(), beside.begin(), beside.end());
    }
    return all;
  }

  // Every rounding to bf16 moves a number by 2^-9 of it at most, evenly: 2^-9 / sqrt(3) in the mean. An output is a sum
  // of many independent terms that were rounded as weights (twice), as hidden values (with the errors of gate and up,
  // whose derivative is below 1.2) and as outputs: the square root of seven such errors. Outputs of a row differ in
  // size as their weights do, so five deviations of the row's largest. The kernels for few tokens take inputs and
  // hidden values in 8 bits: four errors of 1 / 254 of the largest of 64, which is four times their mean. In two bytes
  // inputs miss next to nothing, and the bound is that of many tokens.
  //
  // Straight from codes all but outputs is in f16, an eighth of bf16's error. Scales and minima are rounded as well as
  // weights, of which they are 2.6 times the square: in units of f16's square, six times 3.6.
  enum class Kernels { kFew, kMany, kCodes };
  float bound(Kernels k) const {
    if (k == Kernels::kFew && !d.fine) return 5 * std::sqrt(4.f / 3.f) * 4 / 254;
    return 5 * std::sqrt((k == Kernels::kCodes ? 1 + 6 * 3.6f / 64 : 7) / 3) * 0x1p-9f;
  }
  void check(const std::vector<float>& got, int first, int n, const char* what, Kernels kernels) const {
    for (int t = 0; t < n; ++t) {
      const float* w = want.data() + size_t((first + t) * d.D);
      float most = 0;
      for (int i = 0; i < d.D; ++i) most = std::max(most, std::fabs(w[i]));
      const float within = most * bound(kernels);
      for (int i = 0; i < d.D; ++i) {
        const float miss = std::fabs(got[size_t(t * d.D + i)] - w[i]);
        if (miss <= within) continue;
        ADD_FAILURE() << what << ": D " << d.D << " F " << d.F << " N " << d.N << " used " << d.used << " T " << T
                      << " types " << dtype_name(d.up) << " " << dtype_name(d.down) << (d.merged ? " merged" : "")
                      << "; token " << first + t << " column " << i << ": " << got[size_t(t * d.D + i)] << ", expected "
                      << w[i] << " within " << within;
        return;
      }
    }
  }
  void check_many() const {
    gpu().use_gemm(false);
    const auto y = many();
    check(y, 0, T, "warpgroups", Kernels::kMany);
    EXPECT_EQ(0, std::memcmp(y.data(), many().data(), y.size() * 4)) << "the same again";
    // One at a time, 200 experts are 600 launches, of which racecheck keeps more than 100 GB.
    EXPECT_EQ(0, std::memcmp(y.data(), many(light() ? int64_t(1) << 20 : 1).data(), y.size() * 4))
        << "few experts at a time";
    gpu().use_gemm(true);
    if (gpu().info().gemm) {
      const auto codes = many();
      check(codes, 0, T, "codes", cuda::moe_takes_codes(m) ? Kernels::kCodes : Kernels::kMany);
      EXPECT_EQ(0, std::memcmp(codes.data(), many().data(), codes.size() * 4)) << "the same again";
    }
    gpu().use_wgmma(false), gpu().use_gemm(true);
    check(many(), 0, T, "mma", Kernels::kMany);
    gpu().use_wgmma(true), gpu().use_gemm(true);
  }
};

constexpr Dims kModels[] = {
    {},
    {.merged = false},
    {.D = 512, .F = 64, .down = DType::kQ5_0, .act = Act::kSilu},
    {.D = 256, .F = 256, .N = 8, .used = 2, .up = DType::kQ6_K, .down = DType::kQ6_K},
    {.D = 288, .F = 96, .N = 12, .used = 3, .up = DType::kQ8_0, .down = DType::kQ5_0},
    {.D = 160, .F = 48, .N = 4, .used = 1, .up = DType::kBF16, .down = DType::kBF16, .merged = false},
    {.D = 256, .F = 80, .N = 20, .used = 5, .up = DType::kQ5_0, .down = DType::kBF16, .routes = Routes::kUneven},
    {.D = 64, .F = 16, .N = 200, .used = 16, .up = DType::kBF16, .down = DType::kBF16},
    {.D = 256, .F = 256, .N = 8, .used = 2, .up = DType::kQ6_K, .down = DType::kQ6_K, .fine = true},
    {.D = 288, .F = 96, .N = 12, .used = 3, .up = DType::kQ8_0, .down = DType::kQ5_0, .merged = false, .fine = true},
    {.D = 256, .F = 256, .N = 8, .used = 2, .down = DType::kQ4_K, .fine = true},
};

TEST(CudaMoe, ManyTokensAsReference) {
  NEEDS_GPU();
  Cases cases(3);
  for (const Dims& d : kModels)
    for (int T : {65, 300})
      if (!cases.leave_out()) Case(d, T, unsigned(T)).check_many();
}
TEST(CudaMoe, ThousandsOfTokensAsReference) {
  NEEDS_GPU();
  if (light())
    return Case({.D = 64, .F = 16, .N = 6, .used = 2, .up = DType::kBF16, .down = DType::kBF16}, 1100).check_many();
  Case({.D = 256, .F = 64, .N = 16, .used = 4, .down = DType::kQ5_0}, 4096).check_many();
  Case({.D = 128, .F = 32, .N = 8, .used = 2, .up = DType::kQ8_0, .down = DType::kQ8_0, .routes = Routes::kUneven},
       4096)
      .check_many();
  Case({.D = 64, .F = 16, .N = 6, .used = 2, .up = DType::kBF16, .down = DType::kBF16}, cuda::kMoeLargeBatchTokens + 70)
      .check_many();
}
// What a large batch leaves in panels gives the join the bits of the outputs added up.
TEST(CudaMoe, JoinAddsUpWhatALargeBatchLeft) {
  NEEDS_GPU();
  for (const Dims& d : {Dims{}, Dims{.D = 2816, .F = 64, .N = 24, .used = 6}}) {
    const Case c(d, 300);
    const Joined added = c.joined(false), left = c.joined(true);
    EXPECT_EQ(added.x, left.x) << d.D;
    EXPECT_EQ(added.h, left.h) << d.D;
    EXPECT_NE(left.x, left.before);
  }
}
// Types that no other case has, and activations from which hidden values are a million.
TEST(CudaMoe, ManyTokensOfOtherTypesAndSizes) {
  NEEDS_GPU();
  Case({.F = 256, .up = DType::kQ5_K, .down = DType::kQ4_0}, 100).check_many();
  Case({.F = 256, .N = 8, .used = 2, .up = DType::kQ4_0, .down = DType::kQ5_K, .merged = false}, 100).check_many();
  for (const DType up : {DType::kQ4_K, DType::kQ6_K})
    Case({.up = up, .down = DType::kQ5_0, .size = 256}, 70).check_many();
}
// Every width of an N tile that products straight from codes have, in steps of 32 tokens: all use expert 1.
TEST(CudaMoe, EveryWidthOfATile) {
  NEEDS_GPU();
  Cases cases(3);
  for (int T = 80; T <= cuda::kMoeTile; T += 16)
    if (!cases.leave_out())
      Case({.F = 64, .N = 8, .used = 2, .down = DType::kQ8_0, .routes = Routes::kUneven}, T).check_many();
}
TEST(CudaMoe, WidthsOf26B) {
  NEEDS_GPU();
  Case({.D = 2816, .F = 704, .N = 9, .used = 2, .down = DType::kQ5_0}, 190).check_many();
}
TEST(CudaMoe, FewTokensAsReference) {
  NEEDS_GPU();
  for (const Dims& d : kModels) {
    const Case c(d, 16);
    for (int n : {1, 2, 8, 9, 16}) c.check(c.few(16 - n, n), 16 - n, n, "few", Case::Kernels::kFew);
  }
}
// A row's bits depend on that row alone.
TEST(CudaMoe, OneTokenIsATokenOfSixteen) {
  NEEDS_GPU();
  for (const Dims& d : kModels) {
    const Case c(d, 16);
    const auto all = c.few(0, 16);
    for (int t = 0; t < 16; ++t)
      EXPECT_EQ(0, std::memcmp(c.few(t, 1).data(), all.data() + t * d.D, size_t(d.D) * 4))
          << "D " << d.D << " token " << t;
    EXPECT_EQ(0, std::memcmp(c.few(5, 7).data(), all.data() + 5 * d.D, size_t(7 * d.D) * 4)) << "D " << d.D;
  }
}
// The batch law: each token's bits are those of its solo run, whatever its batch; some experts have more pairs than a
// pass takes.
TEST(CudaMoe, TokensOfABatchAreTheirSoloRuns) {
  NEEDS_GPU();
  constexpr int kMost = 256;
  Cases cases(3);
  auto check = [](const Dims& d) {
    const Case c(d, kMost);
    std::vector<std::vector<float>> solo;
    for (int t = 0; t < kMost; ++t) solo.push_back(c.few(t, 1));
    for (const int n : {2, 7, 16, 17, 33, 64, 100, 256}) {
      const int first = kMost - n;
      const std::vector<float> all = c.few(first, n);
      for (int t = 0; t < n; ++t)
        ASSERT_EQ(std::memcmp(all.data() + t * d.D, solo[size_t(first + t)].data(), size_t(d.D) * 4), 0)
            << "D " << d.D << " token " << t << " of " << n;
      if (n == kMost) c.check(all, first, n, "few", Case::Kernels::kFew);
    }
  };
  for (const Dims& d : kModels)
    if (!cases.leave_out()) check(d);
  if (!light()) check({.D = 2816, .F = 704, .N = 32, .used = 8, .down = DType::kQ5_0});
}
// One token has kernels of its own: widths of 26B-A4B in both types of its down matrices, more columns than a block's
// warps read at once, and fewer strips than blocks.
TEST(CudaMoe, OneTokenOfManyWidths) {
  NEEDS_GPU();
  constexpr Dims kShapes[] = {
      {.D = 2816, .F = 704, .N = 9, .used = 8, .down = DType::kQ5_0},
      {.D = 2816, .F = 704, .N = 9, .used = 8},
      {.D = 2816, .F = 704, .N = 6, .used = 3, .up = DType::kQ6_K, .down = DType::kQ5_0, .merged = false, .fine = true},
      {.D = 256, .F = 6400, .N = 3, .used = 2},
      {.D = 160, .F = 64, .N = 20, .used = 16, .up = DType::kQ8_0, .down = DType::kQ5_0, .act = Act::kSilu},
  };
  for (const Dims& d : kShapes) {
    const Case c(d, 3);
    const auto all = c.few(0, 3);
    c.check(all, 0, 3, "few", Case::Kernels::kFew);
    for (int t = 0; t < 3; ++t)
      EXPECT_EQ(0, std::memcmp(c.few(t, 1).data(), all.data() + t * d.D, size_t(d.D) * 4))
          << "D " << d.D << " F " << d.F << " token " << t;
  }
}

// A token's experts are not those of the token before, wherever they are looked for, and nothing beside them changes a
// bit.
TEST(CudaMoe, ExpertsLookedForWhileTheyAreChosen) {
  NEEDS_GPU();
  constexpr Dims kShapes[] = {
      {.D = 2816, .F = 704, .N = 64, .used = 8, .down = DType::kQ5_0},
      {.D = 1280, .F = 256, .N = 16, .used = 3, .down = DType::kQ8_0, .merged = false},
  };
  for (const Dims& d : kShapes) {
    Case c(d, 12);
    std::vector<int> tokens;
    std::mt19937 rng(9);
    for (int i = 0; i < (light() ? 9 : 60); ++i) tokens.push_back(int(rng() % 12));
    const auto all = c.beside_dense(tokens, 512);
    std::vector<std::vector<float>> alone;
    for (int t = 0; t < 12; ++t) alone.push_back(c.few(t, 1));
    std::vector<const float*> dense(12, nullptr);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t t = size_t(tokens[i]);
      ASSERT_EQ(0, std::memcmp(all[i].data(), alone[t].data(), size_t(d.D) * 4))
          << "D " << d.D << " token " << t << " at " << i;
      const float* y = all[i].data() + d.D;
      if (!dense[t]) dense[t] = y;
      ASSERT_EQ(0, std::memcmp(y, dense[t], size_t(d.D) * 4))
          << "D " << d.D << ", the dense product beside token " << t << " at " << i;
    }
  }
}

}  // namespace
}  // namespace facet::test
