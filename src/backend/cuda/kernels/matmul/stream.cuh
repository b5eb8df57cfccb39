#pragma once
#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/ring.cuh"
#include "backend/cuda/kernels/matmul/tile_product.cuh"

// A block's share of matrix products with few rows: the tiles of some strips as one sequence, cut into runs
// of equal cost, a run a warp. A warp adds up what it has of a strip; strips that several warps share are
// added up at the end, in the order of their columns. Where runs begin follows from the matrices and the
// number of warps alone: no bit of a result depends on how many rows of activations there are.
namespace facet::cuda {

// How many warps a block has, and blocks a multiprocessor. Two blocks leave room for the next kernel's, which
// then starts while this one works: worth more than warps where a kernel is short.
constexpr int kLongWarps = 16, kShortWarps = 8;
constexpr int stream_warps(bool is_short) { return is_short ? kShortWarps : kLongWarps; }

constexpr int kOwnShared = 1536;  // bytes of shared memory that these kernels declare themselves, at most
// Stages of the rings of a block's warps beside `fixed` bytes; no more than so many thirds of a multiprocessor's shared
// memory are taken if those hold two stages. Kernels that follow one another and together take three thirds overlap.
inline int ring_stages(int fixed, int stage_bytes, int thirds) {
  const int room = device().shared - kOwnShared - fixed,
            some = device().shared_sm * thirds / 3 - 1024 - kOwnShared - fixed;
  return std::min((some / stage_bytes >= 2 ? std::min(some, room) : room) / stage_bytes, WarpRing::kMaxStages);
}

// The tiles of one strip in the columns at hand.
struct Strip {
  const uint8_t* p = nullptr;
  Tile tile = Tile::kQ8_0;
  int n_tile = 0, bytes = 0;  // bytes: of a tile
  bool grouped = false;       // tiles are groups
};
struct TilePlace {
  int job = 0, tile = 0;  // tiles of a job are counted through its strips
  __device__ bool operator<(const TilePlace& o) const { return job < o.job || (job == o.job && tile < o.tile); }
};
FACET_HD constexpr int tile_cost(Tile t) { return tile_bytes(t) / 4; }

// What a warp fetches, in order. Jobs: Strip strip(job, sub) with sub < n_sub.
template <class Jobs>
struct TileCursor {
  const Jobs& jobs;
  TilePlace at, end;
  int sub = 0, left = 0, bytes = 0;  // tiles left of the strip
  const uint8_t* p = nullptr;

  __device__ TileCursor(const Jobs& j, TilePlace from, TilePlace to) : jobs(j), at(from), end(to) {
    if (!(at < end)) return;
    int skip = at.tile;
    const int n = jobs.strip(at.job, 0).n_tile;
    if (skip >= n) skip -= n, sub = 1;
    open(skip);
  }
  __device__ void open(int skip) {
    const Strip s = jobs.strip(at.job, sub);
    bytes = s.bytes;
    p = s.p + skip * bytes;
    left = s.n_tile - skip;
    if (at.job == end.job) left = min(left, end.tile - at.tile);
  }
  // The next tile goes into the ring, if there is one.
  __device__ __forceinline__ void fetch(WarpRing& ring) {
    if (left == 0) return;
    ring.push(p, bytes);
    p += bytes, ++at.tile;
    if (--left == 0) advance();
  }
  __device__ void advance() {
    if (++sub == jobs.n_sub()) sub = 0, ++at.job, at.tile = 0;
    if (at < end) open(0);
  }
};

// Floats of shared memory a warp keeps a part of a strip in, and where row r of column n is: rows side by side, so that
// the halves of a warp that have them write no two values to a bank more than need be.
template <int N>
constexpr int kPartFloats = 16 * (N == 1 ? 1 : N);
__device__ __forceinline__ int part_at(int n, int r) { return n * 16 + (r ^ (n & 2) * 4); }

template <int N, class Acts>
__device__ __forceinline__ void keep_part(float* to, const float (&acc)[Acts::kTiles][4], int lane) {
  const int g = lane / 4, t = lane % 4;
  if (N == 1) {
    if (t == 0) to[g] = acc[0][0], to[g + 8] = acc[0][2];
  } else {
#pragma unroll
    for (int n = 0; n < Acts::kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[part_at(8 * n + 2 * t + i % 2, g + i / 2 * 8)] = acc[n][i];
  }
}
__device__ __forceinline__ float4 sum4(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// What a run has of a strip: tiles [first, past) of its n_tile, the first one at an address with these low bits.
struct StripPart {
  int first, past, n_tile, bytes;
  uint32_t from;
  Tile tile;
  bool grouped;
};
// Of strip `sub` of job at.job, which `before` tiles of the job come before, in the run from `at` to `end`.
template <class Jobs>
__device__ __forceinline__ StripPart strip_part(const Jobs& jobs, TilePlace at, TilePlace end, int sub, int before) {
  const Strip s = jobs.strip(at.job, sub);
  const int to = at.job == end.job ? end.tile : 1 << 30, first = max(at.tile - before, 0);
  return {.first = first,
          .past = min(to - before, s.n_tile),
          .n_tile = s.n_tile,
          .bytes = s.bytes,
          .from = uint32_t(reinterpret_cast<uintptr_t>(s.p)) + uint32_t(first * s.bytes),
          .tile = s.tile,
          .grouped = s.grouped};
}
// What the run begins with, found before the input is there.
template <class Jobs>
__device__ __forceinline__ StripPart first_part(const Jobs& jobs, TilePlace begin, TilePlace end) {
  StripPart p{};
  if (begin < end) p = strip_part(jobs, begin, end, 0, 0);
  const uint32_t kind = hold_in_register(uint32_t(p.tile) | uint32_t(p.grouped) << 8);
  return {.first = int(hold_in_register(uint32_t(p.first))),
          .past = int(hold_in_register(uint32_t(p.past))),
          .n_tile = int(hold_in_register(uint32_t(p.n_tile))),
          .bytes = int(hold_in_register(uint32_t(p.bytes))),
          .from = hold_in_register(p.from),
          .tile = Tile(kind & 255),
          .grouped = kind > 255};
}

// Multiplies the run [begin, end) of a warp, p: its first_part. Whole jobs go to emit(job, row of the strip, n, v of
// the first strip, v of the last); parts of jobs to part (the job that the run begins in) and to last (another that it
// ends in).
template <int N, class Acts, class Jobs, class Emit>
__device__ __forceinline__ void run_tiles(const Jobs& jobs, TilePlace begin, TilePlace end, StripPart p,
                                          TileCursor<Jobs>& next, WarpRing& ring, const Acts& x, float* part,
                                          float* last, int lane, Emit&& emit) {
  constexpr int kTiles = Acts::kTiles;
  const int n_sub = jobs.n_sub();
  for (TilePlace at = begin; at < end; ++at.job, at.tile = 0) {
    float acc[kTiles][4], other[kTiles][4];
    const int to = at.job == end.job ? end.tile : 1 << 30;
    int before = 0;
#pragma unroll 1
    for (int sub = 0; sub < n_sub; ++sub) {
      if (sub > 0 || at.job != begin.job) p = strip_part(jobs, at, end, sub, before);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) other[n][i] = acc[n][i], acc[n][i] = 0.f;
      before += p.n_tile;
      with_product(p.tile, x, lane, [&](auto&& product, auto kind) {
        constexpr Tile kTile = kind();
        auto multiply = [&](auto group) {
#pragma unroll 1
          for (int i = p.first; i < p.past; ++i, p.from += uint32_t(p.bytes)) {
            const uint8_t* w = ring.pop(p.from);
            next.fetch(ring);
#pragma unroll
            for (int k = 0; k < group(); ++k) product(w + k * tile_bytes(kTile), i * group() + k, acc);
          }
        };
        if constexpr (group_tiles(kTile) > 1)
          if (p.grouped) return multiply(std::integral_constant<int, group_tiles(kTile)>{});
        multiply(std::integral_constant<int, 1>{});
      });
    }
    if (at.tile == 0 && to >= before) {
      // One copy of what follows a value: fewer instruction-cache misses.
      const int g = lane / 4, t = lane % 4;
#pragma unroll 1
      for (int e = 0; e < kTiles * 4; e += kColStep<Acts>) {
        float v = acc[0][0], u = other[0][0];
#pragma unroll
        for (int k = 1; k < kTiles * 4; ++k)
          if (k == e) v = acc[k / 4][k % 4], u = other[k / 4][k % 4];
        if (N > 1 || t == 0)
          emit(at.job, g + e / 2 % 2 * 8, N == 1 ? 0 : e / 4 * 8 + 2 * t + e % 2, n_sub == 2 ? u : 0.f, v);
      }
    } else {
      float* to_part = at.job == begin.job ? part : last;
      __syncwarp();  // `last` may lie in the ring, whose last tile all lanes have read
      keep_part<N, Acts>(to_part, acc, lane);
      if (n_sub == 2) keep_part<N, Acts>(to_part + kPartFloats<N>, other, lane);
    }
  }
}

// Of the job that a run ends in: its number, whether the run begins in it too, and which later runs have a part of it.
struct JobParts {
  int job;
  bool whole_run;
  unsigned later;
};
// For a whole warp, lane l of which has the places where run l begins and ends. first: the run.
__device__ __forceinline__ JobParts parts_of(TilePlace from, TilePlace to, int n_warp, int first, int lane) {
  const int job = __shfl_sync(~0u, to.job, first), first_job = __shfl_sync(~0u, from.job, first);
  return {job, job == first_job, __ballot_sync(~0u, lane > first && lane < n_warp && from.job == job && from < to)};
}
// The runs that have the beginning of a job and not its end: they add up.
__device__ __forceinline__ unsigned runs_that_add(TilePlace from, TilePlace to, int n_warp, int lane) {
  return __ballot_sync(~0u, lane < n_warp && from < to && to.tile > 0 && (to.job > from.job || from.tile == 0));
}

// After a barrier that follows run_tiles: the job's sum over the runs, in their order, of the four values at `at` of
// what they kept: part(w) of the job that run w begins in, last(w) of the one it ends in.
template <class PartOf, class LastOf>
__device__ __forceinline__ float4 sum_parts(const JobParts& j, int first, int at, PartOf&& part, LastOf&& last) {
  constexpr int kAhead = 4;
  auto of = [&](const float* p) { return *reinterpret_cast<const float4*>(p + at); };
  float4 v = of(j.whole_run ? part(first) : last(first));
#pragma unroll 1
  for (unsigned rest = j.later; rest != 0;) {
    float4 u[kAhead];
    bool there[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      there[i] = rest != 0;
      if (there[i]) u[i] = of(part(__ffs(int(rest)) - 1));
      rest &= rest - 1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (there[i]) v = sum4(v, u[i]);
  }
  return v;
}
// Several columns: all warps share the jobs; four rows a lane, of the first n_tok columns. place[w]: where run w
// begins; place[n_warp]: the end.
template <int N, class PartOf, class LastOf, class Emit>
__device__ __forceinline__ void join_columns(const TilePlace* place, int n_warp, int n_sub, PartOf&& part,
                                             LastOf&& last, int warp, int lane, int n_tok, Emit&& emit4) {
  constexpr int kQuads = kPartFloats<N> / 4, kPasses = (kQuads + 31) / 32;  // of a job
  const TilePlace from = place[min(lane, n_warp)], to = place[min(lane + 1, n_warp)];
  const unsigned adding = runs_that_add(from, to, n_warp, lane);
  for (int item = warp; item < __popc(adding) * kPasses; item += n_warp) {
    unsigned rest = adding;
    for (int i = 0; i < item / kPasses; ++i) rest &= rest - 1;
    const int first = __ffs(int(rest)) - 1;
    const JobParts j = parts_of(from, to, n_warp, first, lane);
    const int quad = item % kPasses * 32 + lane, n = quad / 4, r = quad % 4 * 4;
    if (n >= n_tok) continue;
    float4 v{}, other{};  // of the last strip, of the first
#pragma unroll 1
    for (int sub = 0; sub < n_sub; ++sub) {
      other = v;
      v = sum_parts(j, first, (n_sub - 1 - sub) * kPartFloats<N> + part_at(n, r), part, last);
    }
    emit4(j.job, r, n, other, v);
  }
}

// Costs of jobs in order, up to three kinds one after the other, and the place at a cost.
struct JobCosts {
  int n_kind, n_job;
  int first_job[3];
  int n_tile[3][2], tile[3][2];  // of the strips of a job: tiles, and the cost of one

  __device__ int job_cost(int k) const { return n_tile[k][0] * tile[k][0] + n_tile[k][1] * tile[k][1]; }
  __device__ int jobs_of(int k) const { return (k + 1 < n_kind ? first_job[k + 1] : n_job) - first_job[k]; }
  __device__ int before(int job) const {  // cost of all jobs before it
    int c = 0;
#pragma unroll
    for (int k = 0; k < 3; ++k)
      if (k < n_kind) c += min(max(job - first_job[k], 0), jobs_of(k)) * job_cost(k);
    return c;
  }
  // The tile border nearest to cost c.
  __device__ TilePlace at(int c) const {
    int kind = 0, from = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int all = jobs_of(k) * job_cost(k);
      if (k == kind && k + 1 < n_kind && c - from >= all) from += all, ++kind;
    }
    c -= from;
    int n0 = n_tile[0][0], n1 = n_tile[0][1], c0 = tile[0][0], c1 = tile[0][1], first = first_job[0];
#pragma unroll
    for (int k = 1; k < 3; ++k)
      if (k == kind) n0 = n_tile[k][0], n1 = n_tile[k][1], c0 = tile[k][0], c1 = tile[k][1], first = first_job[k];
    const int all = n0 * c0 + n1 * c1, job = c / all;
    c -= job * all;
    const int i = c < n0 * c0 || n1 == 0 ? (c + c0 / 2) / c0 : n0 + (c - n0 * c0 + c1 / 2) / c1;
    return i >= n0 + n1 ? TilePlace{first + job + 1, 0} : TilePlace{first + job, i};
  }
};

}  // namespace facet::cuda
