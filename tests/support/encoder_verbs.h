#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/cpu_ref.h"
#include "backend/lockstep.h"
#include "backend/pass.h"
#include "model/encoder_types.h"

// Every verb of encoders on random rows, judged by CpuRef.
namespace facet::test {

struct EncoderShape {
  std::vector<EncoderStep::Grid> grids;  // in patches; sides are multiples of 3
  int n_head, head_dim;
};
inline std::vector<EncoderShape> encoder_shapes() {
  return {{{{3, 3}}, 1, 16},
          {{{9, 6}, {3, 9}, {6, 3}}, 2, 24},
          {{{24, 27}}, 2, 64},
          {{{30, 21}, {3, 3}}, 2, 72},
          {{{12, 12}, {15, 6}}, 1, 128}};
}

template <class A>
class EncoderVerbs {
 public:
  using B = Lockstep<A, CpuRef>;
  using Rows = typename B::Rows;
  template <class... Args>
  explicit EncoderVerbs(const Args&... args) : b(args...) {}

  std::vector<float> random(size_t n, float size = 1) {
    std::vector<float> v(n);
    std::normal_distribution<float> normal;
    for (float& e : v) e = normal(rng_) * size;
    return v;
  }
  Rows rows(int n, int cols, float size = 1) {
    const Rows r = b.new_rows(n, cols);
    b.from_host(r, random(size_t(n) * size_t(cols), size));
    return r;
  }
  auto vec(int n, float around = 0, float size = 1) {
    std::vector<float> v = random(size_t(n), size);
    for (float& e : v) e += around;
    return b.upload(std::span<const float>(v));
  }
  auto weight(std::vector<float>& memory, int n_in, int n_out) {
    memory = random(size_t(n_in) * size_t(n_out));
    return b.upload(TensorView{.name = "table",
                               .type = DType::kF32,
                               .n_dims = 2,
                               .ne = {n_in, n_out, 1, 1},
                               .data = std::as_bytes(std::span<const float>(memory))});
  }

  void pictures(const EncoderShape& shape) {
    const EncoderStep e = EncoderStep::pictures(shape.grids);
    const Step s = e.step();
    const int T = e.n_tok(), E = shape.head_dim, D = shape.n_head * E;
    std::vector<float> memory;
    const auto table = weight(memory, D, 80);
    std::vector<double> f(size_t(E / 4));
    for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(100., -4. * double(i) / E);
    const auto freqs = b.upload(std::span<const double>(f));
    b.reserve({.max_tok = std::max(T, 64),
               .max_rows = T,
               .max_cols = 4 * D,
               .n_q_head = 1,
               .head_dim = 64,
               .n_kv_head = 1,
               .encoder_head = E});
    const auto gain = vec(E, 1, .3f);
    const Rows x = rows(T, D), q = rows(T, D, 3), k = rows(T, D), v = rows(T, D), o = b.new_rows(T, D),
               y = b.new_rows(T / 9, D);
    run_pass(b, s, nullptr, [&] {
      b.add_positions(x, table, s);
      b.grid_norm_rope(q, gain, freqs, s, 1e-6f);
      b.grid_norm_rope(k, gain, freqs, s, 1e-6f);
      b.head_norm(v, E, 1e-6f);
      b.encoder_attend(o, q, k, v, s, E, 1.f);
      b.clamp(o, x, -.5f, .75f);
      b.clamp(x, x, -1.25f, 1.f);
      b.pool(y, x, s, 3, std::sqrt(float(D)));
      b.shift_scale(y, vec(D, 0, 3), vec(D, .5f, .2f));
      b.shift_scale(y, {}, vec(D));
      b.shift_scale(y, vec(D), {});
      b.layer_norm(x, x, vec(D, 1, .3f), vec(D), 1e-5f);
      return x;
    });
  }

  void sound(int n_frame, int n_mel, int c0, int c1, int n_head, int E, int n_key) {
    const int half = (n_frame + 1) / 2, T = (half + 1) / 2, D = n_head * E;
    const int tokens[] = {T};
    const EncoderStep e = EncoderStep::sounds(tokens);
    const Step s = e.step();
    b.reserve(
        {.max_tok = std::max(T, 64), .max_rows = T, .max_cols = 4 * D, .n_q_head = 1, .head_dim = 64, .n_kv_head = 1});
    const Rows m = rows(n_frame, n_mel), y0 = b.new_rows(half, n_mel / 2 * c0), y1 = b.new_rows(T, n_mel / 4 * c1);
    const Rows x = rows(T, D), q = rows(T, D), k = rows(T, D), v = rows(T, D), o = b.new_rows(T, D),
               r = rows(n_key + 1, D), g = rows(T, 2 * D);
    run_pass(b, s, nullptr, [&] {
      b.conv2d(y0, m, vec(9 * c0, 0, .3f), 1);
      b.layer_norm(y0, y0, vec(c0, 1, .3f), {}, 1e-6f);
      b.conv2d(y1, y0, vec(9 * c0 * c1, 0, .1f), c0);
      b.relative_attend(o, q, k, v, r, s, {.head_dim = E, .n_key = n_key, .cap = 50});
      b.silu(x);
      b.glu(o, g);
      b.causal_conv(x, o, vec(5 * D), s);
      return x;
    });
    const EncoderStep two = EncoderStep::sounds(std::vector<int>{T / 3, T - T / 3});
    const Step both = two.step();
    run_pass(b, both, nullptr, [&] {  // of two sounds neither sees the other
      b.relative_attend(o, q, k, v, r, both, {.head_dim = E, .n_key = n_key, .cap = 50});
      b.causal_conv(x, q, vec(5 * D), both);
      return x;
    });
  }
  void expect_none() {
    EXPECT_GT(b.compared(), 5);
    for (const VerbDifference& d : b.differences()) ADD_FAILURE() << d.message();
  }
  B b;

 private:
  std::mt19937 rng_{5};
};

template <class A, class... Args>
void every_encoder_verb(const Args&... args) {
  for (const EncoderShape& shape : encoder_shapes()) {
    SCOPED_TRACE("heads of " + std::to_string(shape.head_dim));
    EncoderVerbs<A> v(args...);
    v.pictures(shape);
    v.expect_none();
  }
  for (const int frames : {1, 2, 7, 53}) {
    SCOPED_TRACE(std::to_string(frames) + " frames");
    EncoderVerbs<A> v(args...);
    v.sound(frames, 128, 128, 8, 2, 16, 12);
    v.sound(frames, 32, 16, 4, 1, 128, 12);
    v.expect_none();
  }
}

}  // namespace facet::test
