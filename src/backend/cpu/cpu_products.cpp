// CpuFast's verbs of matrix products: their input quantised once, their weights as they are stored.
#include <algorithm>

#include "backend/cpu/cpu_fast.h"
#include "backend/cpu/cpu_sizes.h"
#include "base/threads.h"

namespace facet {
namespace {

// Nanoseconds of one thread for a tile of rows, roughly: few tokens cost the reading of the weights, many more.
int64_t tile_cost(const CpuRef::Weight& w, int n_tok) {
  return kTileRows * int64_t(row_bytes(w.type, w.n_in)) / 8 * std::max(1, n_tok / 4);
}

}  // namespace

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

// Weight rows [begin, end), at most kFloatRows, times n_tok of x's rows from t on: range of columns after range, weights
// as floats.
void CpuFast::dots_in_floats(float* y, int64_t stride, const Input& x, int64_t t, int n_tok, const Weight& w,
                             int64_t begin, int64_t end) const {
  float *const rows = aligned_scratch(), *const sum = rows + kFloatRows * kFloatCols;
  for (int64_t at = 0; at < w.n_in; at += kFloatCols) {
    const int64_t n = std::min(kFloatCols, w.n_in - at);
    for (int64_t o = begin; o < end; ++o)
      simd_.widen[int(w.type)](w.row(0, o) + row_bytes(w.type, at), rows + (o - begin) * kFloatCols, n);
    const DotsPart part{.n_row = int(end - begin),
                        .n_tok = n_tok,
                        .begin = at,
                        .n = n,
                        .first = at == 0,
                        .w = rows,
                        .w_stride = kFloatCols,
                        .x = x.f + t,
                        .sum = sum,
                        .y = at + n == w.n_in ? y : nullptr,
                        .y_stride = stride};
    simd_.dots_part(&part);
  }
  if (!w.scale) return;
  for (int i = 0; i < n_tok; ++i)
    for (int64_t o = 0; o < end - begin; ++o) y[i * stride + o] *= w.factor(0);
}

// Many rows by weights without a kernel for their codes: blocks that the caches hold. The bits are those of product().
void CpuFast::product_in_floats(Rows y, const Input& x, const Weight& w) const {
  const int64_t pieces = (w.n_out + kFloatRows - 1) / kFloatRows;
  parallel_for((x.n_tok + kFloatTok - 1) / kFloatTok * pieces, n_threads_, [&](int64_t item) {
    const int64_t t = item / pieces * kFloatTok, begin = item % pieces * kFloatRows;
    dots_in_floats(y.row(t) + begin, y.stride, x, t, int(std::min<int64_t>(kFloatTok, x.n_tok - t)), w, begin,
                   std::min(begin + kFloatRows, w.n_out));
  });
}
void CpuFast::gate_up_in_floats(Rows y, const Input& x, const Weight& gate, const Weight& up, Act act) const {
  const int64_t pieces = (gate.n_out + kFloatRows - 1) / kFloatRows;
  parallel_for((x.n_tok + kFloatTok - 1) / kFloatTok * pieces, n_threads_, [&](int64_t item) {
    const int64_t t = item / pieces * kFloatTok, begin = item % pieces * kFloatRows,
                  end = std::min(begin + kFloatRows, gate.n_out);
    const int n_tok = int(std::min<int64_t>(kFloatTok, x.n_tok - t));
    float* other = aligned_scratch() + kFloatRows * (kFloatCols + kFloatTok * 16);
    dots_in_floats(y.row(t) + begin, y.stride, x, t, n_tok, gate, begin, end);
    dots_in_floats(other, kFloatRows, x, t, n_tok, up, begin, end);
    for (int i = 0; i < n_tok; ++i) {
      float* g = y.row(t + i) + begin;
      activate(g, g, other + i * kFloatRows, end - begin, act);
    }
  });
}

void CpuFast::product_all(Rows y, const Input& x, const Weight& w) const {
  CHECK(w.n_out == y.cols && x.n_tok == y.rows, "{}: [{} x {}] into [{}, {}]", w.name, w.n_out, w.n_in, y.rows, y.cols);
  if (x.n_tok >= kManyFloats && takes_floats(w)) return product_in_floats(y, x, w);
  const int64_t tiles = (w.n_out + kTileRows - 1) / kTileRows;
  parallel_ranges(
      tiles, n_threads_, 1,
      [&](int64_t begin, int64_t end) {
        const int64_t o = begin * kTileRows;
        product(y.p + o, y.stride, x, w, 0, o, std::min(end * kTileRows, w.n_out));
      },
      tile_cost(w, x.n_tok));
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
  if (h.rows >= kManyFloats && takes_floats(gate) && takes_floats(up)) return gate_up_in_floats(y, x, gate, up, act);
  parallel_ranges((gate.n_out + kTileRows - 1) / kTileRows, n_threads_, 1,
                  [&](int64_t begin, int64_t end) {
                    const int64_t o = begin * kTileRows;
                    gate_up_range(y.p + o, y.stride, x, gate, 0, up, 0, o, std::min(end * kTileRows, gate.n_out), act);
                  },
                  tile_cost(gate, h.rows) + tile_cost(up, h.rows));
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

}  // namespace facet
