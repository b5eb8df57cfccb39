// CpuFast's verbs that take rows of floats one by one: norms, rotary embedding, activations.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_fast.h"
#include "base/threads.h"

namespace facet {

float CpuFast::inv_rms(const float* x, int64_t n, float eps) const {
  return float(1.0 / std::sqrt(double(simd_.sum_squares(x, n)) / double(n) + double(eps)));
}

void CpuFast::rms_norm(Rows y, Rows x, Vec gain, float eps) {
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    const float* xt = x.row(t);
    float* yt = y.row(t);
    const float r = inv_rms(xt, x.cols, eps);
    if (gain)
      for (int i = 0; i < x.cols; ++i) yt[i] = xt[i] * r * gain.p[i];
    else
      for (int i = 0; i < x.cols; ++i) yt[i] = xt[i] * r;
  });
}

void CpuFast::residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec) {
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    float* xt = x.row(t);
    const float* yt = y.row(t);
    if (spec.post) {
      const float r = inv_rms(yt, x.cols, spec.eps);
      for (int i = 0; i < x.cols; ++i) xt[i] = (xt[i] + yt[i] * r * spec.post.p[i]) * spec.out_scale;
    } else {
      for (int i = 0; i < x.cols; ++i) xt[i] = (xt[i] + yt[i]) * spec.out_scale;
    }
    if (!spec.next) return;
    const float r = inv_rms(xt, x.cols, spec.eps);
    float* ht = h.row(t);
    for (int i = 0; i < x.cols; ++i) ht[i] = xt[i] * r * spec.next.p[i];
  });
}

const float* CpuFast::rope_table(Freqs freqs, const Step& s, int n_tok) {
  const auto at = std::find_if(rope_.begin(), rope_.end(), [&](const RopeTable& r) { return r.freqs == freqs.p; });
  CHECK(at != rope_.end() && size_t(n_tok) * 2 * size_t(freqs.n) <= at->value.size(),
        "{} tokens, angles that were never uploaded", n_tok);
  RopeTable& r = *at;
  if (int(r.pos.size()) == n_tok && std::equal(r.pos.begin(), r.pos.end(), s.pos)) return r.value.data();
  r.pos.assign(s.pos, s.pos + n_tok);
  parallel_for(n_tok, n_threads_, [&](int64_t t) {
    float *c = r.value.data() + t * 2 * r.n, *sn = c + r.n;
    for (int i = 0; i < r.n; ++i) {
      const double angle = double(r.pos[size_t(t)]) * r.freqs[i];
      c[i] = float(std::cos(angle)), sn[i] = float(std::sin(angle));
    }
  });
  return r.value.data();
}

void CpuFast::head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps) {
  const int half = freqs.n, width = 2 * half;
  CHECK(gain.n == width && x.cols % width == 0, "{} columns in heads of {}, gain of {}", x.cols, width, gain.n);
  const float* table = rope_table(freqs, s, x.rows);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    const float *c = table + t * width, *sn = c + half, *g = gain.p;
    for (float* h = x.row(t); h < x.row(t) + x.cols; h += width) {
      const float r = inv_rms(h, width, eps);
      for (int i = 0; i < half; ++i) {
        const float a = h[i] * r * g[i], b = h[i + half] * r * g[i + half];
        h[i] = a * c[i] - b * sn[i];
        h[i + half] = b * c[i] + a * sn[i];
      }
    }
  });
}

void CpuFast::head_norm(Rows x, int head_dim, float eps) {
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (float* h = x.row(t); h < x.row(t) + x.cols; h += head_dim) {
      const float r = inv_rms(h, head_dim, eps);
      for (int i = 0; i < head_dim; ++i) h[i] *= r;
    }
  });
}

void CpuFast::act_mul(Rows y, Rows g, Rows u, Act act) {
  parallel_for(y.rows, n_threads_, [&](int64_t t) { activate(y.row(t), g.row(t), u.row(t), y.cols, act); });
}

void CpuFast::ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps) {
  parallel_for(p.rows, n_threads_, [&](int64_t t) {
    for (int begin = 0; begin < p.cols; begin += gain.n) {
      float *pt = p.row(t) + begin, *ct = c.row(t) + begin;
      for (int i = 0; i < gain.n; ++i) ct[i] *= in_scale;
      const float r = inv_rms(ct, gain.n, eps);
      for (int i = 0; i < gain.n; ++i) pt[i] = (ct[i] * r * gain.p[i] + pt[i]) * out_scale;
    }
  });
}

void CpuFast::softcap(Rows x, float cap) {
  if (cap <= 0) return;
  constexpr int64_t kPiece = 4096;  // a multiple of every vector, so that a row's pieces are those of one pass
  const int64_t pieces = (x.cols + kPiece - 1) / kPiece;
  parallel_for(x.rows * pieces, n_threads_, [&](int64_t i) {
    const int64_t begin = i % pieces * kPiece;
    simd_.softcap(x.row(i / pieces) + begin, cap, std::min(kPiece, x.cols - begin));
  });
}

}  // namespace facet
