// Times the light verbs on one GPU at the widths of 31B (5,376 columns) and 26B-A4B (2,816), one JSON object per line.
//   facet_cuda_ops_bench [substring of the names to run]
// Each case is a graph of calls that walk over sets of rows larger together than the L2; the time is the median of its
// replays over the calls. %read: bytes read and written, of the read bandwidth that is measured first. One row is a
// launch's time.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/kernels/ops.h"
#include "backend/cuda/kernels/sample.h"
#include "cuda_bench.h"

using namespace facet;

namespace {

__device__ uint32_t mixed(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352d, x ^= x >> 15, x *= 0x846ca68b;
  return x ^ x >> 16;
}
__global__ void random_kernel(float* f, size_t n) {  // nearly normal: the sum of four uniform numbers
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    float s = 0;
    for (uint32_t k = 0; k < 4; ++k) s += float(mixed(uint32_t(i) * 4 + k) >> 8) * 0x1p-24f - 0.5f;
    f[i] = s;
  }
}
__global__ void read_kernel(const uint4* p, size_t n, uint4* out) {
  uint4 sum = {};
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    const uint4 v = p[i];
    sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345u) *out = sum;
}

constexpr size_t kArena = size_t(2) << 30;  // bytes of random floats

struct Bench {
  cudaStream_t stream = nullptr;
  std::string only;
  double read_gbs = 0;
  float* arena = nullptr;
  size_t next = 0;  // floats of the arena in use

  void start() {
    FACET_CUDA_CHECK(cudaStreamCreate(&stream));
    arena = bench::allocate<float>(kArena / 4);
    random_kernel<<<4096, 256, 0, stream>>>(arena, kArena / 4);
    uint4* out = bench::allocate<uint4>(1);
    const double us = bench::time_us(stream, 4, [&](int) {
      read_kernel<<<132 * 16, 512, 0, stream>>>(reinterpret_cast<const uint4*>(arena), kArena / 16, out);
    });
    read_gbs = double(kArena) / us * 1e-3;
    std::printf("{\"name\": \"read\", \"us\": %.2f, \"GB/s\": %.0f}\n", us, read_gbs);
  }
  // Rows that no other set has, until there is no room; `bf`: in bf16 as well.
  cuda::Mat rows(int n, int cols, bool bf = false) {
    const size_t size = size_t(n) * size_t(cols), all = size + (bf ? (size + 1) / 2 : 0);
    CHECK(all * 4 <= kArena, "{} rows of {} columns", n, cols);
    if ((next + all) * 4 > kArena) next = 0;
    float* p = arena + next;
    next += (all + 63) / 64 * 64;
    cuda::Mat m{.p = p, .rows = n, .cols = cols, .stride = cols};
    if (bf) m.bf = reinterpret_cast<__nv_bfloat16*>(p + size), m.bf_stride = cols;
    return m;
  }
  // call(): one launch on rows of its own, which returns the bytes it reads and writes.
  template <class F>
  void verb(const std::string& name, F&& call) {
    if (name.find(only) == std::string::npos) return;
    random_kernel<<<4096, 256, 0, stream>>>(arena, kArena / 4);  // what the verb before has left may be no numbers
    double bytes = 0;
    const double us = bench::time_us(stream, 24, [&](int) { bytes = call(); });
    std::printf("{\"name\": \"%s\", \"us\": %.2f, \"GB/s\": %.0f, \"%%read\": %.1f}\n", name.c_str(), us,
                bytes / us * 1e-3, 100 * bytes / us * 1e-3 / read_gbs);
    std::fflush(stdout);
  }

  // Long: a list, one entry for each verb.
  void light(int D, int T) {
    const std::string at = " D " + std::to_string(D) + " T " + std::to_string(T);
    const double row = 4. * T * D;
    const float* gain = arena;
    verb("rms_norm" + at, [&] {
      cuda::rms_norm(stream, rows(T, D, true), rows(T, D), {}, gain, 1e-6f);
      return 2.5 * row;
    });
    verb("residual_norm" + at, [&] {
      cuda::residual_norm(stream, rows(T, D), rows(T, D, true), rows(T, D), {}, gain, gain, 1.f, 1e-6f);
      return 4.5 * row;
    });
    if (T <= 16) {
      const int width = T == 1 ? 1 : T <= 8 ? 8 : 16, n_job = (D + 15) / 16;
      verb("residual_norm of 3 sets" + at, [&] {
        cuda::residual_norm(stream, rows(T, D), rows(T, D, true), rows(T, D),
                            {.p = rows(1, 3 * n_job * width * 16).p, .n_set = 3, .n_job = n_job, .width = width}, gain,
                            gain, 1.f, 1e-6f);
        return 6.5 * row;
      });
      verb("sum_partials of 3 sets" + at, [&] {
        cuda::sum_partials(stream, rows(T, D),
                           {.p = rows(1, 3 * n_job * width * 16).p, .n_set = 3, .n_job = n_job, .width = width});
        return 4 * row;
      });
      verb("moe_join" + at, [&] {
        cuda::moe_join(stream, rows(T, D), rows(T, D, true), rows(T, D), {},
                       {.shared_post = gain,
                        .routed_post = gain,
                        .post = gain,
                        .next = gain,
                        .slots = {.out = rows(8 * T, D).p, .weight = gain, .n_used = 8}});
        return 12.5 * row;
      });
    }
    verb("residual_norm_moe" + at, [&] {
      cuda::residual_norm_moe(stream, rows(T, D), rows(T, D, true), rows(T, D), {}, gain, gain, 1.f, 1e-6f,
                              {.r = rows(T, D), .e = rows(T, D, true), .router_gain = gain, .expert_gain = gain});
      return 7 * row;
    });
    verb("moe_join of sums" + at, [&] {
      cuda::moe_join(stream, rows(T, D), rows(T, D, true), rows(T, D), rows(T, D),
                     {.shared_post = gain, .routed_post = gain, .post = gain, .next = gain});
      return 5.5 * row;
    });
    verb("act_mul" + at, [&] {
      cuda::act_mul(stream, rows(T, D, true), rows(T, D), rows(T, D), Act::kGelu);
      return 3.5 * row;
    });
    verb("ple_combine" + at, [&] {
      cuda::ple_combine(stream, rows(T, D), rows(T, D), gain, 256, 1.f, 0.7f, 1e-6f);
      return 3 * row;
    });
    verb("add" + at, [&] {
      cuda::add(stream, rows(T, D), rows(T, D), rows(T, D));
      return 3 * row;
    });
    verb("copy_cols" + at, [&] {
      cuda::copy_cols(stream, rows(T, D), 0, rows(T, D));
      return 2 * row;
    });
    verb("softcap" + at, [&] {
      cuda::softcap(stream, rows(T, D), 30.f);
      return 2 * row;
    });
    verb("to_bf16" + at, [&] {
      cuda::to_bf16(stream, rows(T, D, true));
      return 1.5 * row;
    });
    std::vector<int32_t> ids;
    for (int i = 0; i < T; ++i) ids.push_back(int32_t(size_t(i) * 7919 % size_t(T)));
    int32_t* id = bench::allocate<int32_t>(ids.size());
    FACET_CUDA_CHECK(cudaMemcpy(id, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
    verb("gather" + at, [&] {
      cuda::gather(stream, rows(T, D), rows(T, D), id);
      return 2 * row;
    });
    // Scales of random bits would be anything; the time does not depend on them.
    const cuda::TiledMatrix table{
        .p = reinterpret_cast<const uint8_t*>(arena), .tile = cuda::Tile::kQ8_0, .n_out = 8192, .n_in = D};
    verb("embed Q8_0" + at, [&] {
      cuda::embed(stream, rows(T, D, true), table, id, 1.f);
      return (1.5 + 34. / 32 / 4) * row;
    });
    if (T <= 16)
      verb("embed_concat Q8_0" + at, [&] {
        cuda::embed_concat(stream, rows(T, 2 * D, true), table, id, 1.f, rows(T, D));
        return (4 + 34. / 32 / 4) * row;
      });
    FACET_CUDA_CHECK(cudaStreamSynchronize(stream));
    cudaFree(id);
  }

  void vocabulary(int T) {
    constexpr int kVocab = 262'144;
    const std::string at = " V 262144 T " + std::to_string(T);
    const double row = 4. * T * kVocab;
    const std::vector<cuda::DrawRow> draws(size_t(T), {.temperature = 1,
                                                       .top_p = 0.95f,
                                                       .min_p = 0,
                                                       .top_k = 64,
                                                       .seed = 1,
                                                       .position = 1,
                                                       .first_adjust = 0,
                                                       .n_adjust = 0});
    auto* d = bench::allocate<cuda::DrawRow>(draws.size());
    FACET_CUDA_CHECK(cudaMemcpy(d, draws.data(), draws.size() * sizeof(cuda::DrawRow), cudaMemcpyHostToDevice));
    auto* candidates = bench::allocate<uint64_t>(size_t(T) * size_t(cuda::draw_candidates(kVocab)));
    auto* ids = bench::allocate<int32_t>(size_t(T) * 64);
    auto* probs = bench::allocate<float>(size_t(T) * 64);
    auto* sums = bench::allocate<float2>(size_t(T) * (kVocab / cuda::kDrawPart));
    for (const bool greedy : {true, false})
      verb((greedy ? "draw greedy" : "draw") + at, [&] {
        const cuda::Mat l = rows(T, kVocab);
        cuda::draw(stream, ids, l.p, l.stride, kVocab, T, d, nullptr, 0, greedy, candidates);
        return row;
      });
    for (const int k : {1, 8})
      verb("top_k " + std::to_string(k) + at, [&] {
        const cuda::Mat l = rows(T, kVocab);
        cuda::top_k(stream, l.p, l.stride, kVocab,
                    {.ids = ids, .log_probs = probs, .candidates = candidates, .part_sums = sums, .n_row = T, .k = k});
        return row;
      });
    const cuda::TiledMatrix table{
        .p = reinterpret_cast<const uint8_t*>(arena), .tile = cuda::Tile::kQ8_0, .n_out = kVocab, .n_in = 2816};
    verb("top_k_embed" + at, [&] {
      const cuda::Mat l = rows(T, kVocab);
      cuda::TopK to{.ids = ids, .log_probs = probs, .candidates = candidates, .part_sums = sums, .n_row = T, .k = 1};
      cuda::top_k_parts(stream, l.p, l.stride, kVocab, to);
      cuda::top_k_embed(stream, to, rows(T, 2 * 2816, true), table, 1.f, rows(T, 2816));
      return row;
    });
    verb("softcap" + at, [&] {
      cuda::softcap(stream, rows(T, kVocab), 30.f);
      return 2 * row;
    });
    std::vector<int32_t> order;
    for (int i = 0; i < kVocab; ++i) order.push_back(i);
    int32_t* o = bench::allocate<int32_t>(order.size());
    FACET_CUDA_CHECK(cudaMemcpy(o, order.data(), order.size() * 4, cudaMemcpyHostToDevice));
    uint8_t* chosen = bench::allocate<uint8_t>(size_t(T) * 2048);
    verb("keep_clusters" + at, [&] {
      const cuda::Mat l = rows(T, kVocab), s = rows(T, 2048);
      cuda::keep_clusters(stream, l.p, l.stride, kVocab, T, s.p, s.stride, 2048, 32, o, chosen);
      return row;
    });
    FACET_CUDA_CHECK(cudaStreamSynchronize(stream));
    for (void* p : std::initializer_list<void*>{d, candidates, ids, probs, sums, o, chosen}) cudaFree(p);
  }

  void routing(int T) {
    constexpr int kN = 128, kUsed = 8, kD = 2816;
    cuda::MoeExperts m{};
    m.router = arena, m.n_expert = kN, m.n_used = kUsed;
    cuda::Routing o{bench::allocate<uint64_t>(size_t(T) * kN),
                    bench::allocate<float>(size_t(T) * kUsed),
                    bench::allocate<int32_t>(size_t(T) * kUsed),
                    bench::allocate<int32_t>(size_t(cuda::routing_entries(kN, int64_t(T) * kUsed))),
                    bench::allocate<int32_t>(size_t(cuda::routing_entries(kN, int64_t(T) * kUsed)) + 1),
                    bench::allocate<int32_t>(1),
                    bench::allocate<int32_t>(size_t(T) * kUsed),
                    bench::allocate<unsigned>(1)};
    FACET_CUDA_CHECK(cudaMemset(o.logits, 0, size_t(T) * kN * 8));
    FACET_CUDA_CHECK(cudaMemset(o.number, 0, 4));
    verb("route N 128 D 2816 T " + std::to_string(T), [&] {
      cuda::route(stream, cuda::router_args(m, rows(T, kD), T, o));
      return 4. * kN * kD + 4. * T * kD;
    });
    float* out = rows(T * kUsed, kD).p;
    verb("moe_small_batch_combine D 2816 T " + std::to_string(T), [&] {
      cuda::moe_small_batch_combine(stream, rows(T, kD), out, o.weight, kUsed);
      return 4. * T * kD * (kUsed + 1);
    });
  }

  // A step's arrays from the host's memory: what one launch and a turn on the bus take.
  void fetched(int bytes) {
    void *host = nullptr, *to = bench::allocate<uint4>(size_t(bytes) / 16);
    FACET_CUDA_CHECK(cudaMallocHost(&host, size_t(bytes)));
    verb("fetch " + std::to_string(bytes) + " bytes", [&] {
      cuda::fetch(stream, to, host, size_t(bytes));
      return double(bytes);
    });
    cudaFreeHost(host), cudaFree(to);
  }

  void weights() {
    constexpr int kOut = 5376, kIn = 5376;
    auto* panel = bench::allocate<__nv_bfloat16>(size_t(kOut) * kIn);
    auto* to = bench::allocate<uint8_t>(size_t(kOut) * kIn * 2);
    struct Kind {
      cuda::Tile tile;
      DType type;
      const char* name;
    };
    for (const Kind& k : {Kind{cuda::Tile::kQ4_K, DType::kQ4_K, "Q4_K"},
                          {cuda::Tile::kQ6_K, DType::kQ6_K, "Q6_K"},
                          {cuda::Tile::kQ8_0, DType::kQ8_0, "Q8_0"}}) {
      cuda::TiledMatrix m{.p = to, .tile = k.tile, .n_out = kOut, .n_in = kIn};
      const double bytes = double(m.matrix_bytes());
      size_t i = 0;
      auto raw = [&] {
        return reinterpret_cast<const uint8_t*>(arena) + i++ % 24 * size_t(m.matrix_bytes() + 255) / 256 * 256;
      };
      verb(std::string("repack ") + k.name + " 5376 x 5376", [&] {
        cuda::repack(stream, m, raw(), k.type);
        return 2 * bytes;
      });
      verb(std::string("unpack_bf16 ") + k.name + " 5376 x 5376", [&] {
        cuda::TiledMatrix from = m;
        from.p = raw();
        cuda::unpack_bf16(stream, panel, from, 0, 0, kOut);
        return bytes + 2. * kOut * kIn;
      });
    }
    FACET_CUDA_CHECK(cudaStreamSynchronize(stream));
    cudaFree(panel), cudaFree(to);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const facet::cuda::Device device(0);
  Bench b;
  if (argc > 1) b.only = argv[1];
  b.start();
  for (const int D : {5376, 2816})
    for (const int T : {1, 16, 4096}) b.light(D, T);
  for (const int T : {1, 16}) b.vocabulary(T), b.routing(T);
  b.weights();
  b.fetched(2048);
  return 0;
}
