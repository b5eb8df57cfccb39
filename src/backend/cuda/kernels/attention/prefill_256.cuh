// attend, long chunks of heads of 256 on Hopper: the sliding layers
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * 256] f32; K, V rows in f16: the cache's (ring, staging area, committed), or copies of quantised
//            ones, rotated back (expand_256), so that one kernel multiplies rows of every type
// Flops      1024 per query row and visible row; rows that a window hides are not visited
// Bytes      a block reads 1024 per visible row, for 128 query rows: 128 flops a byte, of the L2
// Launch     384 threads per (tile of 128 query rows, K/V head): two warpgroups that multiply, 64 rows each, and one
//            that loads
// Order      keys in ascending order in tiles of 64. Not row-invariant, as prefill.cuh
// Reference  CpuRef::attend    Test tests/kernels/cuda_attention_test.cpp    Bench bench/verbs/cuda_attention_bench.cu
//
// K and V tiles arrive in turn in five stages of 32 KB. A warpgroup scores a tile, and while it takes exponents the
// tensor cores have its product with the values of the tile before, and the products of the other warpgroup.
#pragma once
#include <type_traits>

#include "backend/cuda/kernels/attention/prefill_tile.cuh"
#include "backend/cuda/kernels/attention/rotate_rows.cuh"
#include "backend/cuda/kernels/common/bulk.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace facet::cuda {

struct Prefill256Shape {
  static constexpr int E = 256, kRows = 128, kKeys = 64, kThreads = kPrefillThreads + 128;
  static constexpr int kPanel = kKeys * 128, kStageBytes = 4 * kPanel, kStages = 5;
  static constexpr int kAtStages = kRows * 2 * E, kBytes = kAtStages + kStages * kStageBytes;
  static constexpr int kStrideO = 4 * E + 32;  // the output passes through the same memory
  static_assert(kRows * kStrideO <= kBytes && kBytes + 1024 <= 227 * 1024, "shared memory of a block on sm_90");
};

// Copies of quantised rows: [K/V head of the launch][K, V][row][256] f16 (expanded_rows), as if they were cached in f16.
// They are rotated back once here, where queries and outputs would have to be rotated for each of their heads.
template <KvType K, KvType V>
__global__ void __launch_bounds__(256) expand_256_kernel(const __grid_constant__ AttendParams p) {
  constexpr int E = Prefill256Shape::E;
  __shared__ __align__(16) char expanded[kExpandRows * E * 2];
  pdl_wait();
  pdl_trigger();
  const int at = int(blockIdx.x) * kExpandRows, head = p.f16.head0 + int(blockIdx.y), is_v = int(blockIdx.z);
  const ExpandedPlace place(p, at);
  if (place.seq < 0) return;
  PrefillTile t{};
  t.seq = place.seq;
  t.rows.begin = p.step.q_begin[t.seq], t.rows.n = p.step.q_begin[t.seq + 1] - t.rows.begin;
  t.rows.len = p.step.kv_len[t.seq];
  t.lo = first_expanded(p, t.seq), t.hi = t.rows.len + (p.step.mask[t.seq] == Mask::kPast ? 0 : t.rows.n);
  const PrefillSource<K, V, E> source(p, t, head);
  const int row0 = t.lo + at - place.before, n = min(kExpandRows, t.hi - row0);
  char* const to = reinterpret_cast<char*>(p.f16.rows + ((2 * int64_t(blockIdx.y) + is_v) * p.f16.cap + at) * E);
  const auto copy = [&](auto type, auto row_at) {
    expand_device_rows<type, E>(
        [&](int row) { return row_at(source.place(p, t, row0 + row)); }, 0, n,
        [&](int row, int byte, uint4 v) { *reinterpret_cast<uint4*>(expanded + row * 2 * E + byte) = v; });
    __syncthreads();
    const RotateBack<type> back(int(threadIdx.x) % 32);
    for (int row = int(threadIdx.x) / 32; row < n; row += 8) back.rotate(expanded + row * 2 * E, to + row * 2 * E);
  };
  if (is_v)
    copy(std::integral_constant<KvType, V>(), [&](const auto& at) { return source.v(p, at); });
  else
    copy(std::integral_constant<KvType, K>(), [&](const auto& at) { return source.k(p, at); });
}

#if defined(FACET_WGMMA)
struct Prefill256Barriers {
  uint64_t full[Prefill256Shape::kStages], empty[Prefill256Shape::kStages];
};
#endif

// kCopies: rows are those of expand_256.
template <bool kCopies>
__global__ void __launch_bounds__(Prefill256Shape::kThreads, 1)
    attend_prefill_256_kernel(const __grid_constant__ AttendParams p) {
#if defined(FACET_WGMMA)
  using Shape = Prefill256Shape;
  constexpr int E = Shape::E, kRows = Shape::kRows, kKeys = Shape::kKeys, kPanel = Shape::kPanel;
  constexpr int kScoreTiles = kKeys / 8, kOutTiles = E / 8;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4;
  const int head = p.f16.head0 + int(blockIdx.y);

  pdl_wait();
  pdl_trigger();
  __shared__ PrefillTile t;
  __shared__ KeyTiles<kKeys> tiles;
  __shared__ Prefill256Barriers bar;
  if (warp == 0) {
    const PrefillTile found = find_prefill_tile(p, kRows / p.group);
    if (tid == 0) {
      t = found;
      if (t.seq >= 0) tiles = KeyTiles<kKeys>(p, found, head);
      for (int i = 0; i < Shape::kStages; ++i) barrier_init(&bar.full[i], 128), barrier_init(&bar.empty[i], 8);
      barriers_publish();
    }
  }
  __syncthreads();
  if (t.seq < 0) {
    if (blockIdx.x == 0 && p.blocks.writes) clear_prefill_padding(p, head, E);
    return;
  }
  const int n_tile = tiles.n;
  if (p.blocks.count && n_tile == 0) return leave_empty<kRows>(p, t.rows, head);
  auto stage_at = [&](int i) { return shared + Shape::kAtStages + i % Shape::kStages * Shape::kStageBytes; };

  if (warp >= 8) {  // loads: stage 2 i is K of tile i, 2 i + 1 its V
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    using Source = PrefillSource<KvType::kF16, KvType::kF16, E>;
    const Source source(p, t, head);
    const char* copies = nullptr;
    if constexpr (kCopies)
      copies = reinterpret_cast<const char*>(
          p.f16.rows +
          (2 * int64_t(blockIdx.y) * p.f16.cap + expanded_before(p, t.seq) - first_expanded(p, t.seq)) * E);
    const int r0 = tid % 128 / 8, chunk = tid % 8, place = r0 * 128 + (chunk ^ r0 % 8) * 16;
    constexpr int kTimes = kKeys / 16;
    for (int tile = 0, i = 0; tile < n_tile; ++tile) {
      const int row0 = tiles.row(tile) + r0, lo = t.lo;
      Source::Place at[kTimes];
#pragma unroll
      for (int k = 0; k < kTimes; ++k) {
        const int row = row0 + 16 * k;
        if constexpr (kCopies)
          at[k] = {.row = row, .in_stage = false, .there = sees(t, row)};
        else
          at[k] = source.place(p, t, row);
      }
#pragma unroll 1
      for (int is_v = 0; is_v < 2; ++is_v, ++i) {
        const int stage = i % Shape::kStages;
        barrier_wait(&bar.empty[stage], (i / Shape::kStages + 1) & 1);
        char* const to = stage_at(i) + place;
#pragma unroll
        for (int k = 0; k < kTimes; ++k) {
          const char* from;
          if constexpr (kCopies)
            from = copies + ((is_v ? p.f16.cap : 0) + (at[k].there ? at[k].row : lo)) * 2 * E;
          else
            from = is_v ? source.v(p, at[k]) : source.k(p, at[k]);
#pragma unroll
          for (int panel = 0; panel < 4; ++panel)
            copy16_async_or_zero(to + panel * kPanel + k * 2048, from + panel * 128 + chunk * 16, at[k].there);
        }
        barrier_arrive_with_copies(&bar.full[stage]);
      }
    }
    copies_commit();
    copies_wait<0>();
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const SeqRows& s = t.rows;
  load_queries<KvType::kF16, E, kRows>(shared, p, s, head);
  publish_to_products();
  auto both = [] { asm volatile("bar.sync 1, 256;" ::: "memory"); };
  both();

  const int strip = warp * 16;
  PrefillLane lane(s, p.group, strip);
  const float scale = p.scale * 1.4426950408889634f;
  float out[kOutTiles][4] = {};
  uint32_t prob[kScoreTiles][2];
  auto wait_stage = [&](int i) {
    barrier_wait(&bar.full[i % Shape::kStages], i / Shape::kStages & 1);
    publish_to_products();
  };
  auto release_stage = [&](int i) {
    if (tid % 32 == 0) barrier_arrive(&bar.empty[i % Shape::kStages]);
  };
  auto begin_values = [&](int tile) {
    const uint64_t b = columns_operand(stage_at(2 * tile + 1), kPanel);
    wgmma_begin(out);
#pragma unroll
    for (int ks = 0; ks < kKeys / 16; ++ks) {
      const uint32_t a[4] = {prob[2 * ks][0], prob[2 * ks][1], prob[2 * ks + 1][0], prob[2 * ks + 1][1]};
      wgmma_columns(out, a, b + ks * 2048 / 16, 1);
    }
    wgmma_commit();
  };
  auto read_until_now = [&] {  // by products
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) asm volatile("" ::"r"(prob[n][0]), "r"(prob[n][1]));
  };
  // A tile's scores, then its probabilities beside the values of the tile before it, if there is one.
  auto process_tile = [&](int tile, auto again) {
    float score[kScoreTiles][4] = {};
    wait_stage(2 * tile);
    if (again) wait_stage(2 * tile - 1);
    const uint64_t a = rows_operand(shared + warp / 4 * 8192), b = rows_operand(stage_at(2 * tile));
    wgmma_begin(score);
#pragma unroll
    for (int ks = 0; ks < E / 16; ++ks)
      wgmma_rows(score, a + (ks / 4 * kRows * 128 + ks % 4 * 32) / 16, b + (ks / 4 * kPanel + ks % 4 * 32) / 16,
                 ks > 0);
    wgmma_commit();
    if constexpr (again)
      begin_values(tile - 1);
    else
      wgmma_commit();
    wgmma_wait_older(score);
    release_stage(2 * tile);
    const int row = tiles.row(tile);
    float most[2], alpha[2];
    mask_scores(score, most, p, t, lane, row, scale, sees_whole_tile(p, t, s.j0 + strip / p.group, row, kKeys));
    const bool moved = exp_scores(score, most, scale, lane, alpha);
    wgmma_wait(out);
    if constexpr (again) {
      release_stage(2 * tile - 1);
      read_until_now();
      if (moved) scale_rows(out, alpha);
    }
    pack_probs(score, prob);
  };
  if (n_tile > 0) {
    process_tile(0, std::false_type());
#pragma unroll 1
    for (int tile = 1; tile < n_tile; ++tile) process_tile(tile, std::true_type());
    wait_stage(2 * n_tile - 1);
    begin_values(n_tile - 1);
    wgmma_wait(out);
    read_until_now();
  }

  // Divide, write whole rows.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 1);
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 2);
  }
  if (p.blocks.lse && c == 0) lane.leave_lse(p, s, head, strip);
  if (!p.blocks.writes) return;
  both();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inv = lane.sum[h] > 0 ? 1.f / lane.sum[h] : 0.f;
    float* to = reinterpret_cast<float*>(shared + (strip + g + 8 * h) * Shape::kStrideO) + 2 * c;
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[n][2 * h] * inv, out[n][2 * h + 1] * inv);
  }
  __syncwarp();
  const int end = s.begin + s.j1, heads_end = (head + 1) * p.group;
  int token = s.begin + s.j0 + strip / p.group, q_head = head * p.group + strip % p.group;
  for (int r = strip; r < strip + 16 && token < end; ++r) {
    store_output<KvType::kF16, E>(shared + r * Shape::kStrideO, p, token, q_head);
    if (++q_head == heads_end) q_head -= p.group, ++token;
  }
#endif
}

// False: the copies have no room in p.f16, or the device has no such products.
template <KvType K, KvType V>
bool attend_prefill_256(cudaStream_t stream, AttendParams p) {
  using Shape = Prefill256Shape;
  constexpr bool kCopies = device_kv_has_scales(K) || device_kv_has_scales(V);
  auto* kernel = attend_prefill_256_kernel<kCopies>;
  if (!has_warpgroups(kernel) || Shape::kBytes > device().shared) return false;
  const StepShape& shape = p.step.shape;
  int n_head = p.kv.n_head;  // of a pass
  if constexpr (kCopies) {
    if (p.window == 0 && shape.long_rows == 0) return false;
    const int64_t rows = (p.window > 0 ? p.t_end - p.t_begin + int64_t(p.window) * most_long(p) : shape.long_rows) +
                         int64_t(kExpandRows) * most_long(p);
    const int64_t room = p.f16.bytes / (4 * Shape::E) / rows;
    if (room == 0) return false;
    n_head = int(std::min<int64_t>(n_head, room));
    p.f16.cap = rows;
  }
  allow_shared(kernel, size_t(Shape::kBytes));
  dim3 grid = prefill_grid(p, Shape::kRows);
  for (p.f16.head0 = 0; p.f16.head0 < p.kv.n_head; p.f16.head0 += n_head) {
    grid.y = unsigned(std::min(n_head, p.kv.n_head - p.f16.head0));
    if constexpr (kCopies)
      launch(expand_256_kernel<K, V>, dim3(unsigned((p.f16.cap + kExpandRows - 1) / kExpandRows), grid.y, 2), dim3(256),
             0, stream, p);
    launch(kernel, grid, dim3(Shape::kThreads), size_t(Shape::kBytes), stream, p);
  }
  return true;
}

}  // namespace facet::cuda
