// Times straight-line code on one GPU, warm and after other kernels ran: how much of it a multiprocessor keeps. One
// JSON object a line.
//   facet_cuda_code_bench
// A kernel of so many KB runs in one block a multiprocessor, then `others` kernels of the same size, over and over;
// cycles are of one warp, the median over multiprocessors and rounds.
#include <cstdio>
#include <utility>
#include <vector>

#include "cuda_bench.h"

using namespace facet;

namespace {

constexpr int kKernels = 9, kRounds = 24, kWarm = 4;

template <int id, int kInstructions>
__global__ void __launch_bounds__(32) straight_kernel(float* out, long long* cycles, float a) {
  float x[4] = {float(threadIdx.x), float(threadIdx.x + 1), float(threadIdx.x + 2), float(threadIdx.x + 3)};
  const long long begin = clock64();
#pragma unroll
  for (int i = 0; i < kInstructions / 4; ++i)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      x[k] = fmaf(x[k], a, float(id * (7 + 2 * k) + i));  // constants of its own: no two kernels share code
  const float sum = x[0] + x[1] + x[2] + x[3];
  if (sum == 12345.f) *out = sum;
  asm volatile("" ::"f"(sum) : "memory");
  const long long end = clock64();
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin;
}

template <int kInstructions, int... ids>
void measure(int n_sm, float* out, long long* cycles, std::integer_sequence<int, ids...>) {
  void (*const kernels[])(float*, long long*, float) = {straight_kernel<ids, kInstructions>...};
  for (int others : {0, 1, 2, 3, 4, 8}) {
    for (int round = 0; round < kRounds; ++round)
      for (int k = 0; k <= others; ++k)
        kernels[k]<<<unsigned(n_sm), 32>>>(out, cycles + (k == 0 ? round : kRounds) * n_sm, 1.0001f);
    std::vector<long long> v(size_t(kRounds) * size_t(n_sm));
    FACET_CUDA_CHECK(cudaMemcpy(v.data(), cycles, v.size() * sizeof(long long), cudaMemcpyDeviceToHost));
    v.erase(v.begin(), v.begin() + kWarm * n_sm);
    std::sort(v.begin(), v.end());
    std::printf("{\"kernel\": \"straight\", \"KB\": %d, \"instructions\": %d, \"others\": %d, \"cycles\": %lld}\n",
                kInstructions * 16 / 1024, kInstructions, others, v[v.size() / 2]);
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  const facet::cuda::Device device(0);
  const int n_sm = cuda::device().n_sm;
  float* out = bench::allocate<float>(1);
  long long* cycles = bench::allocate<long long>(size_t(kRounds + 1) * size_t(n_sm));
  constexpr auto kIds = std::make_integer_sequence<int, kKernels>{};
  measure<512>(n_sm, out, cycles, kIds);
  measure<1024>(n_sm, out, cycles, kIds);
  measure<2048>(n_sm, out, cycles, kIds);
  return 0;
}
