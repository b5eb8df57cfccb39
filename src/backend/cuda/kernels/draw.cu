// draw -- a token from each row of logits
//
//   mask:   minus infinity for what is not allowed, one thread per logit
//   adjust: suppressed tokens, bias and penalties, one thread per change
//   groups: the largest of every group of logits, of which a row has at most 2,048
//   pick:   the k-th largest of these is no larger than the k-th of all: groups whose largest is not below it are read
//           again and sorted; top-p, min-p, temperature, the draw
//
// Shapes     logits [n_row, n_vocab] f32 with a row stride; ids [n_row] i32; candidates: draw_candidates() a row
// Bytes      the logits, once, and some k groups of them again
// Launch     groups: a warp per two groups of a row; pick: a block per row, which may write to the host's memory
// Order      keys are unique, so the result depends on the logits alone; sums in order of the sorted candidates
// Reference  sample_row
// Test       tests/kernels/cuda_sample_test.cpp
// Bench      bench/verbs/cuda_ops_bench.cu
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/sample.cuh"

namespace facet::cuda {
namespace {

constexpr int kMostGroups = 2048, kGroupWarps = 8, kPerWarp = 2;
constexpr int kThreads = 512, kWarps = kThreads / 32, kPer = kMostGroups / kThreads;  // of pick
constexpr int kSome = 512;                                                            // candidates that are sorted
constexpr int kSlack = 32;                                                            // that may be more than k
constexpr uint64_t kNaN = uint64_t(~0u) << 32;                                        // above the key of every number

// Logits of a group, a power of two.
constexpr int group_size(int n_vocab) {
  int size = 32;
  while ((n_vocab + size - 1) / size > kMostGroups) size *= 2;
  return size;
}

__global__ void adjust_kernel(float* logits, int64_t stride, int n_vocab, const DrawRow* rows, const Adjust* adjust) {
  pdl_wait();
  pdl_trigger();
  const DrawRow& r = rows[blockIdx.x];
  float* l = logits + blockIdx.x * stride;
  for (int i = int(threadIdx.x); i < r.n_adjust; i += int(blockDim.x)) {
    const Adjust a = adjust[r.first_adjust + i];
    if (a.id < 0 || a.id >= n_vocab) continue;
    float v = l[a.id] + a.bias;
    if (a.penalty != 1.f) v = v > 0 ? v / a.penalty : v * a.penalty;
    l[a.id] = v - a.minus;
  }
}

__global__ void mask_kernel(float* logits, int64_t stride, int n_vocab, const DrawRow* rows, const uint32_t* masks) {
  const int row = int(blockIdx.y), id = int(blockIdx.x * blockDim.x + threadIdx.x);
  pdl_wait();
  pdl_trigger();
  const int mask = rows[row].mask;
  if (mask < 0 || id >= n_vocab) return;
  if (!(masks[int64_t(mask) * ((n_vocab + 31) / 32) + id / 32] >> id % 32 & 1)) logits[row * stride + id] = -INFINITY;
}

template <bool kWarmIcache>
__global__ void __launch_bounds__(kGroupWarps * 32)
    groups_kernel(const float* logits, int64_t stride, int n_vocab, int size, int n_group, uint64_t* best) {
  const int row = int(blockIdx.y), lane = int(threadIdx.x) % 32,
            group0 = (int(blockIdx.x) * kGroupWarps + int(threadIdx.x) / 32) * kPerWarp;
  const float* l = logits + row * stride;
  pdl_trigger();
  warm_icache<kWarmIcache>([&](bool real) {
    float top[kPerWarp];
    int at[kPerWarp];
    bool nan = false;
#pragma unroll
    for (int j = 0; j < kPerWarp; ++j) top[j] = -INFINITY, at[j] = 0;
    for (int i = 0; i < size; i += 128) {
      float v[kPerWarp][4];
#pragma unroll
      for (int j = 0; j < kPerWarp; ++j)
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int in_group = i + 32 * u + lane, id = (group0 + j) * size + in_group;
          v[j][u] = real && in_group < size && id < n_vocab ? l[id] : -INFINITY;
        }
#pragma unroll
      for (int j = 0; j < kPerWarp; ++j)
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          nan |= isnan(v[j][u]);
          if (v[j][u] > top[j]) top[j] = v[j][u], at[j] = (group0 + j) * size + i + 32 * u + lane;
        }
    }
    nan = __any_sync(~0u, nan);
#pragma unroll
    for (int j = 0; j < kPerWarp; ++j) {
      const uint64_t key = top[j] > -INFINITY ? key_of(top[j], at[j]) : kNone;
      const uint32_t high = __reduce_max_sync(~0u, uint32_t(key >> 32)),
                     low = __reduce_max_sync(~0u, uint32_t(key >> 32) == high ? uint32_t(key) : 0u);
      if (lane == 0 && real && group0 + j < n_group)
        best[int64_t(row) * n_group + group0 + j] = nan ? kNaN : uint64_t(high) << 32 | low;
    }
  });
}

struct PickScratch {
  int hist[256];
  int bucket, above, n_list, n_some;
  uint64_t most[kWarps];
  uint64_t some[kSome], sorted[kMaxTopK];
  double p[kMaxTopK], sums[kMaxTopK];
  uint16_t list[kMostGroups];
};

// A bound that at least k of the block's keys are not below, and at most k + slack; 1 if there are fewer than k.
// each(f) calls f for the thread's keys, which are unique but for kNone. By radix, eight bits at a time.
template <class Each>
__device__ uint64_t bound_of(PickScratch& s, int k, int slack, Each&& each) {
  const int thread = int(threadIdx.x);
  uint64_t prefix = 0, mask = 0;
  int need = k;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (thread < 256) s.hist[thread] = 0;
    if (thread == 0) s.bucket = -1;
    __syncthreads();
    each([&](uint64_t key) {
      if (key != kNone && (key & mask) == prefix) atomicAdd(&s.hist[(key >> shift) & 255], 1);
    });
    __syncthreads();
    if (thread < 32) {  // eight buckets a lane, from the top
      int n[8], own = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) own += n[i] = s.hist[255 - (thread * 8 + i)];
      int before = own;
#pragma unroll
      for (int m = 1; m < 32; m *= 2) {
        const int v = __shfl_up_sync(~0u, before, m);
        if (thread >= m) before += v;
      }
      before -= own;
      if (before < need && before + own >= need) {
        int found = -1, sum = before;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (found < 0 && sum + n[i] >= need) found = i;
          if (found < 0) sum += n[i];
        }
        s.bucket = 255 - (thread * 8 + found), s.above = sum;
      }
    }
    __syncthreads();
    const int bucket = s.bucket;
    if (bucket < 0) return 1;
    prefix |= uint64_t(bucket) << shift, mask |= uint64_t(255) << shift;
    need -= s.above;
    if (s.hist[bucket] - need <= slack) break;
    __syncthreads();
  }
  return max(prefix, uint64_t(1));
}

__device__ uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// The largest of the block's keys, for the first thread.
__device__ uint64_t largest(PickScratch& s, const uint64_t (&key)[kPer]) {
  const int thread = int(threadIdx.x);
  uint64_t m = key[0];
#pragma unroll
  for (int i = 1; i < kPer; ++i) m = max(m, key[i]);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) m = max(m, __shfl_xor_sync(~0u, m, d));
  if (thread % 32 == 0) s.most[thread / 32] = m;
  __syncthreads();
  if (thread == 0)
#pragma unroll
    for (int i = 1; i < kWarps; ++i) m = max(m, s.most[i]);
  return m;
}

// The row's k largest to sorted, best first, kNone behind them. key: of the groups' largest, the thread's.
__device__ void sort_best(PickScratch& s, const uint64_t (&key)[kPer], const float* l, int n_vocab, int size, int k) {
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  uint64_t bound = bound_of(s, k, kSlack, [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) f(key[i]);
  });
  if (thread == 0) s.n_list = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    if (key[i] >= bound) s.list[atomicAdd(&s.n_list, 1)] = uint16_t(i * kThreads + thread);
  __syncthreads();
  const int shift = __ffs(size / 32) - 1, n_item = s.n_list << shift;  // 32 logits each
  auto each = [&](auto&& f) {
    constexpr int kAhead = 18;
    for (int i0 = warp; i0 < n_item; i0 += kAhead * kWarps) {
      float v[kAhead];
      int id[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int item = i0 + j * kWarps;
        id[j] = n_vocab;
        if (item < n_item) id[j] = s.list[item >> shift] * size + (item & ((1 << shift) - 1)) * 32 + lane;
        v[j] = id[j] < n_vocab ? l[id[j]] : -INFINITY;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) f(v[j] > -INFINITY ? key_of(v[j], id[j]) : kNone);
    }
  };
  auto collect = [&] {
    if (thread == 0) s.n_some = 0;
    __syncthreads();
    each([&](uint64_t c) {
      if (c >= bound)
        if (const int at = atomicAdd(&s.n_some, 1); at < kSome) s.some[at] = c;
    });
    __syncthreads();
  };
  collect();
  if (s.n_some > kSome) {  // of few groups
    __syncthreads();
    bound = bound_of(s, k, kSome - k, each);
    __syncthreads();
    collect();
  }
  const int n = s.n_some;
  const uint64_t mine = thread < n ? s.some[thread] : kNone;
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) rank += s.some[i] > mine;
  if (thread < n && rank < k) s.sorted[rank] = mine;
  if (thread >= min(n, k) && thread < kMaxTopK) s.sorted[thread] = kNone;
  __syncthreads();
}

// The token of a row, in the first thread.
__device__ int32_t pick(PickScratch& s, const DrawRow& r, bool greedy, const float* l, int n_vocab, int size,
                        int n_group, const uint64_t* best) {
  const int thread = int(threadIdx.x), k = greedy ? 1 : r.top_k;
  uint64_t key[kPer];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int g = i * kThreads + thread;
    key[i] = g < n_group ? best[g] : kNone;
    nan |= key[i] >= kNaN;
  }
  if (k == 1) {
    nan = __syncthreads_or(nan);
    const uint64_t m = largest(s, key);
    return nan || m == kNone || !isfinite(logit_of(m)) ? -1 : id_of(m);
  }
  if (__syncthreads_or(nan)) return -1;
  sort_best(s, key, l, n_vocab, size, k);
  const double top = double(logit_of(s.sorted[0]));
  if (s.sorted[0] == kNone || !isfinite(top)) return -1;
  if (r.temperature <= 0.f) return id_of(s.sorted[0]);
  const uint64_t candidate = s.sorted[min(thread, kMaxTopK - 1)];
  const double mine = candidate == kNone ? -INFINITY : double(logit_of(candidate));
  // How many are kept: of the k best, those before the sum of probabilities reaches top_p, and none that min_p
  // excludes.
  int n = max(1, __syncthreads_count(thread < k && candidate != kNone));
  const bool cut = r.top_p < 1.f;
  if (cut) {
    if (thread < n) s.p[thread] = exp(mine - top);
    __syncthreads();
    if (thread == 0) {
      double sum = 0;
#pragma unroll 8
      for (int i = 0; i < n; ++i) s.sums[i] = sum += s.p[i];
    }
    __syncthreads();
    const double enough = double(r.top_p) * s.sums[n - 1];
    n = min(n, 1 + __syncthreads_count(thread < n && s.sums[thread] < enough));
  }
  if (r.min_p > 0.f) n = max(1, __syncthreads_count(thread < n && mine >= top + log(double(r.min_p))));
  const bool same = cut && r.temperature == 1.f;  // as what was summed
  if (!same) {
    __syncthreads();
    if (thread < n) s.p[thread] = exp((mine - top) / double(r.temperature));
    __syncthreads();
  }
  if (thread > 0) return -1;
  double all = 0;
  if (same) {
    all = s.sums[n - 1];
  } else {
#pragma unroll 8
    for (int i = 0; i < n; ++i) all += s.p[i];
  }
  double u = double(mix(mix(r.seed) ^ uint64_t(r.position)) >> 11) * 0x1p-53 * all;
  constexpr int kAhead = 8;  // differences that are under way before the first one is looked at
  for (int i = 0; i < n; i += kAhead) {
    double after[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) after[j] = u -= s.p[min(i + j, n - 1)];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (i + j < n && after[j] < 0) return id_of(s.sorted[i + j]);
  }
  return id_of(s.sorted[n - 1]);
}
__global__ void __launch_bounds__(kThreads)
    pick_kernel(int32_t* ids, const DrawRow* rows, bool greedy, const float* logits, int64_t stride, int n_vocab,
                int size, int n_group, const uint64_t* best, Done done) {
  __shared__ PickScratch scratch;
  const int row = int(blockIdx.x);
  const DrawRow r = greedy ? DrawRow{} : rows[row];  // the host wrote it before the launch
  pdl_wait();
  pdl_trigger();
  const int32_t id =
      pick(scratch, r, greedy, logits + row * stride, n_vocab, size, n_group, best + int64_t(row) * n_group);
  if (threadIdx.x == 0) ids[row] = id;
  tell(done);
}

}  // namespace

void draw(cudaStream_t stream, int32_t* ids, float* logits, int64_t stride, int n_vocab, int n_row, const DrawRow* rows,
          const Adjust* adjust, int n_adjust, bool greedy, uint64_t* candidates, Done done, const uint32_t* masks,
          int n_mask) {
  const int size = group_size(n_vocab), n_group = (n_vocab + size - 1) / size, per_block = kGroupWarps * kPerWarp;
  CHECK(n_group <= kMostGroups && n_group <= draw_candidates(n_vocab), "{} groups of {} logits", n_group, n_vocab);
  if (n_mask > 0)
    launch(mask_kernel, dim3(unsigned((n_vocab + 255) / 256), unsigned(n_row)), dim3(256), 0, stream, logits, stride,
           n_vocab, rows, masks);
  if (n_adjust > 0)
    launch(adjust_kernel, dim3(unsigned(n_row)), dim3(128), 0, stream, logits, stride, n_vocab, rows, adjust);
  const dim3 grid{unsigned((n_group + per_block - 1) / per_block), unsigned(n_row)};
  launch(n_row == 1 ? groups_kernel<true> : groups_kernel<false>, grid, dim3(kGroupWarps * 32), 0, stream, logits,
         stride, n_vocab, size, n_group, candidates);
  launch(pick_kernel, dim3(unsigned(n_row)), dim3(kThreads), 0, stream, ids, rows, greedy, logits, stride, n_vocab,
         size, n_group, candidates, done);
}

}  // namespace facet::cuda
