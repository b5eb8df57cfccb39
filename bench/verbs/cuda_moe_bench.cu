// Times the experts of tokens on one GPU at 26B-A4B's shapes, one JSON object per line: of few tokens, by type of down,
// and of many, step by step.
//   facet_cuda_moe_bench [substring of the names to run]
// Each case is a graph of calls over six layers' weights in turn; the time is the median of its replays over the calls.
// The ceiling is cuBLASLt's bf16 product of as many rows with one matrix of an expert's size, bf16 out.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/moe.h"
#include "cuda_bench.h"

using namespace facet;

namespace {

__device__ uint32_t mixed(uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352d, x ^= x >> 15, x *= 0x846ca68b;
  return x ^ x >> 16;
}
// Sum of four uniform numbers: nearly normal.
__global__ void random_kernel(float* f, __nv_bfloat16* b, size_t n, float scale, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    float s = 0;
    for (uint32_t k = 0; k < 4; ++k) s += float(mixed(uint32_t(i) * 4 + k + seed) >> 8) * 0x1p-24f - 0.5f;
    if (f) f[i] = s * scale;
    if (b) b[i] = __float2bfloat16_rn(s * scale);
  }
}
// Tiles of random codes; every 16 bit scale is 2^-7 or so.
__global__ void random_tiles(uint8_t* p, cuda::Tile tile, size_t n_tile, uint32_t seed) {
  const int bytes = cuda::tile_bytes(tile);
  for (size_t i = blockIdx.x; i < n_tile; i += gridDim.x) {
    uint8_t* t = p + i * size_t(bytes);
    for (int at = int(threadIdx.x) * 2; at < bytes; at += int(blockDim.x) * 2) {
      bool scale = false;
      if (tile == cuda::Tile::kQ4_K) scale = at >= 2048 && at % 16 < 4;
      if (tile == cuda::Tile::kQ5_0) scale = at >= 640;
      if (tile == cuda::Tile::kQ8_0) scale = at >= 1024;
      const uint32_t r = mixed(uint32_t(i) * 7919u + uint32_t(at) + seed);
      *reinterpret_cast<uint16_t*>(t + at) = scale ? uint16_t(0x1000 + (r & 0x3FF)) : uint16_t(r);
    }
  }
}

constexpr int kD = 2816, kF = 704, kN = 128, kUsed = 8, kLayers = 6;

struct Bench {
  cudaStream_t stream = nullptr;
  std::string only;
  cublasLtHandle_t blas = nullptr;
  void* workspace = nullptr;

  void line(const std::string& name, double us, double flop, double bytes, double ceiling) {
    std::printf("{\"name\":\"%s\",\"us\":%.1f", name.c_str(), us);
    if (flop > 0) std::printf(",\"tflops\":%.0f", flop / us * 1e-6);
    if (flop > 0 && ceiling > 0) std::printf(",\"of_cublaslt\":%.2f", flop / us * 1e-6 / ceiling);
    if (bytes > 0) std::printf(",\"gbs\":%.0f", bytes / us * 1e-3);
    std::printf("}\n");
    std::fflush(stdout);
  }

  // TFLOP/s of y [rows, n] = x [rows, k] w [n, k]^T.
  double ceiling(int rows, int n, int k) {
    auto ok = [](cublasStatus_t s) { CHECK(s == CUBLAS_STATUS_SUCCESS, "cuBLASLt: status {}", int(s)); };
    auto *x = bench::allocate<__nv_bfloat16>(size_t(rows) * size_t(k)),
         *w = bench::allocate<__nv_bfloat16>(size_t(n) * size_t(k)),
         *y = bench::allocate<__nv_bfloat16>(size_t(rows) * size_t(n));
    random_kernel<<<1024, 256, 0, stream>>>(nullptr, x, size_t(rows) * size_t(k), 1.f, 1);
    random_kernel<<<1024, 256, 0, stream>>>(nullptr, w, size_t(n) * size_t(k), 0.02f, 2);
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t want;
    ok(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    ok(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    ok(cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, uint64_t(k), uint64_t(n), k));
    ok(cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, uint64_t(k), uint64_t(rows), k));
    ok(cublasLtMatrixLayoutCreate(&c, CUDA_R_16BF, uint64_t(n), uint64_t(rows), n));
    ok(cublasLtMatmulPreferenceCreate(&want));
    const uint64_t bytes = uint64_t(64) << 20;
    ok(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(blas, op, a, b, c, c, want, 1, &found, &count));
    const float one = 1, zero = 0;
    const double us = bench::time_us(stream, 6, [&](int) {
      ok(cublasLtMatmul(blas, op, &one, w, a, x, b, &zero, y, c, y, c, &found.algo, workspace, bytes, stream));
    });
    cudaFree(x), cudaFree(w), cudaFree(y);
    return 2. * rows * n * k / us * 1e-6;
  }

  cuda::TiledMatrix tiled(cuda::Tile tile, int n_out, int n_in, uint32_t seed) {
    cuda::TiledMatrix m{.p = nullptr, .tile = tile, .n_out = n_out, .n_in = n_in, .n_stack = kN};
    const size_t bytes = size_t(m.matrix_bytes()) * kN;
    uint8_t* p = bench::allocate<uint8_t>(bytes);
    random_tiles<<<4096, 128, 0, stream>>>(p, tile, bytes / size_t(cuda::tile_bytes(tile)), seed);
    m.p = p;
    return m;
  }

  // Up and down of few tokens after one routing; gbs: of the weights of the experts in use.
  void few(const std::vector<cuda::MoeExperts>& layer) {
    for (int T : {1, 2, 4, 5, 8, 16}) {
      const size_t n = size_t(T) * kD, pairs = size_t(T) * kUsed;
      float* r = bench::allocate<float>(n);
      auto* e = bench::allocate<__nv_bfloat16>(n);
      random_kernel<<<256, 256, 0, stream>>>(r, e, n, 1.f, 5);
      cuda::MoeBuffers b;
      b.routing = {bench::allocate<uint64_t>(size_t(T) * kN),
                   bench::allocate<float>(pairs),
                   bench::allocate<int32_t>(pairs),
                   bench::allocate<int32_t>(size_t(cuda::routing_entries(kN, int64_t(T) * kUsed))),
                   bench::allocate<int32_t>(size_t(cuda::routing_entries(kN, int64_t(T) * kUsed)) + 1),
                   bench::allocate<int32_t>(1),
                   bench::allocate<int32_t>(pairs),
                   bench::allocate<unsigned>(1)};
      FACET_CUDA_CHECK(cudaMemsetAsync(b.routing.logits, 0, size_t(T) * kN * 8, stream));
      FACET_CUDA_CHECK(cudaMemsetAsync(b.routing.number, 0, 4, stream));
      b.hidden = bench::allocate<__nv_bfloat16>(pairs * kF), b.out = bench::allocate<float>(pairs * kD);
      cuda::route(stream, cuda::router_args(layer[0], {.p = r, .rows = T, .cols = kD, .stride = kD}, T, b.routing));
      int32_t n_active = 0;
      FACET_CUDA_CHECK(cudaMemcpyAsync(&n_active, b.routing.n_active, 4, cudaMemcpyDefault, stream));
      FACET_CUDA_CHECK(cudaStreamSynchronize(stream));
      for (const cuda::Tile tile : {cuda::Tile::kQ5_0, cuda::Tile::kQ8_0}) {
        std::vector<cuda::MoeExperts> w;
        for (const cuda::MoeExperts& m : layer)
          if (m.down.tile == tile) w.push_back(m);
        const std::string name = "few T=" + std::to_string(T) + (tile == cuda::Tile::kQ5_0 ? " Q5_0" : " Q8_0");
        if (name.find(only) == std::string::npos) continue;
        line(name,
             bench::time_us(stream, 12,
                            [&](int i) {
                              cuda::moe_small_batch(
                                  stream, w[size_t(i) % w.size()],
                                  {.p = nullptr, .rows = T, .cols = kD, .stride = kD, .bf = e, .bf_stride = kD}, T, b,
                                  true);
                            }),
             0, double(n_active) * double(w[0].gate.matrix_bytes() + w[0].down.matrix_bytes()), 0);
      }
      for (void* p : std::initializer_list<void*>{r, e, b.hidden, b.out}) cudaFree(p);
    }
  }

  // The grouped products straight from codes; one(what, flop, bytes, ceiling, f(pass, i)) times them.
  template <class One, class All>
  void codes(const cuda::MoePass& first, cuda::Mat e, One&& one, double up_flop, double down_flop, All&& all) {
    cuda::Device::current().use_gemm(true);
    const auto restart = [next = first.b.next, this] { FACET_CUDA_CHECK(cudaMemsetAsync(next, 0, 8, stream)); };
    if (cuda::moe_takes_codes(first.w)) {
      const double bytes = 2. * kD * first.n_tok * (kUsed + 1);
      one("codes gather", 0, bytes, 0, [&](const cuda::MoePass& p, int) { cuda::moe_gather(stream, p, e); });
      cuda::moe_gather(stream, first, e);
      one("codes up", up_flop, 0, 0, [&](const cuda::MoePass& p, int) { restart(), cuda::moe_codes_up(stream, p); });
      one("codes down", down_flop, 0, 0,
          [&](const cuda::MoePass& p, int) { restart(), cuda::moe_codes_down(stream, p); });
      one("codes all", up_flop + down_flop, 0, 0, all);
    }
    cuda::Device::current().use_gemm(false);
  }

  void run() {
    FACET_CUDA_CHECK(cudaStreamCreate(&stream));
    CHECK(cublasLtCreate(&blas) == CUBLAS_STATUS_SUCCESS, "cublasLtCreate");
    workspace = bench::allocate<uint8_t>(size_t(64) << 20);
    std::vector<cuda::MoeExperts> layer;
    float* router = bench::allocate<float>(size_t(kN) * kD);
    random_kernel<<<256, 256, 0, stream>>>(router, nullptr, size_t(kN) * kD, 0.03f, 77);
    for (int i = 0; i < kLayers; ++i) {
      cuda::MoeExperts m;
      m.gate = m.up = tiled(cuda::Tile::kQ4_K, 2 * kF, kD, uint32_t(i)), m.up_strip = kF / cuda::kTileRows,
      m.d_expert = kF;
      m.down = tiled(i % 2 == 0 ? cuda::Tile::kQ8_0 : cuda::Tile::kQ5_0, kD, kF, uint32_t(i) + 50);
      m.router = router, m.n_expert = kN, m.n_used = kUsed;
      layer.push_back(m);
    }
    const double up_bytes = double(layer[0].gate.matrix_bytes()) * kN,
                 down_bytes = (double(layer[0].down.matrix_bytes()) + double(layer[1].down.matrix_bytes())) / 2 * kN;
    few(layer);
    if (only.starts_with("few")) return;
    for (int T : {128, 512, 2048, 4096, 8192}) {
      const std::string at = "T=" + std::to_string(T) + " ";
      const cuda::MoeSizes s{.d = kD, .d_expert = kF, .n_expert = kN, .n_used = kUsed, .n_tok = T};
      uint8_t* memory = bench::allocate<uint8_t>(size_t(cuda::moe_large_batch_bytes(s, int64_t(1) << 40)));
      const cuda::MoeLargeBatch b = cuda::moe_large_batch_buffers(memory, s, int64_t(1) << 40);
      const size_t n = size_t(T) * kD;
      float *r = bench::allocate<float>(n), *y = bench::allocate<float>(n);
      auto* e = bench::allocate<__nv_bfloat16>(n);
      random_kernel<<<1024, 256, 0, stream>>>(r, nullptr, n, 1.f, 5);
      random_kernel<<<1024, 256, 0, stream>>>(nullptr, e, n, 1.f, 9);
      const cuda::Mat mr{.p = r, .rows = T, .cols = kD, .stride = kD}, my{.p = y, .rows = T, .cols = kD, .stride = kD},
          me{.p = nullptr, .rows = T, .cols = kD, .stride = kD, .bf = e, .bf_stride = kD};
      const double pairs = double(T) * kUsed, up_flop = pairs * 2. * kD * 2 * kF, down_flop = pairs * 2. * kD * kF,
                   rows_bytes = 2. * T * kD * (kUsed + 1);
      const double up_most = ceiling(T * kUsed, 2 * kF, kD), down_most = ceiling(T * kUsed, kD, kF);
      line(at + "ceiling up", up_flop / up_most * 1e-6, up_flop, 0, 0),
          line(at + "ceiling down", down_flop / down_most * 1e-6, down_flop, 0, 0);
      for (const bool warpgroups : {true, false}) {
        if (!warpgroups && T != 4096) continue;
        cuda::Device::current().use_wgmma(warpgroups);
        const std::string name = at + (cuda::moe_has_warpgroups() ? "" : "mma ");
        auto pass = [&](int i) {
          const cuda::MoeExperts& w = layer[size_t(i % kLayers)];
          return cuda::MoePass{.w = w, .b = b, .n_tok = T, .tile = cuda::moe_tile_rows(w, T)};
        };
        auto one = [&](const char* what, double flop, double bytes, double most,
                       const std::function<void(const cuda::MoePass&, int)>& f) {
          if ((name + what).find(only) == std::string::npos) return;
          line(name + what, bench::time_us(stream, kLayers, [&](int i) { f(pass(i), i); }), flop, bytes, most);
        };
        cuda::moe_route_large_batch(stream, pass(0), mr), cuda::moe_gather(stream, pass(0), me);
        one("route", 2. * T * kD * kN, 0, 0,
            [&](const cuda::MoePass& p, int) { cuda::moe_route_large_batch(stream, p, mr); });
        one("gather", 0, rows_bytes, 0, [&](const cuda::MoePass& p, int) { cuda::moe_gather(stream, p, me); });
        one("unpack up", 0, up_bytes + 4. * kN * kF * kD, 0,
            [&](const cuda::MoePass& p, int) { cuda::moe_unpack_up(stream, p, 0, kN); });
        auto restart = [&] { FACET_CUDA_CHECK(cudaMemsetAsync(b.next, 0, 8, stream)); };
        one("up", up_flop, 0, up_most,
            [&](const cuda::MoePass& p, int) { restart(), cuda::moe_grouped_up(stream, p, 0, kN, 0); });
        one("unpack down", 0, down_bytes + 2. * kN * kF * kD, 0,
            [&](const cuda::MoePass& p, int) { cuda::moe_unpack_down(stream, p, 0, kN); });
        one("down", down_flop, 0, down_most,
            [&](const cuda::MoePass& p, int) { restart(), cuda::moe_grouped_down(stream, p, 0, kN, 1); });
        one("combine", 0, rows_bytes + 2. * T * kD, 0,
            [&](const cuda::MoePass& p, int) { cuda::moe_combine(stream, p.outputs(), my); });
        one("all", up_flop + down_flop, 0, 0,
            [&](const cuda::MoePass& p, int) { cuda::moe_large_batch(stream, p.w, my, me, mr, b); });
        if (warpgroups)
          codes(pass(0), me, one, up_flop, down_flop,
                [&](const cuda::MoePass& p, int) { cuda::moe_large_batch(stream, p.w, my, me, mr, b); });
        cuda::Device::current().use_wgmma(true);
      }
      cudaFree(memory), cudaFree(r), cudaFree(y), cudaFree(e);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const facet::cuda::Device device(0);
  Bench b;
  if (argc > 1) b.only = argv[1];
  cuda::Device::current().use_gemm(false);  // panels, but where a case says codes
  b.run();
  FACET_CUDA_CHECK(cudaDeviceSynchronize());
}
