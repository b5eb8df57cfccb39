// moe_small_batch -- the chosen experts of at most 256 tokens, here of at least two (one token: decode.cu)
//
//   hidden[p] = act(Wg e) * (Wu e)     p: pair of token and expert
//   out[slot] = Wd hidden[p]           slot: token * n_used + rank
//   y[t]      = sum over ranks of weight * out
//
// Shapes     e [T, D] bf16; gate, up [N, F, D], down [N, D, F] tiled, or some of the experts' matrices (moe_place); y
//            [T, D] f32
// Bytes      the weights of the distinct experts, once
// Launch     one block per multiprocessor; blocks share the strips of the active experts, warps a block's tiles. How
//            many experts there are is read from device memory, so the launch depends on shapes alone. The rows of a
//            block's experts are in one image where these are at most eight: weights stream on from one expert to the
//            next
// Order      columns of a strip in kUpSlices or kDownSlices slices, tiles from the left; slices in order; experts in
//            rank order. None of it depends on the other tokens: the same bits for every T
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include <algorithm>
#include <initializer_list>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/experts.cuh"

namespace facet::cuda {
namespace {

// Rows of a pass: eight, or for many tokens in types of codes, whose experts have more, 16.
constexpr int kFewRows = 8, kManyRows = 16, kFewTokens = 64;
constexpr int kWarps = kExpertWarps;

struct ExpertArgs {
  ExpertTiles tiles[2];
  const int32_t *active, *n_active, *first, *pair;  // Routing's
  int n_strip;                                      // strips of the output
  int n_expert, n_used, n_tok;
  int at_parts, at_rings, stage_bytes, n_stage;  // in shared memory; of a warp's ring
  bool list_ready;  // the kernel before this one had waited for the routing before it let this one start
  bool wait_late;   // nothing else of the kernel before this one is needed, so that the two run side by side
  bool by_token;    // gate_up: rows of x by token; down: by place in `pair`
  Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;
  __nv_bfloat16* hidden;  // gate_up's output
  float* out;             // down's
  int n_in, n_out;
};

// Experts whose pairs fit into one pass, one after another; jobs are counted through all active experts. A job is a
// strip, or one of each matrix. Every lane has an expert; all lanes call everything.
struct PassExperts {
  const ExpertArgs& a;
  int active0, expert, first;  // the first of them; the lane's: its number, its first pair

  __device__ int place_of(int job) const { return fast_div(job, a.n_strip) - active0; }
  __device__ int expert_of(int place) const { return __shfl_sync(~0u, expert, place); }
  __device__ int first_of(int place) const { return __shfl_sync(~0u, first, place); }
  __device__ const uint8_t* strip(int sub, int expert_at, int strip) const {
    const ExpertTiles& w = a.tiles[sub];
    return w.p + expert_at * w.matrix_bytes + int64_t(w.strip0 + strip) * w.strip_bytes;
  }
};

struct PiecePlace {
  int job, piece;  // pieces of a job are counted through its strips
};

// The pieces of a run, in order, on their way into a warp's ring.
template <int kSub>
struct PieceCursor {
  const PassExperts& e;
  PiecePlace at, end;
  int sub = 0, left = 0;    // left: pieces of the strip that the run still has
  int bytes = 0, rest = 0;  // of a piece, and to the strip's end
  const uint8_t* p = nullptr;

  __device__ PieceCursor(const PassExperts& experts, PiecePlace from, PiecePlace to) : e(experts), at(from), end(to) {
    const int n = e.a.tiles[0].n_piece;
    int skip = at.piece;
    if (kSub == 2 && skip >= n) skip -= n, sub = 1;
    open(skip);
  }
  __device__ void open(int skip) {
    left = 0;
    if (at.job > end.job || (at.job == end.job && at.piece >= end.piece)) return;
    const ExpertTiles& w = e.a.tiles[sub];
    const int place = e.place_of(at.job);
    bytes = w.piece_bytes, rest = w.strip_bytes - skip * bytes;
    p = e.strip(sub, e.expert_of(place), at.job - (e.active0 + place) * e.a.n_strip) + skip * bytes;
    left = w.n_piece - skip;
    if (at.job == end.job) left = min(left, end.piece - at.piece);
  }
  __device__ __forceinline__ void fetch(WarpRing& ring) {
    if (left == 0) return;
    ring.push(p, min(bytes, rest));
    p += bytes, rest -= bytes;
    if (--left > 0) return;
    at.piece = e.a.tiles[0].n_piece;
    if (++sub == kSub) sub = 0, ++at.job, at.piece = 0;
    open(0);
  }
};

// Rows first.. of an image of 16 as rows 0..; those beyond its end have any values.
template <bool kTwo>
struct ActsIntFrom16 : ActsIntFrom<kManyRows, kTwo> {
  __device__ __forceinline__ float2 scales(unsigned group, int t, int tile) const {
    using All = ActsInt<kManyRows, kTwo>;
    const float* s = reinterpret_cast<const float*>(this->p + group / 4 * All::kStride + All::kCodes + kManyRows * 32) +
                     group % 4 * kManyRows + 8 * tile + 2 * t + this->first;
    return {s[0], s[1]};
  }
};
template <int N, Input in>
using PassActs = std::conditional_t<N == kManyRows, ActsIntFrom16<in == Input::kTwoBytes>, ActsFrom<kFewRows, in>>;

// Long: a ring of weights runs ahead over units, passes and experts; where each of them is and its sums stay in
// registers.
template <int N, int kSlices, Input in>
__global__ void __launch_bounds__(kWarps * 32, 1) expert_kernel(const __grid_constant__ ExpertArgs a) {
  using Acts = PassActs<N, in>;
  constexpr int kTiles = Acts::kTiles, kPart = kPartFloats<N>;
  constexpr int kSub = sub_matrices(kSlices), kUnits = kSub * kSlices;  // of a job: slices of its strips
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t bars[kWarps][WarpRing::kMaxStages];
  __shared__ int32_t slots[N];  // of down's rows
  // The shuffle tells the compiler that a warp's lanes agree: it counts in uniform registers.
  const int lane = int(threadIdx.x) % 32, warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0),
            n_warp = int(blockDim.x) / 32;
  float* const parts = reinterpret_cast<float*>(shared + a.at_parts);  // [warp][unit of a job but the first]
  WarpRing ring(shared + a.at_rings + warp * a.n_stage * a.stage_bytes, bars[warp], a.n_stage, a.stage_bytes, lane,
                true);

  bool waited = !a.list_ready;
  if (waited) {
    pdl_wait();
    pdl_trigger();
  }
  const int n_active = *a.n_active, grid = int(gridDim.x), all = n_active * a.n_strip;
  if (n_active == 0) return pdl_wait();  // none of them is on the GPU
  // A block has strips of one expert, unless an equal share of all strips takes less time.
  auto share = [](int n, int i, int of) {
    const int each = fast_div(n, of);
    return each * i + fast_div((n - each * of) * i, of);
  };
  int blocks = fast_div(grid, n_active), job0, job1;
  if (blocks > 0 && fast_div(a.n_strip + blocks - 1, blocks) <= fast_div(all + grid - 1, grid)) {
    const int e = fast_div(int(blockIdx.x), blocks), i = int(blockIdx.x) - e * blocks;
    if (e >= n_active) return;
    job0 = e * a.n_strip + share(a.n_strip, i, blocks), job1 = e * a.n_strip + share(a.n_strip, i + 1, blocks);
  } else {
    job0 = share(all, int(blockIdx.x), grid), job1 = share(all, int(blockIdx.x) + 1, grid);
  }

  bool again = false;
  while (job0 < job1) {
    // The experts of this pass: as many as have N pairs together, or one that has more.
    const int active0 = fast_div(job0, a.n_strip), n_left = fast_div(job1 - 1, a.n_strip) + 1 - active0;
    const int at = min(active0 + lane, n_active);
    const PassExperts experts{a, active0, a.active[min(at, n_active - 1)], a.first[at]};
    const int first = experts.first_of(0);
    const int n_fit = max(1, __popc(__ballot_sync(~0u, lane > 0 && lane <= n_left && experts.first - first <= N)));
    const int n_all = experts.first_of(n_fit) - first, begin = job0,
              jobs = min(job1, (active0 + n_fit) * a.n_strip) - job0;
    job0 += jobs;
    // Units are counted from the first of job `begin`; run w has units unit_at(w)..
    const int units = jobs * kUnits, n_piece = a.tiles[0].n_piece;
    const int per_warp = fast_div(units, n_warp), left = units - per_warp * n_warp;
    auto unit_at = [&](int w) { return per_warp * w + fast_div(left * w, n_warp); };
    auto piece_of = [&](int in_job) {
      return in_job < kSlices ? slice_begin(n_piece, in_job, kSlices)
                              : n_piece + slice_begin(a.tiles[kSub - 1].n_piece, in_job - kSlices, kSlices);
    };
    auto begin_of = [&](int unit) { return PiecePlace{begin + unit / kUnits, piece_of(unit % kUnits)}; };
    const int unit0 = unit_at(warp), unit1 = unit_at(warp + 1);

    for (int pair0 = 0; pair0 < n_all; pair0 += N) {
      const int n_pair = min(N, n_all - pair0), row0 = first + pair0;
      if (again) {  // shared memory is used again, by the copy engine as well
        WarpRing::release();
        __syncthreads();
      }
      again = true;
      PieceCursor<kSub> next(experts, begin_of(unit0), begin_of(unit1));
#pragma unroll 1
      for (int i = 0; i + 1 < a.n_stage; ++i) next.fetch(ring);
      const int slot = lane < n_pair ? a.pair[row0 + lane] : 0;  // of the lane's row
      if (!waited) {
        waited = true;
        if (!a.wait_late) pdl_wait();
        pdl_trigger();
      }
      if (kSub == 1 && int(threadIdx.x) < n_pair) slots[threadIdx.x] = slot;
      stage(
          ActsOf<N, in>{shared},
          [&](int n) {
            int row = row0 + n;
            if (a.by_token) row = fast_div(in == Input::kBf16 ? a.pair[row] : __shfl_sync(~0u, slot, n), a.n_used);
            return a.x + row * a.x_stride;
          },
          n_pair, a.n_in, 0, (a.n_in + 63) / 64 * 64, warp, n_warp, lane);
      __syncthreads();

      // The rows of a place's expert that this pass has.
      struct Rows {
        int begin, n;
      };
      auto rows_of = [&](int place) -> Rows {
        if (n_fit == 1) return {0, n_pair};
        const int from = experts.first_of(place);
        return {from - first, experts.first_of(place + 1) - from};
      };
      auto emit = [&](int strip, Rows rows, int r, int n, float v0, float v1) {
        const int row = strip * 16 + r, at = rows.begin + n;
        if (n >= rows.n || row >= a.n_out) return;
        if (kSub == 2)
          a.hidden[int64_t(row0 + at) * a.n_out + row] = __float2bfloat16_rn(activate(v0, a.act) * v1);
        else
          a.out[int64_t(slots[at]) * a.n_out + row] = v1;
      };
      float* const last = ring.memory();
      float total[kTiles][4] = {}, other[kTiles][4] = {};  // of the strip at hand, of the one before it in the same job
      for (int unit = unit0; unit < unit1; ++unit) {
        const int in_job = unit % kUnits, sub = in_job / kSlices, job = begin + unit / kUnits;
        const ExpertTiles& w = a.tiles[sub];
        const int place = experts.place_of(job), strip = job - (active0 + place) * a.n_strip;
        const int i0 = slice_begin(w.n_piece, in_job % kSlices, kSlices),
                  i1 = slice_begin(w.n_piece, in_job % kSlices + 1, kSlices);
        const Rows rows = rows_of(place);
        Acts x;
        x.p = shared, x.first = rows.begin;
        float acc[kTiles][4] = {};
        uint32_t from = uint32_t(reinterpret_cast<uintptr_t>(experts.strip(sub, experts.expert_of(place), strip))) +
                        uint32_t(i0 * w.piece_bytes);
        multiply_pieces(w, x, lane, i0, i1, acc, [&] {
          const uint8_t* piece = ring.pop(from);
          from += uint32_t(w.piece_bytes);
          next.fetch(ring);
          return piece;
        });
        if (unit - in_job < unit0) {  // another run has the strip's beginning
          keep_part<N, Acts>(parts + (warp * (kUnits - 1) + in_job - 1) * kPart, acc, lane);
          continue;
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (in_job == kSlices) other[n][i] = total[n][i];
            total[n][i] = in_job % kSlices == 0 ? acc[n][i] : total[n][i] + acc[n][i];
          }
        if (in_job + 1 == kUnits) {
          const int g = lane / 4, t = lane % 4;
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              emit(strip, rows, g + i / 2 * 8, 8 * n + 2 * t + i % 2, other[n][i], total[n][i]);
        } else if (unit + 1 == unit1) {
          __syncwarp();  // the ring's last piece has been read by all lanes
          keep_part<N, Acts>(last, total, lane);
          keep_part<N, Acts>(last + kPart, other, lane);
        }
      }
      __syncthreads();
      // Jobs that several runs had units of: the run with the first unit adds up, in the order of units.
      const int done = unit1 % kUnits;
      if (unit0 == unit1 || done == 0 || unit1 - done < unit0) continue;
      const int job = begin + unit1 / kUnits, place = experts.place_of(job);
      const Rows rows = rows_of(place);
      for (int i = lane; i < 16 * rows.n; i += 32) {
        const int n = i / 16, at = part_at(n, i % 16);
        float v = last[at], v0 = last[kPart + at];
        int owner = warp + 1, owner_end = unit_at(owner + 1);
        for (int in_job = done; in_job < kUnits; ++in_job) {
          while (owner_end <= unit1 - done + in_job) owner_end = unit_at(++owner + 1);
          const float u = parts[(owner * (kUnits - 1) + in_job - 1) * kPart + at];
          if (in_job == kSlices) v0 = v;
          v = in_job % kSlices == 0 ? u : v + u;
        }
        emit(job - (active0 + place) * a.n_strip, rows, i % 16, n, v0, v);
      }
    }
  }
  if (a.wait_late) pdl_wait();  // a kernel that waits for this one then waits for the one before, too
}

__global__ void combine_kernel(Mat y, const float* out, const float* weight, int n_used) {
  pdl_wait();
  pdl_trigger();
  const int per_row = y.cols / 4, i = int(blockIdx.x * blockDim.x + threadIdx.x), t = i / per_row, c = i % per_row * 4;
  if (t >= y.rows) return;
  float4 s = {};
  for (int k = 0; k < n_used; ++k) {
    const int slot = t * n_used + k;
    const float4 v = *reinterpret_cast<const float4*>(out + int64_t(slot) * y.cols + c);
    const float w = weight[slot];
    s.x += w * v.x, s.y += w * v.y, s.z += w * v.z, s.w += w * v.w;
  }
  *reinterpret_cast<float4*>(y.p + t * y.stride + c) = s;
}

template <int N, int kSlices, Input in>
void run_rows(cudaStream_t stream, ExpertArgs a) {
  const int n_warp = device().shared >= kMuchShared ? kWarps : kWarps / 3;
  a.at_parts = ActsOf<N, in>::bytes(a.n_in);
  a.at_rings = WarpRing::lines(a.at_parts + n_warp * (sub_matrices(kSlices) * kSlices - 1) * kPartFloats<N> * 4);
  a.n_stage = ring_stages(a.at_rings, n_warp * a.stage_bytes, 2);
  if (N > kFewRows && a.n_stage < 2) return run_rows<kFewRows, kSlices, in>(stream, a);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.n_in);
  allow_shared(expert_kernel<N, kSlices, in>, size_t(device().shared - kOwnShared));
  launch(expert_kernel<N, kSlices, in>, dim3(unsigned(device().n_sm)), dim3(unsigned(n_warp * 32)),
         size_t(a.at_rings + n_warp * a.n_stage * a.stage_bytes), stream, a);
}
template <int kSlices, Input in>
void run(cudaStream_t stream, const ExpertArgs& a) {
  if constexpr (in != Input::kBf16)
    if (a.n_tok > kFewTokens) return run_rows<kManyRows, kSlices, in>(stream, a);
  run_rows<kFewRows, kSlices, in>(stream, a);
}
template <int kSlices>
void run_for(cudaStream_t stream, ExpertArgs a, std::initializer_list<TiledMatrix> w, int up_strip) {
  a.n_in = w.begin()->n_in;
  CHECK(w.size() == sub_matrices(kSlices) &&
            routing_entries(a.n_expert, int64_t(a.n_tok) * a.n_used) * a.n_strip < kFastDivMost,
        "{} matrices, {} experts of {} strips", w.size(), a.n_expert, a.n_strip);
  switch (take_tiles(a.tiles, a.stage_bytes, w, up_strip)) {
    case Input::kByte:
      return run<kSlices, Input::kByte>(stream, a);
    case Input::kTwoBytes:
      return run<kSlices, Input::kTwoBytes>(stream, a);
    case Input::kBf16:
      return run<kSlices, Input::kBf16>(stream, a);
  }
}

}  // namespace

RouterArgs router_args(const MoeExperts& m, Mat r, int n_tok, const Routing& o) {
  CHECK(m.n_expert <= kMaxExperts && m.n_used <= kMaxUsed && r.cols % 4 == 0 && r.cols <= kMaxRouterCols,
        "{} experts, {} used, {} columns", m.n_expert, m.n_used, r.cols);
  CHECK(n_tok <= kMoeSmallBatch, "{} tokens", n_tok);
  return {
      .router = m.router, .scale = m.scale, .n_expert = m.n_expert, .n_used = m.n_used, .n_tok = n_tok, .r = r, .o = o};
}

void moe_small_batch(cudaStream_t stream, const MoeExperts& m, Mat e, int n_tok, const MoeBuffers& b, bool routed) {
  CHECK(n_tok <= kMoeSmallBatch && e.cols == m.gate.n_in, "{} tokens, {} columns", n_tok, e.cols);
  if (n_tok == 1 && !m.slots) return moe_decode(stream, m, e, b, routed);
  ExpertArgs a{};
  a.active = b.routing.active, a.n_active = b.routing.n_active, a.first = b.routing.first, a.pair = b.routing.pair;
  a.n_expert = m.n_expert, a.n_used = m.n_used, a.n_tok = n_tok;
  a.act = m.act;
  a.hidden = b.hidden, a.out = b.out;

  ExpertArgs up = a;
  up.n_strip = m.d_expert / kTileRows, up.n_out = m.d_expert;
  up.x = e.bf, up.x_stride = e.bf_stride, up.by_token = true;
  up.list_ready = up.wait_late = routed;
  run_for<kUpSlices>(stream, up, {m.gate, m.up}, m.up_strip);

  ExpertArgs down = a;
  down.n_strip = m.down.n_strip(), down.n_out = m.down.n_out;
  down.x = b.hidden, down.x_stride = m.d_expert, down.by_token = false;
  down.list_ready = true;
  run_for<kDownSlices>(stream, down, {m.down}, 0);
}

void moe_small_batch_combine(cudaStream_t stream, Mat y, const float* out, const float* weight, int n_used) {
  launch(combine_kernel, dim3(unsigned((y.rows * (y.cols / 4) + 127) / 128)), dim3(128), 0, stream, y, out, weight,
         n_used);
}

}  // namespace facet::cuda
