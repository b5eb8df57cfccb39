// Included by simd_*.cpp only, inside their anonymous namespaces, behind simd_float.h: attention among the tokens of a
// picture. kTileQueries, kTilePanels: how much the registers hold; no result depends on them.

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
    float top = p.top[at + i];
    for (int r = 0; r < p.n_key; ++r) top = s[r] > top ? s[r] : top;
    float rescale[W];
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
