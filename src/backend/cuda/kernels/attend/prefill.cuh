// attend, long chunks -- a tile of query rows walks over the rows its tokens see
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * E] f32; K, V rows as cached (planar.cuh): ring, staging area or committed; E = 256 or 512
// Flops      4 E per query row and visible row; rows that a window hides are not visited
// Launch     256 threads per (tile of 128 (256) or 64 (512) query rows, K/V head); a tile is the query heads of one K/V
// head
//            times some tokens of one sequence; geometry from the shape, surplus blocks leave; the last tokens start
//            first
// Order      keys in ascending order in tiles of 64 or 32. Not row-invariant: only sequences of more than kSmallT
// tokens come
//            here, and a chunk's tiles begin at its first token
// Reference  CpuRef::attend    Test tests/kernels/cuda_attend_test.cpp    Bench bench/verbs/cuda_attend_bench.cu
//
// Quantised rows arrive by asynchronous copies while the tile before them is multiplied, and are expanded to f16 in
// shared memory once per block. Values stay in the order of their codes ("places"), Q in the same order as K; the
// output is put right at the end. A warp has 16 query rows; at E = 512 two warps share them: each scores half of the
// keys and accumulates half of the values.
#pragma once
#include "backend/cuda/kernels/attend/fragments.cuh"
#include "backend/cuda/kernels/attend/params.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace facet::cuda {

template <KvType K, KvType V, int E, bool W>
struct PrefillShape {
  static constexpr bool kRaw = planar_scaled(K) || planar_scaled(V);
  static constexpr int kPair = E / 256;  // warps per 16 query rows
  static constexpr int kRows = 128 / kPair, kKeys = E == 256 ? 64 : W && kRaw ? 48 : 32, kThreads = 256;
  static constexpr int kStages = kRaw ? 1 : 2;
  static constexpr int kStride =
      W ? 2 * E : 2 * E + 16;  // bytes of an f16 row; the padding keeps ldmatrix free of conflicts
  static constexpr int kRawK = kKeys * planar_bytes(K, E), kRawV = kKeys * planar_bytes(V, E);
  static constexpr int kAtK = kRows * kStride, kAtV = kAtK + kStages * kKeys * kStride;
  static constexpr int kAtP = kAtV + kStages * kKeys * kStride;  // [rows][keys] f16, E = 512
  static constexpr int kStrideP = W ? 128 : 2 * kKeys + 16;
  static constexpr int kAtRawK = kAtP + (kPair == 2 ? kRows * kStrideP : 0);
  static constexpr int kAtRawV = kAtRawK + (kRaw ? kRawK : 0);
  static constexpr int kAtM = kAtRawV + (kRaw ? kRawV : 0);  // [2][rows] f32
  static constexpr int kStrideO = 4 * E + 32;                // the output passes through the same memory
  static constexpr int kBytes = kAtM + 2 * kRows * 4 > kRows* kStrideO ? kAtM + 2 * kRows * 4 : kRows* kStrideO;
};

// Byte `byte` of row `row` of an f16 tile of `rows` rows: padded rows, or panels of 128 bytes with the swizzle of
// wgmma.
template <bool W, int kStride>
__device__ __forceinline__ int tile_at(int rows, int row, int byte) {
  return W ? byte / 128 * rows * 128 + row * 128 + (byte % 128 ^ (row % 8) * 16) : row * kStride + byte;
}

// Place of value d in an expanded row; four adjacent values have adjacent places.
template <KvType T>
__device__ __forceinline__ int place_of(int d) {
  if (T == KvType::kQ8_0) return q8_at(d);
  if (T == KvType::kQ4_0) return d / 64 * 64 + d % 32 / 4 * 8 + d % 64 / 32 * 4 + d % 4;
  return d;
}

__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(uint32_t(__cvta_generic_to_shared(p))));
}
__device__ __forceinline__ void ldmatrix4_transposed(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(uint32_t(__cvta_generic_to_shared(p))));
}

// Planar rows (as they lie in the cache, one after another) to f16 rows.
template <KvType T, int E, bool W, int kKeys, int kStride>
__device__ __forceinline__ void expand_rows(char* to, const char* raw) {
  constexpr int kRow = planar_bytes(T, E), kCodes = planar_code_bytes(T, E);
  const int tid = threadIdx.x;
  auto scaled = [](uint32_t v, uint32_t d) { return expand::mul2(v, d); };
  auto twice = [](uint32_t pair, int hi) { return __byte_perm(pair, pair, hi ? 0x3232 : 0x1010); };
  if constexpr (T == KvType::kQ8_0) {
    for (int i = tid; i < kKeys * E / 16; i += 256) {
      const int row = i / (E / 16), chunk = i % (E / 16);
      const uint4 u = *reinterpret_cast<const uint4*>(raw + row * kRow + chunk * 16);
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(raw + row * kRow + kCodes + chunk / 4 * 4);
      const uint32_t d0 = twice(pair, 0), d1 = twice(pair, 1);
      *reinterpret_cast<uint4*>(to + tile_at<W, kStride>(kKeys, row, chunk * 32)) =
          make_uint4(scaled(expand::bytes_lo(u.x), d0), scaled(expand::bytes_hi(u.x), d0),
                     scaled(expand::bytes_lo(u.y), d1), scaled(expand::bytes_hi(u.y), d1));
      *reinterpret_cast<uint4*>(to + tile_at<W, kStride>(kKeys, row, chunk * 32 + 16)) =
          make_uint4(scaled(expand::bytes_lo(u.z), d0), scaled(expand::bytes_hi(u.z), d0),
                     scaled(expand::bytes_lo(u.w), d1), scaled(expand::bytes_hi(u.w), d1));
    }
  } else if constexpr (T == KvType::kQ4_0) {
    for (int i = tid; i < kKeys * E / 8; i += 256) {
      const int row = i / (E / 8), w = i % (E / 8);
      const uint32_t u = *reinterpret_cast<const uint32_t*>(raw + row * kRow + w * 4);
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(raw + row * kRow + kCodes + w / 8 * 4);
      const uint32_t d0 = twice(pair, 0), d1 = twice(pair, 1);
      *reinterpret_cast<uint4*>(to + tile_at<W, kStride>(kKeys, row, w * 16)) =
          make_uint4(scaled(expand::nibbles_lo(u), d0), scaled(expand::nibbles_hi(u), d0),
                     scaled(expand::nibbles_lo(u >> 8), d1), scaled(expand::nibbles_hi(u >> 8), d1));
    }
  } else if constexpr (T == KvType::kTQ3_0) {
    for (int i = tid; i < kKeys * E / 32; i += 256) {
      const int row = i / (E / 32), unit = i % (E / 32);
      const char* at = raw + row * kRow + unit * 12;
      const uint2 pairs = *reinterpret_cast<const uint2*>(raw + row * kRow + kCodes + unit / 8 * 16);
      const uint32_t later = *reinterpret_cast<const uint32_t*>(raw + row * kRow + kCodes + unit / 8 * 16 + 8);
#pragma unroll
      for (int set = 0; set < 4; ++set) {
        const uint32_t s = expand::index_set(at, set);
        const uint32_t d = scaled(twice(set < 2 ? pairs.x : later, 0), 0x30003000);  // an eighth
        uint4 v;
        expand::indices(s, v.x, v.y);
        expand::indices(s >> 16, v.z, v.w);
        *reinterpret_cast<uint4*>(to +
                                  tile_at<W, kStride>(kKeys, row, (unit / 8 * 256 + set * 64 + unit % 8 * 8) * 2)) =
            make_uint4(scaled(v.x, d), scaled(v.y, d), scaled(v.z, d), scaled(v.w, d));
      }
    }
  }
}

template <KvType K, KvType V, int E, bool W>
__global__ void __launch_bounds__(256, 1) attend_prefill_kernel(const __grid_constant__ AttendParams p) {
#if !defined(FACET_WGMMA)
  if constexpr (!W) {
#endif
    using Shape = PrefillShape<K, V, E, W>;
    constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys, kPair = Shape::kPair, kStride = Shape::kStride;
    constexpr int kScoreTiles = kKeys / kPair / 8, kOutTiles = 256 / 8;
    extern __shared__ __align__(1024) char shared[];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
    const int head = blockIdx.y, n_tok = kRows / p.group;  // tokens of a tile

    wait_for_previous();
    let_next_start();

    // Which tile of which sequence: tiles are numbered through the sequences, 32 of them at a time.
    int seq = -1, tile_of_seq = int(gridDim.x) - 1 - int(blockIdx.x);
    for (int s0 = 0; s0 < p.step.shape.n_seq && seq < 0; s0 += 32) {
      int n = 0;
      if (s0 + lane < p.step.shape.n_seq && p.step.q_begin[s0 + lane] >= p.t_begin)
        n = (p.step.q_begin[s0 + lane + 1] - p.step.q_begin[s0 + lane] + n_tok - 1) / n_tok;
      int until = n;
#pragma unroll
      for (int m = 1; m < 32; m *= 2) {
        const int before = __shfl_up_sync(~0u, until, m);
        if (lane >= m) until += before;
      }
      const uint32_t past = __ballot_sync(~0u, until > tile_of_seq);
      if (past) {
        const int l = __ffs(past) - 1;
        seq = s0 + l;
        tile_of_seq -= __shfl_sync(~0u, until - n, l);
      } else {
        tile_of_seq -= __shfl_sync(~0u, until, 31);
      }
    }
    if (seq < 0) {
      if (blockIdx.x > 0) return;  // the first block has the number after the last tile: it clears the padding rows
      for (int t = max(p.t_begin, p.step.q_begin[p.step.shape.n_seq]); t < p.t_end; ++t)
        for (int i = tid; i < p.group * E; i += 256) {
          p.o[t * p.o_stride + head * p.group * E + i] = 0;
          if (p.o_bf) p.o_bf[t * p.o_bf_stride + head * p.group * E + i] = __float2bfloat16(0.f);
        }
      return;
    }

    SeqRows s;
    s.begin = p.step.q_begin[seq];
    s.n = p.step.q_begin[seq + 1] - s.begin;
    s.len = p.step.kv_len[seq];
    s.mask = p.step.mask[seq];
    s.in_step = s.mask == Mask::kPast ? 0 : s.n;
    s.j0 = tile_of_seq * n_tok, s.j1 = min(s.n, s.j0 + n_tok);
    int least = INT_MAX;
    s.most_pos = 0;
    for (int j = s.j0; j < s.j1; j += 32) {
      const int pos = p.step.pos[s.begin + min(j + lane, s.j1 - 1)];
      least = min(least, pos), s.most_pos = max(s.most_pos, pos);
    }
    for (int m = 16; m > 0; m /= 2) {
      least = min(least, __shfl_xor_sync(~0u, least, m));
      s.most_pos = max(s.most_pos, __shfl_xor_sync(~0u, s.most_pos, m));
    }
    // In the usual chunk a token's position is its row, and what it sees is a range of rows.
    const bool plain = s.mask == Mask::kCausal && p.step.pos[s.begin] == s.len;
    s.first = p.window > 0 ? max(0, plain ? least - p.window + 1 : min(s.len, least - p.window + 1)) : 0;
    const int lo = s.first, hi = s.len + (plain ? s.j1 : s.in_step);
    const int row0 = lo / kKeys * kKeys, n_tile = hi > lo ? (hi - row0 + kKeys - 1) / kKeys : 0;

    const bool staged = kv_staged(p.kv, s.n);
    const char* k_ring =
        reinterpret_cast<const char*>(p.kv.k + p.step.slot[seq] * p.kv.k_slot) + head * planar_bytes(K, E);
    const char* v_ring =
        reinterpret_cast<const char*>(p.kv.v + p.step.slot[seq] * p.kv.v_slot) + head * planar_bytes(V, E);
    const char* k_stage = reinterpret_cast<const char*>(p.kv.k_stage) + head * planar_bytes(K, E);
    const char* v_stage = reinterpret_cast<const char*>(p.kv.v_stage) + head * planar_bytes(V, E);
    auto load = [&](int tile, bool want_k, bool want_v) {
      if (tile < n_tile) {
#pragma unroll
        for (int r = tid / 8; r < kKeys; r += 32) {
          const int row = row0 + tile * kKeys + r;
          const bool there = row >= lo && row < hi, in_stage = staged && row >= s.len;
          int64_t at = 0;
          if (there)
            at = in_stage ? s.begin + row - s.len : p.kv.window > 0 ? int(unsigned(row) % unsigned(p.kv.cap)) : row;
          const char* k = (in_stage ? k_stage : k_ring) + at * p.kv.k_row;
          const char* v = (in_stage ? v_stage : v_ring) + at * p.kv.v_row;
          constexpr int kRowK = planar_bytes(K, E), kRowV = planar_bytes(V, E);
          char* to_k = shared + (Shape::kRaw ? Shape::kAtRawK + r * kRowK : Shape::kAtK + tile % 2 * kKeys * kStride);
          char* to_v = shared + (Shape::kRaw ? Shape::kAtRawV + r * kRowV : Shape::kAtV + tile % 2 * kKeys * kStride);
          auto place = [&](int byte) { return Shape::kRaw ? byte : tile_at<W, kStride>(kKeys, r, byte); };
#pragma unroll
          for (int i = 0; i < (kRowK / 16 + 7) / 8; ++i) {
            const int byte = 16 * (tid % 8 + 8 * i);
            if (want_k && byte < kRowK) copy16_async_or_zero(to_k + place(byte), k + byte, there);
          }
#pragma unroll
          for (int i = 0; i < (kRowV / 16 + 7) / 8; ++i) {
            const int byte = 16 * (tid % 8 + 8 * i);
            if (want_v && byte < kRowV) copy16_async_or_zero(to_v + place(byte), v + byte, there);
          }
        }
      }
      copies_commit();
    };
    load(0, true, true);

    // Q, in the places of K's values.
    constexpr int kPerLane = E / 32;
    for (int r = warp; r < kRows; r += 8) {
      const int j = s.j0 + r / p.group;
      float x[kPerLane] = {};
      if (j < s.j1) {
        const float4* from = reinterpret_cast<const float4*>(p.q + (s.begin + j) * p.q_stride +
                                                             (head * p.group + r % p.group) * E + lane * kPerLane);
#pragma unroll
        for (int i = 0; i < kPerLane / 4; ++i) {
          const float4 f = from[i];
          x[4 * i] = f.x, x[4 * i + 1] = f.y, x[4 * i + 2] = f.z, x[4 * i + 3] = f.w;
        }
        if (planar_scaled(K)) warp_rotate<kPerLane>(x, lane, false);
      }
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        const __half2 a = __floats2half2_rn(x[i], x[i + 1]), b = __floats2half2_rn(x[i + 2], x[i + 3]);
        *reinterpret_cast<uint2*>(shared + tile_at<W, kStride>(kRows, r, place_of<K>(lane * kPerLane + i) * 2)) =
            make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
      }
    }

    // First row of the warp, and its share at E = 512; a warpgroup of four warps has one share of 64 rows.
    const int strip = W ? warp % (kRows / 16) * 16 : warp / kPair * 16, half = W ? warp / (kRows / 16) : warp % kPair;
    int token[2], pos[2];
    uint64_t ancestor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      token[h] = s.j0 + (strip + g + 8 * h) / p.group;
      pos[h] = 0, ancestor[h] = 0;
      if (token[h] < s.j1) {
        pos[h] = p.step.pos[s.begin + token[h]];
        if (s.mask == Mask::kTree) ancestor[h] = p.step.ancestor[s.begin + token[h]];
      } else {
        token[h] = -1;
      }
    }
    const int strip_first = s.j0 + strip / p.group;  // its first token
    const float scale = p.scale * 1.4426950408889634f;
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    float out[kOutTiles][4] = {};
    float* maxima = reinterpret_cast<float*>(shared + Shape::kAtM);

    // Warpgroup products run beside the expansion of the next operand: V while scores are made, the next K while values
    // are summed. Either raw row is loaded again as soon as it is expanded. (V in TQ3_0 takes too many instructions to
    // expand: its products would wait.)
    constexpr bool kBeside = W && Shape::kRaw && V != KvType::kTQ3_0;
    if (kBeside) {
      copies_wait<0>();
      __syncthreads();
      expand_rows<K, E, W, kKeys, kStride>(shared + Shape::kAtK, shared + Shape::kAtRawK);
    }
    for (int tile = 0; tile < n_tile; ++tile) {
      copies_wait<0>();
      if (W) publish_to_products();  // the copies or expanded rows, and before the first tile Q
      __syncthreads();
      if constexpr (Shape::kRaw && !kBeside) {
        expand_rows<K, E, W, kKeys, kStride>(shared + Shape::kAtK, shared + Shape::kAtRawK);
        expand_rows<V, E, W, kKeys, kStride>(shared + Shape::kAtV, shared + Shape::kAtRawV);
        if (W) publish_to_products();
        __syncthreads();
      }
      load(tile + 1, true, !kBeside);
      const int stage = Shape::kRaw ? 0 : tile % 2;
      const char* keys = shared + Shape::kAtK + stage * kKeys * kStride;
      const char* values = shared + Shape::kAtV + stage * kKeys * kStride;
      const int tile_row = row0 + tile * kKeys;

      float score[kScoreTiles][4] = {};
      if constexpr (W) {
#if defined(FACET_WGMMA)
        const uint64_t a = rows_operand(shared + warp / 4 % (kRows / 64) * 8192),
                       b = rows_operand(keys + half * (kKeys / kPair) * 128);
        wgmma_begin();
#pragma unroll
        for (int ks = 0; ks < E / 16; ++ks)
          wgmma_rows(score, a + (ks / 4 * kRows * 128 + ks % 4 * 32) / 16,
                     b + (ks / 4 * kKeys * 128 + ks % 4 * 32) / 16, ks > 0);
        wgmma_commit();
        if (kBeside) expand_rows<V, E, W, kKeys, kStride>(shared + Shape::kAtV, shared + Shape::kAtRawV);
        wgmma_wait(score);
#endif
      } else {
        const char* a_at = shared + (strip + lane % 16) * kStride + lane / 16 * 16;
        const char* b_at = keys + (half * (kKeys / kPair) + lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 16;
#pragma unroll 4
        for (int ks = 0; ks < E / 16; ++ks) {
          uint32_t a[4];
          ldmatrix4(a, a_at + ks * 32);
#pragma unroll
          for (int n = 0; n < kScoreTiles / 2; ++n) {
            uint32_t b[4];
            ldmatrix4(b, b_at + n * 16 * kStride + ks * 32);
            mma_f16(score[2 * n], a, b[0], b[1]);
            mma_f16(score[2 * n + 1], a, b[2], b[3]);
          }
        }
      }

      // What the warp's rows do not see. Rows below lo and beyond hi were loaded as zeros.
      const int last = tile_row + kKeys - 1;
      const bool whole = tile_row >= lo && last < hi &&
                         (plain ? last <= s.len + strip_first && (p.window == 0 || s.most_pos - tile_row < p.window)
                                : last < s.len && (p.window == 0 || s.most_pos - tile_row < p.window));
      float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int h = e / 2;
          score[n][e] *= scale;
          if (!whole) {
            const int row = tile_row + half * (kKeys / kPair) + 8 * n + 2 * c + e % 2;
            bool seen = row >= lo && row < hi && token[h] >= 0;
            if (seen) {
              if (plain)
                seen = row <= s.len + token[h] && (p.window == 0 || s.len + token[h] - row < p.window);
              else
                seen = sees_row(p, s, token[h], pos[h], ancestor[h], row);
            }
            if (!seen) score[n][e] = -INFINITY;
          }
          most[h] = fmaxf(most[h], score[n][e]);
        }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
      }
      if constexpr (kPair == 2) {
        if (c == 0) maxima[half * kRows + strip + g] = most[0], maxima[half * kRows + strip + g + 8] = most[1];
        asm volatile("bar.sync %0, 64;" ::"r"(1 + strip / 16) : "memory");
        most[0] = fmaxf(most[0], maxima[(1 - half) * kRows + strip + g]);
        most[1] = fmaxf(most[1], maxima[(1 - half) * kRows + strip + g + 8]);
      }
      float base[2];
      bool moved = false;
      float alpha[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(top[h], most[h]);
        moved |= next != top[h];
        base[h] =
            (next == -INFINITY ? 0.f : next) - 6.f;  // probabilities times 64: small ones keep their precision in f16
        alpha[h] = exp2_approx(top[h] - (base[h] + 6.f));
        top[h] = next;
        sum[h] *= alpha[h];
      }
      uint32_t prob[kScoreTiles][2];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const __half2 v =
              __floats2half2_rn(exp2_approx(score[n][2 * h] - base[h]), exp2_approx(score[n][2 * h + 1] - base[h]));
          const float2 f = __half22float2(v);
          sum[h] += f.x + f.y;
          prob[n][h] = *reinterpret_cast<const uint32_t*>(&v);
        }
      if constexpr (kPair == 2) {
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            *reinterpret_cast<uint32_t*>(
                shared + Shape::kAtP +
                tile_at<W, Shape::kStrideP>(kRows, strip + g + 8 * h, (half * (kKeys / 2) + 8 * n + 2 * c) * 2)) =
                prob[n][h];
        if (!W) asm volatile("bar.sync %0, 64;" ::"r"(1 + strip / 16) : "memory");
      }
      if (W && (kPair == 2 || kBeside)) {
        if (kBeside) copies_wait<0>();
        publish_to_products();
        __syncthreads();
      }
      if (kBeside) load(tile + 1, false, true);
      if (__any_sync(~0u, moved)) {
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n)
          out[n][0] *= alpha[0], out[n][1] *= alpha[0], out[n][2] *= alpha[1], out[n][3] *= alpha[1];
      }
      if constexpr (W) {
#if defined(FACET_WGMMA)
        const uint64_t b = columns_operand(values + half * 4 * kKeys * 128, kKeys * 128);
        wgmma_begin();
#pragma unroll
        for (int ks = 0; ks < kKeys / 16; ++ks) {
          if constexpr (kPair == 2) {
            wgmma_columns(out, rows_operand(shared + Shape::kAtP) + ks * 32 / 16, b + ks * 2048 / 16, 1);
          } else {
            const uint32_t a[4] = {prob[2 * ks][0], prob[2 * ks][1], prob[2 * ks + 1][0], prob[2 * ks + 1][1]};
            wgmma_columns(out, a, b + ks * 2048 / 16, 1);
          }
        }
        wgmma_commit();
        if (kBeside && tile + 1 < n_tile)
          expand_rows<K, E, W, kKeys, kStride>(shared + Shape::kAtK, shared + Shape::kAtRawK);
        wgmma_wait(out);
        // The products read these registers until now.
        if constexpr (kPair == 1)
#pragma unroll
          for (int n = 0; n < kScoreTiles; ++n) asm volatile("" ::"r"(prob[n][0]), "r"(prob[n][1]));
#endif
      } else {
        const char* v_at = values + (lane / 8 % 2 * 8 + lane % 8) * kStride + (half * 256 + lane / 16 * 8) * 2;
#pragma unroll
        for (int ks = 0; ks < kKeys / 16; ++ks) {
          uint32_t a[4];
          if constexpr (kPair == 2)
            ldmatrix4(a, shared + Shape::kAtP + (strip + lane % 16) * Shape::kStrideP + ks * 32 + lane / 16 * 16);
          else
            a[0] = prob[2 * ks][0], a[1] = prob[2 * ks][1], a[2] = prob[2 * ks + 1][0], a[3] = prob[2 * ks + 1][1];
#pragma unroll
          for (int n = 0; n < kOutTiles / 2; ++n) {
            uint32_t b[4];
            ldmatrix4_transposed(b, v_at + ks * 16 * kStride + n * 32);
            mma_f16(out[2 * n], a, b[0], b[1]);
            mma_f16(out[2 * n + 1], a, b[2], b[3]);
          }
        }
      }
    }

    // Divide, put the values in order, rotate back, write whole rows.
    copies_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
    __syncthreads();
    if constexpr (kPair == 2) {
      if (c == 0) maxima[half * kRows + strip + g] = sum[0], maxima[half * kRows + strip + g + 8] = sum[1];
      __syncthreads();
#pragma unroll
      for (int h = 0; h < 2; ++h) sum[h] = maxima[strip + g + 8 * h] + maxima[kRows + strip + g + 8 * h];
      __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float inv = sum[h] > 0 ? 1.f / sum[h] : 0.f;
      float* to = reinterpret_cast<float*>(shared + (strip + g + 8 * h) * Shape::kStrideO) + half * 256 + 2 * c;
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[n][2 * h] * inv, out[n][2 * h + 1] * inv);
    }
    __syncthreads();
    for (int r = warp; r < kRows; r += 8) {
      const int j = s.j0 + r / p.group;
      if (j >= s.j1) break;
      float x[kPerLane];
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        const float4 f =
            *reinterpret_cast<const float4*>(shared + r * Shape::kStrideO + place_of<V>(lane * kPerLane + i) * 4);
        x[i] = f.x, x[i + 1] = f.y, x[i + 2] = f.z, x[i + 3] = f.w;
      }
      if (planar_scaled(V)) warp_rotate<kPerLane>(x, lane, true);
      const int64_t col = int64_t(head * p.group + r % p.group) * E + lane * kPerLane;
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        *reinterpret_cast<float4*>(p.o + (s.begin + j) * p.o_stride + col + i) =
            make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        if (p.o_bf) {
          __nv_bfloat162* to = reinterpret_cast<__nv_bfloat162*>(p.o_bf + (s.begin + j) * p.o_bf_stride + col + i);
          to[0] = __floats2bfloat162_rn(x[i], x[i + 1]), to[1] = __floats2bfloat162_rn(x[i + 2], x[i + 3]);
        }
      }
    }
#if !defined(FACET_WGMMA)
  }
#endif
}

// False if a block needs more shared memory than the device has.
template <KvType K, KvType V, int E, bool W>
bool launch_prefill(cudaStream_t stream, const AttendParams& p) {
  using Shape = PrefillShape<K, V, E, W>;
  if (Shape::kBytes > device().shared) return false;
  static_assert(Shape::kBytes <= 227 * 1024, "shared memory of a block on sm_90");
  auto* kernel = attend_prefill_kernel<K, V, E, W>;
  allow_shared(kernel, size_t(Shape::kBytes));
  const int n_tok = p.t_end - p.t_begin, per_tile = Shape::kRows / p.group;
  const int n_tile = n_tok / per_tile + std::min(p.step.shape.n_seq, n_tok) + 1;
  launch(kernel, dim3(unsigned(n_tile), unsigned(p.kv.n_head)), dim3(Shape::kThreads), size_t(Shape::kBytes), stream,
         p);
  return true;
}

template <KvType K, KvType V, int E>
bool attend_prefill(cudaStream_t stream, const AttendParams& p) {
  return has_warpgroups(attend_prefill_kernel<K, V, E, true>) ? launch_prefill<K, V, E, true>(stream, p)
                                                              : launch_prefill<K, V, E, false>(stream, p);
}

template <KvType K, KvType V>
bool attend_prefill(cudaStream_t stream, const AttendParams& p) {
  return p.kv.head_dim == 256 ? attend_prefill<K, V, 256>(stream, p) : attend_prefill<K, V, 512>(stream, p);
}

}  // namespace facet::cuda
