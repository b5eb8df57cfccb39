// Faults that encoders of other engines have had, or might have: the goldens notice each by a hundred times the bound
// that right ones keep.
#include "support/encoder_bench.h"

namespace facet::test {
namespace {

constexpr double kNoticed = 5e-3;

template <class B>
double pictures(const std::string& name, const std::string& stage = "soft", const char* picture = "grid",
                const std::function<void(VisionBench<B>&)>& spoil = {}) {
  const MediaCase m = media_case(name);
  VisionBench<B> v(m.file(), 64);
  if (spoil) spoil(v);
  const Picture p[] = {golden_picture(picture)};
  return relative_difference(v.stages(p)[stage], m.goldens().values<float>(picture + ("." + stage)));
}
template <class B>
double sound(const std::string& name, const std::function<void(AudioBench<B>&)>& spoil = {}) {
  const MediaCase m = media_case(name);
  AudioBench<B> a(m.file(), 128);
  if (spoil) spoil(a);
  const auto rows = m.goldens().values<float>(a.c.is_unified ? "sound.frames" : "sound.mel");
  return relative_difference(a.soft(rows), m.goldens().values<float>("sound.soft"));
}
// A step whose columns are rows.
Step swapped(const Step& s) {
  Step t = s;
  std::swap(t.token, t.pos);
  return t;
}

struct TablesSwapped : CpuRef {
  void add_positions(Rows x, Weight table, const Step& s) { CpuRef::add_positions(x, table, swapped(s)); }
};
TEST(PlantedEncoderBug, PositionTablesSwapped) {
  for (const char* name : {"large", "edge", "unified"}) EXPECT_GT(pictures<TablesSwapped>(name), kNoticed) << name;
}

struct TableTransposed : CpuRef {  // [position][axis], as 12B's checkpoint has it and its file has not
  void add_positions(Rows x, Weight table, const Step& s) {
    const int64_t half = table.n_out / 2;
    std::vector<int32_t> column, row;
    for (int t = 0; t < x.rows; ++t) {
      column.push_back(2 * s.token[t]), row.push_back(int32_t(2 * s.pos[t] + 1 - half));
      if (row.back() < 0) row.back() += int32_t(half);
      if (column.back() >= half) column.back() -= int32_t(half);
    }
    Step other = s;
    other.token = column.data(), other.pos = row.data();
    CpuRef::add_positions(x, table, other);
  }
};
TEST(PlantedEncoderBug, PositionTableTransposed) {
  for (const char* name : {"large", "edge", "unified"}) EXPECT_GT(pictures<TableTransposed>(name), kNoticed) << name;
}

struct RopeAxesSwapped : CpuRef {
  void grid_norm_rope(Rows x, Vec gain, Freqs f, const Step& s, float eps) {
    CpuRef::grid_norm_rope(x, gain, f, swapped(s), eps);
  }
};
TEST(PlantedEncoderBug, RopeAxesSwapped) {
  for (const char* name : {"large", "edge"}) EXPECT_GT(pictures<RopeAxesSwapped>(name), kNoticed) << name;
}

struct RopeOverTheWholeHead : CpuRef {  // pairs (i, i + E / 2), by the column alone
  void grid_norm_rope(Rows x, Vec gain, Freqs f, const Step& s, float eps) {
    std::vector<double> both(f.p, f.p + f.n);
    both.insert(both.end(), f.p, f.p + f.n);
    Step columns = s;
    columns.pos = s.token;
    CpuRef::head_norm_rope(x, gain, {both.data(), 2 * f.n}, columns, eps);
  }
};
TEST(PlantedEncoderBug, RopeOverTheWholeHead) { EXPECT_GT(pictures<RopeOverTheWholeHead>("edge"), kNoticed); }

struct ScaledAttention : CpuRef {
  void encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step& s, int head_dim, float scale) {
    CpuRef::encoder_attend(o, q, k, v, s, head_dim, scale / std::sqrt(float(head_dim)));
  }
};
TEST(PlantedEncoderBug, ScaledAttention) {
  for (const char* name : {"large", "edge"}) EXPECT_GT(pictures<ScaledAttention>(name), kNoticed) << name;
}

struct ValuesNotNormed : CpuRef {
  void head_norm(Rows, int, float) {}
};
TEST(PlantedEncoderBug, ValuesNotNormed) { EXPECT_GT(pictures<ValuesNotNormed>("edge"), kNoticed); }

struct QuickGelu : CpuRef {
  void act_mul(Rows y, Rows g, Rows u, Act) {
    for (int t = 0; t < y.rows; ++t)
      for (int i = 0; i < y.cols; ++i) {
        const float e = g.row(t)[i];
        y.row(t)[i] = e / (1.f + std::exp(-1.702f * e)) * u.row(t)[i];
      }
  }
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
    const Rows u = new_rows(y.rows, y.cols);
    matmul(y, h, gate), matmul(u, h, up);
    act_mul(y, y, u, act);
  }
};
TEST(PlantedEncoderBug, QuickGelu) {  // the smallest of them
  for (const char* name : {"large", "edge"}) EXPECT_GT(pictures<QuickGelu>(name), 1e-3) << name;
}

struct NoClips : CpuRef {
  void clamp(Rows y, Rows x, float low, float high) { low == 0 ? CpuRef::clamp(y, x, low, high) : copy_rows(y, x); }
};
TEST(PlantedEncoderBug, NoClips) {
  EXPECT_GT(pictures<NoClips>("edge"), kNoticed);
  EXPECT_GT(sound<NoClips>("edge"), kNoticed);
}
TEST(PlantedEncoderBug, ClipsOfQForKAndV) {
  EXPECT_GT(pictures<CpuRef>("edge", "soft", "grid",
                             [](VisionBench<CpuRef>& v) {
                               for (auto& L : v.W.layer) L.wk.clip = L.wv.clip = L.wq.clip;
                             }),
            kNoticed);
}

struct NoRootOfWidth : CpuRef {
  void pool(Rows y, Rows x, const Step& s, int size, float) { CpuRef::pool(y, x, s, size, 1.f); }
};
TEST(PlantedEncoderBug, NoRootOfWidth) {
  EXPECT_GT(pictures<NoRootOfWidth>("large"), kNoticed);
  EXPECT_GT(pictures<NoRootOfWidth>("edge", "pooled"), kNoticed);  // the norm behind it hides it
}
struct PoolsColumnsFirst : CpuRef {
  void pool(Rows y, Rows x, const Step& s, int size, float scale) {
    const Rows rows = new_rows(y.rows, y.cols);
    CpuRef::pool(rows, x, s, size, scale);
    const int across = (s.token[x.rows - 1] + 1) / size, down = y.rows / across;
    for (int i = 0; i < y.rows; ++i) copy_rows(y.rows_at(i, 1), rows.rows_at(i % down * across + i / down, 1));
  }
};
TEST(PlantedEncoderBug, PoolsColumnsFirst) { EXPECT_GT(pictures<PoolsColumnsFirst>("edge"), kNoticed); }

struct ScalesBeforeItShifts : CpuRef {
  void shift_scale(Rows x, Vec shift, Vec scale) {
    CpuRef::shift_scale(x, {}, scale), CpuRef::shift_scale(x, shift, {});
  }
};
TEST(PlantedEncoderBug, ScalesBeforeItShifts) { EXPECT_GT(pictures<ScalesBeforeItShifts>("large"), kNoticed); }

struct NoFinalNorm : CpuRef {
  void rms_norm(Rows y, Rows x, Vec gain, float eps) { gain ? CpuRef::rms_norm(y, x, gain, eps) : copy_rows(y, x); }
};
TEST(PlantedEncoderBug, NormAfterTheProjection) {
  for (const char* name : {"large", "edge"}) {
    const MediaCase m = media_case(name);
    VisionBench<NoFinalNorm> v(m.file(), 64);
    const Picture p[] = {golden_picture("grid")};
    auto soft = v.soft(p);
    CpuRef b;
    auto rows = b.new_rows(int(soft.size()) / v.c.d_out, v.c.d_out);
    b.from_host(rows, soft);
    b.rms_norm(rows, rows, {}, 1e-6f);
    EXPECT_GT(relative_difference(b.to_host(rows), m.goldens().values<float>("grid.soft")), kNoticed) << name;
  }
}

TEST(PlantedEncoderBug, PixelsInTheOtherOrderOrRange) {
  auto with = [](const std::string& name, const char* picture,
                 const std::function<float(const VisionCfg&, size_t, float)>& f, bool by_channel) {
    const MediaCase m = media_case(name);
    VisionBench<CpuRef> v(m.file(), 64);
    const Picture p[] = {golden_picture(picture)};
    const EncoderStep e = v.load(p);
    const Step s = e.step();
    auto rows = v.w.p.view(e.n_tok(), v.c.patch_cols());
    auto pixels = v.b.to_host(rows);
    if (!by_channel) {  // row, column, channel
      const std::vector<float> planes = pixels;
      const size_t n = size_t(v.c.patch_cols()), area = n / 3;
      for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = planes[i / n * n + i % 3 * area + i % n / 3];
    }
    for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = f(v.c, i, pixels[i]);
    v.b.from_host(rows, pixels);
    return relative_difference(v.b.to_host(vision_forward(v.b, v.c, v.W, s, v.w)),
                               m.goldens().values<float>(picture + std::string(".soft")));
  };
  const auto same = [](const VisionCfg&, size_t, float x) { return x; };
  const auto other_range = [](const VisionCfg& c, size_t, float x) { return c.is_unified ? 2 * x - 1 : (x + 1) / 2; };
  EXPECT_LE(with("large", "grid", same, true), 5e-5);
  for (const char* name : {"large", "edge", "unified"}) EXPECT_GT(with(name, "grid", same, false), kNoticed) << name;
  for (const char* name : {"large", "edge"}) EXPECT_GT(with(name, "grid", other_range, true), kNoticed) << name;
  // LayerNorm hides it on ordinary pictures.
  EXPECT_GT(with("unified", "flat", other_range, true), kNoticed);
}

// ---- sound

TEST(PlantedEncoderBug, ThirteenKeys) {
  EXPECT_LE(sound<CpuRef>("edge"), 5e-5);
  EXPECT_GT(sound<CpuRef>("edge", [](AudioBench<CpuRef>& a) { a.c.n_key = 13; }), kNoticed);
}
TEST(PlantedEncoderBug, SoftplusTwice) {
  EXPECT_GT(sound<CpuRef>("edge",
                          [](AudioBench<CpuRef>& a) {
                            const float scale = 1.f / (std::sqrt(float(a.c.head_dim)) * std::log(2.f));
                            for (auto& L : a.W.layer) {
                              std::vector<float> q(L.q_scale.p, L.q_scale.p + L.q_scale.n);
                              for (float& e : q) e = std::log1p(std::exp(e / scale)) * scale;
                              L.q_scale = a.b.upload(std::span<const float>(q));
                            }
                          }),
            kNoticed);
}
TEST(PlantedEncoderBug, ConvolutionNormsSwapped) {
  EXPECT_GT(sound<CpuRef>("edge",
                          [](AudioBench<CpuRef>& a) {
                            for (auto& L : a.W.layer) std::swap(L.conv_pre, L.conv_post);
                          }),
            kNoticed);
}
TEST(PlantedEncoderBug, KeysNotScaled) {
  EXPECT_GT(sound<CpuRef>("edge",
                          [](AudioBench<CpuRef>& a) {
                            for (auto& L : a.W.layer)
                              L.k_scale = a.b.upload(std::span<const float>(std::vector<float>(16, 1.f)));
                          }),
            kNoticed);
}
TEST(PlantedEncoderBug, WholeFeedForwardSteps) {
  EXPECT_GT(sound<CpuRef>("edge",
                          [](AudioBench<CpuRef>& a) {
                            for (auto& L : a.W.layer)
                              for (auto& f : L.ffn) {
                                std::vector<float> post(f.post.p, f.post.p + f.post.n);
                                for (float& e : post) e *= 2;
                                f.post = a.b.upload(std::span<const float>(post));
                              }
                          }),
            kNoticed);
}
struct TimeAndMelSwapped : CpuRef {
  void conv2d(Rows y, Rows x, Vec kernel, int c_in) {
    std::vector<float> k(kernel.p, kernel.p + kernel.n);
    const size_t n = k.size() / 9;
    for (size_t i = 0; i < k.size(); ++i) k[i] = kernel.p[(i / n % 3 * 3 + i / n / 3) * n + i % n];
    CpuRef::conv2d(y, x, {k.data(), kernel.n}, c_in);
  }
};
TEST(PlantedEncoderBug, TimeAndMelSwapped) { EXPECT_GT(sound<TimeAndMelSwapped>("edge"), kNoticed); }
struct CentredConvolution : CpuRef {
  void causal_conv(Rows y, Rows x, Vec kernel, const Step& s) {
    const int n = kernel.n / x.cols / 2;
    const Rows later = new_rows(x.rows, x.cols);
    copy_rows(later.rows_at(0, x.rows - n), x.rows_at(n, x.rows - n));
    CpuRef::causal_conv(y, later, kernel, s);
  }
};
TEST(PlantedEncoderBug, CentredConvolution) { EXPECT_GT(sound<CentredConvolution>("edge"), kNoticed); }
TEST(PlantedEncoderBug, FramesNotNormed) {
  EXPECT_LE(sound<CpuRef>("unified"), 5e-5);
  EXPECT_GT(sound<NoFinalNorm>("unified"), kNoticed);
}

}  // namespace
}  // namespace facet::test
