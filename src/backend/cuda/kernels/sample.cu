// top_k -- the k largest of each row of logits, best first, and their log-probabilities; clusters of tokens that are
// kept
//
//   parts:  the top_k largest of every 4,096 logits, of keys (logit, lowest id first) above a bound; a radix selection
//           where these are many
//   pick:   the top_k of those, sorted
//
// Shapes     logits [n_row, n_vocab] f32 with a row stride; ids, log_probs [n_row, k], k <= 256; chosen [n_row,
//            n_cluster]
// Bytes      the logits, once
// Launch     parts: a block of 256 threads per part and row; pick: a block per row, which may write to the host's
//            memory
// Order      keys are unique, so the result depends on the logits alone
// Reference  top_k_row
// Test       tests/kernels/cuda_sample_test.cpp
// Bench      bench/verbs/cuda_ops_bench.cu
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/embed_row.cuh"
#include "backend/cuda/kernels/sample.cuh"

namespace facet::cuda {
namespace {

constexpr int kThreads = 256, kPer = kDrawPart / kThreads;

// The largest of the block's keys, kPer a thread: the first thread's result.
__device__ uint64_t largest(const uint64_t (&key)[kPer]) {
  __shared__ uint64_t best[kThreads / 32];
  const int thread = int(threadIdx.x);
  uint64_t m = key[0];
#pragma unroll
  for (int i = 1; i < kPer; ++i) m = key[i] > m ? key[i] : m;
  for (int s = 16; s > 0; s /= 2) {
    const uint64_t o = __shfl_xor_sync(~0u, m, s);
    m = o > m ? o : m;
  }
  if (thread % 32 == 0) best[thread / 32] = m;
  __syncthreads();
  if (thread == 0)
    for (int i = 1; i < kThreads / 32; ++i) m = best[i] > m ? best[i] : m;
  return m;
}

// The k largest of the block's keys to out[0..k) by radix selection, in no order; fewer are there: the rest are kNone.
__device__ void largest_of_many(const uint64_t (&key)[kPer], int k, uint64_t* out) {
  __shared__ int hist[256];
  __shared__ int bucket, above, n_out;
  const int thread = int(threadIdx.x);
  uint64_t prefix = 0, mask = 0;  // keys that may be the k-th match prefix under mask
  int need = k;
  for (int shift = 56; shift >= 0; shift -= 8) {
    hist[thread] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if ((key[i] & mask) == prefix) atomicAdd(&hist[(key[i] >> shift) & 255], 1);
    __syncthreads();
    if (thread < 32) {  // eight buckets a lane, from the top
      int own = 0;
      for (int i = 0; i < 8; ++i) own += hist[255 - (thread * 8 + i)];
      int before = own;
      for (int m = 1; m < 32; m *= 2) {
        const int v = __shfl_up_sync(~0u, before, m);
        if (thread >= m) before += v;
      }
      before -= own;
      if (before < need && before + own >= need) {
        int sum = before;
        for (int i = 0; i < 8; ++i) {
          const int b = 255 - (thread * 8 + i);
          if (sum + hist[b] >= need) {
            bucket = b, above = sum;
            break;
          }
          sum += hist[b];
        }
      }
    }
    __syncthreads();
    prefix |= uint64_t(bucket) << shift, mask |= uint64_t(255) << shift;
    need -= above;
    const bool done = hist[bucket] == need;
    __syncthreads();
    if (done) break;
  }
  if (thread == 0) n_out = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    if ((key[i] & mask) >= prefix && key[i] != kNone) {
      const int at = atomicAdd(&n_out, 1);
      if (at < k) out[at] = key[i];
    }
  __syncthreads();
  for (int i = n_out + thread; i < k; i += kThreads) out[i] = kNone;
  __syncthreads();
}

// The k largest of the block's keys to out[0..k), the rest kNone. True: best first. The k-th of the threads' largest
// keys is not above the k-th of all, and few keys are above it.
__device__ bool largest(const uint64_t (&key)[kPer], int k, uint64_t* out) {
  const int thread = int(threadIdx.x);
  if (k == 1) {
    const uint64_t m = largest(key);
    if (thread == 0) out[0] = m;
    __syncthreads();
    return true;
  }
  __shared__ __align__(16) uint32_t high[kThreads];  // of the threads' largest
  __shared__ uint64_t some[kThreads];
  __shared__ uint32_t least;
  __shared__ int n_some;
  uint64_t m = key[0];
#pragma unroll
  for (int i = 1; i < kPer; ++i) m = key[i] > m ? key[i] : m;
  const uint32_t own = uint32_t(m >> 32);
  high[thread] = own;
  if (thread == 0) n_some = 0;
  __syncthreads();
  int above = 0, same = 0;
#pragma unroll 4
  for (int i = 0; i < kThreads; i += 4) {
    const uint4 o = *reinterpret_cast<const uint4*>(high + i);
    above += (o.x > own) + (o.y > own) + (o.z > own) + (o.w > own);
    same += (o.x == own) + (o.y == own) + (o.z == own) + (o.w == own);
  }
  if (above < k && above + same >= k) least = own;  // all that write it write the same
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    if (key[i] != kNone && uint32_t(key[i] >> 32) >= least)
      if (const int at = atomicAdd(&n_some, 1); at < kThreads) some[at] = key[i];
  __syncthreads();
  const int n = n_some;
  if (n > kThreads) {
    largest_of_many(key, k, out);
    return false;
  }
  const uint64_t mine = thread < n ? some[thread] : kNone;
  int rank = 0;
#pragma unroll 4
  for (int i = 0; i < n; ++i) rank += some[i] > mine;
  if (thread < n && rank < k) out[rank] = mine;
  if (thread >= n && thread < k) out[thread] = kNone;
  __syncthreads();
  return true;
}

// The k best of a row's parts to sorted[kMaxTopK], best first, kNone behind them (everywhere, unless it is real). One
// block of kThreads.
__device__ void best_of_parts(const uint64_t* from, int n_part, int k, uint64_t* sorted, bool real) {
  static_assert(kThreads == kMaxTopK);
  const int thread = int(threadIdx.x);
  // Rounds of kDrawPart candidates: the winners so far, if there are any, and as many new ones as fit.
  const int total = n_part * k;
  bool in_order = true;
  sorted[thread] = kNone;
  __syncthreads();
  for (int base = 0, kept = 0; base < total; base += kDrawPart - kept, kept = kMaxTopK) {
    uint64_t key[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int at = i * kThreads + thread, c = base + at - kept;
      key[i] = at < kept ? sorted[at] : c < total && real ? from[c / k * kMaxTopK + c % k] : kNone;
    }
    __syncthreads();
    in_order = largest(key, k, sorted);
    for (int i = k + thread; i < kMaxTopK; i += kThreads) sorted[i] = kNone;
    __syncthreads();
  }
  if (in_order) return;
  for (int size = 2; size <= kMaxTopK; size *= 2)  // bitonic, largest first; one thread an element
    for (int step = size / 2; step > 0; step /= 2) {
      const int other = thread ^ step;
      const uint64_t a = sorted[thread], b = sorted[other];
      __syncthreads();
      const bool larger_here = (thread & size) == 0 ? thread < other : thread > other;
      sorted[thread] = larger_here ? (a > b ? a : b) : (a > b ? b : a);
      __syncthreads();
    }
}

// A part's k best, its largest logit and the sum of exponentials below it.
template <bool kWarmIcache>
__global__ void __launch_bounds__(kThreads) top_parts_kernel(const float* logits, int64_t stride, int n_vocab, int k,
                                                             uint64_t* candidates, float2* sums, int n_part) {
  __shared__ float part[kThreads / 32];
  __shared__ uint64_t nowhere[kMaxTopK];
  pdl_trigger();
  const int row = int(blockIdx.y), at = int(blockIdx.x), thread = int(threadIdx.x);
  const float* l = logits + row * stride;
  warm_icache<kWarmIcache>([&](bool real) {
    uint64_t key[kPer];
    float v[kPer], most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int id = at * kDrawPart + i * kThreads + thread;
      v[i] = real && id < n_vocab ? l[id] : -INFINITY;
      key[i] = v[i] > -INFINITY ? key_of(v[i], id) : kNone;
      most = fmaxf(most, v[i]);
    }
    for (int m = 16; m > 0; m /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
    if (thread % 32 == 0) part[thread / 32] = most;
    __syncthreads();
    for (int i = 0; i < kThreads / 32; ++i) most = fmaxf(most, part[i]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPer; ++i) sum += v[i] > -INFINITY ? expf(v[i] - most) : 0.f;
    for (int m = 16; m > 0; m /= 2) sum += __shfl_xor_sync(~0u, sum, m);
    if (thread % 32 == 0) part[thread / 32] = sum;
    __syncthreads();
    if (thread == 0) {
      for (int i = 1; i < kThreads / 32; ++i) sum += part[i];
      if (real) sums[int64_t(row) * n_part + at] = {most, sum};
    }
    largest(key, k, real ? candidates + (int64_t(row) * n_part + at) * kMaxTopK : nowhere);
  });
}

// The best of a row's parts: of a whole block, which all get the id of the first one, 0 if there is none.
template <bool kWarmIcache>
__device__ int32_t top_pick(const TopK& to, int row) {
  __shared__ uint64_t sorted[kMaxTopK];
  __shared__ float log_total;
  const int thread = int(threadIdx.x), n_part = to.n_part, k = to.k;
  warm_icache<kWarmIcache>([&](bool real) {
    best_of_parts(to.candidates + int64_t(row) * n_part * kMaxTopK, n_part, k, sorted, real);
    if (thread < 32) {
      const float2* s = to.part_sums + int64_t(row) * n_part;
      const int n = real ? n_part : 0;
      float most = -INFINITY, total = 0;
      for (int i = thread; i < n; i += 32) most = fmaxf(most, s[i].x);
      for (int m = 16; m > 0; m /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
      for (int i = thread; i < n; i += 32) total += s[i].x > -INFINITY ? s[i].y * expf(s[i].x - most) : 0.f;
      for (int m = 16; m > 0; m /= 2) total += __shfl_xor_sync(~0u, total, m);
      if (thread == 0) log_total = most + logf(total);
    }
    __syncthreads();
  });
  const int32_t id = sorted[0] == kNone ? 0 : id_of(sorted[0]);
  if (thread == 0 && to.best) to.best[row] = id;
  if (thread < k) {
    to.ids[row * k + thread] = sorted[thread] == kNone ? -1 : id_of(sorted[thread]);
    to.log_probs[row * k + thread] = sorted[thread] == kNone ? -INFINITY : logit_of(sorted[thread]) - log_total;
  }
  return id;
}
template <bool kWarmIcache>
__global__ void __launch_bounds__(kThreads) top_pick_kernel(const __grid_constant__ TopK to, Done done) {
  pdl_trigger();
  top_pick<kWarmIcache>(to, int(blockIdx.x));
  tell(done);
}
// The same, then what follows in a drafter's chain: the token's embedding, and rows beside it by blocks of their own.
template <bool kWarmIcache>
__global__ void __launch_bounds__(kThreads)
    top_pick_embed_kernel(const __grid_constant__ TopK to, Mat y, TiledMatrix table, float scale_by, Mat beside) {
  pdl_trigger();
  const int row = int(blockIdx.x);
  if (blockIdx.y > 0) {
    pdl_wait();
    return copy_row(y, table.n_in, beside, row);
  }
  embed_row(y, table, row, top_pick<kWarmIcache>(to, row), scale_by);
}

__global__ void __launch_bounds__(kThreads)
    choose_clusters_kernel(const float* scores, int64_t stride, int n_cluster, int k, uint8_t* chosen) {
  __shared__ uint64_t best[kMaxTopK];
  pdl_wait();
  pdl_trigger();
  const int row = int(blockIdx.x), thread = int(threadIdx.x);
  uint64_t key[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int c = i * kThreads + thread;
    key[i] = c < n_cluster ? key_of(scores[row * stride + c], c) : kNone;
    if (c < n_cluster) chosen[int64_t(row) * n_cluster + c] = 0;
  }
  largest(key, k, best);
  if (thread < k && best[thread] != kNone) chosen[int64_t(row) * n_cluster + id_of(best[thread])] = 1;
}
__global__ void keep_clusters_kernel(float* logits, int64_t stride, int n_vocab, int n_cluster, const int32_t* order,
                                     const uint8_t* chosen) {
  pdl_wait();
  pdl_trigger();
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x), row = int(blockIdx.y);
  if (i < n_vocab && !chosen[int64_t(row) * n_cluster + i / (n_vocab / n_cluster)])
    logits[row * stride + order[i]] = -INFINITY;
}

}  // namespace

void top_k_parts(cudaStream_t stream, const float* logits, int64_t stride, int n_vocab, TopK& to) {
  to.n_part = (n_vocab + kDrawPart - 1) / kDrawPart;
  const dim3 grid{unsigned(to.n_part), unsigned(to.n_row)};
  launch(to.n_row == 1 ? top_parts_kernel<true> : top_parts_kernel<false>, grid, dim3(kThreads), 0, stream, logits,
         stride, n_vocab, to.k, to.candidates, to.part_sums, to.n_part);
}
void top_k_pick(cudaStream_t stream, const TopK& to, Done done) {
  launch(to.n_row == 1 ? top_pick_kernel<true> : top_pick_kernel<false>, dim3(unsigned(to.n_row)), dim3(kThreads), 0,
         stream, to, done);
}
void top_k_embed(cudaStream_t stream, const TopK& to, Mat y, const TiledMatrix& table, float scale, Mat x) {
  CHECK(table.n_in % 4 == 0 && x.cols % 4 == 0, "{} columns beside {}", x.cols, table.n_in);
  launch(to.n_row == 1 ? top_pick_embed_kernel<true> : top_pick_embed_kernel<false>, dim3(unsigned(to.n_row), 2),
         dim3(kThreads), 0, stream, to, y, table, scale, x);
}
void top_k(cudaStream_t stream, const float* logits, int64_t stride, int n_vocab, TopK to, Done done) {
  top_k_parts(stream, logits, stride, n_vocab, to);
  top_k_pick(stream, to, done);
}

void keep_clusters(cudaStream_t stream, float* logits, int64_t stride, int n_vocab, int n_row, const float* scores,
                   int64_t score_stride, int n_cluster, int k, const int32_t* order, uint8_t* chosen) {
  CHECK(n_cluster <= kDrawPart && k <= kMaxTopK && n_vocab % n_cluster == 0, "{} of {} clusters", k, n_cluster);
  launch(choose_clusters_kernel, dim3(unsigned(n_row)), dim3(kThreads), 0, stream, scores, score_stride, n_cluster, k,
         chosen);
  launch(keep_clusters_kernel, dim3(unsigned((n_vocab + 255) / 256), unsigned(n_row)), dim3(256), 0, stream, logits,
         stride, n_vocab, n_cluster, order, chosen);
}

}  // namespace facet::cuda
