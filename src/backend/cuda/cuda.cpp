#include "backend/cuda/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "backend/cuda/cuda_parts.h"
#include "backend/cuda/kernels/common/narrow.h"
#include "backend/cuda/kernels/ops.h"
#include "backend/cuda/kernels/probe.h"

namespace facet {

using cuda::Mat;

Status Cuda::usable(int gpu) {
  int n = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&n); e != cudaSuccess || n == 0)
    return Error{"--backend cuda",
                 fmt::format("no NVIDIA GPU can be used: {}", e != cudaSuccess ? cudaGetErrorString(e) : "none found"),
                 "install a driver for CUDA 12.8 or newer, or use --backend cpu"};
  if (gpu < 0 || gpu >= n)
    return Error{"--gpu", fmt::format("expected 0 to {}, found {}", n - 1, gpu), "nvidia-smi lists them"};
  cudaDeviceProp p;
  CUDA_OK(cudaGetDeviceProperties(&p, gpu));
  if (p.major < 8)
    return Error{"--gpu",
                 fmt::format("{}: expected compute capability 8.0 or newer, found {}.{}", p.name, p.major, p.minor),
                 "use --backend cpu"};
  return Ok{};
}

Result<int64_t> Cuda::free_memory(int gpu) {
  if (auto ok = usable(gpu); !ok) return ok.error();
  int before = gpu;
  cudaGetDevice(&before);
  size_t free = 0, total = 0;
  cudaError_t e = cudaSetDevice(gpu);
  if (e == cudaSuccess) e = cudaMemGetInfo(&free, &total);
  if (before != gpu && cuda::Device::is_any_current()) cudaSetDevice(before);
  if (e == cudaSuccess) return int64_t(free);
  cudaGetLastError();
  return Error{fmt::format("GPU {}", gpu), fmt::format("cannot be used: {}", cudaGetErrorString(e)),
               "end other programs on it (nvidia-smi lists them), or use --backend cpu"};
}

Cuda::Cuda(int gpu, int64_t fail_at) : device_(gpu, fail_at) {
  arrays_ = std::make_unique<StepArrays>();
  sampler_ = std::make_unique<Sampler>();
  loader_ = std::make_unique<Loader>();
  gemm_ = std::make_unique<Gemm>();
}

Cuda::~Cuda() {
  make_current();
  cudaStreamSynchronize(stream_);
  forget_graphs();
  gemm_.reset();
  loader_.reset();
  sampler_.reset();
  arrays_.reset();
  for (const cudaEvent_t e : marks_) cudaEventDestroy(e);
}

void Cuda::finish() {
  CUDA_OK(cudaStreamSynchronize(stream_));
  arrays_->results_asked_for();
  results_there();
}
void Cuda::results_there() {
  arrays_->results_there();
  sampler_->pending = sampler_->drawing = false;
}

template <class T>
T* Cuda::copied(std::span<const T> values) {
  T* p = static_cast<T*>(device_.allocate(values.size_bytes(), "constants"));
  if (p) CUDA_OK(cudaMemcpyAsync(p, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream_));
  return p;
}
Cuda::Vec Cuda::upload(std::span<const float> gain) { return {copied(gain), int(gain.size())}; }
Cuda::Freqs Cuda::upload(std::span<const double> freqs) { return {copied(freqs), int(freqs.size())}; }
Cuda::Table Cuda::upload(std::span<const int32_t> values) { return {copied(values), int(values.size())}; }
Cuda::Rows Cuda::new_rows(int rows, int cols) {
  Buffer b;
  b.rows = rows, b.cols = cols, b.stride = (cols + 7) / 8 * 8;
  const size_t n = size_t(rows) * size_t(b.stride);
  b.p = static_cast<float*>(device_.allocate(n * sizeof(float), "activations"));
  b.bf = static_cast<__nv_bfloat16*>(device_.allocate(n * sizeof(__nv_bfloat16), "activations"));
  if (b.p) CUDA_OK(cudaMemsetAsync(b.p, 0, n * sizeof(float), stream_));
  buffers_.push_back(b);
  return {&buffers_.back(), rows, cols, 0, 0};
}
template <class T>
Cuda::Results<T> Cuda::new_results(int n) {
  Results<T> r;
  r.owner_ = this, r.n_ = size_t(n);
  r.host_ = static_cast<T*>(device_.pinned(size_t(n) * sizeof(T), "results"));
  if (r.host_) sampler_->pinned.push_back(r.host_);
  uint32_t*& flag = sampler_->done.flag;
  if (!flag && (flag = static_cast<uint32_t*>(device_.pinned(sizeof(uint32_t), "results"))))
    sampler_->pinned.push_back(flag), *flag = 0;
  return r;
}
template Cuda::Results<int32_t> Cuda::new_results<int32_t>(int n);
template Cuda::Results<float> Cuda::new_results<float>(int n);
// The kernel that writes results says when they are there, which is sooner than the end of the stream is known.
void Cuda::wait_for_results() {
  if (!sampler_->pending) return;
  const cuda::Done& d = sampler_->done;
  constexpr int kLooks = 1 << 14;  // between questions whether the device still works
  for (int i = 1; std::atomic_ref(*d.flag).load(std::memory_order_acquire) != d.number; ++i) {
    if (i % kLooks == 0 && cudaStreamQuery(stream_) != cudaErrorNotReady) return finish();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  results_there();
}

namespace {
cuda::MoeSizes moe_sizes(const BackendLimits& l) {
  return {.d = l.d_moe, .d_expert = l.d_expert, .n_expert = l.n_expert, .n_used = l.n_expert_used, .n_tok = l.max_tok};
}
// Of the kernels for many tokens: all of it, and the panel of weights. GPUs with little memory hold a part of a layer's
// experts at a time.
struct MoeMemory {
  int64_t bytes, panel_bytes;
};
MoeMemory moe_many_memory(const cuda::DeviceInfo& d, const BackendLimits& l) {
  const bool roomy = d.memory >= int64_t(40) << 30;
  const int64_t panel = roomy ? int64_t(1) << 40 : int64_t(256) << 20;
  return {cuda::moe_many_bytes(moe_sizes(l), panel), panel};
}
// Launch sizes follow the longest sequence in coarse steps, so that few graphs serve many lengths.
int64_t row_bucket(int64_t rows) { return std::max<int64_t>(1024, int64_t(std::bit_ceil(uint64_t(rows)))); }
// Scratch for the longest sequence as begin_step() rounds it.
size_t attend_bytes(BackendLimits l) {
  l.max_rows = row_bucket(l.max_rows);
  return cuda::attend_scratch_bytes(l, l.n_q_head, l.head_dim);
}
}  // namespace

void Cuda::reserve(const BackendLimits& more) {
  finish();
  forget_graphs();  // they hold addresses of what may move
  limits_ = limits_.with(more);
  const BackendLimits& l = limits_;
  const cuda::DeviceInfo& d = device_.info();
  const size_t rows = size_t(l.max_tok);
  grow(partial_, size_t(most_partials_));
  const size_t n_counter = size_t(cuda::skinny_counters(d));
  if (grow(counter_, n_counter + 1)) CUDA_OK(cudaMemsetAsync(counter_, 0, (n_counter + 1) * sizeof(unsigned), stream_));
  if (grow(image_, size_t(most_image_))) CUDA_OK(cudaMemsetAsync(image_, 0, size_t(most_image_), stream_));
  attend_.bytes = attend_bytes(l);
  device_.grow(attend_.p, attend_.bytes, "scratch");
  arrays_->create(*this, l.max_tok);
  if (l.max_tok > kSkinnyMost && d.cublaslt) gemm_->create(*this, l.max_matrix, int64_t(l.max_tok) * l.max_cols);
  if (l.n_cluster > 0 && (cluster_score_.rows < l.max_tok || cluster_score_.cols < l.n_cluster)) {
    if (cluster_score_) device_.release(cluster_score_.buffer->p), device_.release(cluster_score_.buffer->bf);
    cluster_score_ = new_rows(l.max_tok, l.n_cluster);
    grow(cluster_chosen_, rows * size_t(l.n_cluster));
  }
  if (l.n_expert > 0) {
    cuda::Routing& r = moe_.routing;
    const size_t few = size_t(std::min(l.max_tok, cuda::kMoeRows)), pairs = few * size_t(l.n_expert_used),
                 n = size_t(l.n_expert);
    if (grow(r.logits, few * n)) CUDA_OK(cudaMemsetAsync(r.logits, 0, few * n * sizeof(uint64_t), stream_));
    grow(r.weight, pairs);
    grow(r.expert, pairs);
    grow(r.active, n + 1);
    grow(r.first, n + 2);
    grow(r.pair, pairs);
    r.number = counter_ + n_counter;
    grow(moe_.hidden, pairs * size_t(l.d_expert));
    grow(moe_.out, pairs * size_t(l.d_moe));
    if (l.max_tok > kSkinnyMost) {
      const auto [bytes, panel] = moe_many_memory(d, l);
      grow(moe_memory_, size_t(bytes));
      moe_many_ = cuda::moe_many_buffers(moe_memory_, moe_sizes(l), panel);
    }
  }
}

int64_t Cuda::reserve_bytes(const cuda::DeviceInfo& d, const BackendLimits& l) {
  int64_t n = int64_t(attend_bytes(l)) + int64_t(2 * Loader::kPiece) + cuda::skinny_image_bytes(l.max_cols);
  if (l.max_tok > kSkinnyMost && d.cublaslt)
    n += int64_t(l.max_tok) * l.max_cols * 4 + l.max_matrix * 2 + Gemm::kWorkspace;
  n += int64_t(l.max_tok) * l.n_cluster * 7;
  if (l.n_expert > 0) n += int64_t(cuda::kMoeRows) * l.n_expert_used * (l.d_expert * 2 + l.d_moe * 4);
  if (l.n_expert > 0 && l.max_tok > kSkinnyMost) n += moe_many_memory(d, l).bytes;
  return n;
}

std::vector<float> Cuda::to_host(Rows x) {
  std::vector<float> v(size_t(x.rows) * size_t(x.cols));
  settle();
  finish();
  CUDA_OK(cudaMemcpy2DAsync(v.data(), size_t(x.cols) * 4, x.buffer->p + x.first * x.buffer->stride + x.begin,
                            size_t(x.buffer->stride) * 4, size_t(x.cols) * 4, size_t(x.rows), cudaMemcpyDeviceToHost,
                            stream_));
  CUDA_OK(cudaStreamSynchronize(stream_));
  return v;
}
void Cuda::from_host(Rows x, std::span<const float> values) {
  settle();
  finish();
  CUDA_OK(cudaMemcpy2DAsync(x.buffer->p + x.first * x.buffer->stride + x.begin, size_t(x.buffer->stride) * 4,
                            values.data(), size_t(x.cols) * 4, size_t(x.cols) * 4, size_t(x.rows),
                            cudaMemcpyHostToDevice, stream_));
  CUDA_OK(cudaStreamSynchronize(stream_));
  x.buffer->fresh_rows = 0;
  if (image_of_ == x.buffer) image_of_ = nullptr;
}

// --- steps and graphs

void Cuda::begin_step(const Step& s) { take_step(s, false); }
void Cuda::next_step(const Step& s) {
  CHECK(s.shape.n_tok <= step_.shape.n_tok, "{} rows after {}", s.shape.n_tok, step_.shape.n_tok);
  if (s.shape.n_tok < step_.shape.n_tok) take_step(s, true);
}
void Cuda::take_step(const Step& s, bool keep_tokens) {
  settle();  // that is of the step before
  forget_rounded();
  if (keep_tokens)
    ahead_.launched = false, ahead_.pos.clear();
  else if (went_on(s))
    return;
  step_ = arrays_->upload(*this, s, keep_tokens);
  step_.shape.longest = int(row_bucket(s.shape.longest));
  // Powers of two: few graphs serve many trees.
  if (s.shape.n_path > 0) step_.shape.n_path = int(std::bit_ceil(unsigned(s.shape.n_path)));
}

bool Cuda::went_on(const Step& s) {
  auto& a = ahead_;
  a.running = nullptr;
  const StepShape& h = s.shape;
  const size_t n = size_t(h.n_tok);
  auto each = [&](auto&& f) {
    for (size_t i = 0; i < n; ++i)
      if (!f(i)) return false;
    return true;
  };
  const bool single =
      h.n_tok <= kGraphRows && h.n_seq == h.n_tok && h.n_out == h.n_tok && h.n_small == h.n_tok && h.n_path == 0 &&
      !h.staged && each([&](size_t i) {
        return s.seq[i] == int(i) && s.out_row[i] == int(i) && s.pos[i] == s.kv_len[i] && s.mask[i] == Mask::kCausal;
      });
  const bool launched = std::exchange(a.launched, false);
  if (launched) wait_for_results();
  const bool same =
      launched && single && n == a.pos.size() && row_bucket(h.longest) == step_.shape.longest && each([&](size_t i) {
        return s.token[i] == a.ids[i] && s.pos[i] == a.pos[i] + 1 && s.kv_len[i] == a.kv_len[i] + 1 &&
               s.slot[i] == a.slot[i];
      });
  counters_.in_vain += launched && !same;
  a.longest = h.longest;
  for (auto [to, from] : {std::pair(&a.pos, s.pos), {&a.kv_len, s.kv_len}, {&a.slot, s.slot}})
    to->assign(from, from + (single ? n : 0));
  if (same) a.running = newest_pass_;
  return same;
}
Cuda::Captured* Cuda::next_graph(int n_row) {
  if (ahead_.pos.empty() || size_t(n_row) != ahead_.pos.size() || row_bucket(ahead_.longest + 1) != step_.shape.longest)
    return nullptr;
  Captured* c = find(newest_pass_);
  return c && c->exec ? c : nullptr;
}

void Cuda::forget_rounded() {
  for (Buffer& b : buffers_) b.fresh_rows = 0;
  image_of_ = nullptr;
}

void Cuda::drop(Captured& c) {
  if (c.exec) cudaGraphExecDestroy(c.exec);  // one that still runs goes when it is done
}
void Cuda::forget_graphs() { captured_.clear(drop); }

Cuda::Captured* Cuda::find(const void* key) {
  if (!graphs_ || step_.shape.n_tok > kGraphRows || step_.shape.staged) return nullptr;
  return &captured_.at({key, step_.shape}, drop);
}
void Cuda::begin_capture() { CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }
void Cuda::end_capture(Captured& c) {
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamEndCapture(stream_, &graph));
  CUDA_OK(cudaGraphInstantiate(&c.exec, graph, 0));
  CUDA_OK(cudaGraphDestroy(graph));
  ++counters_.captures;
}
void Cuda::run(Captured& c) {
  CUDA_OK(cudaGraphLaunch(c.exec, stream_));
  ++counters_.graph_launches;
  forget_rounded();
}

void Cuda::mark() {
  if (n_mark_ == marks_.size()) CUDA_OK(cudaEventCreate(&marks_.emplace_back()));
  CUDA_OK(cudaEventRecord(marks_[n_mark_++], stream_));
}
void Cuda::hold() {
  constexpr double kMs = 4;  // in which a host launches what a queue holds
  cuda::pass_time(stream_, kMs);
}
std::vector<double> Cuda::laps() {
  finish();
  std::vector<double> ms;
  for (size_t i = 1; i < n_mark_; ++i) {
    float t = 0;
    CUDA_OK(cudaEventElapsedTime(&t, marks_[i - 1], marks_[i]));
    ms.push_back(double(t));
  }
  n_mark_ = 0;
  return ms;
}

// --- activations

// The experts' outputs are added up by the verb that reads them, or here.
void Cuda::combine() {
  const Rows to = uncombined_.to;
  uncombined_.to = {};
  cuda::moe_small_combine(stream_, mat(to, false), moe_.out, moe_.routing.weight, uncombined_.n_used);
}
// A product's partial sums are added up by the norm that reads them, or here.
void Cuda::sum_left() {
  const Rows to = unsummed_.to;
  unsummed_.to = {};
  cuda::sum_partials(stream_, mat(to, false), unsummed_.left);
}
// What comes between projections and attention is done by attend, or here.
void Cuda::run_heads() {
  heads_.of_q = nullptr;
  cuda::run_heads(stream_, heads_.kv, heads_.q, step_, heads_.left);
}
// Nothing is left to be done.
void Cuda::settle() {
  pick_left();
  if (heads_.of_q) run_heads();
  if (uncombined_.to) combine();
  if (unsummed_.to) sum_left();
}
// The partial sums of y, which the caller adds up; none if y has them all.
cuda::Partials Cuda::take_left(const Rows& y) {
  const Rows& to = unsummed_.to;
  if (to.buffer != y.buffer || to.rows != y.rows || to.cols != y.cols || y.first != to.first || y.begin != to.begin)
    return {};
  unsummed_.to = {};
  return unsummed_.left;
}
Mat Cuda::mat(const Rows& x, bool bf) { return mat_at(x, 0, x.rows, bf); }
Mat Cuda::mat_at(const Rows& x, int row, int n, bool bf) {
  if (heads_.of_q && (heads_.of_q == x.buffer || heads_.of_k == x.buffer || heads_.of_v == x.buffer)) run_heads();
  if (uncombined_.to.buffer == x.buffer) combine();
  if (unsummed_.to.buffer == x.buffer) sum_left();
  const Buffer& b = *x.buffer;
  const int64_t at = (x.first + row) * b.stride + x.begin;
  return {.p = b.p + at,
          .rows = n,
          .cols = x.cols,
          .stride = b.stride,
          .bf = bf ? b.bf + at : nullptr,
          .bf_stride = b.stride};
}
Mat Cuda::written(const Rows& x, bool bf) {
  Buffer& b = *x.buffer;
  if (image_of_ == x.buffer) image_of_ = nullptr;
  bf = bf && x.first == 0;
  if (bf)
    b.fresh_rows = x.rows, b.fresh_begin = x.begin, b.fresh_end = x.begin + x.cols;
  else if (x.begin < b.fresh_end && x.begin + x.cols > b.fresh_begin)
    b.fresh_rows = 0;
  return mat(x, bf);
}
// As written(x, true) by a kernel that writes the rows in 8 bits too, if they are few.
Mat Cuda::written_in_8_bits(const Rows& x) {
  Mat m = written(x, true);
  if (x.rows < 2 || x.rows > cuda::kSkinnyRows || x.first != 0 || x.begin != 0) return m;
  if (cuda::skinny_image_bytes(x.cols) > most_image_) return m;
  m.image = image_;
  image_of_ = x.buffer, image_rows_ = x.rows, image_cols_ = x.cols;
  return m;
}
const __nv_bfloat16* Cuda::rounded(const Rows& x) {
  Buffer& b = *x.buffer;
  if (x.first + x.rows > b.fresh_rows || x.begin < b.fresh_begin || x.begin + x.cols > b.fresh_end)
    cuda::to_bf16(stream_, x.first == 0 ? written(x, true) : mat(x, true));
  return b.bf + x.first * b.stride + x.begin;
}
int Cuda::small_rows(int rows) const { return rows == step_.shape.n_tok ? step_.shape.n_small : rows; }

// --- matrix products

void Cuda::products(std::span<const Rows> y, const Rows& x, std::span<const Weight> w, bool glu, Act act,
                    const Rows* twin, cuda::SkinnyWork work) {
  if (unsummed_.to) sum_left();  // their memory is used again
  const __nv_bfloat16* in = rounded(x);
  const int64_t stride = x.buffer->stride;
  const int rows = x.rows, small = small_rows(rows);
  const bool long_gemm = rows - small > kSkinnyMost && gemm_->fits(w);
  const bool in_bytes =
      std::ranges::all_of(w, [](const Weight& m) { return cuda::input_of(m.m) == cuda::Input::kByte; });
  for (size_t i = 0; i < y.size(); ++i) written(y[i], glu);
  if (twin) written(*twin, false);
  const int last = long_gemm ? small : rows;
  for (int row = 0, n = 0; row < last; row += n) {
    n = std::min(cuda::kSkinnyRows, last - row);
    cuda::SkinnyMatrix m[3] = {};
    for (size_t i = 0; i < w.size(); ++i) {
      m[i].w = w[i].m;
      const Rows& to = y[glu ? 0 : i];
      const Mat at = mat_at(to, row, n, glu);
      m[i].y = at.p, m[i].y_stride = at.stride, m[i].y_bf = at.bf, m[i].y_bf_stride = at.bf_stride;
      if (twin && i == 1) m[i].y_also = mat_at(*twin, row, n, false).p;
    }
    const bool ready = in_bytes && image_of_ == x.buffer && n == rows && rows == image_rows_ && x.first == 0 &&
                       x.begin == 0 && x.cols == image_cols_;
    if (!ready) image_of_ = nullptr;
    work.partial = partial_, work.counter = counter_, work.image = image_, work.image_ready = ready;
    work.leave = w.size() == 1 && n == y[0].rows && !twin;
    const cuda::Partials left = cuda::skinny(stream_, m, int(w.size()), glu, act, in + row * stride, stride, n, work);
    if (left.p) unsummed_ = {.to = y[0], .left = left};
    work.beside = nullptr;
  }
  if (!long_gemm) return;
  const int n = rows - small;
  if (glu) {
    const Mat to = mat_at(y[0], small, n, true);
    gemm(to.p, to.stride, in + small * stride, stride, n, w[0]);
    gemm(gemm_->second, to.cols, in + small * stride, stride, n, w[1]);
    cuda::act_mul(stream_, to, to, {.p = gemm_->second, .rows = n, .cols = to.cols, .stride = to.cols}, act);
    return;
  }
  for (size_t i = 0; i < w.size(); ++i) {
    const Mat to = mat_at(y[i], small, n, false);
    gemm(to.p, to.stride, in + small * stride, stride, n, w[i]);
    if (twin && i == 1) cuda::copy_cols(stream_, mat_at(*twin, small, n, false), 0, to);
  }
}

void Cuda::gemm(float* y, int64_t y_stride, const __nv_bfloat16* x, int64_t x_stride, int n_row, const Weight& w) {
  cuda::unpack_bf16(stream_, gemm_->panel, w.m, 0, 0, int(w.n_out));
  gemm_->multiply(stream_, y, y_stride, x, x_stride, n_row, int(w.n_out), int(w.n_in));
}

void Cuda::matmul(Rows y, Rows x, Weight w) {
  CHECK(w.n_in == x.cols && w.n_out == y.cols && x.rows == y.rows, "{}: [{} x {}] times [{}, {}] into [{}, {}]", w.name,
        w.n_out, w.n_in, x.rows, x.cols, y.rows, y.cols);
  if (y.rows > 0) products({&y, 1}, x, {&w, 1}, false, Act::kGelu, nullptr);
}

void Cuda::matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) {
  products({&y, 1}, x, {&w, 1}, false, Act::kGelu, nullptr, {.in_turn = true});
  products({&z, 1}, x, {&u, 1}, false, Act::kGelu, nullptr, {.late = true});
}

void Cuda::qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
  const Rows y[3] = {q, k, v};
  const Weight w[3] = {wq, wk, wv};
  const size_t n = wv ? 3 : 2;
  products(std::span(y, n), h, std::span(w, n), false, Act::kGelu, wv ? nullptr : &v);
}

void Cuda::gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
  const Weight w[2] = {gate, up};
  products({&y, 1}, h, w, true, act, nullptr);
}

namespace {
cuda::MoeExperts experts_of(const MoeWeights<Cuda::Weight, Cuda::Vec>& w, int n_used, Act act) {
  cuda::MoeExperts m;
  m.d_expert = int(w.down.n_in);
  if (w.gate_up)
    m.gate = m.up = w.gate_up.m, m.up_strip = m.d_expert / cuda::kTileRows;
  else
    m.gate = w.gate.m, m.up = w.up.m;
  m.down = w.down.m;
  m.router = w.router.f32, m.scale = w.scale.p;
  m.n_expert = int(w.router.n_out), m.n_used = n_used, m.act = act;
  CHECK(m.router && m.d_expert % cuda::kTileRows == 0, "{}: a router in f32 and experts of a multiple of 16 rows",
        w.router.name);
  return m;
}
}  // namespace

void Cuda::moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
  const cuda::MoeExperts m = experts_of(w, n_used, act);
  rounded(e);
  written(y, false);
  const int small = small_rows(y.rows), many = y.rows - small > kSkinnyMost ? y.rows - small : 0, last = y.rows - many;
  for (int row = 0, n = 0; row < last; row += n) {
    n = std::min(cuda::kMoeRows, last - row);
    cuda::route(stream_, cuda::route_job(m, mat_at(r, row, n, false), n, moe_.routing));
    cuda::moe_small(stream_, m, mat_at(e, row, n, true), n, moe_);
    if (y.rows <= cuda::kMoeRows)
      uncombined_ = {.to = y, .n_used = n_used};
    else
      cuda::moe_small_combine(stream_, mat_at(y, row, n, false), moe_.out, moe_.routing.weight, n_used);
  }
  if (many > 0)
    cuda::moe_many(stream_, m, mat_at(y, last, many, false), mat_at(e, last, many, true), mat_at(r, last, many, false),
                   moe_many_);
}

// Few tokens: the routing runs beside the product of gate and up, and the first half of the experts beside down.
void Cuda::ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                          MoeWeights<Weight, Vec> w, int n_used, Act act) {
  if (y.rows > cuda::kMoeRows) {
    gate_up(g, h, gate, up, act);
    matmul(y, g, down);
    return moe(o, e, r, w, n_used, act);
  }
  const cuda::MoeExperts m = experts_of(w, n_used, act);
  // moe_small reads early what the routing writes; one token's experts are looked for until they are there.
  const bool ahead = y.rows == 1 && h.cols > cuda::kNarrowCols;
  cuda::RouteJob routing = cuda::route_job(m, mat(r, false), y.rows, moe_.routing);
  routing.ahead = ahead;
  rounded(e);
  const Weight both[2] = {gate, up};
  products({&g, 1}, h, both, true, act, nullptr, {.beside = &routing, .in_turn = ahead, .thirds = 1});
  products({&y, 1}, g, {&down, 1}, false, act, nullptr, {.in_turn = !ahead, .ahead = ahead, .thirds = 1});
  written(o, false);
  cuda::moe_small(stream_, m, mat(e, true), y.rows, moe_, true);
  uncombined_ = {.to = o, .n_used = n_used};
}

// --- attention

void Cuda::head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step&, float eps) {
  if (heads_.of_q) run_heads();
  const Mat q = written(x, false);
  heads_ = {.of_q = x.buffer,
            .of_k = nullptr,
            .of_v = nullptr,
            .q = q,
            .kv = {},
            .left = {.k = {}, .v = {}, .work = {.q_gain = gain.p, .freqs = {freqs.p, freqs.n}, .eps = eps}}};
}
void Cuda::head_norm(Rows x, int head_dim, float eps) { cuda::head_norm(stream_, written(x, false), head_dim, eps); }
void Cuda::kv_append(KvLayer kv, Rows k, Rows v, const Step&) {
  cuda::kv_append(stream_, kv, mat(k, false), mat(v, false), step_);
}
void Cuda::norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs freqs, bool norm_v,
                            const Step&, float eps) {
  if (heads_.of_q) run_heads();
  const Mat mq = written(q, false), mk = written(k, false), mv = written(v, false);
  heads_ = {
      .of_q = q.buffer,
      .of_k = k.buffer,
      .of_v = v.buffer,
      .q = mq,
      .kv = kv,
      .left = {
          .k = mk,
          .v = mv,
          .work = {.q_gain = q_gain.p, .k_gain = k_gain.p, .freqs = {freqs.p, freqs.n}, .norm_v = norm_v, .eps = eps}}};
}
void Cuda::kv_settle(KvLayer kv, const Step&) {
  if (heads_.of_q) run_heads();
  cuda::kv_settle(stream_, kv, step_);
}
void Cuda::attend(Rows o, Rows q, KvLayer kv, const Step&, AttnSpec spec) {
  const Mat to = written_in_8_bits(o);
  bool left = heads_.of_q != nullptr;
  if (left && (heads_.of_q != q.buffer || heads_.q.rows != q.rows || heads_.q.cols != q.cols ||
               (heads_.left.k.p && heads_.kv.k != kv.k)))
    run_heads(), left = false;
  if (left) heads_.of_q = nullptr;
  const Mat from = mat(q, false);
  if (!cuda::attend(stream_, to, from, kv, step_, spec, attend_, left ? &heads_.left : nullptr)) image_of_ = nullptr;
}

// --- light verbs

void Cuda::embed(Rows x, Weight table, const Step&, float scale) {
  pick_left();
  cuda::embed(stream_, written(x, true), table.m, step_.token, scale);
}
void Cuda::embed_concat(Rows y, Weight table, const Step&, float scale, Rows x) {
  CHECK(y.cols == int(table.n_in) + x.cols && y.rows == x.rows, "[{}, {}] beside {} columns into [{}, {}]", x.rows,
        x.cols, table.n_in, y.rows, y.cols);
  const Mat beside = mat(x, false);
  if (sampler_->unpicked.n_row == y.rows && sampler_->unpicked.best == step_.token)
    return cuda::top_k_embed(stream_, std::exchange(sampler_->unpicked, {}), written(y, true), table.m, scale, beside);
  pick_left();
  cuda::embed_concat(stream_, written(y, true), table.m, step_.token, scale, beside);
}
void Cuda::rms_norm(Rows y, Rows x, Vec gain, float eps) {
  const cuda::Partials left = take_left(x);
  const Mat in = mat(x, false);
  cuda::rms_norm(stream_, written(y, true), in, left, gain.p, eps);
}
void Cuda::residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec) {
  const cuda::Partials left = take_left(y);
  const Mat in = mat(y, false);
  cuda::residual_norm(stream_, written(x, false), spec.next ? written_in_8_bits(h) : mat(h, false), in, left,
                      spec.post.p, spec.next.p, spec.out_scale, spec.eps);
}
void Cuda::residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec, Rows r, Rows e, Vec router_gain,
                             Vec expert_gain) {
  const cuda::Partials left = take_left(y);
  const Mat in = mat(y, false);
  cuda::residual_norm_moe(
      stream_, written(x, false), written_in_8_bits(h), in, left, spec.post.p, spec.next.p, spec.out_scale, spec.eps,
      {.r = written(r, false), .e = written(e, true), .router_gain = router_gain.p, .expert_gain = expert_gain.p});
}
void Cuda::join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain, ResidualSpec<Vec> spec) {
  cuda::MoeSlots slots;
  if (uncombined_.to && uncombined_.to.buffer == o.buffer) {
    slots = {.out = moe_.out, .weight = moe_.routing.weight, .n_used = uncombined_.n_used};
    uncombined_.to = {};
  }
  cuda::moe_join(stream_, written(x, false), spec.next ? written_in_8_bits(h) : mat(h, false), mat(y, false),
                 mat(o, false),
                 {.shared_post = y_gain.p,
                  .routed_post = o_gain.p,
                  .post = spec.post.p,
                  .next = spec.next.p,
                  .out_scale = spec.out_scale,
                  .eps = spec.eps,
                  .slots = slots});
}
void Cuda::act_mul(Rows y, Rows g, Rows u, Act act) {
  const Mat a = mat(g, false), b = mat(u, false);
  cuda::act_mul(stream_, written(y, true), a, b, act);
}
void Cuda::ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps) {
  cuda::ple_combine(stream_, written(p, false), mat(c, false), gain.p, gain.n, in_scale, out_scale, eps);
}
void Cuda::add(Rows y, Rows a, Rows b) {
  const Mat u = mat(a, false), v = mat(b, false);
  cuda::add(stream_, written(y, false), u, v);
}
void Cuda::gather(Rows y, Rows x, const Step&) {
  const Mat in = mat(x, false);
  cuda::gather(stream_, written(y, true), in, step_.out_row);
}
void Cuda::copy_rows(Rows y, Rows x) {
  const Mat in = mat_at(x, 0, y.rows, false);
  cuda::copy_cols(stream_, written(y, true), 0, {.p = in.p, .rows = y.rows, .cols = y.cols, .stride = in.stride});
}
void Cuda::softcap(Rows x, float cap) {
  if (cap > 0 && x.rows > 0) cuda::softcap(stream_, written(x, false), cap);
}

void Cuda::clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w) {
  const int n = int(w.centroid.n_out);
  const Rows scores = cluster_score_.view(h.rows, n);
  matmul(scores, h, w.centroid);
  matmul(logits, h, w.head);
  const Mat s = mat(scores, false), l = mat(logits, false);
  cuda::keep_clusters(stream_, l.p, l.stride, logits.cols, logits.rows, s.p, s.stride, n, w.top_k, w.order.p,
                      cluster_chosen_);
}

static_assert(Backend<Cuda>);

}  // namespace facet
