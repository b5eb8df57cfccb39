#include "backend/cpu/cpu_fast.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/threads.h"

namespace facet {
namespace {

constexpr int kBlockTok = 16;   // tokens that share one decoding of K and V
constexpr int kPieceCols = 64;  // output columns of one piece when few tokens take part
constexpr float kNone = -std::numeric_limits<float>::infinity();

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t padded(int64_t cols) { return round_up(cols, kChunkCols); }

// Floats of one thread's scratch, by use; a verb has all of it.
int64_t tile_floats(int64_t cols) { return padded(cols) * (4 + 1 + 1); }  // codes, sub-scales, scales with minima
int64_t product_floats(const BackendLimits& l) {
  const int64_t rows = std::max<int64_t>(l.max_tok, int64_t(l.max_tok) * l.n_expert_used);
  return tile_floats(std::max(l.max_cols, l.d_expert)) + 2 * kTileRows * l.max_tok +
         std::max(rows * kTileRows, int64_t(kPieceCols) * kMaxGemvTok * std::max(1, l.n_expert_used)) + 1024;
}
int64_t head_floats(const BackendLimits& l) { return std::min(1024, l.max_cols); }
int64_t attend_floats(const BackendLimits& l) {
  const int64_t n = int64_t(kBlockTok) * l.n_group, E = head_floats(l);
  return 3 * n * E + n * kPartKeys + 16 * E + 4 * n + kBlockTok * kPartKeys / 4 + 5 * kPartKeys + 1024;
}
int64_t thread_floats(const BackendLimits& l) { return std::max({product_floats(l), attend_floats(l), int64_t(2048)}); }
// Results of all splits of a block's tokens, or of as many of these as have room.
int64_t partial_floats(const BackendLimits& l) {
  return std::min<int64_t>((l.max_rows / kSplitRows + 2) * (l.max_cols + 2 * 128) * std::min(l.max_tok, kBlockTok),
                           int64_t(8) << 20);
}

// Panels of a step's rows, or of the experts that get enough of them; a last one may have room to spare.
int64_t panel_bytes(int64_t cols) { return padded(cols) / kGroupCols * kPanelBytes; }
int64_t panels_bytes(const BackendLimits& l) {
  const int64_t pairs = int64_t(l.max_tok) * l.n_expert_used,
                of_experts = pairs / kPanelRows + std::min<int64_t>(pairs, l.n_expert);
  return std::max(round_up(l.max_tok, kPanelRows) / kPanelRows * panel_bytes(l.max_cols),
                  of_experts * panel_bytes(std::max(l.d_moe, l.d_expert))) +
         64;
}

}  // namespace

CpuFast::CpuFast(int n_threads, CpuIsa isa) : CpuRef(n_threads), simd_(simd_kernels(isa)), load_(size_t(n_threads)) {
  CHECK(has_isa(isa), "this machine has no {}", isa_name(isa));
}

CpuFast::Freqs CpuFast::upload(std::span<const double> freqs) {
  for (const RopeTable& r : rope_)
    if (std::equal(freqs.begin(), freqs.end(), r.freqs, r.freqs + r.n)) return {r.freqs, r.n};
  const Freqs f = CpuRef::upload(freqs);
  rope_.push_back({f.p, f.n, {}, {}});
  return f;
}

int64_t CpuFast::QuantBuffer::row_bytes(int64_t cols) {
  return round_up(padded(cols) * 11 / 8, 64) + padded(cols) / kChunkCols * kRecordBytes;
}
void CpuFast::QuantBuffer::reserve(int64_t rows, int64_t cols) {
  bytes.resize(size_t(rows * row_bytes(cols)) + 64);
  row.resize(size_t(rows));
  f.resize(size_t(rows));
}

int64_t CpuFast::reserve_bytes(const BackendLimits& l, int n_threads) {
  const int64_t pairs = int64_t(l.max_tok) * l.n_expert_used;
  return (thread_floats(l) * n_threads + partial_floats(l)) * int64_t(sizeof(float)) +
         l.max_tok * QuantBuffer::row_bytes(l.max_cols) + 128 + panels_bytes(l) +
         pairs * (QuantBuffer::row_bytes(l.d_expert) + int64_t(sizeof(float)) * l.d_expert) +
         rows_bytes(l.max_tok, 2 * head_floats(l) + l.n_cluster);
}

void CpuFast::reserve(const BackendLimits& limits) {
  const BackendLimits l = limits_ = limits_.with(limits);
  scratch_.assign(size_t(n_threads_), std::vector<float>(size_t(thread_floats(l))));
  act_.reserve(l.max_tok, l.max_cols);
  if (simd_.panel) panels_.resize(size_t(panels_bytes(l)));
  blocks_.reserve(size_t(l.max_tok));
  partial_.resize(size_t(partial_floats(l)));
  for (RopeTable& r : rope_) {
    r.pos.reserve(size_t(l.max_tok));
    r.value.resize(size_t(l.max_tok) * 2 * size_t(r.n));
  }
  if (l.n_cluster > 0) cluster_score_ = new_rows(l.max_tok, l.n_cluster);
  if (l.n_expert == 0) return;
  const size_t pairs = size_t(l.max_tok) * size_t(l.n_expert_used);
  router_ = new_rows(l.max_tok, l.n_expert);
  hidden_ = new_rows(int(pairs), l.d_expert);
  hidden_act_.reserve(int64_t(pairs), l.d_expert);
  chosen_.resize(pairs), pair_of_.resize(pairs), route_.resize(pairs), pair_q_.resize(pairs), pair_f_.resize(pairs);
  cursor_.resize(size_t(l.n_expert) + 1);
  used_expert_.reserve(size_t(l.n_expert));
  panel_of_.resize(size_t(l.n_expert));
}

float* CpuFast::aligned_scratch() const {
  const auto p = reinterpret_cast<uintptr_t>(scratch());
  return reinterpret_cast<float*>((p + 63) / 64 * 64);
}

// ---- matrix products

CpuFast::Input CpuFast::quantise(QuantBuffer& to, Rows x, bool wanted, bool with_records) {
  CHECK(x.rows <= int(to.row.size()), "{} rows, {} planned", x.rows, to.row.size());
  for (int t = 0; t < x.rows; ++t) to.f[size_t(t)] = x.row(t);
  if (!wanted) return {x.rows, nullptr, to.f.data()};
  const int64_t n = padded(x.cols), bytes = QuantBuffer::row_bytes(x.cols);
  CHECK(x.rows * bytes + 64 <= int64_t(to.bytes.size()), "{} columns, fewer planned", x.cols);
  std::byte* const base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(to.bytes.data()) + 63) / 64 * 64);
  constexpr int64_t kAlone = 16384;  // values that one thread is done with before another one has begun
  parallel_for(x.rows, x.rows * n <= kAlone ? 1 : n_threads_, [&](int64_t t) {
    std::byte* p = base + t * bytes;
    QuantRow& r = to.row[size_t(t)];
    r.q = reinterpret_cast<int8_t*>(p);
    r.d = reinterpret_cast<float*>(p + n);
    r.ds = r.d + n / kGroupCols;
    r.sum16 = reinterpret_cast<int16_t*>(r.ds + n / kGroupCols);
    r.record = p + round_up(n * 11 / 8, 64);
    simd_.quantize(x.row(t), x.cols, &r);
    if (with_records && simd_.interleave) simd_.interleave(x.cols, &r);
  });
  return {x.rows, to.row.data(), to.f.data()};
}

std::byte* CpuFast::panel(int64_t i, int64_t cols) {
  CHECK((i + 1) * panel_bytes(cols) + 64 <= int64_t(panels_.size()), "panel {} of {} columns, fewer planned", i, cols);
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(panels_.data()) + 63) / 64 * 64) +
         i * panel_bytes(cols);
}

CpuFast::Input CpuFast::prepare(Rows x, bool wanted) {
  const bool few = x.rows <= simd_.gemv_tok;
  Input in = quantise(act_, x, wanted, x.rows > 1 && (few || simd_.records_in_gemm));
  if (!wanted || few || !simd_.panel) return in;
  parallel_for((x.rows + kPanelRows - 1) / kPanelRows, n_threads_, [&](int64_t i) {
    const int t = int(i) * kPanelRows;
    simd_.panel(x.cols, std::min(kPanelRows, x.rows - t), in.q + t, panel(i, x.cols));
  });
  in.panels = panel(0, x.cols);
  return in;
}

void CpuFast::unscaled(float* y, int64_t stride, const Input& x, const Weight& w, int64_t stack, int64_t begin,
                       int64_t end) const {
  const int type = int(w.type);
  const int64_t bytes = int64_t(row_bytes(w.type, w.n_in));
  const std::byte* from = w.row(stack, begin);
  if (simd_.gemv[type]) {
    if (x.n_tok <= simd_.gemv_tok) return simd_.gemv[type](from, bytes, end - begin, w.n_in, x.n_tok, x.q, y, stride);
    const int64_t n = padded(w.n_in);
    float* p = aligned_scratch();
    const PackedTile tile{.code = reinterpret_cast<uint8_t*>(p),
                          .w = p + 5 * n,
                          .m = p + 5 * n + n / 2,
                          .sub = reinterpret_cast<int32_t*>(p + 4 * n),
                          .n_chunk = int(n / kChunkCols)};
    float* out = p + tile_floats(n);  // [T][16], of a last tile that is not whole
    for (int64_t o = begin; o < end; o += kTileRows) {
      const int rows = int(std::min<int64_t>(kTileRows, end - o));
      simd_.pack[type](w.row(stack, o), bytes, rows, w.n_in, &tile);
      const bool whole = rows == kTileRows;
      simd_.gemm[type](&tile, x.n_tok, x.q, x.panels, whole ? y + o - begin : out, whole ? stride : kTileRows);
      for (int t = 0; t < x.n_tok && !whole; ++t) std::copy_n(out + kTileRows * t, rows, y + t * stride + o - begin);
    }
    return;
  }
  if (simd_.dots[type]) return simd_.dots[type](from, bytes, end - begin, w.n_in, x.n_tok, x.f, y, stride);
  float* row = aligned_scratch();  // a type without a kernel of its own: four rows at a time as floats, which a tile
                                   // has room for
  for (int64_t o = begin; o < end; o += 4) {
    const int64_t rows = std::min<int64_t>(4, end - o);
    for (int64_t r = 0; r < rows; ++r) dequantize_row(w.type, w.row(stack, o + r), row + r * w.n_in, w.n_in);
    simd_.dots[int(DType::kF32)](reinterpret_cast<const std::byte*>(row), w.n_in * 4, rows, w.n_in, x.n_tok, x.f,
                                 y + o - begin, stride);
  }
}

void CpuFast::product(float* y, int64_t stride, const Input& x, const Weight& w, int64_t stack, int64_t begin,
                      int64_t end) const {
  unscaled(y, stride, x, w, stack, begin, end);
  if (!w.scale) return;
  const float factor = w.factor(stack);
  for (int t = 0; t < x.n_tok; ++t)
    for (int64_t o = 0; o < end - begin; ++o) y[t * stride + o] *= factor;
}

void CpuFast::product_all(Rows y, const Input& x, const Weight& w) const {
  CHECK(w.n_out == y.cols && x.n_tok == y.rows, "{}: [{} x {}] into [{}, {}]", w.name, w.n_out, w.n_in, y.rows, y.cols);
  const int64_t tiles = (w.n_out + kTileRows - 1) / kTileRows;
  parallel_ranges(tiles, n_threads_, 1, [&](int64_t begin, int64_t end) {
    const int64_t o = begin * kTileRows;
    product(y.p + o, y.stride, x, w, 0, o, std::min(end * kTileRows, w.n_out));
  });
}

void CpuFast::matmul(Rows y, Rows x, Weight w) {
  CHECK(w.n_in == x.cols, "{}: [{} x {}] times [{}, {}]", w.name, w.n_out, w.n_in, x.rows, x.cols);
  product_all(y, prepare(x, quantised(w)), w);
}

void CpuFast::qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
  CHECK(wq.n_in == h.cols && wk.n_in == h.cols && (!wv || wv.n_in == h.cols), "{}: {} columns times {}", wq.name,
        wq.n_in, h.cols);
  const Input x = prepare(h, quantised(wq) || quantised(wk) || quantised(wv));
  product_all(q, x, wq);
  product_all(k, x, wk);
  if (wv)
    product_all(v, x, wv);
  else
    copy_rows(v, k);
}

void CpuFast::activate(float* y, const float* g, const float* u, int64_t n, Act act) const {
  (act == Act::kSilu ? simd_.silu_mul : simd_.gelu_mul)(g, u, y, n);
}

void CpuFast::gate_up_range(float* y, int64_t stride, const Input& x, const Weight& gate, int64_t gate_stack,
                            const Weight& up, int64_t up_stack, int64_t begin, int64_t end, Act act) const {
  // Behind what product() uses: the packed tile and its result.
  float* other = aligned_scratch() + tile_floats(gate.n_in) + kTileRows * x.n_tok;
  const int64_t width = x.n_tok <= simd_.gemv_tok ? kPieceCols : kTileRows;
  for (int64_t o = begin; o < end; o += width) {
    const int64_t n = std::min(width, end - o);
    product(y + o - begin, stride, x, gate, gate_stack, o, o + n);
    product(other, width, x, up, up_stack, o, o + n);
    for (int t = 0; t < x.n_tok; ++t) {
      float* g = y + t * stride + o - begin;
      activate(g, g, other + t * width, n, act);
    }
  }
}

void CpuFast::gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
  CHECK(gate.n_in == h.cols && up.n_in == h.cols && gate.n_out == y.cols && up.n_out == y.cols,
        "{}: [{} x {}] times [{}, {}] into [{}, {}]", gate.name, gate.n_out, gate.n_in, h.rows, h.cols, y.rows, y.cols);
  const Input x = prepare(h, quantised(gate) || quantised(up));
  parallel_ranges((gate.n_out + kTileRows - 1) / kTileRows, n_threads_, 1, [&](int64_t begin, int64_t end) {
    const int64_t o = begin * kTileRows;
    gate_up_range(y.p + o, y.stride, x, gate, 0, up, 0, o, std::min(end * kTileRows, gate.n_out), act);
  });
}

void CpuFast::moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
  const int n_expert = int(w.router.n_out), K = n_used, T = y.rows;
  const int d_expert = int(w.gate_up ? w.gate_up.n_out / 2 : w.gate.n_out);
  CHECK(n_used <= limits_.n_expert_used && n_expert <= limits_.n_expert && d_expert <= limits_.d_expert,
        "{} of {} experts of {}", n_used, n_expert, d_expert);
  const Rows logits = router_.view(T, n_expert);
  matmul(logits, r, w.router);
  std::fill(cursor_.begin(), cursor_.end(), 0);
  for (int t = 0; t < T; ++t) {  // as CpuRef: largest first, lowest index on ties, softmax over the chosen
    const float* l = logits.row(t);
    int32_t* chosen = chosen_.data() + int64_t(t) * K;
    float sum = 0;
    for (int k = 0; k < K; ++k) {
      int best = -1;
      for (int i = 0; i < n_expert; ++i)
        if (std::find(chosen, chosen + k, i) == chosen + k && (best < 0 || l[i] > l[best])) best = i;
      chosen[k] = best;
      ++cursor_[size_t(best) + 1];
      sum += std::exp(l[best] - l[chosen[0]]);
    }
    for (int k = 0; k < K; ++k)
      route_[size_t(t * K + k)] = std::exp(l[chosen[k]] - l[chosen[0]]) / sum * (w.scale ? w.scale.p[chosen[k]] : 1.f);
  }

  const Weight half = w.gate_up.halves();  // an expert is gate rows then up rows
  const Input x = quantise(act_, e, quantised(w.gate_up) || quantised(w.gate) || quantised(w.up), T > 1);
  used_expert_.clear();
  for (int i = 0; i < n_expert; ++i) {
    if (cursor_[size_t(i) + 1] > 0) used_expert_.push_back(i);
    cursor_[size_t(i) + 1] += cursor_[size_t(i)];
  }
  for (int i = T * K - 1; i >= 0; --i) {  // from behind, so that an expert's pairs stay in order of tokens
    const int expert = chosen_[size_t(i)];
    const int p = --cursor_[size_t(expert) + 1];  // from the expert's end down to its beginning
    pair_of_[size_t(i)] = p;
    pair_f_[size_t(p)] = x.f[i / K];
    if (x.q) pair_q_[size_t(p)] = x.q[i / K];
  }
  auto pairs_of = [&](size_t u) {
    const int begin = cursor_[size_t(used_expert_[u]) + 1];
    return std::pair(begin, u + 1 < used_expert_.size() ? cursor_[size_t(used_expert_[u + 1]) + 1] : T * K);
  };
  auto in_panels = [&](int n_pair) { return simd_.panel && n_pair > simd_.gemv_tok; };
  auto fill_panels = [&](const QuantRow* q, int64_t cols) {
    if (!q) return;
    int32_t n_panel = 0;
    for (size_t u = 0; u < used_expert_.size(); ++u) {
      const auto [p0, p1] = pairs_of(u);
      panel_of_[u] = n_panel;
      if (in_panels(p1 - p0)) n_panel += (p1 - p0 + kPanelRows - 1) / kPanelRows;
    }
    parallel_for(int64_t(used_expert_.size()), n_threads_, [&](int64_t u) {
      const auto [p0, p1] = pairs_of(size_t(u));
      for (int p = p0, i = panel_of_[size_t(u)]; in_panels(p1 - p0) && p < p1; p += kPanelRows, ++i)
        simd_.panel(cols, std::min(kPanelRows, p1 - p), q + p, panel(i, cols));
    });
  };
  auto input_of = [&](size_t u, const QuantRow* q, const float* const* f, int64_t cols) {
    const auto [p0, p1] = pairs_of(u);
    return Input{p1 - p0, q ? q + p0 : nullptr, f + p0, q && in_panels(p1 - p0) ? panel(panel_of_[u], cols) : nullptr};
  };

  fill_panels(x.q ? pair_q_.data() : nullptr, e.cols);
  const int64_t hidden_pieces = (d_expert + kPieceCols - 1) / kPieceCols;
  parallel_for(int64_t(used_expert_.size()) * hidden_pieces, n_threads_, [&](int64_t i) {
    const size_t u = size_t(i / hidden_pieces);
    const int64_t begin = i % hidden_pieces * kPieceCols, end = std::min<int64_t>(begin + kPieceCols, d_expert);
    const int p0 = pairs_of(u).first;
    const Input in = input_of(u, x.q ? pair_q_.data() : nullptr, pair_f_.data(), e.cols);
    const int expert = used_expert_[u];
    const bool fused = bool(w.gate_up);
    gate_up_range(hidden_.row(p0) + begin, hidden_.stride, in, fused ? half : w.gate, fused ? 2 * expert : expert,
                  fused ? half : w.up, fused ? 2 * expert + 1 : expert, begin, end, act);
  });

  const Input mid = quantise(hidden_act_, hidden_.view(T * K, d_expert), quantised(w.down), T > 1);
  fill_panels(mid.q, d_expert);
  const int64_t width = T <= simd_.gemv_tok ? kPieceCols : kTileRows;
  parallel_for((y.cols + width - 1) / width, n_threads_, [&](int64_t piece) {
    const int64_t begin = piece * width, end = std::min<int64_t>(begin + width, y.cols);
    float* out = aligned_scratch() + tile_floats(d_expert) + kTileRows * T;  // [T K][width]
    for (size_t u = 0; u < used_expert_.size(); ++u) {
      product(out + pairs_of(u).first * width, width, input_of(u, mid.q, mid.f, d_expert), w.down, used_expert_[u],
              begin, end);
    }
    for (int t = 0; t < T; ++t)
      for (int64_t c = 0; c < end - begin; ++c) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += route_[size_t(t * K + k)] * out[pair_of_[size_t(t * K + k)] * width + c];
        y.row(t)[begin + c] = sum;
      }
  });
}

// ---- rows of floats

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

void CpuFast::clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w) {
  const int64_t size = w.head.n_out / w.centroid.n_out;
  CHECK(w.head.n_out == logits.cols && w.order.n == logits.cols && size * w.centroid.n_out == logits.cols &&
            w.top_k <= kMaxClusters,
        "{} clusters of {} tokens, {} logits", w.centroid.n_out, size, logits.cols);
  const Rows scores = cluster_score_.view(h.rows, int(w.centroid.n_out));
  matmul(scores, h, w.centroid);
  const Input x = quantise(act_, h, quantised(w.head), false);
  parallel_for(h.rows, n_threads_, [&](int64_t t) {
    float* to = logits.row(t);
    const Input xt{1, x.q ? x.q + t : nullptr, x.f + t};
    std::fill_n(to, logits.cols, kNone);
    each_chosen_cluster(scores.row(t), w, [&](int cluster) {
      for (int64_t i = cluster * size; i < (cluster + 1) * size; ++i)
        product(to + w.order.p[i], 1, xt, w.head, 0, w.order.p[i], w.order.p[i] + 1);
    });
  });
}

// ---- attention

void CpuFast::kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
  const int E = kv.head_dim;
  auto encode = [&](KvType type, const float* x, std::byte* to) {
    if (type == KvType::kF16 && simd_.to_f16)
      simd_.to_f16(x, to, E);
    else
      kv_encode(type, x, to, E);
  };
  parallel_for(s.shape.n_tok, n_threads_, [&](int64_t t) {
    const int q = s.seq[t];
    if (q < 0 || s.mask[q] == Mask::kPast) return;
    const KvRow to = kv_row(kv, s, q, s.kv_len[q] + t - s.q_begin[q]);
    for (int h = 0; h < kv.n_head; ++h) {
      const float *kh = k.row(t) + h * E, *vh = v.row(t) + h * E;
      if (kv.shared) {
        append_head(kv, kh, vh, to, h);
        continue;
      }
      encode(kv.k_type, kh, to.k + h * kv.k_head());
      encode(kv.v_type, vh, to.v + h * kv.v_head());
    }
  });
}

struct CpuFast::AttendScratch {
  float *query, *score, *part, *out, *rows;  // [n, E], [n, kPartKeys], [n, E], [n, E], [16, E]
  float *part_top, *part_sum, *top, *sum;    // [n]
  uint8_t* sees;                             // [kBlockTok, kPartKeys]
  const std::byte **k, **v;                  // [kPartKeys]
  int16_t* place;                            // [kPartKeys]
};

CpuFast::AttendScratch CpuFast::attend_scratch(int E) const {
  const int64_t n = int64_t(kBlockTok) * limits_.n_group;
  float* p = aligned_scratch();
  auto take = [&](int64_t floats) { return std::exchange(p, p + round_up(floats, 16)); };
  AttendScratch a;
  a.query = take(n * E), a.part = take(n * E), a.out = take(n * E), a.rows = take(16 * E);
  a.score = take(n * kPartKeys);
  a.part_top = take(n), a.part_sum = take(n), a.top = take(n), a.sum = take(n);
  a.sees = reinterpret_cast<uint8_t*>(take(kBlockTok * kPartKeys / 4));
  a.k = reinterpret_cast<const std::byte**>(take(2 * kPartKeys)),
  a.v = reinterpret_cast<const std::byte**>(take(2 * kPartKeys));
  a.place = reinterpret_cast<int16_t*>(take(kPartKeys / 2));
  return a;
}

// Queries must be in a.query. Ranges of places start at multiples of kSplitRows, wherever the sequence stands.
void CpuFast::attend_part(const AttendScratch& a, const Block& b, int64_t split, int head, KvLayer kv, const Step& s,
                          const AttnSpec& spec, float* out, float* top, float* sum) const {
  const int seq = s.seq[b.t0], base = s.q_begin[seq], len = s.kv_len[seq];
  const Mask mask = s.mask[seq];
  // The range's keys: committed rows, then the step's. In a tree those that have their place here, siblings included.
  const int64_t start = split * kSplitRows, stop = std::min(start + kSplitRows, b.end),
                committed = std::clamp<int64_t>(len, start, stop);
  const int n_old = int(committed - start);
  int n_key = 0, key_of[kPartKeys];  // of the step's keys: the index in the step
  for (; n_key < n_old; ++n_key) a.place[n_key] = int16_t(n_key);
  if (mask == Mask::kTree) {
    for (int key = 0; key < s.q_begin[seq + 1] - base; ++key)
      if (const int64_t at = s.pos[base + key]; at >= start && at < stop)
        key_of[n_key] = key, a.place[n_key++] = int16_t(at - start);
  } else {
    for (int64_t r = committed; r < stop; ++r) key_of[n_key++] = int(r - len);
  }
  for (int t = b.t0; t < b.t1; ++t) {
    uint8_t* sees = a.sees + (t - b.t0) * kPartKeys;
    const int64_t low =
        spec.window ? std::clamp<int64_t>(int64_t(s.pos[t]) - spec.window + 1, start, committed) : start;
    std::memset(sees, 0, size_t(low - start));
    std::memset(sees + (low - start), 1, size_t(committed - low));
    for (int i = n_old; i < n_key; ++i)
      sees[i] = sees_in_step(mask, mask == Mask::kTree ? s.ancestor[t] : 0, t - base, key_of[i], spec.causal_block) &&
                (spec.window == 0 || s.pos[t] - s.pos[base + key_of[i]] < spec.window);
  }
  const int64_t k_at = head * kv.k_head(), v_at = head * kv.v_head();
  for (int i = 0; i < n_key; ++i) {
    bool any = false;
    for (int t = 0; t < b.t1 - b.t0; ++t) any |= a.sees[t * kPartKeys + i] != 0;
    const KvRow row = any ? kv_row(kv, s, seq, i < n_old ? start + i : len + key_of[i]) : KvRow{nullptr, nullptr};
    a.k[i] = any ? row.k + k_at : nullptr, a.v[i] = any ? row.v + v_at : nullptr;
  }
  const AttendPart part{.n_query = b.n_query(),
                        .head_dim = kv.head_dim,
                        .n_key = n_key,
                        .group = b.g1 - b.g0,
                        .place = mask == Mask::kTree ? a.place : nullptr,
                        .scale = spec.scale,
                        .k_type = kv.k_type,
                        .v_type = kv.v_type,
                        .k = a.k,
                        .v = a.v,
                        .sees = a.sees,
                        .query = a.query,
                        .rows = a.rows,
                        .score = a.score,
                        .out = out,
                        .top = top,
                        .sum = sum};
  simd_.attend(&part);
}

// Into how many pieces a block is best cut, of its tokens or of one token's query heads, when ranges and pieces go to
// threads in turn. Four items a thread are balanced enough.
int CpuFast::pieces_of(const Block& b, int n_head) {
  constexpr int kDecode = 2;  // to decode a range costs about as much as two queries
  const int units = b.t1 - b.t0 > 1 ? b.t1 - b.t0 : b.g1 - b.g0, each = b.n_query() / units;
  const int64_t most = std::min<int64_t>({units, n_threads_, 4 * n_threads_ / (b.n_split() * n_head)});
  int best = 1;
  int64_t best_time = 0;
  for (int n = 1; n <= most; ++n) {
    std::fill(load_.begin(), load_.end(), 0);
    for (int i = 0; i < n_head * n; ++i)
      for (int64_t at = b.first; at < b.end;) {
        const int64_t next = std::min(b.end, (at / kSplitRows + 1) * kSplitRows);
        *std::min_element(load_.begin(), load_.end()) += (next - at) * (kDecode + (units + n - 1) / n * each);
        at = next;
      }
    const int64_t time = *std::max_element(load_.begin(), load_.end());
    if (n == 1 || time < best_time) best = n, best_time = time;
  }
  return best;
}

void CpuFast::attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
  const int E = kv.head_dim, group = spec.n_q_head / kv.n_head;
  CHECK(E == spec.head_dim && spec.n_q_head % kv.n_head == 0, "{} query heads of {} over {} K/V heads of {}",
        spec.n_q_head, spec.head_dim, kv.n_head, E);
  CHECK(group <= limits_.n_group && E <= head_floats(limits_),
        "{} query heads a K/V head, heads of {}: more than planned", group, E);

  blocks_.clear();
  int64_t n_split = 0;
  for (int t = 0; t < s.shape.n_tok;) {
    const int seq = s.seq[t];
    int next = t + 1;
    while (next < s.shape.n_tok && next - t < kBlockTok && s.seq[next] == seq) ++next;
    if (seq >= 0) {
      const int n = s.mask[seq] == Mask::kPast ? 0 : s.q_begin[seq + 1] - s.q_begin[seq];
      int64_t end = s.kv_len[seq] + n;
      if (s.mask[seq] == Mask::kTree) end = *std::max_element(s.pos + s.q_begin[seq], s.pos + s.q_begin[seq + 1]) + 1;
      int64_t first = end;
      for (int i = t; i < next; ++i)
        first = std::min<int64_t>(first, spec.window ? std::max(0, s.pos[i] - spec.window + 1) : 0);
      blocks_.push_back({t, next, 0, group, first, end});
      n_split += blocks_.back().n_split();
    } else {
      for (int i = t; i < next; ++i) std::fill_n(o.row(i), o.cols, 0.f);
    }
    t = next;
  }

  auto head_of = [&](const Block& b, int head, int i) { return head * group + b.g0 + i % (b.g1 - b.g0); };
  auto load_queries = [&](const AttendScratch& a, const Block& b, int head) {
    for (int i = 0; i < b.n_query(); ++i)
      kv_query(kv.k_type, kv.shared, q.row(b.t0 + i / (b.g1 - b.g0)) + head_of(b, head, i) * E,
               a.query + int64_t(i) * E, E);
  };
  // Adds one range's result to the running one, in order of ranges. A range in which a query sees nothing is no range.
  auto merge = [&](float* out, float& top, float& sum, const float* part, float part_top, float part_sum) {
    if (part_top == kNone) return;
    if (top == kNone) {
      std::copy_n(part, E, out);
      top = part_top, sum = part_sum;
      return;
    }
    const float most = std::max(top, part_top), a = std::exp(top - most), b = std::exp(part_top - most);
    for (int e = 0; e < E; ++e) out[e] = out[e] * a + part[e] * b;
    top = most, sum = sum * a + part_sum * b;
  };
  auto finish = [&](const Block& b, int head, int i, const float* out, float top, float sum) {
    float* to = o.row(b.t0 + i / (b.g1 - b.g0)) + head_of(b, head, i) * E;
    const float inverse = top == kNone ? 0.f : 1.f / sum;
    float sums[1024];
    for (int e = 0; e < E; ++e) sums[e] = top == kNone ? 0.f : out[e] * inverse;
    kv_result(kv.v_type, kv.shared, sums, to, E);
  };

  // One block of few heads leaves threads idle: its ranges, and pieces of it, are computed side by side, then merged in
  // the same order.
  auto side_by_side = [&](const Block& all) {
    const int n_piece = pieces_of(all, kv.n_head), n_query = all.n_query();
    const int64_t n_result = kv.n_head * n_split * n_query;
    auto cut = [&](int i) {
      Block b = all;
      int& from = all.t1 - all.t0 > 1 ? b.t0 : b.g0;
      int& to = all.t1 - all.t0 > 1 ? b.t1 : b.g1;
      const int begin = from, n = to - from;
      from = begin + n * i / n_piece, to = begin + n * (i + 1) / n_piece;
      return b;
    };
    float *const top = partial_.data() + n_result * E, *const sum = top + n_result;
    auto result = [&](int64_t head, int64_t split, const Block& b) {  // of its first query
      return (head * n_split + split) * n_query + int64_t(b.t0 - all.t0) * group + b.g0;
    };
    parallel_for(kv.n_head * n_piece * n_split, n_threads_, [&](int64_t item) {
      const int head = int(item / n_split / n_piece);
      const int64_t split = item % n_split;
      const Block b = cut(int(item / n_split % n_piece));
      const AttendScratch a = attend_scratch(E);
      load_queries(a, b, head);
      const int64_t i = result(head, split, b);
      attend_part(a, b, all.first / kSplitRows + split, head, kv, s, spec, partial_.data() + i * E, top + i, sum + i);
    });
    parallel_for(kv.n_head * n_query, n_threads_, [&](int64_t item) {
      const int head = int(item / n_query), i = int(item % n_query);
      const AttendScratch a = attend_scratch(E);
      float most = kNone, total = 0;
      for (int64_t split = 0; split < n_split; ++split) {
        const int64_t from = result(head, split, all) + i;
        merge(a.out, most, total, partial_.data() + from * E, top[from], sum[from]);
      }
      finish(all, head, i, a.out, most, total);
    });
  };
  const int64_t n_item = int64_t(blocks_.size()) * kv.n_head;
  if (blocks_.size() == 1 && n_split > 0 && n_item < 2 * n_threads_ && n_item % n_threads_ != 0) {
    const int64_t n_fit = int64_t(partial_.size()) / (kv.n_head * n_split * group * (E + 2));  // tokens
    if (n_fit > 0) {
      const Block all = blocks_[0];
      const int n_tok = all.t1 - all.t0, n_part = int((n_tok + n_fit - 1) / n_fit);
      for (int i = 0; i < n_part; ++i) {
        Block part = all;
        part.t0 = all.t0 + n_tok * i / n_part, part.t1 = all.t0 + n_tok * (i + 1) / n_part;
        side_by_side(part);
      }
      return;
    }
  }
  parallel_for(n_item, n_threads_, [&](int64_t item) {
    const Block& b = blocks_[size_t(item / kv.n_head)];
    const int head = int(item % kv.n_head), n = b.n_query();
    const AttendScratch a = attend_scratch(E);
    load_queries(a, b, head);
    std::fill_n(a.top, n, kNone);
    for (int64_t i = 0; i < b.n_split(); ++i) {
      attend_part(a, b, b.first / kSplitRows + i, head, kv, s, spec, a.part, a.part_top, a.part_sum);
      for (int j = 0; j < n; ++j)
        merge(a.out + int64_t(j) * E, a.top[j], a.sum[j], a.part + int64_t(j) * E, a.part_top[j], a.part_sum[j]);
    }
    for (int j = 0; j < n; ++j) finish(b, head, j, a.out + int64_t(j) * E, a.top[j], a.sum[j]);
  });
}

}  // namespace facet
