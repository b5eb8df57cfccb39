// CpuRef's verbs of encoders: pictures and sound.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ref.h"
#include "backend/cpu/ref_sums.h"
#include "base/threads.h"

namespace facet {

void CpuRef::add_positions(Rows x, Weight table, const Step& s) {
  const int64_t half = table.n_out / 2;
  CHECK(table.n_in == x.cols, "{}: {} columns, rows of {}", table.name, table.n_in, x.cols);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    CHECK(s.token[t] >= 0 && s.token[t] < half && s.pos[t] >= 0 && s.pos[t] < half,
          "{}: a patch at ({}, {}) of {} positions", table.name, s.token[t], s.pos[t], half);
    float *column = scratch(), *row = column + x.cols;
    dequantize_row(table.type, table.row(0, s.token[t]), column, x.cols);
    dequantize_row(table.type, table.row(0, half + s.pos[t]), row, x.cols);
    for (int i = 0; i < x.cols; ++i) x.row(t)[i] += column[i] + row[i];
  });
}

void CpuRef::grid_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps) {
  const int quarter = freqs.n, half = 2 * quarter, width = 2 * half;
  CHECK(gain.n == width && x.cols % width == 0, "{} columns in heads of {}, gain of {}", x.cols, width, gain.n);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    float *c = scratch(), *sn = c + half;
    for (int i = 0; i < half; ++i) {
      const double angle = double(i < quarter ? s.token[t] : s.pos[t]) * freqs.p[i % quarter];
      c[i] = float(std::cos(angle)), sn[i] = float(std::sin(angle));
    }
    for (float* h = x.row(t); h < x.row(t) + x.cols; h += width) {
      const float r = ref::inv_rms(h, width, eps);
      for (int i = 0; i < half; ++i) {
        const int at = i < quarter ? i : i + quarter;
        const float a = h[at] * r * gain.p[at], b = h[at + quarter] * r * gain.p[at + quarter];
        h[at] = a * c[i] - b * sn[i];
        h[at + quarter] = b * c[i] + a * sn[i];
      }
    }
  });
}

void CpuRef::encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step& s, int head_dim, float scale) {
  CHECK(q.cols % head_dim == 0 && k.cols == q.cols && v.cols == q.cols && o.cols == q.cols,
        "heads of {}: {} query, {} key and {} value columns into {}", head_dim, q.cols, k.cols, v.cols, o.cols);
  const int n_head = q.cols / head_dim;
  parallel_for(int64_t(q.rows) * n_head, n_threads_, [&](int64_t item) {
    const int64_t t = item / n_head;
    const int at = int(item % n_head) * head_dim, begin = s.q_begin[s.seq[t]], n = s.q_begin[s.seq[t] + 1] - begin;
    CHECK(size_t(n) <= scratch_[0].size(), "{} tokens, fewer planned", n);
    float* p = scratch();
    float top = -INFINITY, sum = 0;
    for (int j = 0; j < n; ++j) {
      p[j] = ref::dot(q.row(t) + at, k.row(begin + j) + at, head_dim) * scale;
      top = std::max(top, p[j]);
    }
    float* out = o.row(t) + at;
    std::fill_n(out, head_dim, 0.f);
    for (int j = 0; j < n; ++j) {
      const float e = std::exp(p[j] - top);
      sum += e;
      for (int i = 0; i < head_dim; ++i) out[i] += e * v.row(begin + j)[at + i];
    }
    for (int i = 0; i < head_dim; ++i) out[i] /= sum;
  });
}

void CpuRef::clamp(Rows y, Rows x, float low, float high) {
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (int i = 0; i < x.cols; ++i) {
      const float e = x.row(t)[i];
      y.row(t)[i] = e < low ? low : e > high ? high : e;
    }
  });
}

void CpuRef::pool(Rows y, Rows x, const Step& s, int size, float scale) {
  const int area = size * size;
  for (int p = 0; p < s.shape.n_seq; ++p) {
    const int begin = s.q_begin[p], end = s.q_begin[p + 1], width = s.token[end - 1] + 1, across = width / size;
    CHECK((end - begin) % (size * width) == 0 && width % size == 0, "{} patches, {} a row, in blocks of {}",
          end - begin, width, size);
    parallel_for((end - begin) / area, n_threads_, [&](int64_t b) {
      float* to = y.row(begin / area + b);
      const int64_t first = begin + (b / across) * size * width + (b % across) * size;
      std::fill_n(to, y.cols, 0.f);
      for (int64_t i = 0; i < area; ++i) {
        const float* from = x.row(first + i / size * width + i % size);
        for (int c = 0; c < y.cols; ++c) to[c] += from[c];
      }
      for (int c = 0; c < y.cols; ++c) to[c] = to[c] / float(area) * scale;
    });
  }
}

void CpuRef::shift_scale(Rows x, Vec shift, Vec scale) {
  const int n = shift ? shift.n : scale.n;
  CHECK(n > 0 && x.cols % n == 0 && (!shift || !scale || shift.n == scale.n), "{} columns, shifts of {}, scales of {}",
        x.cols, shift.n, scale.n);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (int i = 0; i < x.cols; ++i) {
      float& e = x.row(t)[i];
      e = (e - (shift ? shift.p[i % n] : 0.f)) * (scale ? scale.p[i % n] : 1.f);
    }
  });
}

void CpuRef::layer_norm(Rows y, Rows x, Vec gain, Vec bias, float eps) {
  const int n = gain.n;
  CHECK(n > 0 && x.cols % n == 0 && (!bias || bias.n == n), "{} columns, gain of {}, bias of {}", x.cols, n, bias.n);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (int at = 0; at < x.cols; at += n) {
      const float* from = x.row(t) + at;
      float* to = y.row(t) + at;
      double mean = 0, square = 0;
      for (int i = 0; i < n; ++i) mean += double(from[i]);
      mean /= n;
      for (int i = 0; i < n; ++i) square += (double(from[i]) - mean) * (double(from[i]) - mean);
      const double r = 1.0 / std::sqrt(square / n + double(eps));
      for (int i = 0; i < n; ++i) to[i] = float((double(from[i]) - mean) * r) * gain.p[i] + (bias ? bias.p[i] : 0.f);
    }
  });
}

void CpuRef::silu(Rows x) {
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (int i = 0; i < x.cols; ++i) {
      float& e = x.row(t)[i];
      e = e / (1.f + std::exp(-e));
    }
  });
}

void CpuRef::glu(Rows y, Rows u) {
  CHECK(u.cols == 2 * y.cols, "{} columns of {}", y.cols, u.cols);
  parallel_for(y.rows, n_threads_, [&](int64_t t) {
    for (int i = 0; i < y.cols; ++i) y.row(t)[i] = u.row(t)[i] / (1.f + std::exp(-u.row(t)[y.cols + i]));
  });
}

void CpuRef::conv2d(Rows y, Rows x, Vec kernel, int c_in) {
  const int width = x.cols / c_in, c_out = kernel.n / (9 * c_in), out_width = y.cols / c_out;
  CHECK(out_width == (width + 1) / 2 && y.rows == (x.rows + 1) / 2 && kernel.n == 9 * c_in * c_out,
        "[{}, {}] of {} channels into [{}, {}] of {}", x.rows, width, c_in, y.rows, out_width, c_out);
  parallel_for(y.rows, n_threads_, [&](int64_t r) {
    for (int w = 0; w < out_width; ++w) {
      float* to = y.row(r) + w * c_out;
      std::fill_n(to, c_out, 0.f);
      for (int a = 0; a < 3; ++a)
        for (int b = 0; b < 3; ++b) {
          const int64_t from_row = 2 * r + a - 1, from_col = 2 * w + b - 1;
          if (from_row < 0 || from_row >= x.rows || from_col < 0 || from_col >= width) continue;
          const float* from = x.row(from_row) + from_col * c_in;
          const float* weight = kernel.p + int64_t(3 * a + b) * c_in * c_out;
          for (int i = 0; i < c_in; ++i, weight += c_out)
            for (int o = 0; o < c_out; ++o) to[o] += from[i] * weight[o];
        }
    }
  });
}

void CpuRef::causal_conv(Rows y, Rows x, Vec kernel, const Step& s) {
  const int n = kernel.n / x.cols;
  CHECK(n * x.cols == kernel.n, "{} taps of {} columns", kernel.n, x.cols);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    const int64_t begin = s.q_begin[s.seq[t]];
    for (int c = 0; c < x.cols; ++c) {
      float sum = 0;
      for (int j = 0; j < n; ++j)
        if (const int64_t from = t - n + 1 + j; from >= begin) sum += kernel.p[c * n + j] * x.row(from)[c];
      y.row(t)[c] = sum;
    }
  });
}

void CpuRef::relative_attend(Rows o, Rows q, Rows k, Rows v, Rows rel, const Step& s, RelativeWindow w) {
  const int E = w.head_dim, n_head = q.cols / E;
  CHECK(q.cols % E == 0 && k.cols == q.cols && v.cols == q.cols && rel.cols == q.cols && rel.rows >= w.n_key,
        "heads of {}: {} query, {} key, {} value and {} x {} distance columns", E, q.cols, k.cols, v.cols, rel.rows,
        rel.cols);
  parallel_for(int64_t(q.rows) * n_head, n_threads_, [&](int64_t item) {
    const int64_t t = item / n_head, first = std::max<int64_t>(s.q_begin[s.seq[t]], t - w.n_key + 1);
    const int at = int(item % n_head) * E;
    float* p = scratch();
    float top = -INFINITY, sum = 0;
    for (int64_t j = first; j <= t; ++j) {
      const float raw = ref::dot(q.row(t) + at, k.row(j) + at, E) + ref::dot(q.row(t) + at, rel.row(t - j) + at, E);
      p[j - first] = w.cap * std::tanh(raw / w.cap);
      top = std::max(top, p[j - first]);
    }
    float* out = o.row(t) + at;
    std::fill_n(out, E, 0.f);
    for (int64_t j = first; j <= t; ++j) {
      const float e = std::exp(p[j - first] - top);
      sum += e;
      for (int i = 0; i < E; ++i) out[i] += e * v.row(j)[at + i];
    }
    for (int i = 0; i < E; ++i) out[i] /= sum;
  });
}

}  // namespace facet
