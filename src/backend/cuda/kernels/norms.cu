// norms -- rms_norm, residual_norm, residual_norm_moe, moe_join: sums and norms of whole rows
//
// Shapes     rows of f32, a multiple of 4 columns, 16-byte aligned; at most 8,192 columns, which stay in registers
// Bytes      each row once in, once out; moe_join of a large batch reads an expert's output row per rank
// Launch     a block per row; with many rows several blocks share a multiprocessor
// Order      a row's sums depend on its columns alone: the same bits whatever else is in the step
// Reference  CpuRef's verbs
// Test       tests/kernels/cuda_ops_test.cpp
// Bench      bench/verbs/cuda_ops_bench.cu
#include <algorithm>
#include <type_traits>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/small_model.h"
#include "backend/cuda/kernels/embed_row.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"
#include "backend/cuda/kernels/moe/panel_rows.cuh"
#include "backend/cuda/kernels/ops.h"
#include "backend/cuda/kernels/route/route.h"

namespace facet::cuda {
namespace {

// A norm's row is kPer float4 per thread: one for small models, two up to 4,096 columns, three up to 6,144, else four.
constexpr int kMostPer = 4;
template <int kPer>
constexpr int kThreads = kPer == 1 ? kSmallModelCols / 4 : 512;

// Sums of n values at once over a block, warp after warp. The bits do not depend on the number of threads: those beyond
// the row add zeros, behind the others. parity alternates from call to call, so that a call's shared memory is written
// again only after the barrier of the next call.
template <int kThreads, int n>
__device__ void block_sums(float (&v)[n], int& parity) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kWarps % 4 == 0 && n <= 2);
  __shared__ __align__(16) float parts[2][2][kWarps];
  parity ^= 1;
#pragma unroll
  for (int m = 16; m > 0; m /= 2)
#pragma unroll
    for (float& e : v) e += __shfl_xor_sync(~0u, e, m);
#pragma unroll
  for (int k = 0; k < n; ++k)
    if (threadIdx.x % 32 == 0) parts[parity][k][threadIdx.x / 32] = v[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) {
    v[k] = 0;
#pragma unroll
    for (int i = 0; i < kWarps; i += 4) {
      const float4 p = *reinterpret_cast<const float4*>(parts[parity][k] + i);
      v[k] += p.x, v[k] += p.y, v[k] += p.z, v[k] += p.w;
    }
  }
}

template <int kPer>
struct Row {
  float4 v[kPer];
};
template <int kPer>
__device__ int col_of(int i) {
  return (i * kThreads<kPer> + int(threadIdx.x)) * 4;
}
template <int kPer>
__device__ void load(Row<kPer>& r, const float* p, int cols) {
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    r.v[i] = col_of<kPer>(i) < cols ? *reinterpret_cast<const float4*>(p + col_of<kPer>(i)) : float4{};
}
// Where a thread's columns of row t begin in a product's partial sums, in the first set.
template <int kPer>
struct LeftAt {
  int at[kPer], stride;
  __device__ LeftAt(const Partials& left, int t) : stride(left.n_job * left.width * kTileRows) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int c = col_of<kPer>(i);
      at[i] = (c / kTileRows * left.width + t) * kTileRows + c % kTileRows;
    }
  }
};
// Several sets are on their way at a time, however few there are.
template <int kPer>
__device__ void load(Row<kPer>& r, const Partials& left, const LeftAt<kPer>& place, int cols) {
  constexpr int kSets = kPer < kMostPer - 1 ? 4 : kPer < kMostPer ? 3 : 2;  // as many as registers hold
  r = Row<kPer>{};
  for (int s0 = 0; s0 < left.n_set; s0 += kSets) {
    Row<kPer> v[kSets];
#pragma unroll
    for (int k = 0; k < kSets; ++k)
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const int s = s0 + k, c = col_of<kPer>(i);
        v[k].v[i] = s < left.n_set && c < cols
                        ? *reinterpret_cast<const float4*>(left.p + int64_t(s) * place.stride + place.at[i])
                        : float4{};
      }
#pragma unroll
    for (int k = 0; k < kSets; ++k)
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float4 u = v[k].v[i];
        r.v[i].x += u.x, r.v[i].y += u.y, r.v[i].z += u.z, r.v[i].w += u.w;
      }
  }
}
// Roundings of rows are written out, so that all kernels give a row the same bits.
template <int kPer>
__device__ float own_squares(const Row<kPer>& r) {
  const auto squares = [](float a, float b) { return __fmaf_rn(a, a, __fmul_rn(b, b)); };
  float s = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) s = __fadd_rn(s, __fadd_rn(squares(r.v[i].x, r.v[i].y), squares(r.v[i].z, r.v[i].w)));
  return s;
}
template <int kPer>
__device__ float inv_rms(const Row<kPer>& r, int cols, float eps, int& parity) {
  float s[1] = {own_squares(r)};
  block_sums<kThreads<kPer>>(s, parity);
  return rsqrtf(s[0] / float(cols) + eps);
}
// The same for two rows, with one barrier.
template <int kPer>
__device__ float2 inv_rms(const Row<kPer>& r, const Row<kPer>& o, int cols, float eps, int& parity) {
  float s[2] = {own_squares(r), own_squares(o)};
  block_sums<kThreads<kPer>>(s, parity);
  return {rsqrtf(s[0] / float(cols) + eps), rsqrtf(s[1] / float(cols) + eps)};
}
// A gain, or ones. Gains are read before the kernel waits for its input, which hides their L2 misses.
template <int kPer>
__device__ Row<kPer> gain_row(const float* p, int cols) {
  Row<kPer> r;
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    r.v[i] =
        p && col_of<kPer>(i) < cols ? __ldg(reinterpret_cast<const float4*>(p + col_of<kPer>(i))) : float4{1, 1, 1, 1};
  return r;
}
__device__ void fetch_gain(const float* p, int cols) {  // into the L2
  const int c = int(threadIdx.x) * 32;
  if (p && c < cols) asm volatile("prefetch.global.L2 [%0];" ::"l"(p + c));
}
// r = f(r, o) of each value.
template <int kPer, class F>
__device__ void each(Row<kPer>& r, const Row<kPer>& o, F f) {
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    r.v[i] = {f(r.v[i].x, o.v[i].x), f(r.v[i].y, o.v[i].y), f(r.v[i].z, o.v[i].z), f(r.v[i].w, o.v[i].w)};
}
template <int kPer>
__device__ void scale(Row<kPer>& r, float f, const Row<kPer>& gain) {
  each(r, gain, [&](float a, float g) { return __fmul_rn(a, __fmul_rn(f, g)); });
}
template <int kPer>
__device__ void add_to(Row<kPer>& r, const Row<kPer>& o, float f) {
  each(r, o, [&](float a, float b) { return __fmul_rn(__fadd_rn(a, b), f); });
}
template <int kPer>
__device__ void add_weighted(Row<kPer>& r, const Row<kPer>& o, float weight) {
  each(r, o, [&](float a, float b) { return __fmaf_rn(weight, b, a); });
}
template <int kPer>
__device__ void store(const Row<kPer>& r, const Mat& m, int t) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (col_of<kPer>(i) >= m.cols) continue;
    if (m.p) *reinterpret_cast<float4*>(m.p + t * m.stride + col_of<kPer>(i)) = r.v[i];
    if (m.bf) put_bf(m.bf + t * m.bf_stride + col_of<kPer>(i), r.v[i]);
  }
}

// Shared memory of a kernel that writes an image; others leave it to the products beside them.
size_t image_bytes(const Mat& m) {
  CHECK(!m.image || m.cols % 8 == 0, "{} columns", m.cols);
  return m.image ? size_t(m.cols) * 2 : 0;
}
// r into row t of the image of all rows of m.
template <int kPer>
__device__ void write_image(const Row<kPer>& r, const Mat& m, int t) {
  extern __shared__ __align__(16) uint2 row[];  // image_bytes(), in bf16
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    if (col_of<kPer>(i) < m.cols)
      row[col_of<kPer>(i) / 4] = {pack_bf16(r.v[i].x, r.v[i].y), pack_bf16(r.v[i].z, r.v[i].w)};
  __syncthreads();
  const int lane = int(threadIdx.x) % 32;
#pragma unroll 1
  for (int block = int(threadIdx.x) / 32; block < (m.cols + kActBlock - 1) / kActBlock; block += kThreads<kPer> / 32) {
    const int col = block * kActBlock + lane * 8;
    const uint4 v = col < m.cols ? *reinterpret_cast<const uint4*>(row + col / 4) : uint4{};
    quantize_block_among(m.rows, m.image, block, v, t, lane);
  }
}

// The widest rows take all registers as it is.
template <int kPer>
bool may_warm_icache(int rows) {
  return rows == 1 && kPer < kMostPer;
}
// Many rows, without images or partial sums: blocks that share a multiprocessor hide what each of them waits for, so
// registers hold no gains.
constexpr int kManyRows = 257;
bool is_many(const Mat& x, const Mat& h, const Partials& left) { return x.rows >= kManyRows && !h.image && !left.p; }
// m, or nothing of it.
__device__ Mat if_real(bool real, Mat m) {
  if (!real) m.cols = 0;
  return m;
}

template <int kPer, bool kWarmIcache>
__global__ void __launch_bounds__(kThreads<kPer>, 1)
    rms_norm_kernel(Mat y, Mat x, Partials left, const float* gain, float eps) {
  if (kPer == 1) pdl_trigger();
  const auto g = gain_row<kPer>(gain, x.cols);
  const LeftAt<kPer> place(left, int(blockIdx.x));
  int parity = 0;
  warm_icache<kWarmIcache>([&](bool real) {
    Row<kPer> r;
    if (left.p) {
      load(r, left, place, real ? x.cols : 0);
      if (x.p != y.p) store(r, if_real(real, x), int(blockIdx.x));
    } else {
      load(r, x.p + blockIdx.x * x.stride, real ? x.cols : 0);
    }
    scale(r, inv_rms(r, x.cols, eps, parity), g);
    store(r, if_real(real, y), int(blockIdx.x));
  });
}

template <bool kImage, int kPer>
__device__ void store_scaled(const Row<kPer>& r, float f, const Row<kPer>& gain, const Mat& to, int t) {
  Row<kPer> s = r;
  scale(s, f, gain);
  store(s, to, t);
  if constexpr (kImage)
    if (to.image) write_image(s, to, t);
}

// Of a multiprocessor.
template <int kPer, bool kMany>
constexpr int kBlocks = kMany ? (kPer == 2 ? 3 : 2) : 1;
// Late: read when it is used.
template <int kPer, bool kLate>
class GainRow {
 public:
  __device__ GainRow(const float* p, int cols) : p_(p), cols_(cols) {
    if constexpr (!kLate) row_ = gain_row<kPer>(p, cols);
  }
  __device__ Row<kPer> get() const {
    if constexpr (kLate) return gain_row<kPer>(p_, cols_);
    return row_;
  }

 private:
  const float* p_;
  int cols_;
  Row<kPer> row_;
};

template <int kPer, bool kMoe, bool kWarmIcache, bool kMany = false>
__global__ void __launch_bounds__(kThreads<kPer>, kBlocks<kPer, kMany>)
    residual_norm_kernel(Mat x, Mat h, Mat y, Partials left, const float* post, const float* next, float out_scale,
                         float eps, MoeInputs moe) {
  if (kPer == 1) pdl_trigger();
  const int t = int(blockIdx.x);
  const GainRow<kPer, kMany> g_post(post, x.cols), g_next(next, x.cols), g_r(kMoe ? moe.router_gain : nullptr, x.cols),
      g_e(kMoe ? moe.expert_gain : nullptr, x.cols);
  const LeftAt<kPer> place(left, t);
  int parity = 0;
  warm_icache<kWarmIcache>([&](bool real) {
    const int cols = real ? x.cols : 0;
    Row<kPer> r, s;
    load(s, x.p + t * x.stride, cols);
    if (!kMany && left.p)
      load(r, left, place, cols);
    else
      load(r, y.p + t * y.stride, cols);
    if (post) scale(r, inv_rms(r, x.cols, eps, parity), g_post.get());
    add_to(s, r, out_scale);
    store(s, if_real(real, x), t);
    if (!next) return;
    const float f = inv_rms(s, x.cols, eps, parity);
    store_scaled<!kMany>(s, f, g_next.get(), if_real(real, h), t);
    if constexpr (kMoe) {
      store_scaled<false>(s, f, g_r.get(), if_real(real, moe.r), t);
      store_scaled<false>(s, f, g_e.get(), if_real(real, moe.e), t);
    }
  });
}

// Early: before the kernel waits for its input. Late ones are read when they are used.
template <int kPer, bool kEarly, bool kAllEarly>
struct JoinGains {
  GainRow<kPer, !kEarly> shared, routed;
  GainRow<kPer, !kAllEarly> post, next;
  __device__ JoinGains(const MoeJoin& m, int cols)
      : shared(m.shared_post, cols), routed(m.routed_post, cols), post(m.post, cols), next(m.next, cols) {}
};
// stream + the norm of both branches; r: the shared one, s: the routed one.
template <bool kImage, int kPer, class Gains>
__device__ void join(Row<kPer>& stream, Row<kPer>& r, Row<kPer>& s, const Mat& x, const Mat& h, const MoeJoin& m,
                     const Gains& gains, bool real, int& parity) {
  const int t = int(blockIdx.x);
  const float2 both = inv_rms(r, s, x.cols, m.eps, parity);
  scale(s, both.y, gains.routed.get());
  Row<kPer> g = gains.shared.get();  // r = g r + s, rounded once
  each(g, g, [&](float a, float) { return __fmul_rn(both.x, a); });
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    r.v[i] = {__fmaf_rn(r.v[i].x, g.v[i].x, s.v[i].x), __fmaf_rn(r.v[i].y, g.v[i].y, s.v[i].y),
              __fmaf_rn(r.v[i].z, g.v[i].z, s.v[i].z), __fmaf_rn(r.v[i].w, g.v[i].w, s.v[i].w)};
  if (m.post) scale(r, inv_rms(r, x.cols, m.eps, parity), gains.post.get());
  add_to(stream, r, m.out_scale);
  store(stream, if_real(real, x), t);
  if (!m.next) return;
  store_scaled<kImage>(stream, inv_rms(stream, x.cols, m.eps, parity), gains.next.get(), if_real(real, h), t);
}

// With few columns registers hold all gains, and the outputs of several ranks are read at once, which hides L2 misses.
template <int kPer, bool kWarmIcache>
__global__ void __launch_bounds__(kThreads<kPer>, 1) moe_join_kernel(Mat x, Mat h, Mat y, Mat o, MoeJoin m) {
  constexpr bool kFew = kPer < kMostPer;
  constexpr int kUsed = kFew ? 4 : 1;
  const int t = int(blockIdx.x);
  const JoinGains<kPer, true, kFew> gains(m, x.cols);
  if (!kFew) fetch_gain(m.post, x.cols), fetch_gain(m.next, x.cols);
  int parity = 0;
  warm_icache<kWarmIcache>([&](bool real) {
    const int cols = real ? x.cols : 0;
    Row<kPer> r, s, stream;
    load(r, y.p + t * y.stride, cols);
    if (m.slots.out) {
      // The experts' outputs have not been added up: in the order of ranks, as combine does.
      s = Row<kPer>{};
      for (int k0 = 0; k0 < m.slots.n_used; k0 += kUsed) {
        Row<kPer> v[kUsed];
        float w[kUsed];
#pragma unroll
        for (int k = 0; k < kUsed; ++k) {
          const int64_t slot = int64_t(t) * m.slots.n_used + min(k0 + k, m.slots.n_used - 1);
          load(v[k], m.slots.out + slot * x.cols, cols);
          w[k] = real ? m.slots.weight[slot] : 0.f;
        }
#pragma unroll
        for (int k = 0; k < kUsed; ++k) {
          if (k0 + k >= m.slots.n_used) break;
          add_weighted(s, v[k], w[k]);
        }
      }
    } else {
      load(s, o.p + t * o.stride, cols);
    }
    load(stream, x.p + t * x.stride, cols);  // now: beside the experts' outputs registers would not hold it
    join<true>(stream, r, s, x, h, m, gains, real, parity);
  });
}

// The same of many rows; their experts' outputs may be in panels.
template <int kPer, bool kImage>
__global__ void __launch_bounds__(kThreads<kPer>, kPer < kMostPer ? 2 : 1)
    moe_join_many_kernel(Mat x, Mat h, Mat y, Mat o, MoeJoin m) {
  constexpr int kUsed = 4;  // outputs on their way at a time
  __shared__ int4 tile[kMaxUsed];
  __shared__ int row[kMaxUsed];
  __shared__ float weight[kMaxUsed];
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x), thread = int(threadIdx.x), n_used = m.panels.rows ? m.panels.n_used : 0;
  Row<kPer> r, s{}, stream;
  load(r, y.p + t * y.stride, x.cols);
  load(stream, x.p + t * x.stride, x.cols);
  if (thread < n_used) {
    const int2 at = m.panels.place[t * n_used + thread];
    tile[thread] = m.panels.tile[at.x], row[thread] = at.y, weight[thread] = m.panels.weight[t * n_used + thread];
  }
  __syncthreads();
  for (int k0 = 0; k0 < n_used; k0 += kUsed) {  // in the order of ranks, as combine does
    uint2 v[kUsed][kPer] = {};
#pragma unroll
    for (int k = 0; k < kUsed; ++k)
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (const int c = col_of<kPer>(i), rank = k0 + k; rank < n_used && c < x.cols)
          v[k][i] = *reinterpret_cast<const uint2*>(m.panels.rows +
                                                    chunk_at(tile[rank], row[rank], m.panels.n_block, c / 8) + c % 8);
#pragma unroll
    for (int k = 0; k < kUsed; ++k) {
      if (k0 + k >= n_used) break;
      Row<kPer> of;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float2 a = __bfloat1622float2(as_bf16x2(v[k][i].x)), b = __bfloat1622float2(as_bf16x2(v[k][i].y));
        of.v[i] = {a.x, a.y, b.x, b.y};
      }
      add_weighted(s, of, weight[k0 + k]);
    }
  }
  if (!m.panels.rows) load(s, o.p + t * o.stride, x.cols);
  int parity = 0;
  join<kImage>(stream, r, s, x, h, m, JoinGains<kPer, false, false>(m, x.cols), true, parity);
}
// kPer for rows of x, as with_per(x, [](auto per) { kernel<per()> }).
template <class F>
void with_per(const Mat& x, F&& f) {
  CHECK(x.cols % 4 == 0 && x.cols <= kThreads<kMostPer> * kMostPer * 4, "{} columns", x.cols);
  if (x.cols <= kSmallModelCols)
    f(std::integral_constant<int, 1>{});
  else if (x.cols <= kThreads<kMostPer> * kMostPer / 2 * 4)
    f(std::integral_constant<int, kMostPer / 2>{});
  else if (x.cols <= kThreads<kMostPer> * (kMostPer - 1) * 4)
    f(std::integral_constant<int, kMostPer - 1>{});
  else
    f(std::integral_constant<int, kMostPer>{});
}

}  // namespace

void rms_norm(cudaStream_t stream, Mat y, Mat x, Partials left, const float* gain, float eps) {
  with_per(x, [&](auto per) {
    constexpr int kPer = per() == 1 ? 1 : kMostPer;
    launch(may_warm_icache<kPer>(x.rows) ? rms_norm_kernel<kPer, true> : rms_norm_kernel<kPer, false>,
           dim3(unsigned(x.rows)), dim3(kThreads<kPer>), 0, stream, y, x, left, gain, eps);
  });
}
void residual_norm(cudaStream_t stream, Mat x, Mat h, Mat y, Partials left, const float* post, const float* next,
                   float out_scale, float eps) {
  with_per(x, [&](auto per) {
    constexpr bool kMay = per() < kMostPer;
    launch(is_many(x, h, left)                      ? residual_norm_kernel<per(), false, false, true>
           : kMay && may_warm_icache<per()>(x.rows) ? residual_norm_kernel<per(), false, kMay>
                                                    : residual_norm_kernel<per(), false, false>,
           dim3(unsigned(x.rows)), dim3(kThreads<per()>), image_bytes(h), stream, x, h, y, left, post, next, out_scale,
           eps, MoeInputs{});
  });
}
void residual_norm_moe(cudaStream_t stream, Mat x, Mat h, Mat y, Partials left, const float* post, const float* next,
                       float out_scale, float eps, const MoeInputs& moe) {
  CHECK(next, "a layer with experts and no norm after attention: {}", x.cols);
  with_per(x, [&](auto per) {
    launch(
        is_many(x, h, left) ? residual_norm_kernel<per(), true, false, true> : residual_norm_kernel<per(), true, false>,
        dim3(unsigned(x.rows)), dim3(kThreads<per()>), image_bytes(h), stream, x, h, y, left, post, next, out_scale,
        eps, moe);
  });
}
void moe_join(cudaStream_t stream, Mat x, Mat h, Mat y, Mat o, const MoeJoin& m) {
  with_per(x, [&](auto per) {
    constexpr int kPer = per() > kMostPer / 2 ? kMostPer : kMostPer / 2;
    constexpr bool kMay = kPer < kMostPer;
    if (x.rows >= kManyRows && !m.slots.out)
      return launch(h.image ? moe_join_many_kernel<kPer, true> : moe_join_many_kernel<kPer, false>,
                    dim3(unsigned(x.rows)), dim3(kThreads<kPer>), image_bytes(h), stream, x, h, y, o, m);
    CHECK(!m.panels.rows, "{} rows, whose experts' outputs are in panels", x.rows);
    launch(kMay && may_warm_icache<kPer>(x.rows) ? moe_join_kernel<kPer, kMay> : moe_join_kernel<kPer, false>,
           dim3(unsigned(x.rows)), dim3(kThreads<kPer>), image_bytes(h), stream, x, h, y, o, m);
  });
}
}  // namespace facet::cuda
