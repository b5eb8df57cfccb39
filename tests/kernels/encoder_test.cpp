// CpuFast's verbs of encoders against CpuRef, on every instruction set, whose bits are the same; products of many float
// rows have the bits of few.
#include <cstring>

#include "backend/cpu/cpu_fast.h"
#include "base/half.h"
#include "support/encoder_verbs.h"

namespace facet::test {
namespace {

std::vector<CpuIsa> isas() {
  std::vector<CpuIsa> v;
  for (const CpuIsa i : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (has_isa(i)) v.push_back(i);
  return v;
}

TEST(EncoderVerbs, TheCpuBackendAgrees) { every_encoder_verb<CpuFast>(2); }

template <class Base>
struct SkipsTheLastKey : Base {
  using Base::Base;
  using typename Base::Rows;
  void encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step& s, int head_dim, float scale) {
    std::vector<int32_t> begin(s.q_begin, s.q_begin + s.shape.n_seq + 1);
    begin.back() -= 1;
    Step t = s;
    t.q_begin = begin.data();
    Base::encoder_attend(o, q, k, v, t, head_dim, scale);
  }
};
TEST(EncoderVerbs, APlantedBugIsNamed) {
  EncoderVerbs<SkipsTheLastKey<CpuFast>> v(1);
  v.pictures(encoder_shapes()[1]);
  ASSERT_FALSE(v.b.differences().empty());
  EXPECT_EQ(v.b.differences()[0].name, "encoder_attend");
}

struct Attended {
  std::vector<float> out;
  bool operator==(const Attended& o) const {
    return out.size() == o.out.size() && std::memcmp(out.data(), o.out.data(), out.size() * 4) == 0;
  }
};
Attended attended(CpuIsa isa, int threads, const std::vector<EncoderStep::Grid>& grids, int E, int first, int n_row) {
  CpuFast b(threads, isa);
  const EncoderStep e = EncoderStep::pictures(grids);
  const Step s = e.step();
  const int T = e.n_tok();
  b.reserve({.max_tok = T, .max_rows = T, .max_cols = 2 * E, .encoder_head = E});
  auto q = b.new_rows(T, 2 * E), k = b.new_rows(T, 2 * E), v = b.new_rows(T, 2 * E), o = b.new_rows(T, 2 * E);
  unsigned seed = 3;
  for (const auto& x : {q, k, v}) {
    std::mt19937 rng(seed++);
    std::normal_distribution<float> normal;
    for (int t = 0; t < T; ++t)
      for (int i = 0; i < 2 * E; ++i) x.row(t)[i] = normal(rng);
  }
  b.encoder_attend(o, q, k, v, s, E, 1.f);
  return {b.to_host(o.rows_at(first, n_row))};
}
TEST(EncoderVerbs, AttentionHasTheSameBitsEverywhere) {
  for (const int E : {24, 72}) {
    const Attended want = attended(CpuIsa::kScalar, 1, {{18, 30}}, E, 0, 540);
    for (const CpuIsa isa : isas())
      for (const int threads : {1, 2}) {
        if (isa == CpuIsa::kScalar && threads == 1) continue;
        EXPECT_EQ(attended(isa, threads, {{18, 30}}, E, 0, 540), want) << isa_name(isa) << " " << E;
        // The first picture of a batch, whose queries fall into other blocks.
        EXPECT_EQ(attended(isa, threads, {{18, 30}, {3, 3}}, E, 0, 540), want) << isa_name(isa) << " " << E;
      }
  }
}

TEST(EncoderVerbs, ProductsOfManyFloatRowsHaveTheBitsOfFew) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  for (const auto& [type, n_in, n_out] :
       {std::tuple{DType::kBF16, 768, 70}, {DType::kF16, 100, 33}, {DType::kF32, 1152, 48}, {DType::kBF16, 4304, 17}}) {
    std::vector<std::byte> w[2];
    for (auto& bytes : w) {
      bytes.resize(size_t(n_out) * row_bytes(type, n_in));
      for (size_t i = 0; i < bytes.size() / (type == DType::kF32 ? 4 : 2); ++i) {
        const float f = normal(rng);
        const uint16_t h = type == DType::kF16 ? f32_to_f16(f) : f32_to_bf16(f);
        type == DType::kF32 ? std::memcpy(bytes.data() + 4 * i, &f, 4) : std::memcpy(bytes.data() + 2 * i, &h, 2);
      }
    }
    constexpr int T = 333;
    CpuFast b(2);
    b.reserve({.max_tok = T, .max_rows = T, .max_cols = n_in});
    auto upload = [&b, t = type, in = n_in, out = n_out](const std::vector<std::byte>& bytes) {
      return b.upload(TensorView{.name = "w", .type = t, .n_dims = 2, .ne = {in, out, 1, 1}, .data = bytes});
    };
    const auto gate = upload(w[0]), up = upload(w[1]);
    auto x = b.new_rows(T, n_in), many = b.new_rows(T, n_out), few = b.new_rows(T, n_out);
    for (int t = 0; t < T; ++t)
      for (int i = 0; i < n_in; ++i) x.row(t)[i] = normal(rng);
    auto same = [&] { return b.to_host(many) == b.to_host(few); };
    b.matmul(many, x, gate);
    for (int t = 0; t < T; t += 9) b.matmul(few.rows_at(t, std::min(9, T - t)), x.rows_at(t, std::min(9, T - t)), gate);
    EXPECT_TRUE(same()) << dtype_name(type);
    b.gate_up(many, x, gate, up, Act::kGelu);
    for (int t = 0; t < T; t += 9)
      b.gate_up(few.rows_at(t, std::min(9, T - t)), x.rows_at(t, std::min(9, T - t)), gate, up, Act::kGelu);
    EXPECT_TRUE(same()) << dtype_name(type);
  }
}

}  // namespace
}  // namespace facet::test
