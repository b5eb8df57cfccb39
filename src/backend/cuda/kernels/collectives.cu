// collectives -- all-reduce and all-gather over several GPUs, and embeddings of a part of the vocabulary
//
// Shapes     rows of f32, any number of columns
// Bytes      through mailboxes: each value twice (with its epoch) to every other GPU; in place: each value once to the
//            GPU that adds it, and each sum once to every GPU
// Launch     mailboxes: a thread per two columns of a row, up to 128 blocks; in place: 64 blocks
// Order      GPUs are added in ascending order: a sum's bits depend on the number of GPUs alone
// Reference  HostLink of src/backend/shard_link.h
// Test       tests/kernels/cuda_collectives_test.cpp
// Bench      bench/verbs/cuda_collectives_bench.cu
//
// Mailboxes (one-shot, as NCCL's LL protocol). A value travels with the epoch, the number of the collective, in one
// word of 64 bits, which is written and read as one: a reader that finds the epoch has the value, so no fence is
// needed. A word of an older collective has an older epoch. There are two sets of mailboxes, for even and odd epochs.
// A GPU writes to a set again only after it has received what all others sent in the epoch between, and each of these
// sent that after it had finished with the set, because the kernels of a stream end one after another.
//
// In place (two-shot). The GPUs meet, each adds up its share of the rows and writes the sums to all, and they meet
// again. To meet, a block stores the epoch in its flag at the same block of every other GPU (release) and polls
// theirs (acquire). A flag's epoch only grows.
//
// Epochs are counted on the device, so that CUDA graphs replay. A GPU that waits longer than timeout_ns reports it to
// the host, gives up, and waits in no later collective.
#include "backend/cuda/kernels/collectives.h"

#include <algorithm>
#include <type_traits>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/embed_row.cuh"

namespace facet::cuda {
namespace {

constexpr int kThreads = 512;       // in place
constexpr int kBoxThreads = 256;    // mailboxes
constexpr int kAhead = 4;           // words in flight per thread
constexpr int kPollsPerClock = 64;  // polls between two reads of the clock
// Words of Communicator::counters: the epoch of the newest collective through mailboxes, the number of blocks that are
// done with the one that runs, whether one was given up, and for each block the number of meetings.
constexpr int kEpoch = 0, kBlocksDone = 1, kGaveUp = 2, kMeetings = 3;
static_assert(kMeetings + kSumBlocks == kCounterWords);

struct Pair {
  uint64_t a, b;
};
__device__ __forceinline__ void send(uint64_t* to, Pair v) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(v.a), "l"(v.b) : "memory");
}
__device__ __forceinline__ Pair poll_pair(const uint64_t* at) {
  Pair v;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.a), "=l"(v.b) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ void signal(uint32_t* flag, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t poll(const uint32_t* flag) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}
__device__ __forceinline__ float4 ld_sys(const float* p) {
  float4 v;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void st_sys(float* p, float4 v) {
  asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ float ld_sys_one(const float* p) {
  float v;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void st_sys_one(float* p, float v) {
  asm volatile("st.relaxed.sys.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
__device__ __forceinline__ uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// A thread's wait for other GPUs, which ends after timeout_ns.
class SpinTimeout {
 public:
  __device__ explicit SpinTimeout(const Communicator& x) : x_(x), given_up_(*gave_up() != 0) {}
  // Whether to poll again for what `source` has not sent yet. After the timeout it reports the source to the host.
  __device__ bool keeps_spinning(int source) {
    if (given_up_) return false;
    if (++polls_ % kPollsPerClock != 0) return true;
    const uint64_t t = now_ns();
    if (begun_ == 0) begun_ = t;
    if (t - begun_ < x_.timeout_ns) return true;
    given_up_ = true;
    *gave_up() = 1;
    *const_cast<volatile uint32_t*>(x_.failed) = 1u + unsigned(source);
    __threadfence_system();
    return false;
  }

 private:
  __device__ volatile uint32_t* gave_up() const { return x_.counters + kGaveUp; }
  const Communicator& x_;
  bool given_up_;
  unsigned polls_ = 0;
  uint64_t begun_ = 0;
};

// --- mailboxes

__device__ __forceinline__ uint64_t* words(const Communicator& x, int of, int from, uint32_t epoch) {
  return x.box[of] + (int64_t(epoch % 2) * x.n + from) * x.box_floats;
}
__device__ __forceinline__ Pair stamped(float2 v, uint32_t epoch) {
  const uint64_t high = uint64_t(epoch) << 32;
  return {high | __float_as_uint(v.x), high | __float_as_uint(v.y)};
}
__device__ __forceinline__ bool is_of(Pair v, uint32_t epoch) {
  return uint32_t(v.a >> 32) == epoch && uint32_t(v.b >> 32) == epoch;
}
__device__ __forceinline__ float2 value(Pair v) {
  return {__uint_as_float(uint32_t(v.a)), __uint_as_float(uint32_t(v.b))};
}
// Receives kAhead of the words that source sent, a stride apart; there are none from n on.
__device__ __forceinline__ void receive(float2 (&v)[kAhead], const Communicator& x, int source, uint32_t epoch,
                                        uint32_t i, uint32_t stride, uint32_t n, SpinTimeout& timeout) {
  const uint64_t* from = words(x, x.me, source, epoch);
  Pair w[kAhead];
#pragma unroll
  for (int k = 0; k < kAhead; ++k)
    if (i + k * stride < n) w[k] = poll_pair(from + 2 * (i + k * stride));
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    if (i + k * stride >= n) continue;
    while (!is_of(w[k], epoch) && timeout.keeps_spinning(source)) w[k] = poll_pair(from + 2 * (i + k * stride));
    v[k] = value(w[k]);
  }
}

// Two columns of a row, or one: the last of an odd number.
struct At {
  int t, c;
  bool two;
};
__device__ __forceinline__ At place(uint32_t i, int cols) {
  const uint32_t pairs = unsigned(cols + 1) / 2, t = i / pairs;
  const int c = int(i - t * pairs) * 2;
  return {int(t), c, c + 1 < cols};
}
__device__ __forceinline__ float2 get2(const Mat& m, At a) {
  const float* p = m.p + a.t * m.stride + a.c;
  return {p[0], a.two ? p[1] : 0.f};
}
__device__ __forceinline__ void put2(const Mat& m, At a, float2 v) {
  float* p = m.p + a.t * m.stride + a.c;
  p[0] = v.x;
  if (a.two) p[1] = v.y;
}
__device__ __forceinline__ float2 get2(const Partials& left, At a) {
  float2 sum = {};
  for (int s = 0; s < left.n_set; ++s) {
    const float* p =
        left.p + ((int64_t(s) * left.n_job + a.c / kTileRows) * left.width + a.t) * kTileRows + a.c % kTileRows;
    sum.x += p[0], sum.y += p[1];
  }
  return sum;
}
__device__ __forceinline__ float2 get2(const MoeSlots& m, At a, int cols) {
  float2 sum = {};
#pragma unroll 4
  for (int k = 0; k < m.n_used; ++k) {
    const int64_t slot = int64_t(a.t) * m.n_used + k;
    const float2 v = *reinterpret_cast<const float2*>(m.out + slot * cols + a.c);
    const float w = m.weight[slot];
    sum.x += w * v.x, sum.y += w * v.y;
  }
  return sum;
}
__host__ __device__ __forceinline__ uint32_t words_of(int rows, int cols) {
  return unsigned(rows) * (unsigned(cols + 1) / 2);
}

__device__ __forceinline__ uint32_t begin_epoch(const Communicator& x) {
  pdl_wait();
  pdl_trigger();
  const uint32_t epoch = *static_cast<volatile uint32_t*>(x.counters + kEpoch) + 1;
  return epoch == 0 ? 2 : epoch;  // boxes are zero at first; even numbers stay even
}
// The last block to arrive advances the epoch.
__device__ __forceinline__ void end_epoch(const Communicator& x, uint32_t epoch) {
  __syncthreads();  // every thread has read the number
  if (threadIdx.x > 0 || atomicAdd(x.counters + kBlocksDone, 1u) + 1 < gridDim.x) return;
  x.counters[kBlocksDone] = 0;
  x.counters[kEpoch] = epoch;
}
unsigned blocks_for(uint32_t n_word) {
  return std::clamp((n_word + kBoxThreads - 1) / kBoxThreads, 1u, unsigned(kMailboxBlocks));
}

struct SumParts {
  SumPart part[2];
};
// A pair of columns of one of the two parts.
struct Item {
  const SumPart* part;
  At at;
};
__device__ __forceinline__ Item item(const SumParts& all, uint32_t i, uint32_t n_first) {
  const SumPart& p = all.part[i < n_first ? 0 : 1];
  return {&p, place(i < n_first ? i : i - n_first, p.y.cols)};
}

__global__ void __launch_bounds__(kBoxThreads, 1)
    all_reduce_kernel(const __grid_constant__ Communicator x, const __grid_constant__ SumParts all) {
  const uint32_t epoch = begin_epoch(x);
  const uint32_t first = blockIdx.x * kBoxThreads + threadIdx.x, stride = gridDim.x * kBoxThreads,
                 n_first = words_of(all.part[0].y.rows, all.part[0].y.cols),
                 n = n_first + words_of(all.part[1].y.rows, all.part[1].y.cols);
  SpinTimeout timeout(x);
  for (uint32_t i = first; i < n; i += kAhead * stride) {
    Item e[kAhead];
    float2 own[kAhead], sum[kAhead] = {};
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k * stride >= n) break;
      e[k] = item(all, i + k * stride, n_first);
      const SumPart& p = *e[k].part;
      own[k] = p.left.p ? get2(p.left, e[k].at) : p.slots.out ? get2(p.slots, e[k].at, p.y.cols) : get2(p.y, e[k].at);
      for (int other = 1; other < x.n; ++other) {
        const int to = (x.me + other) % x.n;
        send(words(x, to, x.me, epoch) + 2 * (i + k * stride), stamped(own[k], epoch));
      }
    }
    for (int s = 0; s < x.n; ++s) {
      float2 v[kAhead] = {};
      if (s != x.me) receive(v, x, s, epoch, i, stride, n, timeout);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (i + k * stride >= n) break;
        const unsigned has = e[k].part->has;
        if (!(has >> s & 1)) continue;
        const float2 part = s == x.me ? own[k] : v[k];
        const bool is_first = (has & ((1u << s) - 1)) == 0;
        sum[k].x = is_first ? part.x : sum[k].x + part.x;
        sum[k].y = is_first ? part.y : sum[k].y + part.y;
      }
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k * stride >= n) break;
      put2(e[k].part->y, e[k].at, sum[k]);
    }
  }
  end_epoch(x, epoch);
}

__global__ void __launch_bounds__(kBoxThreads, 1)
    all_gather_kernel(const __grid_constant__ Communicator x, Mat to, Mat from, const __grid_constant__ Columns cols,
                      unsigned wants) {
  const uint32_t epoch = begin_epoch(x);
  const uint32_t first = blockIdx.x * kBoxThreads + threadIdx.x, stride = gridDim.x * kBoxThreads;
  const bool mine = wants >> x.me & 1;
  // A GPU that has no columns, and one whose receiver wants none, sends one word all the same: the two sets of
  // mailboxes may be reused only because every GPU sends to every other in each epoch.
  const uint32_t n = words_of(from.rows, from.cols);
  for (uint32_t i = first; i < max(n, 1u); i += stride) {
    const At a = place(i, max(from.cols, 1));
    const float2 v = i < n ? get2(from, a) : float2{};
    for (int k = 1; k < x.n; ++k) {
      const int other = (x.me + k) % x.n;
      if (i == 0 || wants >> other & 1) send(words(x, other, x.me, epoch) + 2 * i, stamped(v, epoch));
    }
    if (mine && i < n) put2(to, {a.t, cols.at[x.me] + a.c, a.two}, v);
  }
  SpinTimeout timeout(x);
  for (int k = 1; k < x.n; ++k) {
    const int s = (x.me + k) % x.n;
    const uint32_t sent = words_of(from.rows, cols.cols[s]), n_look = mine ? max(sent, 1u) : 1;
    for (uint32_t i = first; i < n_look; i += kAhead * stride) {
      float2 v[kAhead] = {};
      receive(v, x, s, epoch, i, stride, n_look, timeout);
      if (!mine) continue;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (i + j * stride >= sent) continue;
        const At a = place(i + j * stride, cols.cols[s]);
        put2(to, {a.t, cols.at[s] + a.c, a.two}, v[j]);
      }
    }
  }
  end_epoch(x, epoch);
}

// --- in place

// After meet(), what the blocks of this number wrote before it on all GPUs is visible.
__device__ void meet(const Communicator& x, uint32_t epoch) {
  __threadfence_system();
  __syncthreads();
  const int other = int(threadIdx.x);
  if (other < x.n && other != x.me) {
    SpinTimeout timeout(x);
    signal(x.flag[other] + blockIdx.x * kMaxShards + x.me, epoch);
    const uint32_t* theirs = x.flag[x.me] + blockIdx.x * kMaxShards + other;
    while (int32_t(poll(theirs) - epoch) < 0 && timeout.keeps_spinning(other)) {
    }
  }
  __syncthreads();
}

// kWide: a thread takes four columns at a time.
template <bool kWide>
__global__ void __launch_bounds__(kThreads, 1)
    all_reduce_in_place_kernel(const __grid_constant__ Communicator x, Mat y, const __grid_constant__ EachPart all,
                               unsigned has) {
  using V = std::conditional_t<kWide, float4, float>;
  constexpr int kCols = kWide ? 4 : 1, kUnits = 4;  // kUnits: in flight per thread
  pdl_wait();
  pdl_trigger();
  uint32_t* const count = x.counters + kMeetings + blockIdx.x;
  const uint32_t epoch = *count;
  meet(x, epoch + 1);
  const int per_row = y.cols / kCols;
  const int64_t units = int64_t(y.rows) * per_row, begin = units * x.me / x.n, end = units * (x.me + 1) / x.n,
                stride = int64_t(kSumBlocks) * kThreads;
  for (int64_t i = begin + int64_t(blockIdx.x) * kThreads + threadIdx.x; i < end; i += kUnits * stride) {
    V sum[kUnits] = {};
    int64_t at[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int64_t u = i + k * stride;
      at[k] = u < end ? u / per_row * y.stride + u % per_row * kCols : -1;
    }
    bool any = false;
    for (int s = 0; s < x.n; ++s) {
      if (!(has >> s & 1)) continue;
      V v[kUnits] = {};
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        if (at[k] < 0) continue;
        if constexpr (kWide)
          v[k] = ld_sys(all.p[s] + at[k]);
        else
          v[k] = ld_sys_one(all.p[s] + at[k]);
      }
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        if constexpr (kWide) {
          if (any)
            sum[k].x += v[k].x, sum[k].y += v[k].y, sum[k].z += v[k].z, sum[k].w += v[k].w;
          else
            sum[k] = v[k];
        } else {
          sum[k] = any ? sum[k] + v[k] : v[k];
        }
      }
      any = true;
    }
    for (int s = 0; s < x.n; ++s)
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        if (at[k] < 0) continue;
        if constexpr (kWide)
          st_sys(all.p[s] + at[k], sum[k]);
        else
          st_sys_one(all.p[s] + at[k], sum[k]);
      }
  }
  meet(x, epoch + 2);
  if (threadIdx.x == 0) *count = epoch + 2;
}

__global__ void embed_own_kernel(Mat x, TiledMatrix m, const int32_t* token, int first, float scale_by) {
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x), id = token[t] - first;
  if (id >= 0 && id < m.n_out) return embed_row(x, m, t, id, scale_by);
  for (int c = int(threadIdx.x) * 4; c < x.cols; c += int(blockDim.x) * 4) put(x, t, c, {});
}

}  // namespace

void all_reduce(cudaStream_t stream, const Communicator& x, const SumPart& part, const SumPart& second) {
  int64_t floats = 0;
  for (const SumPart* p : {&part, &second}) {
    floats += int64_t(p->y.rows) * ((p->y.cols + 1) / 2 * 2);
    CHECK((!p->left.p && !p->slots.out) || p->y.cols % 2 == 0, "{} columns of partial sums", p->y.cols);
  }
  CHECK(floats <= x.box_floats, "{} floats through boxes of {}", floats, x.box_floats);
  const unsigned n = words_of(part.y.rows, part.y.cols) + words_of(second.y.rows, second.y.cols);
  launch(all_reduce_kernel, dim3(blocks_for(n)), dim3(kBoxThreads), 0, stream, x, SumParts{{part, second}});
}
void all_gather_columns(cudaStream_t stream, const Communicator& x, Mat to, Mat from, const Columns& cols,
                        unsigned wants) {
  int widest = 0;
  for (int i = 0; i < x.n; ++i) {
    widest = std::max(widest, cols.cols[i]);
    CHECK(int64_t(from.rows) * ((cols.cols[i] + 1) / 2 * 2) <= x.box_floats, "rows [{}, {}] through boxes of {}",
          from.rows, cols.cols[i], x.box_floats);
  }
  launch(all_gather_kernel, dim3(blocks_for(words_of(from.rows, widest))), dim3(kBoxThreads), 0, stream, x, to, from,
         cols, wants);
}
void all_reduce_in_place(cudaStream_t stream, const Communicator& x, Mat y, const EachPart& all, unsigned has) {
  bool wide = y.cols % 4 == 0 && y.stride % 4 == 0;
  for (int i = 0; i < x.n; ++i) wide = wide && reinterpret_cast<uintptr_t>(all.p[i]) % 16 == 0;
  launch(wide ? all_reduce_in_place_kernel<true> : all_reduce_in_place_kernel<false>, dim3(kSumBlocks), dim3(kThreads),
         0, stream, x, y, all, has);
}
void embed_own(cudaStream_t stream, Mat x, const TiledMatrix& table, const int32_t* token, int first, float scale_by) {
  launch(embed_own_kernel, dim3(unsigned(x.rows)), dim3(256), 0, stream, x, table, token, first, scale_by);
}

}  // namespace facet::cuda
