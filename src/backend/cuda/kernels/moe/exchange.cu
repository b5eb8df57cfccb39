// exchange -- rows on their way to weights in RAM, and what these make of them
//
// Shapes     x [T, D] f32, T <= kMoeSmallBatch; experts and weights [T n_used], or none; y [T, D] f32; the host's are
//            page-locked. Of layers whose experts lie in both places: slots [N], and out [slot, D] f32 of the GPU
// Bytes      4 D + 8 n_used bytes a row there, 4 D back, over the bus
// Launch     a block for each row. Plain: it starts when everything before it is done, and nothing overlaps it. The last
//            block to send says so in the host's memory; receive waits there for the sums
// Order      copies alone; else the host's sum, then the sum over ranks of what the GPU has
// Reference  CpuFast::routed_experts, gate_up and matmul
// Test       tests/cuda_model/cuda_ram_test.cpp
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    send_kernel(MoeHostRows to, Mat x, const int32_t* expert, const float* weight, int n_used, const int16_t* slots,
                uint64_t job) {
  const int t = int(blockIdx.x);
  const auto* from = reinterpret_cast<const float4*>(x.p + t * x.stride);
  auto* out = reinterpret_cast<float4*>(to.x + int64_t(t) * x.cols);
  for (int i = int(threadIdx.x); i < x.cols / 4; i += kThreads) out[i] = from[i];
  if (int(threadIdx.x) < n_used) {
    const int slot = t * n_used + int(threadIdx.x);
    const int32_t e = expert[slot];
    to.expert[slot] = slots && slots[e] >= 0 ? -1 : e, to.weight[slot] = weight[slot];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(to.blocks, 1u) != gridDim.x - 1) return;
  *to.blocks = 0;
  __threadfence_system();  // what the other blocks wrote comes first
  to.job->value = job;
  const uint64_t number = ++*to.count;
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&to.asked->value), "l"(number) : "memory");
}

__global__ void __launch_bounds__(kThreads) receive_kernel(Mat y, MoeHostRows from, MoePart part) {
  const int t = int(blockIdx.x);
  if (threadIdx.x == 0) {
    const uint64_t number = *from.count;
    while (true) {
      uint64_t done;
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(done) : "l"(&from.done->value) : "memory");
      if (done >= number) break;
      if (gridDim.x > 8) __nanosleep(500);  // many ask over one bus
    }
  }
  __syncthreads();
  const auto* in = reinterpret_cast<const float4*>(from.y + int64_t(t) * y.cols);
  auto* out = reinterpret_cast<float4*>(y.p + t * y.stride);
  for (int i = int(threadIdx.x); i < y.cols / 4; i += kThreads) {
    float4 sum = __ldcv(in + i);
    if (part.slots) {
      float4 s = {};
      for (int k = 0; k < part.n_used; ++k) {
        const int slot = t * part.n_used + k;
        if (part.slots[part.expert[slot]] < 0) continue;
        const float4 v = *reinterpret_cast<const float4*>(part.out + int64_t(slot) * y.cols + 4 * i);
        const float w = part.weight[slot];
        s.x += w * v.x, s.y += w * v.y, s.z += w * v.z, s.w += w * v.w;
      }
      sum.x += s.x, sum.y += s.y, sum.z += s.z, sum.w += s.w;
    }
    out[i] = sum;
  }
}

}  // namespace

void moe_send(cudaStream_t stream, const MoeHostRows& to, Mat x, const Routing& r, int n_used, const int16_t* slots,
              const void* job) {
  CHECK(x.cols % 4 == 0 && x.stride % 4 == 0 && n_used <= kThreads, "rows of {} columns, {} apart", x.cols, x.stride);
  send_kernel<<<unsigned(x.rows), kThreads, 0, stream>>>(to, x, r.expert, r.weight, n_used, slots,
                                                         reinterpret_cast<uint64_t>(job));
  FACET_CUDA_CHECK(cudaGetLastError());
}
void moe_receive(cudaStream_t stream, Mat y, const MoeHostRows& from, const MoePart& part) {
  CHECK(y.cols % 4 == 0 && y.stride % 4 == 0, "rows of {} columns, {} apart", y.cols, y.stride);
  receive_kernel<<<unsigned(y.rows), kThreads, 0, stream>>>(y, from, part);
  FACET_CUDA_CHECK(cudaGetLastError());
}

}  // namespace facet::cuda
