// Included by simd_*.cpp only, inside their anonymous namespaces: the loops on floats, written once for vectors of W
// lanes. The including file defines
//   W, vf                     lanes, and vectors of W floats with + - * / among themselves and with floats
//   load, store, splat, fma(a, b, c) = a * b + c
//   load_f16(p), load_bf16(p)            W halves as floats
//   if_below(x, c, a, b), if_above       lane by lane x < c ? a : b
//   two_to(n)                 2^k for n = k + 1.5 * 2^23
//   fold_rows(vf a[W])        lane i = sum of the lanes of a[i]
//   vpart, kParts             what a register holds of a vector, and how many make one; part_of(vf&, i),
//   load_part_at(p), store_part_at(p, v) kDotRows, kDotTok, kScoreRows, kScoreQueries, kWide, kWideQueries   how much
//   the registers hold; no result depends on them
// A vector's lanes are columns or cache rows by their absolute index mod W, so no result depends on how work is cut.
// All share W, the order of every sum and a fused multiply-add: the same bits.

vf load_part(const float* p, int64_t n) {
  float t[W] = {};
  for (int64_t i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}

float fold(vf v) {  // halves, until one is left
  float t[W];
  __builtin_memcpy(t, &v, sizeof v);
  for (int m = W / 2; m > 0; m /= 2)
    for (int j = 0; j < m; ++j) t[j] += t[j + m];
  return t[0];
}

// exp(x) to about one unit in the last place; 0 below -87, where the result would be subnormal. x <= 88.
vf exp_of(vf x) {
  const vf magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const vf n = x * 1.44269504f + magic;
  const vf k = n - magic;
  vf r = fma(k, splat(-.693359375f), x);
  r = fma(k, splat(2.12194440e-4f), r);
  vf p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.f;
  return if_below(x, -87.f, vf{}, p * two_to(n));
}
vf clamp(vf x, float low, float high) {
  x = if_below(x, low, splat(low), x);
  return if_above(x, high, splat(high), x);
}

// 1 / (1 + exp(-x))
vf sigmoid(vf x) { return 1.f / (1.f + exp_of(clamp(-x, -88.f, 88.f))); }
vf gelu(vf x) {  // x / 2 (1 + tanh(u)) = x sigmoid(2 u)
  const vf u2 = 1.5957691216057308f * (x + .044715f * x * x * x);
  return x * sigmoid(u2);
}
vf silu(vf x) { return x * sigmoid(x); }
vf tanh_of(vf x) {  // of |x|, sign restored; good to an absolute 1e-7
  const vf a = if_below(x, 0.f, -x, x);
  const vf t = 1.f - 2.f / (1.f + exp_of(clamp(2.f * a, 0.f, 88.f)));
  return if_below(x, 0.f, -t, t);
}

template <class F>
void each(const float* a, const float* b, float* y, int64_t n, F f) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(y + i, f(load(a + i), load(b + i)));
  if (i == n) return;
  float t[W];
  store(t, f(load_part(a + i, n - i), load_part(b + i, n - i)));
  for (int64_t j = 0; i + j < n; ++j) y[i + j] = t[j];
}
void gelu_mul(const float* g, const float* u, float* y, int64_t n) {
  each(g, u, y, n, [](vf a, vf b) { return gelu(a) * b; });
}
void silu_mul(const float* g, const float* u, float* y, int64_t n) {
  each(g, u, y, n, [](vf a, vf b) { return silu(a) * b; });
}
void softcap(float* x, float cap, int64_t n) {
  const float inverse = 1.f / cap;
  each(x, x, x, n, [=](vf a, vf) { return cap * tanh_of(a * inverse); });
}

float sum_squares(const float* x, int64_t n) {
  vf s{};
  int64_t i = 0;
  for (; i + W <= n; i += W) s = fma(load(x + i), load(x + i), s);
  if (i < n) {
    const vf v = load_part(x + i, n - i);
    s = fma(v, v, s);
  }
  return fold(s);
}

// ---- rows of floats

struct LoadF32 {
  static constexpr int kBytes = 4;
  static vf at(const std::byte* p) { return load((const float*)p); }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static vf at(const std::byte* p) { return load_f16(p); }
};
struct LoadBF16 {
  static constexpr int kBytes = 2;
  static vf at(const std::byte* p) { return load_bf16(p); }
};
template <class L>
vf load_part_of(const std::byte* p, int64_t n) {
  std::byte t[4 * W] = {};
  __builtin_memcpy(t, p, size_t(n * L::kBytes));
  return L::at(t);
}

template <class L, int R, int T>
void dots_block(const std::byte* w, int64_t row_bytes, int64_t n, const float* const* x, float* y, int64_t stride) {
  vf a[R][T] = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    vf xv[T];
    for (int t = 0; t < T; ++t) xv[t] = load(x[t] + i);
    for (int r = 0; r < R; ++r) {
      const vf wv = L::at(w + r * row_bytes + i * L::kBytes);
      for (int t = 0; t < T; ++t) a[r][t] = fma(wv, xv[t], a[r][t]);
    }
  }
  if (i < n)
    for (int r = 0; r < R; ++r) {
      const vf wv = load_part_of<L>(w + r * row_bytes + i * L::kBytes, n - i);
      for (int t = 0; t < T; ++t) a[r][t] = fma(wv, load_part(x[t] + i, n - i), a[r][t]);
    }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) y[t * stride + r] = fold(a[r][t]);
}
template <class L, int R>
void dots_rows(const std::byte* w, int64_t row_bytes, int64_t n, int n_tok, const float* const* x, float* y,
               int64_t stride) {
  int t = 0;
  for (; t + kDotTok <= n_tok; t += kDotTok) dots_block<L, R, kDotTok>(w, row_bytes, n, x + t, y + t * stride, stride);
  for (; t < n_tok; ++t) dots_block<L, R, 1>(w, row_bytes, n, x + t, y + t * stride, stride);
}
template <class L>
void dots(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const float* const* x,
          float* y, int64_t stride) {
  int64_t o = 0;
  for (; o + kDotRows <= n_row; o += kDotRows)
    dots_rows<L, kDotRows>(w + o * row_bytes, row_bytes, n_in, n_tok, x, y + o, stride);
  for (; o < n_row; ++o) dots_rows<L, 1>(w + o * row_bytes, row_bytes, n_in, n_tok, x, y + o, stride);
}

// ---- attention over one range of cache rows

void decode_head(KvType type, const std::byte* p, float* y, int n) {
  if (type == KvType::kF16) {
    for (int i = 0; i < n; i += W) store(y + i, load_f16(p + 2 * i));
  } else if (type == KvType::kQ8_0) {
    for (int g = 0; g < n / 32; ++g) {
      const std::byte* block = p + 34 * g;
      const float d = half_at(block);
      int8_t q[32];
      __builtin_memcpy(q, block + 2, 32);
      for (int i = 0; i < 32; ++i) y[32 * g + i] = float(q[i]) * d;
    }
  } else if (type == KvType::kQ4_0) {
    for (int g = 0; g < n / 32; ++g) {
      const std::byte* block = p + 18 * g;
      const float d = half_at(block);
      uint8_t q[16];
      __builtin_memcpy(q, block + 2, 16);
      for (int i = 0; i < 16; ++i)
        y[32 * g + i] = float((q[i] & 15) - 8) * d, y[32 * g + 16 + i] = float((q[i] >> 4) - 8) * d;
    }
  } else {
    kv_decode(type, p, y, n);
  }
}

// Decodes W rows; those that nobody sees become zeros.
const float* decode_rows(KvType type, const std::byte* const* row, int n, float* y, int width) {
  for (int r = 0; r < W; ++r) {
    if (r < n && row[r])
      decode_head(type, row[r], y + r * width, width);
    else
      __builtin_memset(y + r * width, 0, size_t(width) * sizeof(float));
  }
  return y;
}
bool any_row(const std::byte* const* row, int n) {
  for (int r = 0; r < n; ++r)
    if (row[r]) return true;
  return false;
}

// Dot products of Q queries with W decoded rows, times scale, to score + kPartKeys of each.
template <int Q>
void score_rows(const float* query, const float* k, int E, float scale, float* score) {
  constexpr int R = kScoreRows;
  vf a[Q][W];
  for (int r0 = 0; r0 < W; r0 += R)
    for (int part = 0; part < kParts; ++part) {
      vpart sum[Q][R] = {};
      for (int e = part * (W / kParts); e < E; e += W) {
        vpart kv[R];
        for (int r = 0; r < R; ++r) kv[r] = load_part_at(k + (r0 + r) * E + e);
        for (int i = 0; i < Q; ++i) {
          const vpart qv = load_part_at(query + i * E + e);
          for (int r = 0; r < R; ++r) sum[i][r] = fma(qv, kv[r], sum[i][r]);
        }
      }
      for (int i = 0; i < Q; ++i)
        for (int r = 0; r < R; ++r) part_of(a[i][r0 + r], part) = sum[i][r];
    }
  for (int i = 0; i < Q; ++i) store(score + i * kPartKeys, fold_rows(a[i]) * scale);
}

// Adds to Q results the W decoded rows times score + kPartKeys of each, none of which is zero.
template <int Q>
void add_rows(const float* score, const float* v, int E, float* out) {
  constexpr int P = kWide * kParts, L = W / kParts;
  for (int e = 0; e < E; e += kWide * W) {
    vpart a[Q][P];
    for (int i = 0; i < Q; ++i)
      for (int j = 0; j < P; ++j) a[i][j] = load_part_at(out + i * E + e + j * L);
    for (int r = 0; r < W; ++r) {
      vpart row[P];
      for (int j = 0; j < P; ++j) row[j] = load_part_at(v + r * E + e + j * L);
      for (int i = 0; i < Q; ++i) {
        const vpart w = score[i * kPartKeys + r] - vpart{};
        for (int j = 0; j < P; ++j) a[i][j] = fma(w, row[j], a[i][j]);
      }
    }
    for (int i = 0; i < Q; ++i)
      for (int j = 0; j < P; ++j) store_part_at(out + i * E + e + j * L, a[i][j]);
  }
}
// The same for one query and up to W rows. A row it does not see must not touch it, whatever that holds.
void add_seen_rows(const float* score, int n, const float* v, int E, float* out) {
  constexpr int N = 4;
  int e = 0;
  for (; e + N * W <= E; e += N * W) {
    vf a[N];
    for (int j = 0; j < N; ++j) a[j] = load(out + e + j * W);
    for (int r = 0; r < n; ++r) {
      if (score[r] == 0.f) continue;
      const vf w = splat(score[r]);
      for (int j = 0; j < N; ++j) a[j] = fma(w, load(v + r * E + e + j * W), a[j]);
    }
    for (int j = 0; j < N; ++j) store(out + e + j * W, a[j]);
  }
  for (; e < E; e += W) {
    vf a = load(out + e);
    for (int r = 0; r < n; ++r)
      if (score[r] != 0.f) a = fma(splat(score[r]), load(v + r * E + e), a);
    store(out + e, a);
  }
}

// Calls f.operator()<Q>(i) for i in [0, n) in steps of Q, up to Most at a time.
template <int Most, class F>
void in_groups(int n, F f) {
  for (int i = 0; i < n;) {
    if (Most >= 3 && n - i >= 3 && n - i != 4)
      f.template operator()<Most >= 3 ? 3 : 1>(i), i += 3;
    else if (Most >= 2 && n - i >= 2)
      f.template operator()<Most >= 2 ? 2 : 1>(i), i += 2;
    else
      f.template operator()<1>(i), i += 1;
  }
}

void attend(const AttendPart* p) {
  const int E = p->head_dim, n = p->n_query;
  const float none = -__builtin_inff();
  for (int b = 0; b < p->n_key; b += W) {
    const int rows = p->n_key - b < W ? p->n_key - b : W;
    if (!any_row(p->k + b, rows)) {
      for (int i = 0; i < n; ++i) store(p->score + i * kPartKeys + b, vf{});
      continue;
    }
    const float* k = decode_rows(p->k_type, p->k + b, rows, p->rows, E);
    in_groups<kScoreQueries>(n, [&]<int Q>(int i) {
      score_rows<Q>(p->query + int64_t(i) * E, k, E, p->scale, p->score + i * kPartKeys + b);
    });
  }
  for (int i = 0; i < n; ++i) {
    const uint8_t* sees = p->sees + int64_t(i / p->group) * kPartKeys;
    float* s = p->score + i * kPartKeys;
    float top = none;
    for (int r = 0; r < p->n_key; ++r) {
      s[r] = sees[r] ? s[r] : none;
      top = s[r] > top ? s[r] : top;
    }
    p->top[i] = top;
    if (top == none) continue;
    float by_place[kSplitRows];
    float* terms = s;
    int n_place = p->n_key;
    if (p->place) {
      for (int r = 0; r < kSplitRows; ++r) by_place[r] = none;
      for (int r = 0; r < p->n_key; ++r)
        if (sees[r]) by_place[p->place[r]] = s[r];
      terms = by_place, n_place = kSplitRows;
    }
    for (int r = n_place; r % W != 0; ++r) terms[r] = none;
    vf sum{};
    for (int r = 0; r < n_place; r += W) {
      const vf x = exp_of(load(terms + r) - top);
      store(terms + r, x);
      sum += x;
    }
    if (p->place)
      for (int r = 0; r < p->n_key; ++r) s[r] = sees[r] ? by_place[p->place[r]] : 0.f;
    p->sum[i] = fold(sum);
    for (int e = 0; e < E; e += W) store(p->out + int64_t(i) * E + e, vf{});
  }
  for (int b = 0; b < p->n_key; b += W) {
    const int rows = p->n_key - b < W ? p->n_key - b : W;
    if (!any_row(p->v + b, rows)) continue;
    const float* v = decode_rows(p->v_type, p->v + b, rows, p->rows, E);
    in_groups<kWideQueries>(n, [&]<int Q>(int i) {
      const float* s = p->score + i * kPartKeys + b;
      float* o = p->out + int64_t(i) * E;
      bool all = rows == W && E % (kWide * W) == 0;
      for (int j = 0; j < Q; ++j) {
        all &= p->top[i + j] != none;
        for (int r = 0; r < W; ++r) all &= s[j * kPartKeys + r] != 0.f;
      }
      if (all) return add_rows<Q>(s, v, E, o);
      for (int j = 0; j < Q; ++j)
        if (p->top[i + j] != none) add_seen_rows(s + j * kPartKeys, rows, v, E, o + int64_t(j) * E);
    });
  }
}
