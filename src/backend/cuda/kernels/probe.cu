// probe -- measured ceilings of a card: bandwidth of reads, bf16 products; random contents for benches
//
// Shapes     any number of bytes, a multiple of 16
// Bytes      read: every byte once; fill: every byte written once
// Launch     read: a few blocks per multiprocessor, of several sizes, the best of which counts; fill: 1,024 blocks of
//            256 threads, which depend on nothing
// Order      contents are a function of the seed and the address alone; sums are not used
// Reference  none: these are measurements
// Test       none: tests/kernels/cuda_moe_test.cpp uses the contents
#include "backend/cuda/kernels/probe.h"

#include <cublasLt.h>

#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/matmul/gemm.h"

namespace facet::cuda {
namespace {

__device__ uint32_t hash(uint32_t x) {
  x ^= x >> 16, x *= 0x7FEB352Du, x ^= x >> 15, x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}
__global__ void fill_kernel(uint32_t* p, int64_t n, uint32_t seed) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
    p[i] = (hash(uint32_t(i) * 2654435761u + seed) & 0x83FF83FFu) | 0x30003000u;
}
__device__ int64_t now_ns() {
  int64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
__global__ void pass_time_kernel(int64_t ns) {
  for (const int64_t end = now_ns() + ns; now_ns() < end;) {
  }
}
__global__ void read_kernel(const uint4* p, int64_t n, unsigned* out) {
  unsigned s = 0;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
    s ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  if (s == 0x12345678u) *out = s;
}

// Has shared memory where warpgroup products were compiled.
__global__ void wgmma_kernel(unsigned* out) {
#if defined(FACET_WGMMA)
  __shared__ unsigned v[32];
  v[threadIdx.x] = threadIdx.x;
  __syncthreads();
  *out = v[31 - threadIdx.x];
#endif
}

template <class F>
double best_ms(F&& f, int runs) {
  cudaEvent_t a, b;
  FACET_CUDA_CHECK(cudaEventCreate(&a));
  FACET_CUDA_CHECK(cudaEventCreate(&b));
  float best = 1e30f;
  for (int i = 0; i < runs; ++i) {
    FACET_CUDA_CHECK(cudaEventRecord(a));
    f();
    FACET_CUDA_CHECK(cudaEventRecord(b));
    FACET_CUDA_CHECK(cudaEventSynchronize(b));
    float ms = 0;
    FACET_CUDA_CHECK(cudaEventElapsedTime(&ms, a, b));
    best = std::min(best, ms);
  }
  cudaEventDestroy(a), cudaEventDestroy(b);
  return double(best);
}

}  // namespace

int code_version() {
  cudaFuncAttributes a{};
  if (cudaFuncGetAttributes(&a, fill_kernel) == cudaSuccess) return a.ptxVersion;
  cudaGetLastError();
  return 0;
}

bool has_warpgroup_code() {
  cudaFuncAttributes a{};
  if (cudaFuncGetAttributes(&a, wgmma_kernel) == cudaSuccess) return a.sharedSizeBytes > 0;
  cudaGetLastError();
  return false;
}

void fill_random_rows(cudaStream_t stream, void* p, int64_t bytes, uint32_t seed) {
  fill_kernel<<<1024, 256, 0, stream>>>(static_cast<uint32_t*>(p), bytes / 4, seed);
  FACET_CUDA_CHECK(cudaGetLastError());
}

void pass_time(cudaStream_t stream, double ms) {
  pass_time_kernel<<<1, 1, 0, stream>>>(int64_t(ms * 1e6));
  FACET_CUDA_CHECK(cudaGetLastError());
}

double read_gbps() {
  size_t free = 0, total = 0;
  FACET_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const int64_t bytes = std::min<int64_t>(int64_t(4) << 30, int64_t(free) / 4) / 4096 * 4096;
  void* p = nullptr;
  unsigned* out = nullptr;
  FACET_CUDA_CHECK(cudaMalloc(&p, size_t(bytes)));
  FACET_CUDA_CHECK(cudaMalloc(&out, 4));
  fill_random_rows(nullptr, p, bytes, 1);
  double best = 1e30;
  for (int per_sm : {2, 4, 8, 16})
    for (int threads : {256, 512})
      best = std::min(
          best,
          best_ms([&] { read_kernel<<<device().n_sm * per_sm, threads>>>(static_cast<uint4*>(p), bytes / 16, out); },
                  4));
  cudaFree(p), cudaFree(out);
  return double(bytes) / best / 1e6;
}

double bf16_tflops() {
  if (!device().gemm && !device().cublaslt) return 0;
  constexpr int n = 8192;
  void *a = nullptr, *b = nullptr, *c = nullptr, *work = nullptr;
  constexpr size_t kWork = size_t(64) << 20;
  FACET_CUDA_CHECK(cudaMalloc(&a, size_t(n) * n * 2));
  FACET_CUDA_CHECK(cudaMalloc(&b, size_t(n) * n * 2));
  FACET_CUDA_CHECK(cudaMalloc(&c, size_t(n) * n * 2));
  FACET_CUDA_CHECK(cudaMalloc(&work, kWork));
  fill_random_rows(nullptr, a, int64_t(n) * n * 2, 2), fill_random_rows(nullptr, b, int64_t(n) * n * 2, 3);
  const auto end = [&](double ms) {
    cudaFree(a), cudaFree(b), cudaFree(c), cudaFree(work);
    return 2.0 * n * double(n) * n / ms / 1e9;
  };
  if (device().gemm) {
    const GemmWork g{.x = static_cast<const __nv_bfloat16*>(a),
                     .x_stride = n,
                     .n_tok = n,
                     .w = static_cast<const __nv_bfloat16*>(b),
                     .n_out = n,
                     .n_in = n,
                     .y_bf = static_cast<__nv_bfloat16*>(c),
                     .y_bf_stride = n};
    return end(best_ms([&] { gemm(nullptr, g); }, 8));
  }
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t la = nullptr;
  auto ok = [](cublasStatus_t s) { CHECK(s == CUBLAS_STATUS_SUCCESS, "cuBLASLt: status {}", int(s)); };
  ok(cublasLtCreate(&handle));
  ok(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t t = CUBLAS_OP_T;
  ok(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
  ok(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, n, n, n));
  const float one = 1, zero = 0;
  cublasLtMatmulPreference_t want = nullptr;
  ok(cublasLtMatmulPreferenceCreate(&want));
  ok(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWork, sizeof kWork));
  cublasLtMatmulHeuristicResult_t found{};
  int n_found = 0;
  ok(cublasLtMatmulAlgoGetHeuristic(handle, op, la, la, la, la, want, 1, &found, &n_found));
  const double ms = best_ms(
      [&] {
        ok(cublasLtMatmul(handle, op, &one, a, la, b, la, &zero, c, la, c, la, &found.algo, work, kWork, nullptr));
      },
      8);
  cublasLtMatmulPreferenceDestroy(want), cublasLtMatrixLayoutDestroy(la), cublasLtMatmulDescDestroy(op),
      cublasLtDestroy(handle);
  return end(ms);
}

}  // namespace facet::cuda
