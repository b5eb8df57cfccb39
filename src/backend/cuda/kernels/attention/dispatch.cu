// attend -- which kernels run for a step: short sequences in splits (decode.cuh, combine.cu), long chunks in tiles
// (prefill.cuh), small heads and exact types in the plain kernel (plain.cu)
//
// Shapes     q, o [T, Hq * E] f32, E 64, 128, 256 or 512; K, V rows as cached (device_kv_layout.cuh)
// Bytes      those of its kernels; partial results of splits in scratch
// Launch     depends on the step's shape alone, so that launches may be captured into a CUDA graph
// Order      that of the kernels; a short sequence's row has the same bits in any step
// Reference  CpuRef::attend
// Test       tests/kernels/cuda_attention_test.cpp
// Bench      bench/verbs/cuda_attention_bench.cu
#include <algorithm>
#include <utility>

#include "backend/cuda/kernels/attention/params.cuh"
#include "backend/cuda/kernels/attention/select.h"
#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {

// One file for each pair of types. False: the device has too little shared memory for them.
template <KvType K, KvType V>
bool attend_decode(cudaStream_t, const AttendParams&, int n_cols);
template <KvType K, KvType V>
bool attend_prefill(cudaStream_t, const AttendParams&);
template <KvType T>
bool attend_decode_shared(cudaStream_t, const AttendParams&, int n_cols);
template <KvType T>
bool attend_prefill_shared(cudaStream_t, const AttendParams&);

namespace {

// Splits follow one another without a gap, at every border between lengths.
constexpr bool splits_meet(KvSplitPolicy policy) {
  for (int i = 0; i < 400; ++i)
    if (split_index(policy, split_begin(policy, i)) != i || split_index(policy, split_begin(policy, i + 1) - 1) != i)
      return false;
  return true;
}
static_assert(splits_meet(KvSplitPolicy::kWindow) && splits_meet(KvSplitPolicy::kFull) &&
              splits_meet(KvSplitPolicy::kFullOfFew) && split_begin(KvSplitPolicy::kFull, 400) > 65536 &&
              split_begin(KvSplitPolicy::kFullOfFew, 400) > 65536);

// Splits of short sequences, for head widths 256 and 512; n_cols: most query rows of a K/V head.
using AttendDecode = bool (*)(cudaStream_t, const AttendParams&, int n_cols);
AttendDecode attend_decode_of(KvType k, KvType v, bool shared) {
  using enum KvType;
  if (shared && k == kF16) return attend_decode_shared<kF16>;
  if (shared && k == kQ8_0) return attend_decode_shared<kQ8_0>;
  if (shared && k == kQ4_0) return attend_decode_shared<kQ4_0>;
  if (shared && k == kTQ3_0) return attend_decode_shared<kTQ3_0>;
  if (shared) return nullptr;
  if (k == kF16 && v == kF16) return attend_decode<kF16, kF16>;
  if (k == kQ8_0 && v == kQ8_0) return attend_decode<kQ8_0, kQ8_0>;
  if (k == kQ4_0 && v == kQ4_0) return attend_decode<kQ4_0, kQ4_0>;
  if (k == kTQ3_0 && v == kTQ3_0) return attend_decode<kTQ3_0, kTQ3_0>;
  if (k == kQ8_0 && v == kQ4_0) return attend_decode<kQ8_0, kQ4_0>;
  if (k == kQ8_0 && v == kTQ3_0) return attend_decode<kQ8_0, kTQ3_0>;
  return nullptr;
}

using Prefill = bool (*)(cudaStream_t, const AttendParams&);
Prefill attend_prefill_of(KvType k, KvType v, bool shared) {
  using enum KvType;
  if (shared && k == kF16) return attend_prefill_shared<kF16>;
  if (shared && k == kQ4_0) return attend_prefill_shared<kQ4_0>;
  if (shared && k == kTQ3_0) return attend_prefill_shared<kTQ3_0>;
  if (shared) return attend_prefill_shared<kQ8_0>;
  if (k == kF16 && v == kF16) return attend_prefill<kF16, kF16>;
  if (k == kQ4_0 && v == kQ4_0) return attend_prefill<kQ4_0, kQ4_0>;
  if (k == kTQ3_0 && v == kTQ3_0) return attend_prefill<kTQ3_0, kTQ3_0>;
  if (k == kQ8_0 && v == kQ4_0) return attend_prefill<kQ8_0, kQ4_0>;
  if (k == kQ8_0 && v == kTQ3_0) return attend_prefill<kQ8_0, kTQ3_0>;
  return attend_prefill<kQ8_0, kQ8_0>;
}

constexpr size_t kMostScratch = size_t(256) << 20, kScarceScratch = size_t(64) << 20;
constexpr size_t align_up(size_t n) { return (n + 255) / 256 * 256; }

// Bytes of the partial results of one token.
size_t token_scratch(int n_split, int n_q_head, int E) {
  return size_t(n_split) * size_t(n_q_head) * (size_t(E) * sizeof(__half) + sizeof(float2));
}

// Most tokens of a sequence among the step's leading short ones, as far as the shape tells.
int most_tokens(const StepShape& shape) {
  // A rest of at most kSmallT tokens is padding: a long sequence has more.
  const bool all_short = shape.n_tok - shape.n_small <= kSmallT;
  return std::clamp(all_short ? shape.n_small - shape.n_seq + 1 : shape.n_small, 1, kSmallT);
}

// Whether the decode kernel also does norms, RoPE and the append (Also::kHeads in decode.cuh): if every sequence has
// one token. Each block then norms and rotates its own queries.
constexpr int kHeadsCols = 16;
bool fuses_qk_norm_rope(const AttendParams& p) {
  const StepShape& shape = p.step.shape;
  if (shape.n_small != shape.n_tok || shape.n_path > 0) return false;
  return most_tokens(shape) == 1 && p.group <= kHeadsCols;
}
}  // namespace

void run_qk_norm_rope(cudaStream_t stream, const KvLayer& kv, Mat q, const Step& s, const PendingQkNormRope& pending) {
  const NormRopeAppend& w = pending.work;
  pending.k.p ? norm_rope_append(stream, kv, q, pending.k, pending.v, s, w)
              : head_norm_rope(stream, q, w.q_gain, w.freqs, s, w.eps);
}

size_t attend_scratch_bytes(const BackendLimits& limits, int n_q_head, int max_head_dim, int64_t copied) {
  const size_t token =
      token_scratch(most_splits(KvSplitPolicy::kFullOfFew, 0, limits.max_rows + kSmallT), n_q_head, max_head_dim);
  const size_t all = token * size_t(std::min(limits.max_tok, 1024));
  // Room for the copies of at least one K/V head, rounded up as prefill_shared_wgmma.cuh does.
  const size_t copies = copied > 0 ? size_t(copied + 2048) * kSharedCols * sizeof(__half) : 0;
  const size_t most = limits.weights_in_ram ? kScarceScratch : kMostScratch;
  return align_up(std::max({token, std::min(all, most), copies})) + 256;
}

// Long chunks over the lists of blocks, then over samples of what they leave out, then again where that was too much.
static bool attend_lists(cudaStream_t stream, Prefill prefill, AttendParams p, const AttnSpec& spec,
                         const Selection& selection) {
  const SelectBuffers& b = *selection.lists;
  const bool check = selection.host->select.check;
  p.blocks = {.count = b.count, .index = b.index, .cap = b.cap, .n_tile = b.most_tile, .lse = check ? b.lse : nullptr};
  if (!prefill(stream, p)) return false;
  if (check) {
    p.blocks = {.count = b.sample_count,
                .index = b.sample_index,
                .cap = kSampleBlocks / kSampleSets,
                .n_tile = b.most_tile,
                .n_set = kSampleSets,
                .lse = b.lse + int64_t(p.step.shape.n_tok) * spec.n_q_head,
                .writes = false};
    prefill(stream, p);
  }
  settle_selected(stream, b, p.kv, *selection.host, spec);
  if (check) {
    p.blocks = {.count = b.repair, .index = b.index, .cap = b.cap, .n_tile = b.most_tile};
    prefill(stream, p);
  }
  return true;
}

// What all kernels are told of a call, checked.
static AttendParams params_of(Mat o, Mat q, const KvLayer& kv, const Step& s, const AttnSpec& spec) {
  const int E = kv.head_dim;
  CHECK(E == spec.head_dim && kv.n_head > 0 && spec.n_q_head % kv.n_head == 0,
        "query heads and width, K/V heads and width:", spec.n_q_head, spec.head_dim, kv.n_head, E);
  CHECK(E == 64 || E == 128 || E == 256 || E == 512, "a head width of 64, 128, 256 or 512, not", E);
  CHECK(o.stride % 4 == 0 && q.stride % 4 == 0 && reinterpret_cast<uintptr_t>(o.p) % 16 == 0 &&
            reinterpret_cast<uintptr_t>(q.p) % 16 == 0 &&
            (!o.bf || (o.bf_stride % 4 == 0 && reinterpret_cast<uintptr_t>(o.bf) % 8 == 0)),
        "rows of q and o that are not aligned to 16 bytes; strides", q.stride, o.stride, o.bf_stride);
  CHECK(!kv.shared || (E == kSharedHead && kv.window == 0), "shared rows of full layers with heads of", kSharedHead,
        "not", E);
  return {.o = o.p,
          .o_bf = o.bf,
          .q = q.p,
          .o_stride = o.stride,
          .o_bf_stride = o.bf_stride,
          .q_stride = q.stride,
          .kv = kv,
          .step = s,
          .n_q_head = spec.n_q_head,
          .group = spec.n_q_head / kv.n_head,
          .window = spec.window,
          .scale = spec.scale,
          .causal_block = spec.causal_block,
          .n_path = s.shape.n_path};
}

// Causal among the tokens of a step, pictures too.
static bool attend_causal(cudaStream_t stream, AttendParams p, Mat o, Mat q, const Step& s, const AttnSpec& spec,
                          AttendScratch scratch, const PendingQkNormRope* pending, const Selection& selection) {
  const KvLayer& kv = p.kv;
  const int E = kv.head_dim, n_small = s.shape.n_small, n_tok = s.shape.n_tok;
  const AttendDecode decode = attend_decode_of(kv.k_type, kv.v_type, kv.shared);
  CHECK(E < 256 || attend_takes(kv.k_type, kv.v_type),
        "K and V of equal types, or K in q8_0 and V in q4_0 or tq3_0; not", kv_type_name(kv.k_type),
        kv_type_name(kv.v_type));
  const bool fast = decode && E >= 256;
  auto qk_norm_rope_first = [&] {
    if (pending) run_qk_norm_rope(stream, kv, q, s, *std::exchange(pending, nullptr));
    p.heads.on = false;
  };
  if (pending && fast && fuses_qk_norm_rope(p))
    p.heads = {.on = true,
               .k = pending->k.p,
               .v = pending->v.p,
               .k_stride = pending->k.stride,
               .v_stride = pending->v.stride,
               .work = pending->work};
  else
    qk_norm_rope_first();
  bool imaged = o.image && fast && n_small == n_tok;
  if (imaged) p.o_image = o.image, p.n_image = n_tok;
  if (fast && n_small > 0) {
    p.n_split = most_splits(policy_of(kv.k_type, spec.window, kv.n_head), spec.window, s.shape.longest);
    const size_t token = token_scratch(p.n_split, spec.n_q_head, E);
    // As many tokens at a time as there is room for partial results; a row's bits do not depend on it.
    const int room = int(std::min<size_t>((scratch.bytes - 256) / token, size_t(n_small)));
    CHECK(room > 0, "attend needs bytes of scratch:", token + 256, "has", scratch.bytes);
    const int n_pass = (n_small + room - 1) / room, per_pass = (n_small + n_pass - 1) / n_pass;
    char* partials = static_cast<char*>(scratch.p);
    p.part_ml = reinterpret_cast<float2*>(partials);
    p.part_o = reinterpret_cast<__half*>(
        partials + align_up(size_t(per_pass) * size_t(spec.n_q_head) * size_t(p.n_split) * sizeof(float2)));
    for (p.t_begin = 0; p.t_begin < n_small; p.t_begin = p.t_end) {
      p.t_end = std::min(n_small, p.t_begin + per_pass);
      const int n_cols = std::min(most_tokens(s.shape), p.t_end - p.t_begin) * p.group;
      bool done = decode(stream, p, n_cols);
      if (!done && p.heads.on) {  // norms and RoPE take shared memory of their own, which this card lacks
        qk_norm_rope_first();
        done = decode(stream, p, n_cols);
      }
      if (done) {
        attend_combine(stream, p);
      } else {
        attend_plain(stream, p);
        imaged = false;
      }
    }
  }
  p.t_begin = fast ? n_small : 0;
  p.t_end = n_tok;
  p.f16 = {.rows = static_cast<__half*>(scratch.p), .bytes = int64_t(scratch.bytes)};
  if (p.t_begin >= p.t_end) return imaged;
  // Few rows after the short sequences are padding; tiles hold whole groups of query heads.
  const bool chunk = p.t_end - p.t_begin > kSmallT && 64 % p.group == 0;
  const Prefill prefill = fast && chunk ? attend_prefill_of(kv.k_type, kv.v_type, kv.shared) : nullptr;
  const bool done =
      prefill && (selection.lists ? attend_lists(stream, prefill, p, spec, selection) : prefill(stream, p));
  if (!done) attend_plain(stream, p);
  return imaged;
}

bool attend(cudaStream_t stream, Mat o, Mat q, const KvLayer& kv, const Step& s, const AttnSpec& spec,
            AttendScratch scratch, const PendingQkNormRope* pending, const Selection& selection) {
  AttendParams p = params_of(o, q, kv, s, spec);
  if (s.shape.n_tok == 0) return false;
  const bool imaged = attend_causal(stream, p, o, q, s, spec, scratch, pending, selection);
  if (!spec.ahead) return imaged;
  p.ahead = true;  // tokens of pictures, once more
  p.t_begin = 0, p.t_end = s.shape.n_tok;
  attend_plain(stream, p);
  return false;
}

}  // namespace facet::cuda
