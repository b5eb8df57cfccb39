#include "backend/cuda/cuda_parts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "backend/cuda/kernels/ops.h"
#include "base/threads.h"
#include "formats/widen.h"

namespace facet {

// --- step arrays

namespace {
// Offsets of the arrays for `cap` tokens and as many sequences; the last one is the size.
struct Offsets {
  size_t token, ancestor, pos, seq, out_row, q_begin, kv_len, slot, mask, end;
  explicit Offsets(int cap) {
    const size_t n = size_t(cap), i = n * 4;
    token = 0;
    ancestor = (i + 15) / 16 * 16;
    pos = ancestor + n * 8, seq = pos + i, out_row = seq + i, q_begin = out_row + i, kv_len = q_begin + i + 16,
    slot = kv_len + i;
    mask = slot + i;
    end = (mask + n + 15) / 16 * 16;
  }
};
}  // namespace

void Cuda::StepArrays::create(Cuda& c, int max_tok) {
  auto make = [&](Place& p, int cap) {
    if (p.cap >= cap) return;
    for (std::byte*& h : p.host)
      if (h) cudaFreeHost(std::exchange(h, nullptr));
    p.cap = cap;
    const size_t bytes = Offsets(cap).end;
    c.grow(p.device, bytes, "arrays of a step");
    for (std::byte*& h : p.host) h = static_cast<std::byte*>(c.device_.pinned(bytes, "arrays of a step"));
  };
  make(small, kSmall);
  if (max_tok > kSmall) make(large, max_tok);
}
Cuda::StepArrays::~StepArrays() {
  for (Place* p : {&small, &large})
    for (std::byte* h : p->host)
      if (h) cudaFreeHost(h);
}
Step Cuda::StepArrays::upload(Cuda& c, const Step& s, bool keep_tokens) {
  Place& p = s.shape.n_tok <= kSmall && s.shape.n_seq < kSmall ? small : large;
  CHECK(s.shape.n_tok <= p.cap && s.shape.n_seq <= p.cap, "a step of {} tokens, {} planned", s.shape.n_tok, p.cap);
  const Offsets o(p.cap);
  if (p.unread == kRing) c.finish();
  ++p.unread, ++p.later;
  std::byte* h = p.host[size_t(p.next)];
  p.next = (p.next + 1) % kRing;
  const size_t T = size_t(s.shape.n_tok), S = size_t(s.shape.n_seq), O = size_t(s.shape.n_out);
  auto put = [&](size_t at, const void* from, size_t bytes) { std::memcpy(h + at, from, bytes); };
  if (s.ancestor) put(o.ancestor, s.ancestor, T * 8);
  put(o.token, s.token, T * 4), put(o.pos, s.pos, T * 4), put(o.seq, s.seq, T * 4), put(o.out_row, s.out_row, O * 4);
  put(o.q_begin, s.q_begin, (S + 1) * 4), put(o.kv_len, s.kv_len, S * 4), put(o.slot, s.slot, S * 4),
      put(o.mask, s.mask, S);
  const size_t first = keep_tokens ? o.ancestor : 0;
  if (&p == &small)  // a copy would take longer to begin
    cuda::fetch(c.stream_, p.device + first, h + first, o.end - first);
  else
    CUDA_OK(cudaMemcpyAsync(p.device + first, h + first, o.end - first, cudaMemcpyHostToDevice, c.stream_));
  auto at = [&](size_t offset) { return reinterpret_cast<const int32_t*>(p.device + offset); };
  Step d = s;
  d.ancestor = reinterpret_cast<const uint64_t*>(p.device + o.ancestor);
  int32_t* const kept = std::exchange(token, reinterpret_cast<int32_t*>(p.device + o.token));
  if (keep_tokens && kept != token) CUDA_OK(cudaMemcpyAsync(token, kept, T * 4, cudaMemcpyDeviceToDevice, c.stream_));
  d.token = token, d.pos = at(o.pos), d.seq = at(o.seq), d.out_row = at(o.out_row);
  d.q_begin = at(o.q_begin), d.kv_len = at(o.kv_len), d.slot = at(o.slot);
  d.mask = reinterpret_cast<const Mask*>(p.device + o.mask);
  return d;
}

// --- weights

namespace {
constexpr int kMostFused = 3;  // matrices of a launch

// The tile that holds a type as it is; none for what the kernels do not read.
std::optional<cuda::Tile> tile_of(DType t) {
  switch (t) {
    case DType::kQ4_K:
      return cuda::Tile::kQ4_K;
    case DType::kQ5_K:
      return cuda::Tile::kQ5_K;
    case DType::kQ6_K:
      return cuda::Tile::kQ6_K;
    case DType::kQ4_0:
      return cuda::Tile::kQ4_0;
    case DType::kQ5_0:
      return cuda::Tile::kQ5_0;
    case DType::kQ8_0:
      return cuda::Tile::kQ8_0;
    case DType::kF16:
      return cuda::Tile::kF16;
    case DType::kBF16:
      return cuda::Tile::kBF16;
    default:
      return std::nullopt;
  }
}
DType kept_type(DType t) { return tile_of(t) ? t : wider_type(t); }
// Which experts are taken may hang on the last bits: in f32, without tiles.
bool is_router(const TensorView& t) { return t.name.ends_with("ffn_gate_inp.weight"); }
cuda::TiledMatrix tiles_of(const TensorView& t, Cuda::Fine which = Cuda::Fine::kNone) {
  const cuda::Tile tile = *tile_of(kept_type(t.type));
  const bool fine =
      which == Cuda::Fine::kAll || (which == Cuda::Fine::kAttention && t.name.find(".attn_") != std::string::npos);
  return {.p = nullptr,
          .tile = tile,
          .n_out = int(t.ne[1]),
          .n_in = int(t.ne[0]),
          .n_stack = int(t.ne[2]),
          .fine = fine && cuda::may_be_fine(tile)};
}
}  // namespace

// By elements: in files of K-quants of few bits other types fill in where columns do not divide.
Cuda::Fine Cuda::fineness(std::span<const TensorView> tensors) {
  auto is_precise = [](cuda::Tile t) { return t >= cuda::Tile::kQ6_K && t <= cuda::Tile::kQ8_0; };
  bool by_layer = false;
  int64_t fine = 0, all = 0;
  for (const TensorView& t : tensors) {
    by_layer |= t.name.starts_with("per_layer_token_embd");
    if (t.n_dims < 2 || is_router(t) || t.name.starts_with("token_embd") || t.name.starts_with("output.")) continue;
    all += t.n_elements();
    if (is_precise(tiles_of(t).tile)) fine += t.n_elements();
  }
  return 2 * fine > all ? Fine::kAll : by_layer ? Fine::kAttention : Fine::kNone;
}

int64_t Cuda::most_cols(const cuda::DeviceInfo& d, bool is_wide) {
  return cuda::skinny_most_cols(d, is_wide ? cuda::Input::kBf16 : cuda::Input::kByte);
}

Status Cuda::accepts(const std::string& file, std::span<const TensorView> tensors, int n_expert_used,
                     int64_t most_byte_cols, int64_t most_wide_cols) {
  constexpr const char* kRemedy = "use --backend cpu";
  auto refused = [&](const TensorView& t, const std::string& what) {
    return Error{file, fmt::format("{}: {}", t.name, what), kRemedy};
  };
  auto is_bf = [](const TensorView& t) { return tiles_of(t).tile >= cuda::Tile::kBF16; };
  const Fine fine = fineness(tensors);
  for (const TensorView& t : tensors) {
    if (t.n_dims < 2) continue;
    if (is_router(t)) {
      if (t.ne[1] > cuda::kMaxExperts || n_expert_used > cuda::kMaxUsed)
        return refused(t, fmt::format("expected at most {} experts, {} of them used, on a GPU; found {} and {}",
                                      cuda::kMaxExperts, cuda::kMaxUsed, t.ne[1], n_expert_used));
      if (t.ne[0] > cuda::kMaxRouterCols || t.ne[0] % 8 != 0)
        return refused(t, fmt::format("expected a multiple of 8 and at most {} columns on a GPU, found {}",
                                      cuda::kMaxRouterCols, t.ne[0]));
      continue;
    }
    if (const int64_t most = cuda::input_of(tiles_of(t, fine)) == cuda::Input::kByte ? most_byte_cols : most_wide_cols;
        t.ne[0] > most)
      return refused(t, fmt::format("expected at most {} columns of {} on this GPU, found {}", most,
                                    dtype_name(kept_type(t.type)), t.ne[0]));
    if (t.name.ends_with("ffn_down_exps.weight") && t.ne[0] % cuda::kTileRows != 0)
      return refused(
          t, fmt::format("expected experts of a multiple of {} columns on a GPU, found {}", cuda::kTileRows, t.ne[0]));
    // Gate and up are one product: both of bf16 or f16, or both quantised.
    const size_t at = t.name.find("ffn_gate");
    if (at == std::string::npos || t.name.find("ffn_gate_up") != std::string::npos) continue;
    const std::string up = t.name.substr(0, at) + "ffn_up" + t.name.substr(at + 8);
    for (const TensorView& u : tensors)
      if (u.name == up && is_bf(u) != is_bf(t))
        return refused(u, fmt::format("expected a type like {}'s ({}) on a GPU, found {}", t.name, dtype_name(t.type),
                                      dtype_name(u.type)));
  }
  return Ok{};
}

bool Cuda::keeps(const TensorView& t) { return t.n_dims < 2 || kept_type(t.type) == t.type || is_router(t); }
int64_t Cuda::weight_bytes(const TensorView& t) {
  if (t.n_dims < 2) return int64_t(t.data.size());
  return is_router(t) ? t.n_elements() * int64_t(sizeof(float)) : tiles_of(t).matrix_bytes() * t.ne[2];
}
int64_t Cuda::partial_bytes(const cuda::DeviceInfo& d, std::span<const TensorView> tensors) {
  int64_t most = 0;
  const Fine fine = fineness(tensors);
  for (const TensorView& t : tensors)
    if (t.n_dims == 2)
      most = std::max(most, kMostFused * cuda::skinny_partials(d, tiles_of(t, fine)) * int64_t(sizeof(float)));
  return most;
}

Cuda::Loader::~Loader() {
  for (Buffer& b : buffer) {
    if (b.host) cudaFreeHost(b.host);
    if (b.free) cudaEventDestroy(b.free);
  }
}

Cuda::Weight Cuda::upload(const TensorView& t) {
  names_.push_back(t.name);
  Weight w;
  w.type = t.type, w.n_in = t.ne[0], w.n_out = t.ne[1], w.n_stack = t.ne[2], w.name = names_.back().c_str();
  if (is_router(t)) {
    std::vector<float> f(static_cast<size_t>(t.n_elements()));
    dequantize_row(t.type, t.data.data(), f.data(), t.n_elements());
    float* p = static_cast<float*>(device_.allocate(f.size() * sizeof(float), t.name));
    if (p) CUDA_OK(cudaMemcpyAsync(p, f.data(), f.size() * sizeof(float), cudaMemcpyHostToDevice, stream_));
    w.f32 = p;
    return w;
  }
  const DType kept = kept_type(t.type);
  w.m = tiles_of(t, fine_);
  w.m.p = static_cast<uint8_t*>(device_.allocate(size_t(w.m.matrix_bytes() * w.n_stack), t.name));
  if (!w.m.p) return w;
  if (w.n_stack == 1) {
    most_partials_ = std::max(most_partials_, kMostFused * cuda::skinny_partials(device_.info(), w.m));
    most_image_ = std::max(most_image_, cuda::skinny_image_bytes(w.n_in));
  }

  const int64_t from_row = int64_t(row_bytes(t.type, w.n_in)), row = int64_t(row_bytes(kept, w.n_in));
  const int64_t rows = std::max<int64_t>(int64_t(Loader::kPiece) / row / cuda::kTileRows, 1) * cuda::kTileRows;
  for (int64_t stack = 0; stack < w.n_stack; ++stack)
    for (int64_t first = 0; first < w.n_out; first += rows) {
      const int64_t n = std::min(rows, w.n_out - first);
      Loader::Buffer& b = loader_->buffer[size_t(loader_->next)];
      loader_->next ^= 1;
      const size_t bytes = size_t(std::max<int64_t>(rows * row, int64_t(Loader::kPiece)));
      if (!b.host) {
        b.host = static_cast<std::byte*>(device_.pinned(bytes, "weights on their way"));
        b.device = static_cast<uint8_t*>(device_.allocate(bytes, "weights on their way"));
        if (!b.device) return w;
        CUDA_OK(cudaEventCreateWithFlags(&b.free, cudaEventDisableTiming));
      }
      CHECK(size_t(n * row) <= std::max<size_t>(Loader::kPiece, size_t(cuda::kTileRows * row)), "{}: a row of {} bytes",
            w.name, row);
      CUDA_OK(cudaEventSynchronize(b.free));
      const std::byte* from = t.data.data() + (stack * w.n_out + first) * from_row;
      const int threads = physical_cores();
      if (kept == t.type) {
        constexpr int64_t kCopy = 1 << 20;
        parallel_for((n * row + kCopy - 1) / kCopy, threads, [&](int64_t i) {
          std::memcpy(b.host + i * kCopy, from + i * kCopy, size_t(std::min(kCopy, n * row - i * kCopy)));
        });
      } else {
        parallel_for(n, threads, [&](int64_t r) { widen_row(t.type, from + r * from_row, b.host + r * row, w.n_in); });
      }
      CUDA_OK(cudaMemcpyAsync(b.device, b.host, size_t(n * row), cudaMemcpyHostToDevice, stream_));
      cuda::TiledMatrix part = w.m;
      part.p = w.m.strip(stack, int(first / cuda::kTileRows));
      part.n_out = int(n), part.n_stack = 1;
      cuda::repack(stream_, part, b.device, kept);
      CUDA_OK(cudaEventRecord(b.free, stream_));
    }
  return w;
}

// --- products of many rows

void Cuda::Gemm::create(Cuda& c, int64_t panel_n, int64_t second_n) {
  if (!handle) {
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) c.device_.fail("cuBLASLt", size_t(kWorkspace));
    workspace = c.device_.allocate(size_t(kWorkspace), "cuBLASLt");
  }
  c.grow(panel, size_t(panel_n), "weights of a long product");
  panel_elements = panel_n;
  c.grow(second, size_t(second_n), "results of a long product");
}
Cuda::Gemm::~Gemm() {
  plans.clear(drop);
  if (handle) cublasLtDestroy(handle);
}
void Cuda::Gemm::drop(Plan& p) {
  cublasLtMatrixLayoutDestroy(p.a), cublasLtMatrixLayoutDestroy(p.b), cublasLtMatrixLayoutDestroy(p.c);
  cublasLtMatmulDescDestroy(p.op);
}
bool Cuda::Gemm::fits(std::span<const Weight> w) const {
  for (const Weight& x : w)
    if (x.n_out * x.n_in > panel_elements) return false;
  return panel != nullptr;
}
void Cuda::Gemm::multiply(cudaStream_t stream, float* y, int64_t y_stride, const __nv_bfloat16* x, int64_t x_stride,
                          int n_row, int n_out, int n_in) {
  auto ok = [](cublasStatus_t s) { CHECK(s == CUBLAS_STATUS_SUCCESS, "cuBLASLt: status {}", int(s)); };
  Plan& p = plans.at({n_row, n_out, n_in, y_stride, x_stride}, drop);
  if (!p.op) {  // column-major: y^T [n_out, rows] = panel^T^T [n_out, n_in] x^T [n_in, rows]
    ok(cublasLtMatmulDescCreate(&p.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    ok(cublasLtMatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    ok(cublasLtMatrixLayoutCreate(&p.a, CUDA_R_16BF, uint64_t(n_in), uint64_t(n_out), n_in));
    ok(cublasLtMatrixLayoutCreate(&p.b, CUDA_R_16BF, uint64_t(n_in), uint64_t(n_row), x_stride));
    ok(cublasLtMatrixLayoutCreate(&p.c, CUDA_R_32F, uint64_t(n_out), uint64_t(n_row), y_stride));
    cublasLtMatmulPreference_t want = nullptr;
    ok(cublasLtMatmulPreferenceCreate(&want));
    const uint64_t bytes = uint64_t(kWorkspace);
    ok(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t found{};
    int n = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(handle, p.op, p.a, p.b, p.c, p.c, want, 1, &found, &n));
    CHECK(n == 1, "cuBLASLt has no way to multiply [{}, {}] by [{}, {}]", n_out, n_in, n_in, n_row);
    p.algo = found.algo;
    cublasLtMatmulPreferenceDestroy(want);
  }
  const float one = 1, zero = 0;
  ok(cublasLtMatmul(handle, p.op, &one, panel, p.a, x, p.b, &zero, y, p.c, y, p.c, &p.algo, workspace,
                    size_t(kWorkspace), stream));
}

// --- sampling

Cuda::Sampler::~Sampler() {
  for (void* p : pinned) cudaFreeHost(p);
}

namespace {
// What suppression, bias and penalties do to single logits, in sample_row's order.
void collect_adjust(const SampleRow& row, std::vector<cuda::Adjust>& to, std::vector<int32_t>& recent) {
  const Sampling& s = *row.sampling;
  const size_t first = to.size();
  const float none = -INFINITY;
  for (int32_t id : row.suppressed) to.push_back({id, none, 1.f, 0.f});
  for (const auto& [id, bias] : s.logit_bias) to.push_back({id, bias, 1.f, 0.f});
  if (s.repeat_penalty != 1.f || s.presence_penalty != 0.f || s.frequency_penalty != 0.f) {
    recent.clear();
    const size_t total = row.history.size() + row.draft.size();
    for (size_t i = s.repeat_last_n < 0 ? 0 : total - std::min(total, size_t(s.repeat_last_n)); i < total; ++i)
      recent.push_back(i < row.history.size() ? row.history[i] : row.draft[i - row.history.size()]);
    std::sort(recent.begin(), recent.end());
    for (size_t i = 0; i < recent.size();) {
      size_t end = i;
      while (end < recent.size() && recent[end] == recent[i]) ++end;
      to.push_back({recent[i], 0.f, s.repeat_penalty, float(end - i) * s.frequency_penalty + s.presence_penalty});
      i = end;
    }
  }
  // One change an id: a thread applies each.
  std::stable_sort(to.begin() + ptrdiff_t(first), to.end(),
                   [](const cuda::Adjust& a, const cuda::Adjust& b) { return a.id < b.id; });
  size_t n = first;
  for (size_t i = first; i < to.size(); ++i) {
    if (n > first && to[n - 1].id == to[i].id) {
      to[n - 1].bias += to[i].bias;
      if (to[i].penalty != 1.f) to[n - 1].penalty = to[i].penalty;
      to[n - 1].minus += to[i].minus;
    } else {
      to[n++] = to[i];
    }
  }
  to.resize(n);
}
}  // namespace

void Cuda::reserve_draws(int n_row, int n_adjust, int n_vocab) {
  Sampler& s = *sampler_;
  const int64_t need = cuda::draw_candidates(n_vocab) * n_row;
  if (n_row <= s.max_row && n_adjust <= s.max_adjust && need <= s.n_candidate) return;
  finish();
  forget_graphs();  // they hold addresses of what may move
  s.max_row = std::max({s.max_row, n_row, 16}), s.max_adjust = std::max(s.max_adjust, 2 * n_adjust + 4096);
  const size_t bytes = size_t(s.max_row) * sizeof(cuda::DrawRow) + size_t(s.max_adjust) * sizeof(cuda::Adjust);
  s.host = static_cast<std::byte*>(device_.pinned(bytes, "sampling"));
  if (s.host) s.pinned.push_back(s.host);
  grow(s.device, bytes, "sampling");
  s.n_candidate = std::max(s.n_candidate, cuda::draw_candidates(n_vocab) * s.max_row);
  grow(s.candidates, size_t(s.n_candidate), "sampling");
  grow(s.part_sums, size_t(s.n_candidate) / cuda::kMaxTopK, "sampling");
  if (grow(s.done.n_row, 1, "sampling")) CUDA_OK(cudaMemsetAsync(s.done.n_row, 0, sizeof(unsigned), stream_));
  if (const Status had = status(); !had) CHECK(false, "{}", had.error().message());
}
// The last draw is over: its masks have been read.
int Cuda::take_masks(std::span<const SampleRow> rows, int n_vocab) {
  Sampler& s = *sampler_;
  const size_t words = (size_t(n_vocab) + 31) / 32;
  size_t n = 0;
  for (const SampleRow& r : rows) n += !r.allowed.empty();
  if (n == 0) return 0;
  if (n * words > s.max_mask) {
    finish();
    s.max_mask = std::max(2 * n, size_t(8)) * words;
    s.host_masks = static_cast<uint32_t*>(device_.pinned(s.max_mask * sizeof(uint32_t), "masks"));
    if (s.host_masks) s.pinned.push_back(s.host_masks);
    grow(s.masks, s.max_mask, "masks");
    if (const Status had = status(); !had) CHECK(false, "{}", had.error().message());
  }
  n = 0;
  for (const SampleRow& r : rows) {
    if (r.allowed.empty()) continue;
    CHECK(r.allowed.size() == words, "a mask of {} words for {} logits", r.allowed.size(), n_vocab);
    std::memcpy(s.host_masks + words * n++, r.allowed.data(), words * sizeof(uint32_t));
  }
  CUDA_OK(cudaMemcpyAsync(s.masks, s.host_masks, n * words * sizeof(uint32_t), cudaMemcpyHostToDevice, stream_));
  return int(n);
}

// For the launch that comes next.
cuda::Done Cuda::next_results() {
  arrays_->results_asked_for();
  sampler_->pending = true;
  ++sampler_->done.number;
  return sampler_->done;
}

void Cuda::top_k(Ids ids, Scores log_probs, Rows logits, int k) { best_of(ids, log_probs, nullptr, logits, k); }
void Cuda::next_tokens(Ids ids, Scores log_probs, Rows logits, int k) {
  CHECK(logits.rows == step_.shape.n_tok, "{} rows for a step of {} tokens", logits.rows, step_.shape.n_tok);
  best_of(ids, log_probs, arrays_->token, logits, k);
}
void Cuda::pick_left() {
  if (sampler_->unpicked.n_row > 0) cuda::top_k_pick(stream_, std::exchange(sampler_->unpicked, {}));
}
void Cuda::best_of(Ids ids, Scores log_probs, int32_t* best, Rows logits, int k) {
  const size_t need = size_t(logits.rows) * size_t(k);
  CHECK(k > 0 && k <= cuda::kMaxTopK && ids.size() >= need && log_probs.size() >= need, "{} candidates for {} rows", k,
        logits.rows);
  pick_left();
  reserve_draws(logits.rows, 0, logits.cols);
  const cuda::Mat l = mat(logits, false);
  cuda::TopK to{.ids = ids.host_,
                .log_probs = log_probs.host_,
                .best = best,
                .candidates = sampler_->candidates,
                .part_sums = sampler_->part_sums,
                .n_row = logits.rows,
                .k = k};
  cuda::top_k_parts(stream_, l.p, l.stride, logits.cols, to);
  if (in_pass_ && best)
    sampler_->unpicked = to;
  else
    cuda::top_k_pick(stream_, to, in_pass_ ? cuda::Done{} : next_results());
}

namespace {
constexpr size_t kInPlace = 16;  // rows of parameters that a draw reads from the host's memory
}
void Cuda::sample(Ids ids, Rows logits, std::span<const SampleRow> rows, bool go_on) {
  CHECK(int(rows.size()) == logits.rows && ids.size() >= rows.size(), "{} rows for {} logits", rows.size(),
        logits.rows);
  pick_left();
  Sampler& s = *sampler_;
  s.adjust.clear();
  std::vector<cuda::DrawRow> draw(rows.size());
  bool greedy = true;
  int n_masked = 0;
  std::vector<size_t> on_host;  // rows that need more candidates than the device keeps, or all tokens before them
  for (size_t i = 0; i < rows.size(); ++i) {
    const Sampling& p = *rows[i].sampling;
    const bool best = p.temperature <= 0.f;
    const bool wide = p.uses_dry() || p.uses_xtc() || (!best && (p.top_k <= 0 || p.top_k > cuda::kMaxTopK));
    greedy &= best || wide;
    const int first = int(s.adjust.size());
    if (wide)
      on_host.push_back(i);
    else
      collect_adjust(rows[i], s.adjust, s.recent);
    draw[i] = {p.temperature,
               p.top_p,
               p.min_p,
               best || wide ? 1 : std::min(p.top_k, logits.cols),
               p.seed,
               rows[i].position,
               first,
               int(s.adjust.size()) - first,
               -1};
    if (!rows[i].allowed.empty()) draw[i].mask = n_masked++;
  }
  reserve_draws(int(rows.size()), int(s.adjust.size()), logits.cols);
  if (s.drawing) wait_for_results();
  const int n_mask = take_masks(rows, logits.cols);
  const size_t row_part = size_t(s.max_row) * sizeof(cuda::DrawRow);
  std::memcpy(s.host, draw.data(), draw.size() * sizeof(cuda::DrawRow));
  // Few rows are read where they are: a copy would have to wait for the logits and be waited for.
  const bool in_place = draw.size() <= kInPlace && n_mask == 0;  // every block reads a mask's
  if (!in_place)
    CUDA_OK(cudaMemcpyAsync(s.device, s.host, draw.size() * sizeof(cuda::DrawRow), cudaMemcpyHostToDevice, stream_));
  if (!s.adjust.empty()) {
    std::memcpy(s.host + row_part, s.adjust.data(), s.adjust.size() * sizeof(cuda::Adjust));
    CUDA_OK(cudaMemcpyAsync(s.device + row_part, s.host + row_part, s.adjust.size() * sizeof(cuda::Adjust),
                            cudaMemcpyHostToDevice, stream_));
  }
  const cuda::Mat l = mat(logits, false);
  std::vector<std::pair<size_t, int32_t>> drawn;
  for (size_t i : on_host) {
    finish();
    std::vector<float> row(static_cast<size_t>(logits.cols));
    CUDA_OK(cudaMemcpyAsync(row.data(), l.p + int64_t(i) * l.stride, row.size() * 4, cudaMemcpyDeviceToHost, stream_));
    CUDA_OK(cudaStreamSynchronize(stream_));
    drawn.push_back({i, sample_row(row, rows[i], s.scratch)});
  }
  Captured* const next = go_on && drawn.empty() ? next_graph(logits.rows) : nullptr;
  auto written = [](const int32_t* p) { return const_cast<int32_t*>(p); };  // by the device alone
  const cuda::GoOn arrays =
      next ? cuda::GoOn{.token = written(step_.token), .pos = written(step_.pos), .kv_len = written(step_.kv_len)}
           : cuda::GoOn{};
  cuda::draw(stream_, ids.host_, l.p, l.stride, logits.cols, int(rows.size()),
             reinterpret_cast<const cuda::DrawRow*>(in_place ? s.host : s.device),
             reinterpret_cast<const cuda::Adjust*>(s.device + row_part), int(s.adjust.size()), greedy, s.candidates,
             next_results(), arrays, s.masks, n_mask);
  s.drawing = true;
  if (next) {
    run(*next);
    ahead_.launched = true, ahead_.ids = ids.host_;
  }
  if (!drawn.empty()) finish();
  for (const auto& [i, id] : drawn) ids.host_[i] = id;
}

}  // namespace facet
