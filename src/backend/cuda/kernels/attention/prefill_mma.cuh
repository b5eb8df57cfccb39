// attend, long chunks on every card -- a tile of query rows walks over the rows its tokens see, with mma.sync
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * E] f32; K, V rows as cached (device_kv_layout.cuh): ring, staging area or committed; E = 256
//            or 512. Shared rows (E = 512): K and V are the first and the last 512 of a row's 640 values
// Flops      4 E per query row and visible row; rows that a window hides are not visited
// Launch     256 threads per (tile of 128 (256) or 64 (512) query rows, K/V head), within 99 KB of shared memory: one
//            block a multiprocessor of an RTX 30 or 40
// Order      keys in ascending order in tiles of 32. Not row-invariant, as prefill.cuh
// Reference  CpuRef::attend    Test tests/kernels/cuda_attention_test.cpp    Bench bench/verbs/cuda_attention_bench.cu
//
// A group of E / 128 warps has 32 query rows. Each warp keeps 128 values of Q and accumulates 128 columns of O, in
// registers alone: 64 and 128 of each thread's. So the only operands in shared memory are fragments of B, each for two
// m16n8k16 products. Scores are products over all values of Q (split-K): the warps of a group exchange partial sums,
// each does the online softmax of its share of the rows, and hands out the probabilities. Groups do not wait for each
// other, so that one multiplies while another exchanges.
//
// K and V rows come through a multi-stage pipeline of full and empty barriers, stages of 16 KB (shared rows: 20); all
// warps are producers, of some rows of each stage, and consumers. Quantised rows arrive as they are, at the start of
// the stage; the warp that copied them dequantises them where they lie.
#pragma once
#include <type_traits>

#include "backend/cuda/kernels/attention/prefill_tile.cuh"
#include "backend/cuda/kernels/common/barrier.cuh"

namespace facet::cuda {

template <KvType K, KvType V, int kHead, bool kShared>
struct PrefillMmaShape {
  static constexpr int E = kHead, kCols = kShared ? kSharedCols : E, kFirstV = (kCols - E) / 64;
  static constexpr bool kRaw = device_kv_has_scales(K) || device_kv_has_scales(V);
  static constexpr int kSplit = E / 128, kGroups = 8 / kSplit;  // warps of a group, groups
  static constexpr int kRows = 32 * kGroups, kKeys = 32;
  static constexpr int kHeld = 4 / kSplit;  // query rows of a lane's softmax
  static constexpr int kStageKeys = 8192 / E, kHalves = kKeys / kStageKeys, kPerTile = kHalves * (kShared ? 1 : 2);
  static constexpr int kPanel = kStageKeys * 128, kStageBytes = kCols / 64 * kPanel;
  // Rows of a stage that a warp loads, and lanes for each.
  static constexpr int kWarpRows = kStageKeys / 8, kLanes = 32 / kWarpRows;
  static constexpr int kPartials =
      8 * (kSplit - 1) * 2 * kHeld * 512;        // [to][from][kHeld][4 tiles of 8 keys][lanes][2] f32
  static constexpr int kProbs = kGroups * 2048;  // [groups][rows][keys] f16, swizzled
  static constexpr int kRescale = kRows * 4;     // [rows] f32
  static constexpr int kState = 512;
  static constexpr int kStages = (99 * 1024 - kState - kPartials - kProbs - kRescale) / kStageBytes;
  static_assert(kStages > kHalves, "a tile's stages and one to load into");
  static constexpr int kAtPartials = kStages * kStageBytes, kAtProbs = kAtPartials + kPartials,
                       kAtRescale = kAtProbs + kProbs, kAtState = kAtRescale + kRescale;
  // Queries come and the output leaves, in two passes, through the same memory; factors stay.
  static constexpr int kStrideO = 4 * E + 32, kPassRows = kRows / 2;
  static constexpr int kBytes = kAtState + kState;
  static_assert(kRows * 2 * E <= kAtRescale && kPassRows * kStrideO <= kAtRescale);
  static_assert(kBytes <= 99 * 1024, "shared memory of a block on sm_86");
};

// B fragments for steps of m16n8k16 products, each loaded one step before it is multiplied: f(i, b) multiplies step i.
// b: that of the first step in its first half. The barriers keep the compiler from loading everything first and
// multiplying one sum after another.
template <int kSteps, class Load, class F>
__device__ __forceinline__ void pipelined(uint32_t (&b)[2][4], Load&& load, F&& f) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i + 1 < kSteps) load(b[(i + 1) % 2], i + 1);
    __syncwarp();
    f(i, b[i % 2]);
  }
}

// v, from here on: what is computed from it is computed again, and not kept in registers, which operands need.
__device__ __forceinline__ int opaque(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

// A stage, and the phase of its barriers.
template <int kStages>
struct PipelineState {
  int index = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void next() {
    if (++index == kStages) index = 0, phase ^= 1;
  }
};

// What all warps of a block know, and no product needs: in shared memory, as registers are full of operands.
template <KvType K, KvType V, int E, bool kShared, int kStages>
struct PrefillMmaState {
  uint64_t full[kStages], empty[kStages];
  PrefillTile t;
  std::conditional_t<kShared, SharedSource, PrefillSource<K, V, E>> source;
  KeyTiles<32> tiles;
  int row[4];  // first row of tile i, at i % 4, from when the warp copies it
};

// The stages of rows that a block walks over, as one of its warps sees them, which copies a part of each: how many it
// has produced, how many it has dequantised.
template <class Shape, KvType K, KvType V>
struct RowPipeline {
  using State = PipelineState<Shape::kStages>;
  char* shared;
  uint32_t full, empty;  // addresses of barriers
  int n, produced = 0, expanded = 0;
  State write_state, expand_state;

  __device__ __forceinline__ char* at(State p) const { return shared + p.index * Shape::kStageBytes; }
  // Byte of the rows that this warp copies, as they arrive: in its rows of each panel.
  static __device__ __forceinline__ char* raw_at(char* stage, unsigned warp, unsigned byte) {
    constexpr unsigned kPiece = Shape::kWarpRows * 128;
    return stage + byte / kPiece * Shape::kPanel + warp * kPiece + byte % kPiece;
  }
  // row: of those that this lane loads.
  template <KvType T>
  __device__ __forceinline__ void load(const char* row, bool there) const {
    constexpr int kBytes = device_kv_bytes(T, Shape::kCols), kLanes = Shape::kLanes;
    const unsigned tid = unsigned(opaque(int(threadIdx.x))), r = tid / kLanes, first = tid % kLanes;
    char* stage = at(write_state);
    row += first * 16;
    // Chunk kLanes i + first of the row.
    char* to = stage + first / 8 * Shape::kPanel + r * 128 + (first % 8 ^ r % 8) * 16;
#pragma unroll
    for (int i = 0; i < (kBytes / 16 + kLanes - 1) / kLanes; ++i) {
      if (kBytes % (16 * kLanes) && 16 * (kLanes * i + first) >= kBytes) break;
      copy16_async_or_zero(device_kv_has_scales(T)
                               ? raw_at(stage, tid / 32, r % Shape::kWarpRows * kBytes + 16 * (kLanes * i + first))
                               : to + i * (kLanes / 8) * Shape::kPanel,
                           row + i * kLanes * 16, there);
    }
    if (Shape::kRaw)
      copies_commit();
    else
      barrier_arrive_with_copies(full + write_state.index * 8);
  }
  template <KvType T>
  __device__ __forceinline__ void expand() const {
    using Piece = DeviceKvPiece<T, Shape::kCols>;
    constexpr unsigned kLanes = Shape::kLanes, kRounds = (Piece::kPieces + kLanes - 1) / kLanes;
    const unsigned tid = unsigned(opaque(int(threadIdx.x))), r = tid / kLanes, first = tid % kLanes;
    char* stage = at(expand_state);
    copies_wait(produced - 1 - expanded);
    __syncwarp();
    Piece piece[kRounds];
#pragma unroll
    for (unsigned k = 0; k < kRounds; ++k)
      if (Piece::kPieces % kLanes == 0 || first + kLanes * k < Piece::kPieces)
        piece[k].read(
            [&](int byte) {
              return raw_at(stage, tid / 32, r % Shape::kWarpRows * device_kv_bytes(T, Shape::kCols) + unsigned(byte));
            },
            int(first + kLanes * k));
    __syncwarp();
    char* to = stage + r * 128;
#pragma unroll
    for (unsigned k = 0; k < kRounds; ++k)
      if (Piece::kPieces % kLanes == 0 || first + kLanes * k < Piece::kPieces)
        piece[k].write(int(first + kLanes * k), [&](int byte, uint4 v) {
          const unsigned chunk = unsigned(byte) / 16;
          *reinterpret_cast<uint4*>(to + chunk / 8 * Shape::kPanel + (chunk % 8 ^ r % 8) * 16) = v;
        });
    __syncwarp();
    if (tid % 32 == 0) barrier_arrive(full + expand_state.index * 8);
  }
  static __device__ __forceinline__ bool is_v(int u) {
    return Shape::kPerTile > Shape::kHalves && unsigned(u) % Shape::kPerTile >= Shape::kHalves;
  }
  // Copies the next stage if there is one, and room for it (producer), or waits for room.
  template <bool kWait, class Load>
  __device__ __forceinline__ void produce(Load&& load_stage) {
    if (produced >= n) return;
    if (produced >= Shape::kStages) {
      const uint32_t bar = empty + write_state.index * 8, phase = write_state.phase ^ 1;
      if (kWait)
        barrier_wait(bar, phase);
      else if (!__all_sync(~0u, barrier_test(bar, phase)))
        return;
    }
    load_stage(produced);
    ++produced, write_state.next();
  }
  // Until stage u of all is there, which comes to `p` (consumer).
  template <class Load>
  __device__ __forceinline__ void wait(int u, State p, Load&& load_stage) {
    const int older = produced;
#pragma unroll 1
    while (produced <= u) produce<true>(load_stage);
    if constexpr (Shape::kRaw)
#pragma unroll 1
      for (; expanded <= u || (expanded == u + 1 && expanded < older); ++expanded, expand_state.next()) {
        if (K == V || !is_v(expanded))
          expand<K>();
        else
          expand<V>();
      }
    barrier_wait(full + p.index * 8, p.phase);
  }
  // This warp reads it no more.
  __device__ __forceinline__ void release(State p) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty + p.index * 8);
  }
};

// Long: the parts of a tile's work share the registers that operands leave.
template <KvType K, KvType V, int E, bool kShared>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    attend_prefill_mma_kernel(const __grid_constant__ AttendParams p) {
  using Shape = PrefillMmaShape<K, V, E, kShared>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys, kSplit = Shape::kSplit, kHeld = Shape::kHeld;
  using State = PrefillMmaState<K, V, E, kShared, Shape::kStages>;
  static_assert(sizeof(State) <= Shape::kState);
  extern __shared__ __align__(1024) char memory[];
  char* const shared = hold_shared(memory);
  State& state = *reinterpret_cast<State*>(shared + Shape::kAtState);
  const int tid = threadIdx.x, warp = tid / 32, l = tid % 32, head = blockIdx.y;
  const int group = warp / kSplit, part = warp % kSplit;

  pdl_wait();
  pdl_trigger();
  if (warp == 0) {
    const PrefillTile found = find_prefill_tile(p, kRows / p.group);
    if (l == 0) {
      state.t = found;
      if (found.seq >= 0) {
        if constexpr (kShared)
          state.source = SharedSource(p, found.seq, head, device_kv_bytes(K, kSharedCols));
        else
          state.source = PrefillSource<K, V, E>(p, found, head);
        state.tiles = KeyTiles<kKeys>(p, found, head);
      }
      for (int i = 0; i < Shape::kStages; ++i)
        barrier_init(&state.full[i], Shape::kRaw ? 8 : kPrefillThreads), barrier_init(&state.empty[i], 8);
    }
  }
  __syncthreads();
  const PrefillTile& t = state.t;
  if (t.seq < 0) {
    if (blockIdx.x == 0 && p.blocks.writes) clear_prefill_padding(p, head, E);
    return;
  }
  const SeqRows& s = t.rows;
  const int n_tile = state.tiles.n;
  if (p.blocks.count && n_tile == 0) return leave_empty<kRows>(p, s, head);

  // Queries pass through shared memory into registers: [16 rows][16 values]. A group's rows are in an order that puts
  // first those whose softmax the warp has.
  const int first_own = part * 8 * kHeld;
  uint32_t q[2][8][4];
  load_queries<K, E, kRows, kShared>(shared, p, s, head);
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int ks = 0; ks < 8; ++ks)
      ldmatrix4(q[m][ks], shared + tile_at(kRows, group * 32 + (m * 16 + l % 16 ^ first_own),
                                           part * 256 + ks * 32 + l / 16 * 16));
  __syncthreads();

  using Pipe = RowPipeline<Shape, K, V>;
  Pipe pipe{shared, shared_address(state.full), shared_address(state.empty), n_tile * Shape::kPerTile};
  const bool listed = state.tiles.list;
  int load_tile_row = state.tiles.row0;  // first row of the tile that is copied
  auto load_stage = [&](int u) {
    const unsigned tile = unsigned(u) / Shape::kPerTile, in_tile = unsigned(u) % Shape::kPerTile;
    if (in_tile == 0) {
      if (listed)
        load_tile_row = state.tiles.row(int(tile));
      else if (tile > 0)
        load_tile_row += kKeys;
      state.row[tile % 4] = load_tile_row;  // all warps write the same
    }
    const int row =
        load_tile_row + int(in_tile % Shape::kHalves * Shape::kStageKeys + unsigned(opaque(tid)) / Shape::kLanes);
    if constexpr (kShared) {
      bool there;
      const char* from = state.source.at(p, t, row, there);
      pipe.template load<K>(from, there);
    } else {
      const auto at = state.source.place(p, t, row);
      if (in_tile >= Shape::kHalves)
        pipe.template load<V>(state.source.v(p, at), at.there);
      else
        pipe.template load<K>(state.source.k(p, at), at.there);
    }
  };
  auto sync_group = [&] { asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * kSplit) : "memory"); };

  // This warp's share of the softmax: rows first.. of the tile.
  const int first = group * 32 + first_own;
  PrefillRows<kHeld> lane(s, p.group, first);
  const float scale = p.scale * 1.4426950408889634f;
  const int whole_from = whole_tiles_from(p, t), whole_to = whole_tiles_to(t, s.j0 + first / p.group);
  // What a lane reads of 16 keys, 16 values at a time: as rows of B, as columns of B. The swizzle is in bits 4 to 6.
  const uint32_t as_rows = unsigned(l / 16 * 8 + l % 8) * 128 + unsigned(l / 8 % 2 ^ l % 8) * 16;
  const uint32_t as_columns = unsigned(l / 8 % 2 * 8 + l % 8) * 128 + unsigned(l / 16 ^ l % 8) * 16;
  auto swizzled = [](uint32_t at, int step) {
    return (at ^ uint32_t(step % 4 * 32)) + uint32_t(step / 4 * Shape::kPanel);
  };
  float2* const partials = reinterpret_cast<float2*>(shared + Shape::kAtPartials) + l;
  char* const probs = shared + Shape::kAtProbs + group * 2048;
  float* const rescale = reinterpret_cast<float*>(shared + Shape::kAtRescale) + group * 32;
  float out[2][16][4] = {};
  for (int i = 0; i < Shape::kStages; ++i) pipe.template produce<true>(load_stage);
  typename Pipe::State read_state;
  for (int tile = 0; tile < n_tile; ++tile) {
    const int u0 = tile * Shape::kPerTile;
    const typename Pipe::State keys = read_state;
    float own[4][2 * kHeld];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // 16 keys at a time
      if (i < Shape::kHalves) pipe.wait(u0 + i, read_state, load_stage);
      const uint32_t at = shared_address(pipe.at(read_state)) + uint32_t(part * 2 * Shape::kPanel) +
                          (Shape::kHalves == 1 ? i * 2048u : 0u) + as_rows;
      float score[2][2][4] = {};
      uint32_t b[2][4];
      ldmatrix4(b[0], at);
      pipelined<8>(
          b, [&](uint32_t(&to)[4], int ks) { ldmatrix4(to, swizzled(at, ks)); },
          [&](int ks, const uint32_t(&b)[4]) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
              mma_f16(score[m][0], q[m][ks], b[0], b[1]), mma_f16(score[m][1], q[m][ks], b[2], b[3]);
          });
      if (i >= 2 - Shape::kHalves) {
        if (!kShared) pipe.release(read_state), pipe.template produce<false>(load_stage);
        read_state.next();
      }
      // Eight rows at a time go to the warp whose share they are.
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int to = e / kHeld, h = e % kHeld;  // to: warps away, by exclusive or
        float2* there = partials + ((group * kSplit + (part ^ to)) * (kSplit - 1) + to - 1) * kHeld * 128;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float x = score[e / 2][n][e % 2 * 2], y = score[e / 2][n][e % 2 * 2 + 1];
          if (to > 0)
            there[(h * 4 + 2 * i + n) * 32] = make_float2(x, y);
          else
            own[2 * i + n][2 * h] = x, own[2 * i + n][2 * h + 1] = y;
        }
      }
    }
    sync_group();
#pragma unroll
    for (int from = 0; from < kSplit - 1; ++from)
#pragma unroll
      for (int i = 0; i < 4 * kHeld; ++i) {
        const float2 f = partials[((warp * (kSplit - 1) + from) * 4 * kHeld + i) * 32];
        own[i % 4][i / 4 * 2] += f.x, own[i % 4][i / 4 * 2 + 1] += f.y;
      }
    {
      const int tile_row = state.row[tile % 4];
      float most[kHeld], alpha[kHeld];
      uint32_t prob[4][kHeld];
      mask_scores(own, most, p, t, lane, tile_row, scale, tile_row >= whole_from && tile_row + kKeys <= whole_to);
      softmax_scores(own, most, scale, lane, prob, alpha);
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int row = first_own + 8 * h + l / 4;
#pragma unroll
        for (int n = 0; n < 4; ++n)
          *reinterpret_cast<uint32_t*>(probs + row * 64 + (n ^ row / 2 % 4) * 16 + l % 4 * 4) = prob[n][h];
        if (l % 4 == 0) rescale[row] = alpha[h];
      }
    }
    // The first fragment of V does not wait for probabilities.
    uint32_t b[2][4];
    auto values_at = [&](typename Pipe::State at, int i) {
      return shared_address(pipe.at(at)) + uint32_t((Shape::kFirstV + part * 2) * Shape::kPanel) +
             (Shape::kHalves == 1 ? i * 2048u : 0u) + as_columns;
    };
    if (kShared) ldmatrix4_transposed(b[0], values_at(keys, 0));
    sync_group();
    {
      float by[2][2];
      bool moved = false;
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) by[m][h] = rescale[m * 16 + h * 8 + l / 4], moved |= by[m][h] != 1.f;
      if (__any_sync(~0u, moved)) scale_rows(out[0], by[0]), scale_rows(out[1], by[1]);
    }
    typename Pipe::State values = kShared ? keys : read_state;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!kShared && i < Shape::kHalves) pipe.wait(u0 + Shape::kHalves + i, values, load_stage);
      uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        ldmatrix4(a[m], probs + (m * 16 + l % 16) * 64 + ((2 * i + l / 16) ^ l % 16 / 2 % 4) * 16);
      const uint32_t at = values_at(values, i);
      if (!kShared || i > 0) ldmatrix4_transposed(b[0], at);
      pipelined<8>(
          b, [&](uint32_t(&to)[4], int n) { ldmatrix4_transposed(to, swizzled(at, n)); },
          [&](int n, const uint32_t(&b)[4]) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
              mma_f16(out[m][2 * n], a[m], b[0], b[1]), mma_f16(out[m][2 * n + 1], a[m], b[2], b[3]);
          });
      if (i >= 2 - Shape::kHalves) {
        pipe.release(values);
        values.next();
        pipe.template produce<false>(load_stage);
      }
    }
    if (!kShared) read_state = values;
  }

  // Divides, puts the values in order, rotates back, writes whole rows, half of them at a time.
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 1);
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 2);
  }
  if (p.blocks.lse && l % 4 == 0) lane.leave_lse(p, s, head, first);
  if (!p.blocks.writes) return;
  __syncthreads();  // all warps have read the tile's factors
#pragma unroll
  for (int h = 0; h < kHeld; ++h)
    if (l % 4 == 0) rescale[(part * kHeld + h) * 8 + l / 4] = lane.sum[h] > 0 ? 1.f / lane.sum[h] : 0.f;
  for (int pass = 0; pass < 2; ++pass) {
    const int row0 = pass * Shape::kPassRows;
    __syncthreads();
    if (group * 32 / Shape::kPassRows == pass) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = m * 16 + h * 8 + l / 4;
          const float inv = rescale[row];
          float* to =
              reinterpret_cast<float*>(shared + (group * 32 - row0 + row) * Shape::kStrideO) + part * 128 + l % 4 * 2;
#pragma unroll
          for (int n = 0; n < 16; ++n)
            *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[m][n][2 * h] * inv, out[m][n][2 * h + 1] * inv);
        }
    }
    __syncthreads();
    for (int r = row0 + warp; r < row0 + Shape::kPassRows && s.j0 + r / p.group < s.j1; r += 8)
      store_output<V, E, kShared>(shared + (r - row0) * Shape::kStrideO, p, s.begin + s.j0 + r / p.group,
                                  head * p.group + r % p.group);
  }
}

// False if a block needs more shared memory than the device has.
template <KvType K, KvType V, int E, bool kShared = false>
bool launch_prefill_mma(cudaStream_t stream, const AttendParams& p) {
  using Shape = PrefillMmaShape<K, V, E, kShared>;
  if (Shape::kBytes > device().shared) return false;
  auto* kernel = attend_prefill_mma_kernel<K, V, E, kShared>;
  allow_shared(kernel, size_t(Shape::kBytes));
  launch(kernel, prefill_grid(p, Shape::kRows), dim3(kPrefillThreads), size_t(Shape::kBytes), stream, p);
  return true;
}

}  // namespace facet::cuda
