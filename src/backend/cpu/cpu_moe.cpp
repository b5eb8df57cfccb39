// CpuFast's verb of experts: pairs of token and expert sorted by expert, so that each expert's weights are read once.
#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cpu/cpu_fast.h"
#include "backend/cpu/cpu_sizes.h"
#include "backend/weights_in_ram.h"
#include "base/threads.h"

namespace facet {

// Fills chosen_ and route_, and counts an expert's tokens in the entry of cursor_ behind its own.
void CpuFast::choose_experts(Rows logits, Vec scale, int K) {
  std::fill(cursor_.begin(), cursor_.end(), 0);
  for (int t = 0; t < logits.rows; ++t) {  // as CpuRef: largest first, lowest index on ties, softmax over the chosen
    const float* l = logits.row(t);
    int32_t* chosen = chosen_.data() + int64_t(t) * K;
    float sum = 0;
    for (int k = 0; k < K; ++k) {
      int best = -1;
      for (int i = 0; i < logits.cols; ++i)
        if (std::find(chosen, chosen + k, i) == chosen + k && (best < 0 || l[i] > l[best])) best = i;
      chosen[k] = best;
      ++cursor_[size_t(best) + 1];
      sum += std::exp(l[best] - l[chosen[0]]);
    }
    for (int k = 0; k < K; ++k)
      route_[size_t(t * K + k)] = std::exp(l[chosen[k]] - l[chosen[0]]) / sum * (scale ? scale.p[chosen[k]] : 1.f);
  }
}

// Turns the counts of cursor_ into where each expert's pairs begin, still in the entry behind its own. How many there
// are.
int CpuFast::sort_pairs(const Input& x, int T, int K, int n_expert) {
  used_expert_.clear();
  for (int i = 0; i < n_expert; ++i) {
    if (cursor_[size_t(i) + 1] > 0) used_expert_.push_back(i);
    cursor_[size_t(i) + 1] += cursor_[size_t(i)];
  }
  const int n_pair = cursor_[size_t(n_expert)];
  for (int i = T * K - 1; i >= 0; --i) {  // from behind, so that an expert's pairs stay in order of tokens
    const int expert = chosen_[size_t(i)];
    pair_of_[size_t(i)] = -1;
    if (expert < 0) continue;                     // computed elsewhere
    const int p = --cursor_[size_t(expert) + 1];  // from the expert's end down to its beginning
    pair_of_[size_t(i)] = p;
    pair_f_[size_t(p)] = x.f[i / K];
    if (x.q) pair_q_[size_t(p)] = x.q[i / K];
  }
  return n_pair;
}

void CpuFast::moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
  const Rows logits = router_.view(y.rows, int(w.router.n_out));
  matmul(logits, r, w.router);
  choose_experts(logits, w.scale, n_used);
  if (usage_) usage_->add(layer_of_tensor(w.down.name), std::span(cursor_).subspan(1, size_t(w.down.n_stack)));
  chosen_experts(y, e, w, n_used, act);
}

void CpuFast::routed_experts(Rows y, Rows e, std::span<const int32_t> expert, std::span<const float> weight,
                             MoeWeights<Weight, Vec> w, int n_used, Act act) {
  CHECK(expert.size() == size_t(y.rows) * size_t(n_used) && weight.size() == expert.size() &&
            expert.size() <= chosen_.size(),
        "{} experts of {} rows", expert.size(), y.rows);
  std::fill(cursor_.begin(), cursor_.end(), 0);
  for (size_t i = 0; i < expert.size(); ++i) {
    CHECK(expert[i] >= -1 && expert[i] < int(w.down.n_stack), "{}: expert {} of {}", w.down.name, expert[i],
          w.down.n_stack);
    if (expert[i] >= 0) ++cursor_[size_t(expert[i]) + 1];
  }
  std::ranges::copy(expert, chosen_.begin());
  std::ranges::copy(weight, route_.begin());
  chosen_experts(y, e, w, n_used, act);
}

void CpuFast::chosen_experts(Rows y, Rows e, const MoeWeights<Weight, Vec>& w, int n_used, Act act) {
  const int n_expert = int(w.down.n_stack), K = n_used, T = y.rows;
  const int d_expert = int(w.gate_up ? w.gate_up.n_out / 2 : w.gate.n_out);
  CHECK(n_used <= limits_.n_expert_used && n_expert <= limits_.n_expert && d_expert <= limits_.d_expert,
        "{} of {} experts of {}", n_used, n_expert, d_expert);

  const Weight half = w.gate_up.halves();  // an expert is gate rows then up rows
  const Input x = quantise(act_, e, quantised(w.gate_up) || quantised(w.gate) || quantised(w.up), T > 1);
  const int pairs = sort_pairs(x, T, K, n_expert);
  if (pairs == 0) {
    for (int t = 0; t < T; ++t) std::fill_n(y.row(t), y.cols, 0.f);
    return;
  }
  auto pairs_of = [&](size_t u) {
    const int begin = cursor_[size_t(used_expert_[u]) + 1];
    return std::pair(begin, u + 1 < used_expert_.size() ? cursor_[size_t(used_expert_[u + 1]) + 1] : pairs);
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
    if (n_panel == 0) return;  // few rows: a loop of nothing costs as much as one of little
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

  const Input mid = quantise(hidden_act_, hidden_.view(pairs, d_expert), quantised(w.down), T > 1);
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
        for (int k = 0; k < K; ++k)
          if (const int p = pair_of_[size_t(t * K + k)]; p >= 0) sum += route_[size_t(t * K + k)] * out[p * width + c];
        y.row(t)[begin + c] = sum;
      }
  });
}

}  // namespace facet
