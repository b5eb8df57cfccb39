// Included by simd_*.cpp only, inside their anonymous namespaces, behind simd_float.h: attention among the tokens of a
// picture, and products of many rows of floats. kTileQueries, kTilePanels, kManyRows, kManyTok: how much the registers
// hold; no result depends on them. fold_many(a, y): y[r] = fold(a[r]) of the kFoldedRows rows that one call folds.

// ---- products: the sums of dots, whose lanes are kept in memory from one range of columns to the next

template <class L>
void widen(const std::byte* p, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(y + i, L::at(p + i * L::kBytes));
  if (i == n) return;
  float t[W];
  store(t, load_part_of<L>(p + i * L::kBytes, n - i));
  for (int64_t j = i; j < n; ++j) y[j] = t[j - i];
}

// Lanes of R weight rows times T rows, columns [0, n) of them, onto those in sum if this is not the first range.
template <int R, int T>
void many_block(const DotsPart& p, int r0, int t0) {
  vf a[R][T];
  float* const sum = p.sum + (int64_t(t0) * p.n_row + r0) * W;
  const float *w[R], *x[T];
  for (int r = 0; r < R; ++r) w[r] = p.w + (r0 + r) * p.w_stride;
  for (int t = 0; t < T; ++t) x[t] = p.x[t0 + t] + p.begin;
  const int64_t whole = p.n / W * W;
  for (int part = 0; part < kParts; ++part) {
    const int first = part * (W / kParts);
    vpart s[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t)
        s[r][t] = p.first ? vpart{} : load_part_at(sum + (int64_t(t) * p.n_row + r) * W + first);
    for (int64_t i = first; i < whole; i += W) {
      vpart xv[T];
      for (int t = 0; t < T; ++t) xv[t] = load_part_at(x[t] + i);
      for (int r = 0; r < R; ++r) {
        const vpart wv = load_part_at(w[r] + i);
        for (int t = 0; t < T; ++t) s[r][t] = fma(wv, xv[t], s[r][t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) part_of(a[r][t], part) = s[r][t];
  }
  if (const int64_t i = whole; i < p.n)
    for (int r = 0; r < R; ++r) {
      const vf wv = load_part(w[r] + i, p.n - i);
      for (int t = 0; t < T; ++t) a[r][t] = fma(wv, load_part(x[t] + i, p.n - i), a[r][t]);
    }
  for (int t = 0; t < T; ++t) {
    if (p.y) {
      float* const y = p.y + (t0 + t) * p.y_stride + r0;
      if constexpr (R == kFoldedRows) {
        vf rows[R];
        for (int r = 0; r < R; ++r) rows[r] = a[r][t];
        fold_many(rows, y);
      } else {
        for (int r = 0; r < R; ++r) y[r] = fold(a[r][t]);
      }
    } else {
      for (int r = 0; r < R; ++r) store(sum + (int64_t(t) * p.n_row + r) * W, a[r][t]);
    }
  }
}
template <int T>
void many_tokens(const DotsPart& p, int t0) {
  int r = 0;
  for (; r + kManyRows <= p.n_row; r += kManyRows) many_block<kManyRows, T>(p, r, t0);
  for (; r < p.n_row; ++r) many_block<1, T>(p, r, t0);
}
void dots_part(const DotsPart* p) {  // the weights stay in the first cache, rows pass by
  int t = 0;
  for (; t + kManyTok <= p->n_tok; t += kManyTok) many_tokens<kManyTok>(*p, t);
  for (; t < p->n_tok; ++t) many_tokens<1>(*p, t);
}

// ---- attention

// Scores of Q queries with P panels of W keys each.
template <int Q, int P>
void encoder_scores(const float* query, int64_t stride, const float* k, int E, float scale, float* score) {
  vf a[Q][P] = {};
  for (int e = 0; e < E; ++e) {
    vf key[P];
    for (int p = 0; p < P; ++p) key[p] = load(k + (int64_t(p) * E + e) * W);
    for (int i = 0; i < Q; ++i) {
      const vf q = splat(query[i * stride + e]);
      for (int p = 0; p < P; ++p) a[i][p] = fma(q, key[p], a[i][p]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int p = 0; p < P; ++p) store(score + i * kEncoderKeys + p * W, a[i][p] * scale);
}
// Adds to Q results of C W columns the rows of v times their weights.
template <int Q, int C>
void encoder_values(const float* weight, const float* v, int n_key, int cols, float* out) {
  vf a[Q][C];
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) a[i][c] = load(out + i * cols + c * W);
  for (int r = 0; r < n_key; ++r) {
    vf row[C];
    for (int c = 0; c < C; ++c) row[c] = load(v + int64_t(r) * cols + c * W);
    for (int i = 0; i < Q; ++i) {
      const vf w = splat(weight[i * kEncoderKeys + r]);
      for (int c = 0; c < C; ++c) a[i][c] = fma(w, row[c], a[i][c]);
    }
  }
  for (int i = 0; i < Q; ++i)
    for (int c = 0; c < C; ++c) store(out + i * cols + c * W, a[i][c]);
}
template <int Q>
void encoder_tile(const EncoderPart& p, int at) {
  const float* query = p.query + at * p.query_stride;
  float* score = p.score + at * kEncoderKeys;
  int j = 0;
  for (; j + kTilePanels * W <= p.n_key; j += kTilePanels * W)
    encoder_scores<Q, kTilePanels>(query, p.query_stride, p.k + int64_t(j) * p.head_dim, p.head_dim, p.scale,
                                   score + j);
  for (; j < p.n_key; j += W)
    encoder_scores<Q, 1>(query, p.query_stride, p.k + int64_t(j) * p.head_dim, p.head_dim, p.scale, score + j);
  const int n_panel = (p.n_key + W - 1) / W * W, cols = p.value_cols;
  for (int i = 0; i < Q; ++i) {
    float *s = score + i * kEncoderKeys, *out = p.out + (at + i) * cols;
    for (int r = p.n_key; r < n_panel; ++r) s[r] = -__builtin_inff();
    vf tops = load(s);
    for (int r = W; r < n_panel; r += W) tops = larger(load(s + r), tops);
    float rescale[W], top = p.top[at + i];
    store(rescale, tops);
    for (int r = 0; r < W; ++r) top = rescale[r] > top ? rescale[r] : top;
    store(rescale, exp_of(splat(p.top[at + i] - top)));
    p.top[at + i] = top;
    vf sum{};
    for (int r = 0; r < n_panel; r += W) {
      const vf x = exp_of(load(s + r) - top);
      store(s + r, x);
      sum += x;
    }
    p.sum[at + i] = p.sum[at + i] * rescale[0] + fold(sum);
    for (int c = 0; c < cols; c += W) store(out + c, load(out + c) * rescale[0]);
  }
  int c = 0;
  for (; c + kTilePanels * W <= cols; c += kTilePanels * W)
    encoder_values<Q, kTilePanels>(score, p.v + c, p.n_key, cols, p.out + at * cols + c);
  for (; c < cols; c += W) encoder_values<Q, 1>(score, p.v + c, p.n_key, cols, p.out + at * cols + c);
}
void encoder_attend(const EncoderPart* p) {
  int i = 0;
  for (; i + kTileQueries <= p->n_query; i += kTileQueries) encoder_tile<kTileQueries>(*p, i);
  for (; i < p->n_query; ++i) encoder_tile<1>(*p, i);
}
