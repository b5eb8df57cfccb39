// CpuFast's verbs of encoders of pictures.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_fast.h"
#include "backend/cpu/cpu_sizes.h"
#include "base/threads.h"

namespace facet {

void CpuFast::grid_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps) {
  const int quarter = freqs.n, half = 2 * quarter, width = 2 * half;
  CHECK(gain.n == width && x.cols % width == 0, "{} columns in heads of {}, gain of {}", x.cols, width, gain.n);
  int n_pos = 0;
  for (int t = 0; t < x.rows; ++t) n_pos = std::max({n_pos, s.token[t] + 1, s.pos[t] + 1});
  CHECK(size_t(n_pos) * size_t(half) <= grid_rope_.size(), "{} positions, fewer planned", n_pos);
  if (grid_freqs_ != freqs.p) grid_freqs_ = freqs.p, grid_positions_ = 0;
  for (; grid_positions_ < n_pos; ++grid_positions_)  // [position][2][quarter] cosines, then sines
    for (int i = 0; i < quarter; ++i) {
      float* at = grid_rope_.data() + int64_t(grid_positions_) * half + i;
      const double angle = double(grid_positions_) * freqs.p[i];
      at[0] = float(std::cos(angle)), at[quarter] = float(std::sin(angle));
    }
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (float* h = x.row(t); h < x.row(t) + x.cols; h += width) {
      const float r = inv_rms(h, width, eps);
      for (int axis = 0; axis < 2; ++axis) {
        const float *c = grid_rope_.data() + int64_t(axis == 0 ? s.token[t] : s.pos[t]) * half, *sn = c + quarter;
        float *a = h + axis * half, *b = a + quarter;
        const float* g = gain.p + axis * half;
        for (int i = 0; i < quarter; ++i) {
          const float u = a[i] * r * g[i], v = b[i] * r * g[i + quarter];
          a[i] = u * c[i] - v * sn[i];
          b[i] = v * c[i] + u * sn[i];
        }
      }
    }
  });
}

// A head's keys and values are put side by side once; then threads take queries, range of keys after range.
void CpuFast::encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step& s, int head_dim, float scale) {
  constexpr int kPanel = 16;
  const int E = head_dim, cols = int(encoder_cols(E));
  CHECK(q.cols % E == 0 && k.cols == q.cols && v.cols == q.cols && o.cols == q.cols && E <= limits_.encoder_head,
        "heads of {}: {} query, {} key and {} value columns into {}", E, q.cols, k.cols, v.cols, o.cols);
  for (int p = 0; p < s.shape.n_seq; ++p) {
    const int begin = s.q_begin[p], n = s.q_begin[p + 1] - begin, panels = (n + kPanel - 1) / kPanel;
    for (int at = 0; at < q.cols; at += E) {
      parallel_for(panels, n_threads_, [&](int64_t i) {
        float *keys = encoder_keys_.data() + i * kPanel * E, *values = encoder_values_.data() + i * kPanel * cols;
        for (int r = 0; r < kPanel; ++r) {
          const int64_t row = begin + i * kPanel + r;
          const bool is = row < begin + n;
          for (int e = 0; e < E; ++e) keys[e * kPanel + r] = is ? k.row(row)[at + e] : 0.f;
          for (int e = 0; e < cols; ++e) values[r * cols + e] = is && e < E ? v.row(row)[at + e] : 0.f;
        }
      });
      parallel_for((n + kEncoderQueries - 1) / kEncoderQueries, n_threads_, [&](int64_t block) {
        const int first = begin + int(block) * kEncoderQueries, n_query = std::min(kEncoderQueries, begin + n - first);
        float* score = aligned_scratch();
        float *out = score + kEncoderQueries * kEncoderKeys, *top = out + kEncoderQueries * cols,
              *sum = top + kEncoderQueries;
        std::fill_n(out, n_query * cols, 0.f), std::fill_n(top, n_query, kNone), std::fill_n(sum, n_query, 0.f);
        for (int key = 0; key < n; key += kEncoderKeys) {
          const EncoderPart part{.n_query = n_query,
                                 .n_key = std::min(kEncoderKeys, n - key),
                                 .head_dim = E,
                                 .value_cols = cols,
                                 .scale = scale,
                                 .query = q.row(first) + at,
                                 .query_stride = q.stride,
                                 .k = encoder_keys_.data() + int64_t(key) * E,
                                 .v = encoder_values_.data() + int64_t(key) * cols,
                                 .score = score,
                                 .out = out,
                                 .top = top,
                                 .sum = sum};
          simd_.encoder_attend(&part);
        }
        for (int i = 0; i < n_query; ++i)
          for (int e = 0; e < E; ++e) o.row(first + i)[at + e] = out[i * cols + e] / sum[i];
      });
    }
  }
}

}  // namespace facet
