// Times attention and its cache rows on one GPU at Gemma's shapes, one JSON object per line.
//   facet_cuda_attention_bench [substring of the names to run [substring of those not to run]]
// Each case is a graph of calls that walk over cache slots larger together than the L2, so that every call reads
// memory; the time is the median of its replays over the calls. The read bandwidth they are compared with is measured
// first.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/attention/fragments.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/kv_move.h"
#include "cuda_bench.h"

using namespace facet;

namespace {

template <class T>
const T* uploaded(const std::vector<T>& v, std::vector<void*>& owned) {
  T* p = bench::allocate<T>(v.size());
  owned.push_back(p);
  FACET_CUDA_CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

__global__ void read_kernel(const uint4* p, size_t n, uint4* out) {
  uint4 sum = {};
  size_t i = size_t(blockIdx.x) * blockDim.x * 8 + threadIdx.x;
  for (; i < n; i += size_t(gridDim.x) * blockDim.x * 8)
    for (int j = 0; j < 8; ++j) {
      const uint4 v = p[i + size_t(j) * blockDim.x];
      sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345u) *out = sum;
}

// What mma.sync alone reaches: eight independent sums a warp, operands in registers.
__global__ void __launch_bounds__(256, 2) mma_kernel(int n, float* out) {
  float sum[8][4] = {};
  const uint32_t seed = 0x3C003C00u + (threadIdx.x & 15);
  uint32_t a[4] = {seed, seed ^ 1, seed ^ 2, seed ^ 3};
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) cuda::mma_f16(sum[j], a, seed ^ uint32_t(j), seed);
  float all = 0;
  for (auto& s : sum)
    for (const float v : s) all += v;
  if (all == 0.5f) *out = all;
}

struct Steps {
  std::vector<Step> step;
  std::vector<void*> owned;
  // Step i uses cache slots i * n_seq .. of n_slot.
  Steps(int n_step, int n_slot, int n_seq, int n, int kv_len, bool staged) {
    for (int i = 0; i < n_step; ++i) {
      std::vector<int32_t> pos, seq, q_begin{0}, len, slot;
      std::vector<Mask> mask(size_t(n_seq), Mask::kCausal);
      std::vector<uint64_t> ancestor(size_t(n_seq) * size_t(n), 0);
      for (int s = 0; s < n_seq; ++s) {
        for (int j = 0; j < n; ++j) pos.push_back(kv_len + j), seq.push_back(s);
        q_begin.push_back((s + 1) * n), len.push_back(kv_len), slot.push_back((i * n_seq + s) % n_slot);
      }
      Step st;
      st.shape = {.n_tok = n_seq * n,
                  .n_seq = n_seq,
                  .n_small = n <= kSmallT ? n_seq * n : 0,
                  .n_long = n <= kSmallT ? 0 : n_seq,
                  .long_rows = n <= kSmallT ? 0 : int64_t(n_seq) * (kv_len + n),
                  .longest = kv_len + n,
                  .staged = staged};
      st.token = st.pos = uploaded(pos, owned), st.seq = uploaded(seq, owned), st.q_begin = uploaded(q_begin, owned);
      st.kv_len = uploaded(len, owned), st.slot = uploaded(slot, owned), st.mask = uploaded(mask, owned),
      st.ancestor = uploaded(ancestor, owned);
      step.push_back(st);
    }
  }
  ~Steps() {
    for (void* p : owned) cudaFree(p);
  }
};

struct Model {
  const char* name;
  int n_q, kv_slide, kv_full;
};
constexpr Model k31{"31b", 32, 16, 4}, k26{"26b", 16, 8, 2};

struct Bench {
  cudaStream_t stream = nullptr;
  std::string only, except;
  double read_gbs = 0;
  std::byte *arena = nullptr, *scratch = nullptr;
  size_t arena_bytes = size_t(8) << 30, scratch_bytes = 0;
  float *q = nullptr, *o = nullptr;
  __nv_bfloat16* o_bf = nullptr;

  void start() {
    FACET_CUDA_CHECK(cudaStreamCreate(&stream));
    arena = bench::allocate<std::byte>(arena_bytes);
    BackendLimits l;
    l.max_tok = 8192, l.max_rows = 262'144;
    scratch_bytes = cuda::attend_scratch_bytes(l, 32, 512, l.max_rows);
    scratch = bench::allocate<std::byte>(scratch_bytes);
    const size_t n = size_t(8192) * 32 * 512;
    q = bench::allocate<float>(n), o = bench::allocate<float>(n);
    o_bf = bench::allocate<__nv_bfloat16>(n);
    std::vector<float> h(1 << 20);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (float& x : h) x = normal(rng);
    for (size_t at = 0; at < n; at += h.size())
      FACET_CUDA_CHECK(cudaMemcpy(q + at, h.data(), h.size() * 4, cudaMemcpyHostToDevice));
    const size_t bytes = size_t(2) << 30;
    uint4* out = reinterpret_cast<uint4*>(scratch);
    const double us = bench::time_us(stream, 4, [&](int i) {
      read_kernel<<<132 * 8, 512, 0, stream>>>(reinterpret_cast<const uint4*>(arena) + size_t(i % 2) * bytes / 16,
                                               bytes / 16, out);
    });
    read_gbs = double(bytes) / us * 1e-3;
    std::printf("{\"name\": \"read\", \"us\": %.2f, \"GB/s\": %.0f}\n", us, read_gbs);
    constexpr int kSteps = 8192;
    const int blocks = cuda::device().n_sm * 2;
    const double mma_us = bench::time_us(
        stream, 2, [&](int) { mma_kernel<<<blocks, 256, 0, stream>>>(kSteps, reinterpret_cast<float*>(out)); });
    std::printf("{\"name\": \"mma.sync f16\", \"us\": %.2f, \"TFLOP/s\": %.1f}\n", mma_us,
                double(blocks) * 8 * kSteps * 8 * 4096 / mma_us * 1e-6);
  }

  bool wanted(const std::string& name) const {
    return name.find(only) != std::string::npos && (except.empty() || name.find(except) == std::string::npos);
  }

  // Fills [at, at + bytes) with rows: normal values, encoded. E 640: shared rows.
  void fill(std::byte* at, size_t bytes, KvType t, int E) {
    const bool shared = E == cuda::kSharedCols;
    const size_t row = shared ? kv_shared_bytes(t, cuda::kSharedHead) : kv_row_bytes(t, E);
    std::vector<std::byte> host(row * 256);
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(E));
    std::vector<std::byte> blocks(row);
    for (size_t i = 0; i < 256; ++i) {
      for (float& v : x) v = normal(rng);
      shared ? kv_encode_shared(t, x.data(), x.data(), blocks.data(), cuda::kSharedHead)
             : kv_encode(t, x.data(), blocks.data(), E);
      cuda::kv_device_from_blocks(t, blocks.data(), host.data() + i * row, E);
    }
    size_t done = std::min(bytes, host.size());
    FACET_CUDA_CHECK(cudaMemcpy(at, host.data(), done, cudaMemcpyHostToDevice));
    while (done < bytes) {
      const size_t n = std::min(done, bytes - done);
      FACET_CUDA_CHECK(cudaMemcpy(at + done, at, n, cudaMemcpyDeviceToDevice));
      done += n;
    }
  }

  // layer: what norm_rope_append does as well, as layers have it; width: of heads, if not the model's; shared: rows.
  void attend(const Model& m, bool full, KvType kt, KvType vt, int rows, int n_seq, int n, bool layer = false,
              int width = 0, bool shared = false) {
    const int E = width > 0 ? width : full ? 512 : 256, n_kv = full ? m.kv_full : m.kv_slide, window = full ? 0 : 1024;
    std::string name = std::string(layer ? "layer " : "attend ") + m.name + (full ? " full " : " sliding ") +
                       kv_type_name(kt) + (kt == vt ? "" : std::string("/") + kv_type_name(vt)) +
                       (shared ? " shared" : "") + (width > 0 ? " E " + std::to_string(E) : "") + " rows " +
                       std::to_string(rows) + " seqs " + std::to_string(n_seq) + " T " + std::to_string(n);
    if (!wanted(name)) return;
    KvLayer kv{.n_head = n_kv, .head_dim = E, .window = window, .margin = 16, .k_type = kt, .v_type = vt};
    const bool chunk = n > kSmallT;
    kv.cap = full ? rows + n : 1024 + 16;
    kv.k_row = int64_t(kv_row_bytes(kt, E)) * n_kv, kv.v_row = int64_t(kv_row_bytes(vt, E)) * n_kv;
    if (shared) kv.shared = true, kv.k_row = int64_t(kv_shared_bytes(kt, E)) * n_kv, kv.v_row = 0;
    kv.k_slot = kv.cap * kv.k_row, kv.v_slot = kv.cap * kv.v_row;
    const int64_t slot = kv.k_slot + kv.v_slot;
    int n_slot = int(std::clamp<int64_t>((int64_t(400) << 20) / slot, n_seq, 64));
    n_slot = std::max(n_slot, n_seq);
    if (size_t(n_slot * slot) + (chunk ? size_t(n) * size_t(kv.k_row + kv.v_row) : 0) > arena_bytes) return;
    kv.k = arena, kv.v = arena + n_slot * kv.k_slot;
    kv.k_stage = kv.v + n_slot * kv.v_slot, kv.v_stage = kv.k_stage + n * kv.k_row;
    fill(kv.k, size_t(n_slot * kv.k_slot), kt, shared ? cuda::kSharedCols : E);
    if (!shared) fill(kv.v, size_t(n_slot * kv.v_slot), vt, E);
    if (chunk && !shared) fill(kv.k_stage, size_t(n * kv.k_row), kt, E), fill(kv.v_stage, size_t(n * kv.v_row), vt, E);
    const int calls = chunk ? 2 : std::max(2, std::min(48, n_slot / n_seq));
    Steps steps(calls, n_slot, n_seq, n, rows, chunk);
    const int cols = m.n_q * E, T = n_seq * n;
    cuda::Mat mo{.p = o, .rows = T, .cols = cols, .stride = cols, .bf = o_bf, .bf_stride = cols},
        mq{.p = q, .rows = T, .cols = cols, .stride = cols};
    const AttnSpec spec{.n_q_head = m.n_q, .head_dim = E, .window = window, .scale = 0.0625f};
    std::vector<void*> owned;
    const float* gain = layer ? uploaded(std::vector<float>(size_t(E), 1.f), owned) : nullptr;
    const double* freqs = layer ? rope_freqs(full, E, owned) : nullptr;
    const size_t quarter = size_t(1024) * 32 * 512;
    const cuda::Mat mk{.p = o + 2 * quarter, .rows = T, .cols = n_kv * E, .stride = n_kv * E},
        mv{.p = o + 3 * quarter, .rows = T, .cols = n_kv * E, .stride = n_kv * E};
    const double us = bench::time_us(
        stream, calls,
        [&](int i) {
          const cuda::PendingQkNormRope left{
              .k = mk, .v = mv, .work = {.q_gain = gain, .k_gain = gain, .freqs = {freqs, E / 2}}};
          cuda::attend(stream, mo, mq, kv, steps.step[size_t(i)], spec, {scratch, scratch_bytes},
                       layer ? &left : nullptr);
        },
        chunk ? 3 : 9);
    for (void* p : owned) cudaFree(p);
    double pairs = 0;
    for (int j = 0; j < n; ++j) pairs += window ? std::min(window, rows + j + 1) : rows + j + 1;
    const double seen = window ? std::min(window + n - 1, rows + n) : rows + n;
    const double bytes = n_seq * seen * double(kv.k_row + kv.v_row), flops = 4. * n_seq * pairs * cols;
    std::printf(
        "{\"name\": \"%s\", \"layout\": \"%s\", \"us\": %.2f, \"MB\": %.2f, \"GB/s\": %.0f, \"%%read\": %.1f, "
        "\"TFLOP/s\": "
        "%.1f}\n",
        name.c_str(), shared ? "shared" : "split", us, bytes * 1e-6, bytes / us * 1e-3,
        100 * bytes / us * 1e-3 / read_gbs, flops / us * 1e-6);
    std::fflush(stdout);
  }

  static const double* rope_freqs(bool full, int E, std::vector<void*>& owned) {
    std::vector<double> f(size_t(E / 2));
    for (size_t i = 0; i < f.size(); ++i) f[i] = full && i >= 64 ? 0 : std::pow(1e6, -double(2 * i) / E);
    return uploaded(f, owned);
  }

  void append(const Model& m, bool full, KvType t, int n) {
    const int E = full ? 512 : 256, n_kv = full ? m.kv_full : m.kv_slide;
    const std::string name = std::string("norm_rope_append ") + m.name + (full ? " full " : " sliding ") +
                             kv_type_name(t) + " T " + std::to_string(n);
    if (!wanted(name)) return;
    KvLayer kv{.cap = 8192, .n_head = n_kv, .head_dim = E, .k_type = t, .v_type = t};
    kv.k_row = kv.v_row = int64_t(kv_row_bytes(t, E)) * n_kv;
    kv.k_slot = kv.v_slot = kv.cap * kv.k_row;
    kv.k = arena, kv.v = arena + kv.k_slot;
    Steps steps(1, 1, 1, n, 1000, false);
    std::vector<void*> owned;
    const float* gain = uploaded(std::vector<float>(size_t(E), 1.f), owned);
    const double* freqs = rope_freqs(full, E, owned);
    const int qc = m.n_q * E, kc = n_kv * E;
    const cuda::Mat mq{.p = q, .rows = n, .cols = qc, .stride = qc}, mk{.p = o, .rows = n, .cols = kc, .stride = kc};
    const double us = bench::time_us(stream, 16, [&](int) {
      cuda::norm_rope_append(stream, kv, mq, mk, mk, steps.step[0],
                             {.q_gain = gain, .k_gain = gain, .freqs = {freqs, E / 2}});
    });
    const double bytes = double(n) * (8. * qc + 8. * kc + double(kv.k_row + kv.v_row));
    line(name, us, bytes);
    for (void* p : owned) cudaFree(p);
  }

  // The last rows of a chunk of n tokens, from the staging area into a ring; bytes: read and written.
  void settle(const Model& m, KvType t, int n) {
    const std::string name = std::string("kv_settle ") + m.name + " " + kv_type_name(t) + " T " + std::to_string(n);
    if (!wanted(name)) return;
    KvLayer kv = ring(m, t);
    kv.k_stage = kv.v + kv.v_slot * kSlots, kv.v_stage = kv.k_stage + n * kv.k_row;
    Steps steps(kSlots, kSlots, 1, n, 4096, true);
    const double us =
        bench::time_us(stream, kSlots, [&](int i) { cuda::kv_settle(stream, kv, steps.step[size_t(i)]); });
    line(name, us, 2. * double(std::min<int64_t>(n, kv.cap)) * double(kv.k_row + kv.v_row));
  }
  // Rows of an accepted path in all 60 layers.
  void move(const Model& m, KvType t, int n) {
    const std::string name = std::string("kv_move ") + m.name + " " + kv_type_name(t) + " rows " + std::to_string(n);
    if (!wanted(name)) return;
    constexpr int kLayers = 60, kCalls = 64;
    const KvLayer kv = ring(m, t);
    std::vector<void*> owned;
    const KvLayer* layers = uploaded(std::vector<KvLayer>(kLayers, kv), owned);
    cuda::KvMoves moves{.n = n};
    for (int i = 0; i < n; ++i) moves.from[i] = 500 + 2 * i, moves.to[i] = 500 + i;
    std::vector<double> us;
    for (int run = 0; run < 9; ++run) {
      cudaEvent_t a, b;
      cudaEventCreate(&a), cudaEventCreate(&b);
      cudaEventRecord(a);
      for (int i = 0; i < kCalls; ++i) cuda::kv_move(nullptr, layers, kLayers, i % kSlots, moves);
      cudaEventRecord(b);
      FACET_CUDA_CHECK(cudaEventSynchronize(b));
      float ms = 0;
      cudaEventElapsedTime(&ms, a, b);
      us.push_back(ms * 1000. / kCalls);
      cudaEventDestroy(a), cudaEventDestroy(b);
    }
    std::sort(us.begin(), us.end());
    line(name, us[us.size() / 2], 2. * kLayers * n * double(kv.k_row + kv.v_row));
    for (void* p : owned) cudaFree(p);
  }

 private:
  static constexpr int kSlots = 16;
  // Rings of a sliding layer, kSlots of them.
  KvLayer ring(const Model& m, KvType t) const {
    KvLayer kv{.cap = 1024 + 15,
               .n_head = m.kv_slide,
               .head_dim = 256,
               .window = 1024,
               .margin = 16,
               .k_type = t,
               .v_type = t};
    kv.k_row = kv.v_row = int64_t(kv_row_bytes(t, 256)) * kv.n_head;
    kv.k_slot = kv.v_slot = kv.cap * kv.k_row;
    kv.k = arena, kv.v = arena + kSlots * kv.k_slot;
    return kv;
  }
  void line(const std::string& name, double us, double bytes) const {
    std::printf("{\"name\": \"%s\", \"us\": %.2f, \"GB/s\": %.0f, \"%%read\": %.1f}\n", name.c_str(), us,
                bytes / us * 1e-3, 100 * bytes / us * 1e-3 / read_gbs);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const facet::cuda::Device device(0);
  Bench b;
  if (argc > 1) b.only = argv[1];
  if (argc > 2) b.except = argv[2];
  b.start();
  using enum KvType;
  struct Pair {
    KvType k, v;
  };
  const Pair pairs[] = {{kF16, kF16}, {kQ8_0, kQ8_0}, {kQ4_0, kQ4_0}, {kTQ3_0, kTQ3_0}, {kQ8_0, kTQ3_0}};
  // A full layer in both layouts.
  auto full = [&](const Model& m, const Pair& p, int rows, int n_seq, int n, bool layer = false) {
    b.attend(m, true, p.k, p.v, rows, n_seq, n, layer);
    if (p.k == p.v) b.attend(m, true, p.k, p.v, rows, n_seq, n, layer, 0, true);
  };
  for (const Pair& p : pairs) {
    for (const Model* m : {&k31, &k26}) {
      b.attend(*m, false, p.k, p.v, 40, 1, 1);
      b.attend(*m, false, p.k, p.v, 4000, 1, 1);
      b.attend(*m, false, p.k, p.v, 4000, 1, 16);
      for (const int rows : {40, 1000, 4096, 32'768, 131'072}) full(*m, p, rows, 1, 1);
    }
    for (const int T : {2, 4, 8, 16}) full(k31, p, 32'768, 1, T);
    for (const int T : {2, 4, 8}) b.attend(k31, false, p.k, p.v, 4000, 1, T);
    full(k31, p, 131'072, 1, 16);
    full(k26, p, 131'072, 1, 4);
    b.attend(k31, false, p.k, p.v, 4000, 16, 1);
    full(k31, p, 4096, 16, 1);
  }
  for (const Pair& p : {pairs[0], pairs[1]})
    for (const Model* m : {&k31, &k26})
      for (const int T : {1, 4}) {
        b.attend(*m, false, p.k, p.v, 4000, 1, T, true);
        full(*m, p, 32'768, 1, T, true);
      }
  for (const int width : {64, 128})
    for (const int T : {1, 8})
      b.attend(k26, false, kF16, kF16, 1000, 1, T, false, width),
          b.attend(k26, true, kF16, kF16, 4096, 1, T, false, width);
  for (const Pair& p : {pairs[0], pairs[1], pairs[2], pairs[3]}) {
    b.attend(k31, false, p.k, p.v, 0, 1, 4096);
    b.attend(k31, false, p.k, p.v, 28'672, 1, 4096);
    full(k31, p, 0, 1, 4096);
    full(k31, p, 28'672, 1, 4096);
    b.attend(k26, false, p.k, p.v, 28'672, 1, 4096);
    full(k26, p, 28'672, 1, 4096);
    full(k31, p, 122'880, 1, 8192);
    b.attend(k31, false, p.k, p.v, 122'880, 1, 8192);
  }
  for (const KvType t : {kF16, kQ8_0, kQ4_0, kTQ3_0})
    for (const int n : {1, 16, 4096}) b.append(k31, false, t, n), b.append(k31, true, t, n);
  for (const KvType t : {kF16, kQ8_0}) b.settle(k31, t, 4096), b.move(k31, t, 8);
  return 0;
}
