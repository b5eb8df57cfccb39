#include "backend/cpu/cpu_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/ref_sums.h"
#include "base/threads.h"
#include "formats/kv_codec.h"

namespace facet {
namespace {

using ref::dot, ref::inv_rms;

float activate(float x, Act act) {
  if (act == Act::kSilu) return x / (1.f + std::exp(-x));
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.f + std::tanh(inner));
}

constexpr int kTokenBlock = 8;  // tokens that share one decoding of a K or V row

}  // namespace

CpuRef::Weight CpuRef::upload(const TensorView& t) {
  names_.push_back(t.name);
  const float* scale = nullptr;
  if (!t.scale.empty()) scale = floats_.emplace_back(t.scale).data();
  return {t.data.data(), t.type, t.ne[1], t.ne[0], t.ne[2], names_.back().c_str(), scale};
}
CpuRef::Vec CpuRef::upload(std::span<const float> gain) {
  floats_.emplace_back(gain.begin(), gain.end());
  return {floats_.back().data(), int(gain.size())};
}
CpuRef::Freqs CpuRef::upload(std::span<const double> freqs) {
  doubles_.emplace_back(freqs.begin(), freqs.end());
  return {doubles_.back().data(), int(freqs.size())};
}
CpuRef::Rows CpuRef::new_rows(int rows, int cols) {
  floats_.emplace_back(size_t(rows) * size_t(cols));
  return {floats_.back().data(), rows, cols, cols};
}
CpuRef::Table CpuRef::upload(std::span<const int32_t> values) {
  tables_.emplace_back(values.begin(), values.end());
  return {tables_.back().data(), int(values.size())};
}
CpuRef::Ids CpuRef::new_ids(int n) {
  ids_.emplace_back(size_t(n));
  return ids_.back();
}
CpuRef::Scores CpuRef::new_scores(int n) {
  floats_.emplace_back(size_t(n));
  return floats_.back();
}

namespace {
int64_t scratch_floats(const BackendLimits& l) {
  const int64_t attend = (l.max_rows + 2048) * kTokenBlock * l.n_group + 1024 * kTokenBlock * l.n_group + 1024;
  return std::max<int64_t>(attend, l.max_cols);
}
}  // namespace

int64_t CpuRef::reserve_bytes(const BackendLimits& l, int n_threads) {
  return scratch_floats(l) * n_threads * int64_t(sizeof(float)) + rows_bytes(l.max_tok, l.n_expert) +
         rows_bytes(l.max_tok, 2 * l.d_expert) + rows_bytes(l.max_tok, l.max_cols) +
         rows_bytes(l.max_tok, l.n_cluster) + selection_bytes(l, n_threads);
}

void CpuRef::reserve(const BackendLimits& limits) {
  const BackendLimits l = limits_ = limits_.with(limits);
  scratch_.assign(size_t(n_threads_), std::vector<float>(size_t(scratch_floats(l))));
  reserve_selection(l);
  if (l.n_cluster > 0) cluster_score_ = new_rows(l.max_tok, l.n_cluster);
  if (l.n_expert == 0) return;
  router_ = new_rows(l.max_tok, l.n_expert);
  expert_hidden_ = new_rows(l.max_tok, l.d_expert);
  expert_up_ = new_rows(l.max_tok, l.d_expert);
  expert_out_ = new_rows(l.max_tok, l.max_cols);
}

std::vector<float> CpuRef::to_host(Rows x) const {
  std::vector<float> v;
  for (int t = 0; t < x.rows; ++t) v.insert(v.end(), x.row(t), x.row(t) + x.cols);
  return v;
}
void CpuRef::from_host(Rows x, std::span<const float> values) {
  for (int t = 0; t < x.rows; ++t) std::copy_n(values.data() + int64_t(t) * x.cols, x.cols, x.row(t));
}

float* CpuRef::scratch() const {
  const int thread = thread_index();
  CHECK(thread < int(scratch_.size()), "thread {} of {}", thread, scratch_.size());
  return const_cast<float*>(scratch_[size_t(thread)].data());
}

void CpuRef::embed(Rows x, Weight table, const Step& s, float scale) {
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    const int64_t id = s.token[t];
    CHECK(id >= 0 && id < table.n_out, "{}: token {} of a vocabulary of {}", table.name, id, table.n_out);
    dequantize_row(table.type, table.row(0, id), x.row(t), x.cols);
    for (int i = 0; i < x.cols; ++i) x.row(t)[i] *= scale * table.factor(0);
  });
}

void CpuRef::embed_soft(Rows x, Rows soft, const Step& s) {
  for (int t = 0; t < x.rows; ++t) {
    if (s.soft[t] < 0) continue;
    CHECK(s.soft[t] < soft.rows, "soft row {} of {}", s.soft[t], soft.rows);
    std::copy_n(soft.row(s.soft[t]), x.cols, x.row(t));
  }
}

void CpuRef::rms_norm(Rows y, Rows x, Vec gain, float eps) {
  for (int t = 0; t < x.rows; ++t) {
    const float r = inv_rms(x.row(t), x.cols, eps);
    for (int i = 0; i < x.cols; ++i) y.row(t)[i] = x.row(t)[i] * r * (gain ? gain.p[i] : 1.f);
  }
}

void CpuRef::matmul(Rows y, Rows x, Weight w) {
  CHECK(w.n_in == x.cols && w.n_out == y.cols && x.rows == y.rows, "{}: [{} x {}] times [{}, {}] into [{}, {}]", w.name,
        w.n_out, w.n_in, x.rows, x.cols, y.rows, y.cols);
  expert_matmul(y, x, w, 0);
}

void CpuRef::expert_matmul(Rows y, Rows x, Weight w, int expert) {
  parallel_ranges(w.n_out, n_threads_, 16, [&](int64_t begin, int64_t end) {
    float* row = scratch();
    for (int64_t o = begin; o < end; ++o) {
      dequantize_row(w.type, w.row(expert, o), row, w.n_in);
      for (int t = 0; t < x.rows; ++t) y.row(t)[o] = dot(row, x.row(t), w.n_in) * w.factor(expert);
    }
  });
}

void CpuRef::qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
  matmul(q, h, wq);
  matmul(k, h, wk);
  if (wv)
    matmul(v, h, wv);
  else
    copy_rows(v, k);
}

void CpuRef::head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps) {
  const int half = freqs.n, width = 2 * half;
  CHECK(gain.n == width && x.cols % width == 0, "{} columns in heads of {}, gain of {}", x.cols, width, gain.n);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    float* c = scratch();
    float* sn = c + half;
    for (int i = 0; i < half; ++i) {
      const double angle = double(s.pos[t]) * freqs.p[i];
      c[i] = float(std::cos(angle));
      sn[i] = float(std::sin(angle));
    }
    for (float* h = x.row(t); h < x.row(t) + x.cols; h += width) {
      const float r = inv_rms(h, width, eps);
      for (int i = 0; i < half; ++i) {
        const float a = h[i] * r * gain.p[i], b = h[i + half] * r * gain.p[i + half];
        h[i] = a * c[i] - b * sn[i];
        h[i + half] = b * c[i] + a * sn[i];
      }
    }
  });
}

void CpuRef::head_norm(Rows x, int head_dim, float eps) {
  for (int t = 0; t < x.rows; ++t)
    for (float* h = x.row(t); h < x.row(t) + x.cols; h += head_dim) {
      const float r = inv_rms(h, head_dim, eps);
      for (int i = 0; i < head_dim; ++i) h[i] *= r;
    }
}

void CpuRef::head_rope(Rows x, Freqs freqs, const Step& s) {
  const int half = freqs.n, width = 2 * half;
  CHECK(x.cols % width == 0, "{} columns in heads of {}", x.cols, width);
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (int i = 0; i < half; ++i) {
      const double angle = double(s.pos[t]) * freqs.p[i];
      const float c = float(std::cos(angle)), sn = float(std::sin(angle));
      for (float* h = x.row(t); h < x.row(t) + x.cols; h += width) {
        const float a = h[i], b = h[i + half];
        h[i] = a * c - b * sn;
        h[i + half] = b * c + a * sn;
      }
    }
  });
}

// Head h of a row.
void CpuRef::append_head(const KvLayer& kv, const float* k, const float* v, KvRow to, int h) {
  if (kv.shared) return kv_encode_shared(kv.k_type, k, v, to.k + h * kv.k_head(), kv.head_dim);
  kv_encode(kv.k_type, k, to.k + h * kv.k_head(), kv.head_dim);
  kv_encode(kv.v_type, v, to.v + h * kv.v_head(), kv.head_dim);
}

void CpuRef::kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
  parallel_for(s.shape.n_tok, n_threads_, [&](int64_t t) {
    const int q = s.seq[t];
    if (q < 0 || s.mask[q] == Mask::kPast) return;
    const KvRow to = kv_row(kv, s, q, s.kv_len[q] + t - s.q_begin[q]);
    for (int h = 0; h < kv.n_head; ++h) append_head(kv, k.row(t) + h * kv.head_dim, v.row(t) + h * kv.head_dim, to, h);
  });
}

void CpuRef::kv_settle(KvLayer kv, const Step& s) {
  for (int q = 0; q < s.shape.n_seq; ++q) {
    const int n = s.q_begin[q + 1] - s.q_begin[q];
    if (!kv_staged(kv, n)) continue;
    for (int j = int(std::max<int64_t>(0, n - kv.cap)); j < n; ++j) {
      const KvRow from = kv_row(kv, s, q, s.kv_len[q] + j), to = kv_ring_row(kv, s.slot[q], s.kv_len[q] + j);
      std::memcpy(to.k, from.k, size_t(kv.k_row));
      std::memcpy(to.v, from.v, size_t(kv.v_row));
    }
  }
}

void CpuRef::attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
  if (!spec.selected) return attend_over(o, q, kv, s, spec, {});
  attend_selected(s, spec, kv, [&](const Over& over) { attend_over(o, q, kv, s, spec, over); });
}

// Long: scores, softmax and values of one item, on the same scratch.
void CpuRef::attend_over(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec, const Over& over) {
  const int E = kv.head_dim, group = spec.n_q_head / kv.n_head;
  const int64_t k_head = kv.k_head(), v_head = kv.v_head();
  const int n_block = (s.shape.n_tok + kTokenBlock - 1) / kTokenBlock;
  CHECK(E == spec.head_dim && spec.n_q_head % kv.n_head == 0, "{} query heads of {} over {} K/V heads of {}",
        spec.n_q_head, spec.head_dim, kv.n_head, E);

  // One item: the tokens of a block that belong to one sequence, all query heads of one K/V head.
  // Long: it is all of the work; see above.
  auto item = [&](int t0, int t1, int hk) {
    const int seq = s.seq[t0], n = (t1 - t0) * group, base = s.q_begin[seq], len = s.kv_len[seq];
    const Mask mask = s.mask[seq];
    const int in_step = mask == Mask::kPast ? 0 : s.q_begin[seq + 1] - base;
    int64_t first = len;
    for (int t = t0; t < t1; ++t)
      first = std::min<int64_t>(first, spec.window ? std::max(0, s.pos[t] - spec.window + 1) : 0);
    const int64_t rows = len + in_step - first;
    CHECK(rows <= limits_.max_rows + 2048 && group <= limits_.n_group, "{} rows, {} planned", rows, limits_.max_rows);

    float* row = scratch();                                                // [E] a decoded K or V row
    float* query = row + 1024;                                             // [n, E] rotated if K is
    float* score = query + int64_t(kTokenBlock) * limits_.n_group * 1024;  // [n, rows]; -inf: not seen
    const float none = -std::numeric_limits<float>::infinity();

    // Whether a token's list has a row; whether it has a list with something in it.
    auto tile_of = [&](int t) { return select_tile(base, seq, t - base); };
    auto listed = [&](int t, int64_t r) { return !over.lists || over.lists->has(tile_of(t), hk, r); };
    auto any_listed = [&](int64_t r) {
      for (int t = t0; t < t1; ++t)
        if (listed(t, r)) return true;
      return false;
    };
    auto is_done = [&](int i) { return !over.lists || over.lists->count_of(tile_of(t0 + i / group), hk) != 0; };
    auto out_of = [&](int i) { return o.row(t0 + i / group) + (hk * group + i % group) * E; };

    for (int i = 0; i < n; ++i)
      kv_query(kv.k_type, kv.shared, q.row(t0 + i / group) + (hk * group + i % group) * E, query + i * E, E);
    auto sees = [&](int t, int64_t r) {
      if (!listed(t, r)) return false;
      if (r < len) return spec.window == 0 || s.pos[t] - r < spec.window;
      const int key = int(r - len), j = t - base;
      const int ahead = spec.ahead ? s.ahead[t] : 0;
      if (!sees_in_step(mask, mask == Mask::kTree ? s.ancestor[t] : 0, j, key, spec.causal_block, ahead)) return false;
      return spec.window == 0 || s.pos[t] - s.pos[base + key] < spec.window;
    };
    for (int64_t r = first; r < len + in_step; ++r) {
      if (!any_listed(r)) {
        for (int i = 0; i < n; ++i) score[i * rows + r - first] = none;
        continue;
      }
      kv_decode(kv.k_type, kv_row(kv, s, seq, r).k + hk * k_head, row, E);
      for (int i = 0; i < n; ++i)
        score[i * rows + r - first] = sees(t0 + i / group, r) ? dot(query + i * E, row, E) * spec.scale : none;
    }
    for (int i = 0; i < n; ++i) {  // softmax, not yet divided; sums in row order
      float* p = score + i * rows;
      const float top = *std::max_element(p, p + rows);
      float sum = 0;
      for (int64_t r = 0; r < rows; ++r) {
        p[r] = p[r] == none ? 0.f : std::exp(p[r] - top);
        sum += p[r];
      }
      if (over.lse) over.lse[(t0 + i / group) * spec.n_q_head + hk * group + i % group] = top + std::log(sum);
      const float inv = sum > 0 ? 1.f / sum : 0.f;
      for (int64_t r = 0; r < rows; ++r) p[r] *= inv;
      if (over.writes && is_done(i)) std::fill_n(out_of(i), E, 0.f);
    }
    if (!over.writes) return;
    for (int64_t r = first; r < len + in_step; ++r) {
      if (!any_listed(r)) continue;
      kv_decode(kv.v_type, kv_row(kv, s, seq, r).v + hk * v_head, row, E);
      for (int i = 0; i < n; ++i) {
        const float p = score[i * rows + r - first];
        if (p == 0.f) continue;
        float* out = out_of(i);
        for (int e = 0; e < E; ++e) out[e] += p * row[e];
      }
    }
    for (int i = 0; i < n; ++i) {
      if (!is_done(i)) continue;
      std::copy_n(out_of(i), E, row);
      kv_result(kv.v_type, kv.shared, row, out_of(i), E);
    }
  };

  parallel_for(int64_t(n_block) * kv.n_head, n_threads_, [&](int64_t i) {
    const int hk = int(i % kv.n_head), begin = int(i / kv.n_head) * kTokenBlock;
    const int end = std::min(begin + kTokenBlock, s.shape.n_tok);
    for (int t = begin; t < end;) {
      int next = t + 1;
      while (next < end && s.seq[next] == s.seq[t]) ++next;
      if (s.seq[t] >= 0) {
        item(t, next, hk);
      } else {
        for (int p = t; p < next; ++p) std::fill_n(o.row(p) + hk * group * E, group * E, 0.f);
      }
      t = next;
    }
  });
}

void CpuRef::residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec) {
  for (int t = 0; t < x.rows; ++t) {
    float* xt = x.row(t);
    const float* yt = y.row(t);
    const float ry = inv_rms(yt, x.cols, spec.eps);
    for (int i = 0; i < x.cols; ++i)
      xt[i] = (xt[i] + (spec.post ? yt[i] * ry * spec.post.p[i] : yt[i])) * spec.out_scale;
    if (!spec.next) continue;
    const float rx = inv_rms(xt, x.cols, spec.eps);
    for (int i = 0; i < x.cols; ++i) h.row(t)[i] = xt[i] * rx * spec.next.p[i];
  }
}

void CpuRef::gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
  parallel_ranges(gate.n_out, n_threads_, 16, [&](int64_t begin, int64_t end) {
    float* row = scratch();
    for (int64_t o = begin; o < end; ++o) {
      dequantize_row(gate.type, gate.row(0, o), row, gate.n_in);
      for (int t = 0; t < h.rows; ++t) y.row(t)[o] = activate(dot(row, h.row(t), gate.n_in) * gate.factor(0), act);
      dequantize_row(up.type, up.row(0, o), row, up.n_in);
      for (int t = 0; t < h.rows; ++t) y.row(t)[o] *= dot(row, h.row(t), up.n_in) * up.factor(0);
    }
  });
}

void CpuRef::act_mul(Rows y, Rows g, Rows u, Act act) {
  for (int t = 0; t < y.rows; ++t)
    for (int i = 0; i < y.cols; ++i) y.row(t)[i] = activate(g.row(t)[i], act) * u.row(t)[i];
}

void CpuRef::ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps) {
  for (int t = 0; t < p.rows; ++t)
    for (int begin = 0; begin < p.cols; begin += gain.n) {
      float *pt = p.row(t) + begin, *ct = c.row(t) + begin;
      for (int i = 0; i < gain.n; ++i) ct[i] *= in_scale;
      const float r = inv_rms(ct, gain.n, eps);
      for (int i = 0; i < gain.n; ++i) pt[i] = (ct[i] * r * gain.p[i] + pt[i]) * out_scale;
    }
}

void CpuRef::moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
  const int n_expert = int(w.router.n_out);
  const int d_expert = int(w.gate_up ? w.gate_up.n_out / 2 : w.gate.n_out);
  CHECK(n_used <= n_expert && n_expert <= limits_.n_expert && d_expert <= limits_.d_expert, "{} of {} experts of {}",
        n_used, n_expert, d_expert);
  const Rows logits = router_.view(r.rows, n_expert);
  matmul(logits, r, w.router);
  for (int t = 0; t < y.rows; ++t) {
    const float* l = logits.row(t);
    const Rows et{e.row(t), 1, e.cols, e.stride};
    const Rows hidden = expert_hidden_.view(1, d_expert), up = expert_up_.view(1, d_expert),
               out = expert_out_.view(1, y.cols);
    std::fill_n(y.row(t), y.cols, 0.f);

    int chosen[64];
    CHECK(n_used <= 64, "{} experts used", n_used);
    float sum = 0;
    for (int k = 0; k < n_used; ++k) {  // largest first, lowest index on ties
      int best = -1;
      for (int i = 0; i < n_expert; ++i)
        if (std::find(chosen, chosen + k, i) == chosen + k && (best < 0 || l[i] > l[best])) best = i;
      chosen[k] = best;
      sum += std::exp(l[best] -
                      l[chosen[0]]);  // softmax over all, renormalised over the chosen, is softmax over the chosen
    }
    for (int k = 0; k < n_used; ++k) {
      const int expert = chosen[k];
      if (w.gate_up) {
        const Weight half = w.gate_up.halves();  // an expert is gate rows then up rows
        expert_matmul(hidden, et, half, 2 * expert);
        expert_matmul(up, et, half, 2 * expert + 1);
      } else {
        expert_matmul(hidden, et, w.gate, expert);
        expert_matmul(up, et, w.up, expert);
      }
      act_mul(hidden, hidden, up, act);
      expert_matmul(out, hidden, w.down, expert);
      const float weight = std::exp(l[expert] - l[chosen[0]]) / sum * (w.scale ? w.scale.p[expert] : 1.f);
      for (int i = 0; i < y.cols; ++i) y.row(t)[i] += weight * out.row(0)[i];
    }
  }
}

void CpuRef::block_conv(Rows y, Rows x, Rows delta, Vec base, const Step& s) {
  const int taps = base.n / x.cols, groups = delta.cols / taps, size = x.cols / groups;
  CHECK(taps * x.cols == base.n && taps * groups == delta.cols && groups * size == x.cols && y.p != x.p,
        "{} columns, base of {}, delta of {}", x.cols, base.n, delta.cols);
  for (int t = 0; t < x.rows; ++t) {
    const int first = s.seq[t] < 0 ? t : s.q_begin[s.seq[t]];
    for (int c = 0; c < x.cols; ++c) {
      float sum = 0;
      for (int i = 0; i < taps && t - i >= first; ++i)
        sum += (base.p[i * x.cols + c] + delta.row(t)[i * groups + c / size]) * x.row(t - i)[c];
      y.row(t)[c] = sum;
    }
  }
}

void CpuRef::add(Rows y, Rows a, Rows b) {
  for (int t = 0; t < y.rows; ++t)
    for (int i = 0; i < y.cols; ++i) y.row(t)[i] = a.row(t)[i] + b.row(t)[i];
}

void CpuRef::gather(Rows y, Rows x, const Step& s) {
  for (int i = 0; i < y.rows; ++i) std::copy_n(x.row(s.out_row[i]), y.cols, y.row(i));
}

void CpuRef::copy_rows(Rows y, Rows x) {
  for (int t = 0; t < y.rows; ++t) std::copy_n(x.row(t), y.cols, y.row(t));
}

void CpuRef::softcap(Rows x, float cap) {
  if (cap <= 0) return;
  parallel_for(x.rows, n_threads_, [&](int64_t t) {
    for (int i = 0; i < x.cols; ++i) x.row(t)[i] = cap * std::tanh(x.row(t)[i] / cap);
  });
}

// One thread is done with a few short rows before another one has begun.
int CpuRef::threads_for_rows(Rows logits) const { return int64_t(logits.rows) * logits.cols > 65536 ? n_threads_ : 1; }

void CpuRef::sample(Ids ids, Rows logits, std::span<const SampleRow> rows) {
  CHECK(int(rows.size()) == logits.rows && ids.size() >= rows.size(), "{} rows for {} logits", rows.size(),
        logits.rows);
  parallel_for(logits.rows, threads_for_rows(logits), [&](int64_t t) {
    ids[size_t(t)] =
        sample_row({logits.row(t), size_t(logits.cols)}, rows[size_t(t)], sampler_[size_t(thread_index())]);
  });
}

void CpuRef::clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w) {
  const int64_t size = w.head.n_out / w.centroid.n_out;
  CHECK(w.head.n_out == logits.cols && w.order.n == logits.cols && size * w.centroid.n_out == logits.cols &&
            w.top_k <= kMaxClusters,
        "{} clusters of {} tokens, {} logits", w.centroid.n_out, size, logits.cols);
  const Rows scores = cluster_score_.view(h.rows, int(w.centroid.n_out));
  matmul(scores, h, w.centroid);
  parallel_for(h.rows, n_threads_, [&](int64_t t) {
    float *row = scratch(), *to = logits.row(t);
    std::fill_n(to, logits.cols, -std::numeric_limits<float>::infinity());
    each_chosen_cluster(scores.row(t), w, [&](int cluster) {
      for (int64_t i = cluster * size; i < (cluster + 1) * size; ++i) {
        dequantize_row(w.head.type, w.head.row(0, w.order.p[i]), row, w.head.n_in);
        to[w.order.p[i]] = dot(row, h.row(t), w.head.n_in) * w.head.factor(0);
      }
    });
  });
}

void CpuRef::top_k(Ids ids, Scores log_probs, Rows logits, int k) {
  const size_t need = size_t(logits.rows) * size_t(k);
  CHECK(k > 0 && ids.size() >= need && log_probs.size() >= need, "{} candidates for {} rows", k, logits.rows);
  parallel_for(logits.rows, threads_for_rows(logits), [&](int64_t t) {
    const size_t first = size_t(t) * size_t(k), n = size_t(k);
    top_k_row({logits.row(t), size_t(logits.cols)}, ids.subspan(first, n), log_probs.subspan(first, n),
              sampler_[size_t(thread_index())]);
  });
}

}  // namespace facet
