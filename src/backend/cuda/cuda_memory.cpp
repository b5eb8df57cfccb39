// Opening, memory and what is copied between host and device.
#include <fmt/format.h>

#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/probe.h"

namespace facet {

Status Cuda::usable(int gpu) {
  int n = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&n); e != cudaSuccess || n == 0)
    return Error{"--backend cuda",
                 fmt::format("no NVIDIA GPU can be used: {}", e != cudaSuccess ? cudaGetErrorString(e) : "none found"),
                 fmt::format("install a driver for CUDA {} or newer, or use --backend cpu", CUDART_VERSION / 1000)};
  if (gpu < 0 || gpu >= n)
    return Error{"--gpu", fmt::format("expected 0 to {}, found {}", n - 1, gpu), "nvidia-smi lists them"};
  cudaDeviceProp p;
  FACET_CUDA_CHECK(cudaGetDeviceProperties(&p, gpu));
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

Cuda::Cuda(int gpu, const WeightsInRam& in_ram, int64_t fail_at) : device_(gpu, fail_at), in_ram_(in_ram) {
  if (in_ram_.expert_layers == 0 && in_ram_.ffn_layers == 0 && !in_ram_.placement) return;
  cpu_ffn_ = std::make_unique<cuda::CpuFfn>(device_, in_ram_);
  weight_stream_ = std::make_unique<cuda::WeightStream>(device_);
}

Cuda::~Cuda() {
  make_current();
  cudaStreamSynchronize(stream_);
  for (const auto& [layer, of] : expert_times_) {
    if (!usage_ || !of.times) continue;
    std::vector<unsigned> times(size_t(of.n));
    if (cudaMemcpy(times.data(), of.times, times.size() * sizeof(unsigned), cudaMemcpyDeviceToHost) != cudaSuccess)
      break;
    usage_->add(layer, times);
  }
  for (const cudaEvent_t e : marks_) cudaEventDestroy(e);
}

template <class T>
T* Cuda::copied(std::span<const T> values) {
  T* p = static_cast<T*>(device_.allocate(values.size_bytes(), "constants"));
  if (p) FACET_CUDA_CHECK(cudaMemcpyAsync(p, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream_));
  return p;
}
template int16_t* Cuda::copied(std::span<const int16_t>);
template unsigned* Cuda::copied(std::span<const unsigned>);
Cuda::Vec Cuda::upload(std::span<const float> gain) { return {copied(gain), int(gain.size())}; }
Cuda::Freqs Cuda::upload(std::span<const double> freqs) { return {copied(freqs), int(freqs.size())}; }
Cuda::Table Cuda::upload(std::span<const int32_t> values) { return {copied(values), int(values.size())}; }

namespace {
cuda::MoeSizes moe_sizes(const BackendLimits& l) {
  return {.d = l.d_moe, .d_expert = l.d_expert, .n_expert = l.n_expert, .n_used = l.n_expert_used, .n_tok = l.max_tok};
}
// Memory of moe_large_batch: all of it, and the panel of weights. GPUs with little memory hold a part of a layer's
// experts at a time.
struct MoeMemory {
  int64_t bytes, panel_bytes;
};
MoeMemory moe_large_batch_memory(const cuda::DeviceInfo& d, const BackendLimits& l) {
  const bool roomy = d.memory >= int64_t(40) << 30 && !l.weights_in_ram;
  const int64_t panel = roomy ? int64_t(1) << 40 : int64_t(256) << 20;
  return {cuda::moe_large_batch_bytes(moe_sizes(l), panel), panel};
}
// Scratch for the longest sequence as begin_step() rounds it.
size_t attend_bytes(const cuda::DeviceInfo& d, BackendLimits l) {
  const int64_t copied = d.wgmma && l.shared_codes ? l.max_rows : 0;
  l.max_rows = cuda::row_bucket(l.max_rows);
  return cuda::attend_scratch_bytes(l, l.n_q_head, l.head_dim, copied);
}
}  // namespace

void Cuda::reserve(const BackendLimits& more) {
  finish();
  graphs_.forget();
  limits_ = limits_.with(more);
  limits_.weights_in_ram = cpu_ffn_ != nullptr;
  const BackendLimits& l = limits_;
  const cuda::DeviceInfo& d = device_.info();
  const size_t rows = size_t(l.max_tok);
  grow(partial_, size_t(most_partials_));
  const size_t n_counter = size_t(cuda::skinny_counters(d));
  if (grow(counter_, n_counter + 1))
    FACET_CUDA_CHECK(cudaMemsetAsync(counter_, 0, (n_counter + 1) * sizeof(unsigned), stream_));
  acts_.reserve_int8(most_int8_);
  attend_.bytes = attend_bytes(d, l);
  device_.grow(attend_.p, attend_.bytes, "scratch");
  if (const size_t bytes = cuda::select_bytes(l); bytes > 0) {
    char* memory = static_cast<char*>(select_.memory);
    if (grow(memory, bytes)) {
      select_ = cuda::select_buffers(memory, l);
      FACET_CUDA_CHECK(cudaMemsetAsync(select_.sum, 0, size_t(l.n_select) * sizeof(Selected), stream_));
    }
  }
  arrays_.reserve(l.max_tok);
  if (l.max_tok > kSkinnyMost && most_unpacked_ > 0)
    gemm_.reserve(std::min(l.max_matrix, most_unpacked_), l.max_tok, l.max_cols);
  if (l.max_tok > kSkinnyMost && d.int8_prompts) {
    images_bytes_ = cuda::prompt_image_bytes(l.max_tok, l.max_cols);
    grow(images_, size_t(images_bytes_));
  }
  if (l.n_cluster > 0 && (cluster_score_.rows < l.max_tok || cluster_score_.cols < l.n_cluster)) {
    if (cluster_score_) acts_.release(cluster_score_);
    cluster_score_ = new_rows(l.max_tok, l.n_cluster);
    grow(cluster_chosen_, rows * size_t(l.n_cluster));
  }
  if (l.n_expert > 0) reserve_experts(l, counter_ + n_counter);
  if (host_table_) host_table_->reserve(l.max_tok);
  if (!cpu_ffn_) return;
  cpu_ffn_->reserve(l);
  if (l.max_tok >= kStreamBlock) weight_stream_->reserve();
}
void Cuda::reserve_experts(const BackendLimits& l, unsigned* number) {
  cuda::Routing& r = moe_.routing;
  const size_t few = size_t(std::min(l.max_tok, cuda::kMoeSmallBatch)), pairs = few * size_t(l.n_expert_used),
               n = size_t(l.n_expert);
  if (grow(r.logits, few * n)) FACET_CUDA_CHECK(cudaMemsetAsync(r.logits, 0, few * n * sizeof(uint64_t), stream_));
  grow(r.weight, pairs);
  grow(r.expert, pairs);
  const size_t entries = size_t(cuda::routing_entries(int64_t(n), int64_t(pairs)));
  grow(r.active, entries + 1);
  grow(r.first, entries + 1);
  r.n_active = r.active + entries;
  grow(r.pair, pairs);
  r.number = number;
  grow(moe_.hidden, pairs * size_t(l.d_expert));
  grow(moe_.out, pairs * size_t(l.d_moe));
  if (l.max_tok > moe_small_most(device_.info())) {
    const auto [bytes, panel] = moe_large_batch_memory(device_.info(), l);
    grow(moe_memory_, size_t(bytes));
    moe_large_batch_ = cuda::moe_large_batch_buffers(moe_memory_, moe_sizes(l), panel);
  }
}

int64_t Cuda::reserve_bytes(const cuda::DeviceInfo& d, const BackendLimits& l) {
  int64_t n = int64_t(attend_bytes(d, l)) + int64_t(cuda::select_bytes(l)) + int64_t(2 * cuda::Loader::kPiece) +
              cuda::skinny_image_bytes(l.max_cols);
  if (l.max_tok > kSkinnyMost && d.int8_prompts) n += cuda::prompt_image_bytes(l.max_tok, l.max_cols);
  if (l.max_tok > kSkinnyMost && (d.gemm || d.cublaslt) && l.max_matrix > 0)
    n += cuda::Gemm::bytes(d, l.max_matrix, l.max_tok, l.max_cols);
  n += int64_t(l.max_tok) * l.n_cluster * 7;
  if (l.n_expert > 0)
    n += int64_t(std::min(l.max_tok, cuda::kMoeSmallBatch)) * l.n_expert_used * (l.d_expert * 2 + l.d_moe * 4);
  if (l.n_expert > 0 && l.max_tok > moe_small_most(d)) n += moe_large_batch_memory(d, l).bytes;
  return n;
}

std::vector<float> Cuda::to_host(Rows x) {
  std::vector<float> v(size_t(x.rows) * size_t(x.cols));
  resolve_pending();
  finish();
  FACET_CUDA_CHECK(cudaMemcpy2DAsync(v.data(), size_t(x.cols) * 4, x.buffer->p + x.first * x.buffer->stride + x.begin,
                                     size_t(x.buffer->stride) * 4, size_t(x.cols) * 4, size_t(x.rows),
                                     cudaMemcpyDeviceToHost, stream_));
  FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return v;
}
void Cuda::from_host(Rows x, std::span<const float> values) {
  resolve_pending();
  finish();
  FACET_CUDA_CHECK(cudaMemcpy2DAsync(x.buffer->p + x.first * x.buffer->stride + x.begin, size_t(x.buffer->stride) * 4,
                                     values.data(), size_t(x.cols) * 4, size_t(x.cols) * 4, size_t(x.rows),
                                     cudaMemcpyHostToDevice, stream_));
  FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
  acts_.host_wrote(x);
}

Selected Cuda::take_selected(int slot) {
  Selected s;
  resolve_pending();
  finish();
  FACET_CUDA_CHECK(cudaMemcpyAsync(&s, select_.sum + slot, sizeof s, cudaMemcpyDeviceToHost, stream_));
  FACET_CUDA_CHECK(cudaMemsetAsync(select_.sum + slot, 0, sizeof s, stream_));
  FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return s;
}

// --- times

void Cuda::mark() {
  if (n_mark_ == marks_.size()) FACET_CUDA_CHECK(cudaEventCreate(&marks_.emplace_back()));
  FACET_CUDA_CHECK(cudaEventRecord(marks_[n_mark_++], stream_));
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
    FACET_CUDA_CHECK(cudaEventElapsedTime(&t, marks_[i - 1], marks_[i]));
    ms.push_back(double(t));
  }
  n_mark_ = 0;
  return ms;
}

}  // namespace facet
