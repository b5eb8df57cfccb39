// The CUDA kernels around attention against CpuRef, and the law that a row of a short sequence has the same bits
// whatever else is in the step. Every output is poisoned with NaN first, and so is every cache row that no token may
// see.
// Long: every case is made and judged by the same few helpers.
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "backend/cpu/cpu_ref.h"
#include "backend/cuda/kernels/attention.h"
#include "base/half.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

constexpr KvType kTypes[] = {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0, KvType::kF32};

struct Seq {
  int kv_len = 0, n = 1;
  Mask mask = Mask::kCausal;
  std::vector<int> parent = {};  // kTree
};
struct Dims {
  int E = 256, n_kv = 2, group = 2, window = 0, margin = 16;
  int like_row = -1;  // a cached row that is much like the queries
  KvType k = KvType::kF16, v = KvType::kF16;
  bool shared = false;  // rows, of heads of 512 in full layers
  int cap = 0;          // 0: of the longest sequence
};

// A step with its arrays, on the host and on the device.
struct Batch {
  std::vector<int32_t> token, pos, seq, q_begin{0}, kv_len, slot;
  std::vector<Mask> mask;
  std::vector<uint64_t> ancestor;
  Step host, dev;
  std::vector<std::unique_ptr<OnDevice<int32_t>>> ints;
  std::unique_ptr<OnDevice<Mask>> dev_mask;
  std::unique_ptr<OnDevice<uint64_t>> dev_ancestor;

  // slots: which cache slot each sequence has; n_pad padding rows at the end.
  Batch(const std::vector<Seq>& seqs, const std::vector<int>& slots, int n_pad, int margin, bool on_device = true) {
    bool small = true;
    for (size_t q = 0; q < seqs.size(); ++q) {
      const int base = int(token.size());
      for (int j = 0; j < seqs[q].n; ++j) {
        token.push_back(1), seq.push_back(int(q));
        uint64_t a = uint64_t(1) << (j % 64);
        int at = seqs[q].kv_len + (seqs[q].mask == Mask::kPast ? 0 : j);
        if (seqs[q].mask == Mask::kTree) {
          const int parent = seqs[q].parent[size_t(j)];
          at = parent < 0 ? seqs[q].kv_len : pos[size_t(base + parent)] + 1;
          if (parent >= 0) a |= ancestor[size_t(base + parent)];
        }
        pos.push_back(at), ancestor.push_back(a);
      }
      q_begin.push_back(int(token.size()));
      kv_len.push_back(seqs[q].kv_len), slot.push_back(slots[q]), mask.push_back(seqs[q].mask);
      small &= seqs[q].n <= kSmallT;
      if (small) host.shape.n_small = int(token.size());
      if (!small) ++host.shape.n_long, host.shape.long_rows += seqs[q].kv_len + seqs[q].n;
      host.shape.longest = std::max(host.shape.longest, seqs[q].kv_len + seqs[q].n);
      if (seqs[q].mask == Mask::kTree && seqs[q].n <= kSmallT) {
        const std::set<int> inner(seqs[q].parent.begin() + 1, seqs[q].parent.end());
        host.shape.n_path = std::max(host.shape.n_path, seqs[q].n - int(inner.size()));
      }
      host.shape.staged |= seqs[q].mask != Mask::kPast && seqs[q].n > margin;
    }
    for (int i = 0; i < n_pad; ++i) token.push_back(0), pos.push_back(0), seq.push_back(-1), ancestor.push_back(0);
    host.shape.n_tok = int(token.size()), host.shape.n_seq = int(seqs.size());
    host.token = token.data(), host.pos = pos.data(), host.seq = seq.data(), host.q_begin = q_begin.data();
    host.kv_len = kv_len.data(), host.slot = slot.data(), host.mask = mask.data(), host.ancestor = ancestor.data();
    if (!on_device) return;
    dev = host;
    auto put = [&](const std::vector<int32_t>& v) {
      ints.push_back(std::make_unique<OnDevice<int32_t>>(v));
      return ints.back()->p();
    };
    dev.token = put(token), dev.pos = put(pos), dev.seq = put(seq), dev.q_begin = put(q_begin),
    dev.kv_len = put(kv_len), dev.slot = put(slot);
    dev_mask = std::make_unique<OnDevice<Mask>>(mask), dev.mask = dev_mask->p();
    dev_ancestor = std::make_unique<OnDevice<uint64_t>>(ancestor), dev.ancestor = dev_ancestor->p();
  }
};

// One layer's cache: blocks on the host, rows in device layout on the device. Rows that were never written decode to
// NaN.
struct Cache {
  Dims d;
  KvLayer host, dev;
  std::vector<std::byte> k, v, ks, vs;
  std::unique_ptr<OnDevice<std::byte>> dk, dv, dks, dvs;

  Cache(Dims dims, int n_slot, int n_stage, int64_t cap) : d(dims) {
    host.k_type = d.k, host.v_type = d.v, host.head_dim = d.E, host.n_head = d.n_kv, host.window = d.window,
    host.margin = d.margin;
    host.cap = cap;
    host.shared = d.shared;
    host.k_row = int64_t(head_bytes(d.k)) * d.n_kv, host.v_row = int64_t(head_bytes(d.v)) * d.n_kv;
    host.k_slot = host.k_row * cap, host.v_slot = host.v_row * cap;
    k.resize(size_t(host.k_slot) * size_t(n_slot)), ks.resize(size_t(host.k_row) * size_t(n_stage));
    v.resize(d.shared ? 0 : size_t(host.v_slot) * size_t(n_slot));
    vs.resize(d.shared ? 0 : size_t(host.v_row) * size_t(n_stage));
    for (auto* b : {&k, &v, &ks, &vs}) std::fill(b->begin(), b->end(), std::byte(0xFF));
    host.k = k.data(), host.v = v.data(), host.k_stage = ks.data(), host.v_stage = vs.data();
    if (d.shared) host.v = host.k + kv_shared_v_at(d.k, d.E), host.v_stage = nullptr;
  }
  size_t head_bytes(KvType t) const { return d.shared ? kv_shared_bytes(t, d.E) : kv_row_bytes(t, d.E); }
  std::vector<std::byte> convert(KvType t, const std::vector<std::byte>& in, bool to_device) const {
    std::vector<std::byte> out(in.size());
    const size_t row = head_bytes(t);
    const int cols = d.shared ? d.E * 5 / 4 : d.E;
    for (size_t at = 0; at < in.size(); at += row)
      to_device ? cuda::kv_device_from_blocks(t, in.data() + at, out.data() + at, cols)
                : cuda::kv_blocks_from_device(t, in.data() + at, out.data() + at, cols);
    return out;
  }
  // Rows of K and V, all heads, to row r of a slot, as the host's codec writes them.
  void put(int slot, int64_t r, const std::vector<float>& kx, const std::vector<float>& vx) {
    const KvRow at = kv_ring_row(host, slot, r);
    for (int h = 0; h < d.n_kv; ++h) {
      const float *kh = kx.data() + h * d.E, *vh = vx.data() + h * d.E;
      if (d.shared) {
        kv_encode_shared(d.k, kh, vh, at.k + h * host.k_head(), d.E);
        continue;
      }
      kv_encode(d.k, kh, at.k + h * host.k_head(), d.E), kv_encode(d.v, vh, at.v + h * host.v_head(), d.E);
    }
  }
  void upload() {
    dk = std::make_unique<OnDevice<std::byte>>(convert(d.k, k, true)),
    dv = std::make_unique<OnDevice<std::byte>>(convert(d.v, v, true));
    dks = std::make_unique<OnDevice<std::byte>>(convert(d.k, ks, true)),
    dvs = std::make_unique<OnDevice<std::byte>>(convert(d.v, vs, true));
    dev = host;
    dev.k = dk->p(), dev.v = dv->p(), dev.k_stage = dks->p(), dev.v_stage = dvs->p();
  }
};

CpuRef::Rows rows_of(std::vector<float>& x, int n, int cols) { return {x.data(), n, cols, cols}; }

// Normal deviates from a table: drawing them is most of a case's time otherwise.
class Normal {
 public:
  float operator()(std::mt19937& rng) const { return table()[rng() % table().size()]; }

 private:
  static const std::vector<float>& table() {
    static const std::vector<float> t = [] {
      std::mt19937 rng(99);
      std::normal_distribution<float> normal;
      std::vector<float> v(100'003);
      for (float& x : v) x = normal(rng);
      return v;
    }();
    return t;
  }
};

std::vector<float> random(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<float> v(n);
  for (float& x : v) x = Normal()(rng);
  return v;
}

BackendLimits limits(int max_rows) {
  BackendLimits l;
  l.max_tok = 4096, l.max_rows = max_rows, l.max_cols = 16384, l.n_group = 16;
  return l;
}

float sum4(const float* x, int n) {
  double s = 0;
  for (int i = 0; i < n; ++i) s += double(x[i]) * x[i] * x[i] * x[i];
  return float(std::sqrt(std::sqrt(s)));
}

// room: tokens whose partial results fit; 0: all of them. bytes: of scratch, if not what they take.
std::vector<float> attend_on_device(const Batch& batch, const KvLayer& kv, const std::vector<float>& q,
                                    const AttnSpec& spec, std::vector<uint16_t>* bf = nullptr, int room = 0,
                                    size_t bytes = 0) {
  const int T = batch.host.shape.n_tok, cols = spec.n_q_head * spec.head_dim;
  OnDevice<float> dq(q), o(q.size());
  OnDevice<uint16_t> ob(q.size());
  BackendLimits l = limits(int(batch.host.shape.longest));
  l.max_tok = room > 0 ? room : T;
  const int64_t copied = room == 0 ? batch.host.shape.long_rows : 0;
  if (bytes == 0) bytes = cuda::attend_scratch_bytes(l, spec.n_q_head, spec.head_dim, copied);
  OnDevice<std::byte> scratch(bytes);
  cuda::Mat mo{.p = o.p(), .rows = T, .cols = cols, .stride = cols},
      mq{.p = dq.p(), .rows = T, .cols = cols, .stride = cols};
  if (bf) mo.bf = reinterpret_cast<__nv_bfloat16*>(ob.p()), mo.bf_stride = cols;
  cuda::attend(nullptr, mo, mq, kv, batch.dev, spec, {scratch.p(), bytes});
  ok(cudaGetLastError());
  auto got = o.get();
  if (bf) *bf = ob.get();
  return got;
}

// A filled cache, a step with its own rows appended, and queries. The rows next to every border of visibility (the end,
// the step's own rows, both ends of the window) are like the queries, so that a border that is off by one shows.
struct Case {
  Dims d;
  std::vector<Seq> seqs;
  Batch batch;
  Cache cache;
  CpuRef ref{4};
  std::vector<float> q, want;
  AttnSpec spec;
  float bound = 0;

  static int64_t cap_of(const Dims& d, const std::vector<Seq>& seqs) {
    if (d.cap) return d.cap;
    if (d.window) return d.window - 1 + d.margin;
    int64_t n = 1;
    for (const Seq& s : seqs) n = std::max<int64_t>(n, s.kv_len + s.n);
    return n;
  }
  static std::vector<int> slots_of(size_t n) {
    std::vector<int> v;
    for (size_t i = 0; i < n; ++i) v.push_back(int(n - 1 - i));
    return v;
  }

  Case(Dims dims, std::vector<Seq> s, int n_pad = 0, unsigned seed = 1)
      : d(dims),
        seqs(s),
        batch(s, slots_of(s.size()), n_pad, dims.window ? dims.margin : 1 << 30),
        cache(dims, int(s.size()), batch.host.shape.n_tok, cap_of(dims, s)) {
    const int n_q = d.n_kv * d.group, T = batch.host.shape.n_tok, E = d.E;
    spec = {.n_q_head = n_q,
            .head_dim = E,
            .window = d.window,
            .scale = 1.f / std::sqrt(float(E)),
            .causal_block = seed % 2 == 0};
    ref.reserve(limits(int(batch.host.shape.longest)));
    const std::vector<float> like = random(size_t(E), seed + 7);
    std::mt19937 rng(seed);
    const Normal normal;
    float k4 = 0, most_v = 0;
    std::vector<float> row(size_t(E) * size_t(d.n_kv)), values(row.size());
    auto fill = [&](std::vector<float>& x, bool is_k, float likeness) {
      for (size_t i = 0; i < x.size(); ++i) x[i] = normal(rng) + likeness * like[i % size_t(E)];
      // Values with outliers, as caches have.
      for (int h = 0; h < d.n_kv; ++h) x[size_t(h * E + h % E)] *= 3;
      for (int h = 0; h < d.n_kv; ++h) {
        if (is_k || d.shared) k4 = std::max(k4, sum4(x.data() + h * E, E));  // most of K is V there
        if (!is_k)
          for (int e = 0; e < E; ++e) most_v = std::max(most_v, std::fabs(x[size_t(h * E + e)]));
      }
    };
    for (size_t i = 0; i < seqs.size(); ++i) {
      const int len = seqs[i].kv_len, n = seqs[i].n;
      for (int64_t r = std::max<int64_t>(0, len - (d.window ? cache.host.cap : len)); r < len; ++r) {
        const bool border = r > len - 3 || (d.window && r < len - d.window + n + 2 && r > len - d.window - 3);
        const bool is_like = r == d.like_row;
        fill(row, true, is_like ? 0.55f : border ? 0.35f : 0.f), fill(values, false, is_like && d.shared ? 0.55f : 0.f);
        cache.put(batch.slot[i], r, row, values);
      }
    }
    std::vector<float> k(size_t(T) * row.size()), v(k.size());
    for (int t = 0; t < T; ++t) {
      fill(row, true, 0.35f), std::copy(row.begin(), row.end(), k.begin() + t * long(row.size()));
      fill(row, false, 0), std::copy(row.begin(), row.end(), v.begin() + t * long(row.size()));
    }
    ref.kv_append(cache.host, rows_of(k, T, d.n_kv * E), rows_of(v, T, d.n_kv * E), batch.host);
    cache.upload();
    q = random(size_t(T) * size_t(n_q) * size_t(E), seed + 3);
    float q4 = 0;
    for (size_t i = 0; i < q.size(); ++i) q[i] = 0.8f * q[i] + like[i % size_t(E)];
    for (size_t i = 0; i < q.size(); i += size_t(E)) q4 = std::max(q4, sum4(q.data() + i, E));
    want.resize(q.size());
    ref.attend(rows_of(want, T, n_q * E), rows_of(q, T, n_q * E), cache.host, batch.host, spec);
    // q rounds to f16: a score moves by 2^-12 of its terms each, independently (|q o k| <= |q|_4 |k|_4; six
    // deviations), and probabilities by twice that; probabilities, their product with a scale, and partial outputs
    // round to f16 too (2^-11 each at most, with the reference's own f32 sums far below). A rotated output mixes 128
    // errors.
    const float score = 6 * 0x1p-12f * q4 * k4 * spec.scale;
    bound = (2 * score + 5 * 0x1p-11f) * most_v;
    if (d.k == KvType::kF32 && d.v == KvType::kF32) bound = 1e-4f * most_v;
  }

  std::vector<float> run(AttnSpec with, std::vector<uint16_t>* bf = nullptr) const {
    return attend_on_device(batch, cache.dev, q, with, bf);
  }
  std::vector<float> run() const { return run(spec); }

  void check(const char* what) const {
    std::vector<uint16_t> bf;
    const auto got = run(spec, &bf);
    size_t worst = 0;
    float most = -1;
    for (size_t i = 0; i < got.size(); ++i) {
      const float e = std::fabs(got[i] - want[i]);
      if (!(e <= most)) most = e, worst = i;
      if (std::isnan(e)) break;
    }
    const int cols = spec.n_q_head * d.E;
    EXPECT_LE(most, bound) << what << ": k " << kv_type_name(d.k) << " v " << kv_type_name(d.v) << " E " << d.E
                           << " kv " << d.n_kv << " group " << d.group << " window " << d.window << " T "
                           << batch.host.shape.n_tok << "; token " << int(worst) / cols << " head "
                           << int(worst) % cols / d.E << " value " << int(worst) % d.E << ": " << got[worst]
                           << ", expected " << want[worst];
    for (size_t i = 0; i < got.size(); ++i)
      if (bf[i] != f32_to_bf16(got[i])) {
        ADD_FAILURE() << what << ": bf16 of value " << i;
        break;
      }
  }
};

struct Pair {
  KvType k, v;
  bool shared = false;
};
constexpr Pair kPairs[] = {
    {KvType::kF16, KvType::kF16},         {KvType::kQ8_0, KvType::kQ8_0},         {KvType::kQ4_0, KvType::kQ4_0},
    {KvType::kTQ3_0, KvType::kTQ3_0},     {KvType::kQ8_0, KvType::kQ4_0},         {KvType::kQ8_0, KvType::kTQ3_0},
    {KvType::kF32, KvType::kF32},         {KvType::kF16, KvType::kF16, true},     {KvType::kQ8_0, KvType::kQ8_0, true},
    {KvType::kQ4_0, KvType::kQ4_0, true}, {KvType::kTQ3_0, KvType::kTQ3_0, true}, {KvType::kF32, KvType::kF32, true}};
// Shared rows are those of full layers with heads of 512.
// Where a block has some 100 KB of shared memory, these tiles do not fit, and the plain kernel takes all their rows.
bool is_plain(const Pair& p, int E) {
  return E == 512 && p.k == KvType::kF16 && p.v == KvType::kF16 && !p.shared &&
         cuda::device().shared < cuda::kMuchShared;
}
bool is_made(const Pair& p, int E, int window) { return !p.shared || (E == 512 && window == 0); }

TEST(CudaKvRows, BlocksToDeviceOrderAndBack) {
  std::mt19937 rng(5);
  for (const KvType t : kTypes)
    for (const int E : {64, 128, 256, 512}) {
      std::vector<std::byte> blocks(kv_row_bytes(t, E)), device_row(blocks.size()),
          again(blocks.size(), std::byte(0xEE));
      for (std::byte& b : blocks) b = std::byte(rng());
      cuda::kv_device_from_blocks(t, blocks.data(), device_row.data(), E);
      cuda::kv_blocks_from_device(t, device_row.data(), again.data(), E);
      EXPECT_EQ(blocks, again) << kv_type_name(t) << " " << E;
      if (t == KvType::kQ8_0) {
        EXPECT_NE(blocks, device_row);
      }
    }
  for (const KvType t : kTypes) {
    std::vector<std::byte> row(kv_shared_bytes(t, 512)), device_row(row.size()), again(row.size(), std::byte(0xEE));
    const auto k = random(512, 1), v = random(512, 2);
    kv_encode_shared(t, k.data(), v.data(), row.data(), 512);
    cuda::kv_device_from_blocks(t, row.data(), device_row.data(), 640);
    cuda::kv_blocks_from_device(t, device_row.data(), again.data(), 640);
    EXPECT_EQ(row, again) << kv_type_name(t) << " shared";
  }
}

TEST(CudaQkNormRope, NormAndRopeAsReference) {
  NEEDS_GPU();
  for (const int E : {64, 128, 256, 512})
    for (const int T : {1, 5, 16, 67}) {
      const int n_head = 3, cols = n_head * E;
      Batch b({{.kv_len = 999'900 + E, .n = T}}, {0}, 2, 16);
      auto x = random(size_t(T + 2) * size_t(cols), unsigned(E + T)), gain = random(size_t(E), 3);
      std::vector<double> freqs(size_t(E / 2));
      for (size_t i = 0; i < freqs.size(); ++i) freqs[i] = i % 4 == 3 ? 0 : std::pow(1e4, -double(2 * i) / E);
      CpuRef ref;
      ref.reserve(limits(16));
      auto want = x, normed = x;
      ref.head_norm_rope(rows_of(want, T + 2, cols), ref.upload(gain), ref.upload(freqs), b.host, 1e-6f);
      ref.head_norm(rows_of(normed, T + 2, cols), E, 1e-6f);
      OnDevice<float> dx(x), dn(x), dg(gain);
      OnDevice<double> df(freqs);
      cuda::head_norm_rope(nullptr, {.p = dx.p(), .rows = T + 2, .cols = cols, .stride = cols}, dg.p(), {df.p(), E / 2},
                           b.dev, 1e-6f);
      cuda::head_norm(nullptr, {.p = dn.p(), .rows = T + 2, .cols = cols, .stride = cols}, E, 1e-6f);
      const auto got = dx.get(), got_n = dn.get();
      for (size_t i = 0; i < got.size(); ++i) {
        // Ten roundings of f32 between factors of at most |a| + |b| of the pair; 2^-20 of twelve covers them.
        ASSERT_NEAR(got[i], want[i], 12 * 0x1p-20) << "E " << E << " T " << T << " value " << i;
        ASSERT_NEAR(got_n[i], normed[i], 6 * 0x1p-21);
      }
    }
}

// Values of every row of a cache, decoded.
std::vector<float> decoded(KvType t, int E, const std::vector<std::byte>& blocks) {
  const size_t row = kv_row_bytes(t, E);
  std::vector<float> v(blocks.size() / row * size_t(E));
  for (size_t i = 0; i < blocks.size() / row; ++i) kv_decode(t, blocks.data() + i * row, v.data() + i * size_t(E), E);
  return v;
}

// Rows written by the device decode to what the host's codec wrote. Rotations agree bit for bit; a code can still be
// the neighbour where a value lies within rounding of a border, so a few values may be one step off. Rows nobody wrote
// stay.
void expect_same_values(KvType t, int E, const std::vector<float>& a, const std::vector<float>& b, const char* what,
                        float most_share) {
  size_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    float most = 0;
    const size_t block = i / 32 * 32;
    for (size_t j = block; j < block + 32; ++j) most = std::max(most, std::fabs(a[j]));
    const float step = t == KvType::kQ8_0    ? 1.1f / 127
                       : t == KvType::kQ4_0  ? 1.1f / 7
                       : t == KvType::kTQ3_0 ? 0.45f
                       : t == KvType::kF16   ? 0x1p-10f
                                             : 1e-6f;
    ASSERT_LE(std::fabs(a[i] - b[i]), step * most + 1e-7f)
        << what << " " << kv_type_name(t) << " E " << E << " value " << i << ": " << b[i] << ", expected " << a[i];
    ++different;
  }
  EXPECT_LE(float(different), most_share * float(a.size()) + 2) << what << " " << kv_type_name(t) << " E " << E;
}
void expect_same_rows(KvType t, int E, const std::vector<std::byte>& host, const std::vector<std::byte>& dev,
                      const char* what, float most_share) {
  expect_same_values(t, E, decoded(t, E, host), decoded(t, E, dev), what, most_share);
}

TEST(CudaKvAppend, EncodesAsTheCodec) {
  NEEDS_GPU();
  for (const KvType t : kTypes)
    for (const int E : {64, 128, 256, 512})
      for (const bool staged : {false, true}) {
        const Dims d{
            .E = E, .n_kv = 3, .window = 8, .margin = staged ? 4 : 64, .k = t, .v = kTypes[(size_t(t) + 1) % 5]};
        std::vector<Seq> seqs = {{.kv_len = 21, .n = 3},
                                 {.kv_len = 2, .n = 2, .mask = Mask::kPast},
                                 {.kv_len = 5, .n = 1},
                                 {.kv_len = 30, .n = 23}};
        Batch b(seqs, {3, 0, 1, 2}, 2, d.margin);
        const int T = b.host.shape.n_tok, cols = d.n_kv * E;
        Cache c(d, 4, T, d.window - 1 + d.margin);
        c.upload();
        auto k = random(size_t(T) * size_t(cols), 1), v = random(size_t(T) * size_t(cols), 2);
        for (int h = 0; h < 3; ++h) k[size_t(h * E + 7)] = 40;
        std::fill_n(v.begin(), E, 0.f);  // an all-zero vector
        OnDevice<float> dk(k), dv(v);
        CpuRef ref(2);
        ref.reserve(limits(64));
        ref.kv_append(c.host, rows_of(k, T, cols), rows_of(v, T, cols), b.host);
        cuda::kv_append(nullptr, c.dev, {.p = dk.p(), .rows = T, .cols = cols, .stride = cols},
                        {.p = dv.p(), .rows = T, .cols = cols, .stride = cols}, b.dev);
        auto compare = [&](const char* what) {
          expect_same_rows(d.k, E, c.k, c.convert(d.k, c.dk->get(), false), what, 1e-3f);
          expect_same_rows(d.v, E, c.v, c.convert(d.v, c.dv->get(), false), what, 1e-3f);
          expect_same_rows(d.k, E, c.ks, c.convert(d.k, c.dks->get(), false), what, 1e-3f);
          expect_same_rows(d.v, E, c.vs, c.convert(d.v, c.dvs->get(), false), what, 1e-3f);
        };
        compare(staged ? "staged" : "ring");
        ref.kv_settle(c.host, b.host);
        cuda::kv_settle(nullptr, c.dev, b.dev);
        compare(staged ? "settled" : "nothing to settle");
      }
}

// The values of shared rows, decoded: K's and V's.
std::vector<float> decoded_shared(KvType t, const std::vector<std::byte>& rows, bool is_k) {
  const size_t row = kv_shared_bytes(t, 512);
  std::vector<float> v(rows.size() / row * 512);
  for (size_t i = 0; i < rows.size() / row; ++i)
    kv_decode(t, rows.data() + i * row + (is_k ? 0 : kv_shared_v_at(t, 512)), v.data() + i * 512, 512);
  return v;
}

TEST(CudaKvAppend, SharedRowsAsTheCodec) {
  NEEDS_GPU();
  for (const KvType t : kTypes) {
    const Dims d{.E = 512, .n_kv = 3, .k = t, .v = t, .shared = true};
    Batch b({{.kv_len = 21, .n = 3}, {.kv_len = 2, .n = 2, .mask = Mask::kPast}, {.kv_len = 30, .n = 23}}, {2, 0, 1}, 2,
            16);
    const int T = b.host.shape.n_tok, cols = d.n_kv * d.E;
    Cache c(d, 3, T, 64);
    c.upload();
    auto k = random(size_t(T) * size_t(cols), 1), v = random(size_t(T) * size_t(cols), 2);
    for (int h = 0; h < 3; ++h) k[size_t(h * d.E + 7)] = 40;
    std::fill_n(v.begin(), d.E, 0.f);  // an all-zero vector
    const OnDevice<float> dk(k), dv(v);
    CpuRef ref(2);
    ref.reserve(limits(64));
    ref.kv_append(c.host, rows_of(k, T, cols), rows_of(v, T, cols), b.host);
    cuda::kv_append(nullptr, c.dev, {.p = dk.p(), .rows = T, .cols = cols, .stride = cols},
                    {.p = dv.p(), .rows = T, .cols = cols, .stride = cols}, b.dev);
    ok(cudaGetLastError());
    const auto got = c.convert(t, c.dk->get(), false);
    for (const bool is_k : {true, false})
      expect_same_values(t, 512, decoded_shared(t, c.k, is_k), decoded_shared(t, got, is_k), is_k ? "K" : "V", 1e-3f);
  }
}

// Also of many rows, whose kernel is another one: the first rows of q have the bits that few have.
TEST(CudaQkNormRope, OneLaunchIsTheComposition) {
  NEEDS_GPU();
  for (const KvType t : kTypes)
    for (const auto& [cols, n] : {std::pair{64, 5},
                                  {128, 5},
                                  {256, 5},
                                  {512, 5},
                                  {640, 5},  // 640: shared rows
                                  {64, 300},
                                  {128, 300},
                                  {256, 300},
                                  {640, 300}}) {
      const bool shared = cols == 640;
      const int E = shared ? 512 : cols;
      const Dims d{.E = E, .n_kv = 2, .group = 4, .k = t, .v = t, .shared = shared};
      std::vector<Seq> seqs = {{.kv_len = 9, .n = n}, {.kv_len = 4, .n = 2, .mask = Mask::kPast}};
      Batch b(seqs, {0, 1}, 1, 16);
      const int T = b.host.shape.n_tok, kc = d.n_kv * E, qc = kc * d.group;
      Cache one(d, 2, 0, 32 + n), two(d, 2, 0, 32 + n);
      one.upload(), two.upload();
      const auto q = random(size_t(T) * size_t(qc), 1), k = random(size_t(T) * size_t(kc), 2),
                 gq = random(size_t(E), 4), gk = random(size_t(E), 5);
      std::vector<double> freqs(size_t(E / 2));
      for (size_t i = 0; i < freqs.size(); ++i) freqs[i] = std::pow(1e4, -double(2 * i) / E);
      OnDevice<double> df(freqs);
      OnDevice<float> q1(q), q2(q), k1(k), k2(k), v1(k), v2(k), g1(gq), g2(gk);
      auto mat = [&](OnDevice<float>& x, int width) {
        return cuda::Mat{.p = x.p(), .rows = T, .cols = width, .stride = width};
      };
      const int few = std::min(T, 200);
      cuda::Mat first = mat(q1, qc);
      first.rows = few;
      cuda::head_norm_rope(nullptr, first, g1.p(), {df.p(), E / 2}, b.dev, 1e-6f);
      cuda::head_norm_rope(nullptr, mat(k1, kc), g2.p(), {df.p(), E / 2}, b.dev, 1e-6f);
      cuda::head_norm(nullptr, mat(v1, kc), E, 1e-6f);
      cuda::kv_append(nullptr, one.dev, mat(k1, kc), mat(v1, kc), b.dev);
      cuda::norm_rope_append(
          nullptr, two.dev, mat(q2, qc), mat(k2, kc), mat(v2, kc), b.dev,
          {.q_gain = g1.p(), .k_gain = g2.p(), .freqs = {df.p(), E / 2}, .norm_v = true, .eps = 1e-6f});
      const std::vector<float> a = q1.get(), all = q2.get();
      EXPECT_TRUE(std::equal(a.begin(), a.begin() + few * qc, all.begin())) << kv_type_name(t) << " " << E << " " << n;
      EXPECT_EQ(one.dk->get(), two.dk->get()) << kv_type_name(t) << " " << E;
      EXPECT_EQ(one.dv->get(), two.dv->get()) << kv_type_name(t) << " " << E;
    }
}

std::vector<int> binary_tree(int n) {
  std::vector<int> parent;
  for (int i = 0; i < n; ++i) parent.push_back(i == 0 ? -1 : (i - 1) / 2);
  return parent;
}

TEST(CudaAttend, ShortSequences) {
  NEEDS_GPU();
  Cases cases(7);
  unsigned seed = 1;
  for (const Pair pair : kPairs)
    for (const auto& [E, group] :
         {std::pair(64, 1), {64, 4}, {128, 2}, {128, 8}, {256, 1}, {256, 2}, {256, 8}, {512, 4}, {512, 8}})
      for (const int window : {0, 8, 1024}) {
        if (!is_made(pair, E, window) || cases.leave_out()) continue;
        const Dims d{.E = E,
                     .n_kv = group == 8 ? 1 : 2,
                     .group = group,
                     .window = window,
                     .margin = 16,
                     .k = pair.k,
                     .v = pair.v,
                     .shared = pair.shared};
        ++seed;
        Case(d, {{.kv_len = 0, .n = 1}}, 0, seed).check("first token");
        Case(d, {{.kv_len = 1100, .n = 1}}, 1, seed).check("one token");
        Case(d, {{.kv_len = 63, .n = 16}, {.kv_len = 300, .n = 3}, {.kv_len = 0, .n = 2}}, 2, seed)
            .check("three sequences");
        Case(d,
             {{.kv_len = 77, .n = 13, .mask = Mask::kTree, .parent = binary_tree(13)},
              {.kv_len = 40, .n = 16, .mask = Mask::kBlock},
              {.kv_len = 30, .n = 2, .mask = Mask::kPast}},
             1, seed)
            .check("tree, block, past");
      }
}

// Norms, RoPE and cache rows inside of attention: the bits of norm_rope_append before it.
TEST(CudaAttend, HeadsInside) {
  NEEDS_GPU();
  Cases cases(7);
  int turn = 0;
  // One token each; and in turn: several, on both sides of a split's border; a block; as many as there may be; more
  // than the ring's margin.
  const std::vector<Seq> steps[] = {
      {{.kv_len = 0},
       {.kv_len = 31},
       {.kv_len = 64},
       {.kv_len = 1100},
       {.kv_len = 95, .mask = Mask::kPast},
       {.kv_len = 1055}},
      {{.kv_len = 62, .n = 5}, {.kv_len = 1100, .n = 2}, {.kv_len = 95, .mask = Mask::kPast}},
      {{.kv_len = 0, .n = 3}, {.kv_len = 61, .n = 4, .mask = Mask::kBlock}},
      {{.kv_len = 1083, .n = 16}},
      {{.kv_len = 59, .n = 8}}};
  for (const Pair pair : kPairs)
    for (const auto& [E, group] : {std::pair(128, 2), {256, 2}, {256, 16}, {512, 4}, {512, 8}})
      for (const int window : {0, 1024})
        for (const auto& seqs : {steps[0], steps[1 + turn++ * 3 / 2 % 4]}) {
          if (!is_made(pair, E, window) || cases.leave_out()) continue;
          const Dims d{.E = E,
                       .n_kv = 2,
                       .group = group,
                       .window = window,
                       .margin = seqs[0].n == 8 ? 6 : 16,
                       .k = pair.k,
                       .v = pair.v,
                       .shared = pair.shared};
          Case c(d, seqs, 0, 7);
          const int T = c.batch.host.shape.n_tok, qc = 2 * group * E, kc = 2 * E;
          const auto q = random(size_t(T * qc), 1), k = random(size_t(T * kc), 2), v = random(size_t(T * kc), 3),
                     gq = random(size_t(E), 4), gk = random(size_t(E), 5);
          std::vector<double> freqs(size_t(E / 2));
          for (size_t i = 0; i < freqs.size() / 2; ++i) freqs[i] = std::pow(1e4, -double(2 * i) / E);
          OnDevice<double> df(freqs);
          OnDevice<float> g1(gq), g2(gk);
          const size_t bytes = cuda::attend_scratch_bytes(limits(2048), 2 * group, E);
          OnDevice<std::byte> scratch(bytes);
          struct Got {
            std::vector<float> o;
            std::vector<std::byte> k, v, ks, vs;
            bool operator==(const Got&) const = default;
          };
          auto run = [&](bool inside, bool append, float eps) {
            c.cache.upload();
            OnDevice<float> dq(q), dk(k), dv(v), o(q.size());
            auto mat = [&](OnDevice<float>& x, int cols) {
              return cuda::Mat{.p = x.p(), .rows = T, .cols = cols, .stride = cols};
            };
            const cuda::PendingQkNormRope left{
                .k = append ? mat(dk, kc) : cuda::Mat{},
                .v = append ? mat(dv, kc) : cuda::Mat{},
                .work = {
                    .q_gain = g1.p(), .k_gain = g2.p(), .freqs = {df.p(), E / 2}, .norm_v = group != 4, .eps = eps}};
            if (!inside) cuda::run_qk_norm_rope(nullptr, c.cache.dev, mat(dq, qc), c.batch.dev, left);
            cuda::attend(nullptr, mat(o, qc), mat(dq, qc), c.cache.dev, c.batch.dev, c.spec, {scratch.p(), bytes},
                         inside ? &left : nullptr);
            ok(cudaGetLastError());
            return Got{o.get(), c.cache.dk->get(), c.cache.dv->get(), c.cache.dks->get(), c.cache.dvs->get()};
          };
          const std::string what =
              fmt::format("k {} v {}{} E {} group {} window {}, {} rows", kv_type_name(pair.k), kv_type_name(pair.v),
                          pair.shared ? " in one row" : "", E, group, window, T);
          const Got apart = run(false, true, 1e-6f);
          EXPECT_TRUE(run(true, true, 1e-6f) == apart) << what;
          EXPECT_TRUE(run(true, false, 1e-6f) == run(false, false, 1e-6f)) << what << ", nothing appended";
          EXPECT_FALSE(run(true, true, 1e-2f) == apart) << what << ", another epsilon";
          EXPECT_FALSE(run(true, false, 1e-6f) == apart) << what << ", rows not appended";
        }
}

// A grid for longer sequences, as graphs have: blocks that find no split come first, or last if they are many, and
// change no bit.
TEST(CudaAttend, SurplusBlocks) {
  NEEDS_GPU();
  Cases cases(5);
  for (const Pair pair : kPairs)
    for (const int E : {256, 512})
      for (const int window : {0, 1024})
        for (const auto& seqs : {std::vector<Seq>{{.kv_len = 0}},
                                 {{.kv_len = 1100}},
                                 {{.kv_len = 200, .n = 9}, {.kv_len = 900}},
                                 {{.kv_len = 700, .n = 5, .mask = Mask::kTree, .parent = binary_tree(5)}}}) {
          if (!is_made(pair, E, window) || cases.leave_out()) continue;
          Case c({.E = E, .n_kv = 2, .group = 4, .window = window, .k = pair.k, .v = pair.v, .shared = pair.shared},
                 seqs, 0, 5);
          const auto fitting = c.run();
          for (const int longest : {1500, 150'000}) {
            c.batch.host.shape.longest = c.batch.dev.shape.longest = longest;
            EXPECT_TRUE(c.run() == fitting) << kv_type_name(pair.k) << " E " << E << " window " << window << " after "
                                            << seqs[0].kv_len << ", grid for " << longest;
            c.check("surplus blocks");
          }
        }
}

TEST(CudaAttend, LongContexts) {
  NEEDS_GPU();
  Cases cases(5);
  unsigned seed = 100;
  for (const Pair pair : kPairs) {
    if (pair.k == KvType::kF32) continue;
    for (const int E : {256, 512})
      for (const int n : {1, 9}) {
        if (!is_made(pair, E, 0) || cases.leave_out()) continue;
        // Of a split of 256 rows, one near the end: its last tile.
        const Dims d{
            .E = E, .n_kv = 1, .group = 8, .like_row = 8192 + 200, .k = pair.k, .v = pair.v, .shared = pair.shared};
        Case(d, {{.kv_len = 18'000, .n = n}}, 0, ++seed).check("18,000 rows");
      }
    if (pair.shared) continue;
    // Seven times around the ring.
    const Dims d{
        .E = 256, .n_kv = 2, .group = 2, .window = 512, .margin = 16, .k = pair.k, .v = pair.v, .shared = pair.shared};
    Case(d, {{.kv_len = 4000, .n = 16}, {.kv_len = 3777, .n = 1}}, 0, ++seed).check("ring");
  }
}

class CudaLongChunks : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Products, CudaLongChunks, testing::Bool(),
                         [](const auto& i) { return i.param ? "Warpgroup" : "Warp"; });

TEST_P(CudaLongChunks, AsReference) {
  NEEDS_GPU();
  Cases cases(7);
  gpu().use_wgmma(GetParam());
  unsigned seed = 200;
  for (const Pair pair : kPairs)
    for (const int E : {64, 128, 256, 512})
      for (const int window : {0, 8, 100}) {
        if (!is_made(pair, E, window) || cases.leave_out()) continue;
        const Dims d{.E = E,
                     .n_kv = 2,
                     .group = E == 512 ? 8 : 2,
                     .window = window,
                     .margin = 16,
                     .k = pair.k,
                     .v = pair.v,
                     .shared = pair.shared};
        ++seed;
        Case(d, {{.kv_len = 0, .n = 150}}, 3, seed).check("a prompt's first chunk");
        Case(d, {{.kv_len = 120, .n = 2}, {.kv_len = 333, .n = 97}, {.kv_len = 3, .n = 40}, {.kv_len = 50, .n = 1}}, 2,
             seed)
            .check("chunks beside others");
        Case(d,
             {{.kv_len = 77, .n = 33, .mask = Mask::kTree, .parent = binary_tree(33)},
              {.kv_len = 40, .n = 30, .mask = Mask::kBlock}},
             0, seed)
            .check("long tree, long block");
      }
  for (const int window : {0, 1024}) {
    const Dims d{.E = window ? 256 : 512,
                 .n_kv = 1,
                 .group = window ? 2 : 8,
                 .window = window,
                 .margin = 32,
                 .k = KvType::kQ8_0,
                 .v = KvType::kQ8_0};
    Case(d, {{.kv_len = 2100, .n = 600}}, 0, ++seed).check("a later chunk");
  }
  for (const KvType t : {KvType::kF16, KvType::kQ8_0})
    Case({.E = 512, .n_kv = 1, .group = 8, .k = t, .v = t, .shared = true}, {{.kv_len = 2100, .n = 600}}, 0, ++seed)
        .check("a later chunk over shared rows");
  gpu().use_wgmma(true);
}

// Row j of a chain of T tokens, and the same row as the only one of its step: the earlier ones are committed.
void expect_rows_alone(const Dims& d, int len, int T, bool* differs, int planted_window) {
  const Case chain(d, {{.kv_len = len, .n = T}}, 0, 5);
  AttnSpec spec = chain.spec;
  if (planted_window) spec.window = planted_window;
  const auto all = chain.run(spec);
  const size_t cols = size_t(chain.spec.n_q_head) * size_t(d.E);
  for (int j = 0; j < T; ++j) {
    Case one = Case(d, {{.kv_len = len + j, .n = 1}}, 0, 5);
    one.cache.dk->put(chain.cache.dk->get()), one.cache.dv->put(chain.cache.dv->get());  // of equal size: cap is given
    one.q.assign(chain.q.begin() + long(size_t(j) * cols), chain.q.begin() + long(size_t(j + 1) * cols));
    const auto alone = one.run();
    const bool same = std::memcmp(alone.data(), all.data() + size_t(j) * cols, cols * 4) == 0;
    if (differs)
      *differs |= !same;
    else
      ASSERT_TRUE(same) << "row " << j << " of " << T << " after " << len << ", k " << kv_type_name(d.k) << ", E "
                        << d.E << ", window " << d.window;
  }
}

// Long chunks of several sequences over copies of their rows in f16: of all K/V heads at once, of one after another,
// and where there is no room for one.
TEST(CudaAttend, CopiesOfRowsInPasses) {
  NEEDS_GPU();
  for (const KvType t : {KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0}) {
    const Case c({.E = 512, .n_kv = 3, .group = 8, .k = t, .v = t, .shared = true},
                 {{.kv_len = 130, .n = 1}, {.kv_len = 67, .n = 3}, {.kv_len = 301, .n = 90}, {.kv_len = 0, .n = 45}});
    const size_t head = size_t(c.batch.host.shape.long_rows + 32 * 2) * 640 * 2;
    ASSERT_EQ(c.batch.host.shape.long_rows, 301 + 90 + 45);
    const auto all = attend_on_device(c.batch, c.cache.dev, c.q, c.spec, nullptr, 0, 3 * head);
    EXPECT_EQ(attend_on_device(c.batch, c.cache.dev, c.q, c.spec, nullptr, 0, head), all) << kv_type_name(t);
    EXPECT_EQ(attend_on_device(c.batch, c.cache.dev, c.q, c.spec, nullptr, 0, 2 * head), all) << kv_type_name(t);
    const auto none = attend_on_device(c.batch, c.cache.dev, c.q, c.spec, nullptr, 0, head - 1);
    for (const auto* got : {&all, &none}) {
      float most = 0;
      for (size_t i = 0; i < c.want.size(); ++i) most = std::max(most, std::fabs((*got)[i] - c.want[i]));
      EXPECT_LE(most, c.bound) << kv_type_name(t) << (got == &all ? " from copies" : " without");
    }
  }
}

TEST(CudaAttend, ARowsBitsDependOnItAlone) {
  NEEDS_GPU();
  Cases cases(7);
  for (const Pair pair : kPairs)
    for (const int E : {128, 256, 512})
      for (const int window : {0, 300}) {
        if (pair.k == KvType::kF32 && E > 128) continue;
        for (const int T : {2, 5, 16}) {
          if (!is_made(pair, E, window) || cases.leave_out()) continue;
          const Dims d{.E = E,
                       .n_kv = 1,
                       .group = E == 512 ? 8 : 2,
                       .window = window,
                       .margin = 16,
                       .k = pair.k,
                       .v = pair.v,
                       .shared = pair.shared,
                       .cap = window ? 0 : 2600};
          expect_rows_alone(d, 2040, T, nullptr, 0);
        }
      }
}

TEST(CudaAttend, TheLawHasTeeth) {
  NEEDS_GPU();
  // A window that never ends cuts rows as sliding layers do: splits that depend on the number of tokens, in effect.
  bool differs = false;
  const Dims d{.E = 512, .n_kv = 1, .group = 8, .k = KvType::kQ8_0, .v = KvType::kQ8_0, .cap = 2600};
  expect_rows_alone(d, 2500, 3, &differs, 1 << 20);
  EXPECT_TRUE(differs);
}

TEST(CudaAttend, NeighboursDoNotMatter) {
  NEEDS_GPU();
  for (const Pair pair : {kPairs[0], kPairs[1], kPairs[5]})
    for (const int window : {0, 64}) {
      Dims d{.E = 256,
             .n_kv = 2,
             .group = 2,
             .window = window,
             .margin = 16,
             .k = pair.k,
             .v = pair.v,
             .shared = pair.shared,
             .cap = window ? 0 : 900};
      const Seq first{.kv_len = 300, .n = 4};
      std::vector<Seq> many = {first};
      for (int i = 0; i < 20; ++i) many.push_back({.kv_len = 17 * i, .n = 1 + i % 16});
      many.push_back({.kv_len = 100, .n = 200});
      const Case crowd(d, many, 5, 9);
      Case alone(d, {first}, 0, 9);
      const size_t slot_k = size_t(crowd.cache.host.k_slot), slot_v = size_t(crowd.cache.host.v_slot),
                   at = size_t(crowd.batch.slot[0]);
      auto part = [&](const std::vector<std::byte>& b, size_t n) {
        return std::vector<std::byte>(b.begin() + long(at * n), b.begin() + long((at + 1) * n));
      };
      alone.cache.dk->put(part(crowd.cache.dk->get(), slot_k)),
          alone.cache.dv->put(part(crowd.cache.dv->get(), slot_v));
      alone.q.assign(crowd.q.begin(), crowd.q.begin() + long(alone.q.size()));
      const auto a = alone.run(), b = crowd.run(), again = crowd.run();
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0) << kv_type_name(d.k) << " window " << window;
      const size_t n_small = size_t(crowd.batch.host.shape.n_small) * size_t(crowd.spec.n_q_head * d.E);
      EXPECT_EQ(std::memcmp(b.data(), again.data(), n_small * 4), 0);
    }
}

// ---- trees

struct TreeShape {
  const char* name;
  std::vector<int> parent;
};
std::vector<TreeShape> tree_shapes() {
  auto made = [](int n, auto parent_of) {
    std::vector<int> parent{-1};
    for (int i = 1; i < n; ++i) parent.push_back(parent_of(i));
    return parent;
  };
  std::mt19937 rng(3);
  auto grown = [&](int most_back) {
    return [&rng, most_back](int i) { return std::max(0, i - 1 - int(rng() % unsigned(most_back))); };
  };
  return {{"pair", made(2, [](int) { return 0; })},
          {"fork", made(3, [](int) { return 0; })},
          {"chain", made(16, [](int i) { return i - 1; })},
          {"binary", binary_tree(15)},
          {"caterpillar", made(16, [](int i) { return i % 2 ? std::max(0, i - 2) : i - 1; })},
          {"late branches", made(16, [](int i) { return i == 8    ? 0
                                                        : i == 12 ? 3
                                                                  : i - 1; })},
          {"two chains in turn", made(16, [](int i) { return std::max(0, i - 2); })},
          {"broom", made(16, [](int i) { return std::min(i - 1, 6); })},
          {"bush", made(16, [](int) { return 0; })},
          {"deep", made(13, grown(3))},
          {"wide", made(16, grown(12))}};
}
std::vector<int> parents_of(const Seq& s) {
  std::vector<int> parent = s.parent;
  for (int i = int(parent.size()); i < s.n; ++i) parent.push_back(i - 1);  // a chain
  return parent;
}
// Tokens of the step in whose places plain decoding has committed rows when node j's turn comes, j included.
std::vector<int> path_of(const std::vector<int>& parent, int j) {
  std::vector<int> path;
  for (; j >= 0; j = parent[size_t(j)]) path.insert(path.begin(), j);
  return path;
}
std::vector<int> path_backwards(const std::vector<int>& parent, int j) {
  std::vector<int> path = path_of(parent, j);
  std::reverse(path.begin(), path.end());
  return path;
}

// Every node of sequence i as the only token of its step, in a cache of its own: the committed rows and behind them
// those of order(node), as commit_path moves them; NaN beyond. What the step itself gives for them must have the same
// bits.
std::vector<float> nodes_alone(const Case& c, size_t i = 0,
                               std::vector<int> (*order)(const std::vector<int>&, int) = path_of) {
  const Seq& s = c.seqs[i];
  const auto parent = parents_of(s);
  std::vector<Seq> seqs;
  std::vector<int> slots;
  for (int j = 0; j < s.n; ++j)
    seqs.push_back({.kv_len = s.kv_len + int(order(parent, j).size()) - 1}), slots.push_back(j);
  const Batch alone(seqs, slots, 0, c.d.margin);
  KvLayer kv = c.cache.dev;
  auto copies = [&](const std::vector<std::byte>& rings, const std::vector<std::byte>& stage, int64_t slot_bytes,
                    int64_t row_bytes) {
    const auto mine = rings.begin() + c.batch.slot[i] * slot_bytes;
    auto place = [&](int at) { return kv_place(kv, s.kv_len + at) * row_bytes; };
    std::vector<std::byte> all;
    for (int j = 0; j < s.n; ++j) {
      const auto rows = order(parent, j);
      std::vector<std::byte> one(mine, mine + slot_bytes);
      for (int at = 0; at < s.n; ++at)
        if (kv.window == 0 || at < int(rows.size()) - 1 + kv.margin)
          std::fill_n(one.begin() + place(at), row_bytes, std::byte(0xFF));
      for (int at = 0; at < int(rows.size()); ++at) {
        const int t = rows[size_t(at)];
        std::copy_n(kv_staged(kv, s.n) ? stage.begin() + (c.batch.q_begin[i] + t) * row_bytes : mine + place(t),
                    row_bytes, one.begin() + place(at));
      }
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const OnDevice<std::byte> k(copies(c.cache.dk->get(), c.cache.dks->get(), kv.k_slot, kv.k_row)),
      v(c.d.shared ? std::vector<std::byte>(16) : copies(c.cache.dv->get(), c.cache.dvs->get(), kv.v_slot, kv.v_row));
  kv.k = k.p(), kv.v = v.p();
  const auto q = c.q.begin() + long(c.batch.q_begin[i]) * c.spec.n_q_head * c.d.E;
  return attend_on_device(alone, kv, {q, q + long(s.n) * c.spec.n_q_head * c.d.E}, c.spec);
}
// The node whose bits differ, -1: none.
int first_difference(const Case& c, const std::vector<float>& all, const std::vector<float>& alone, size_t i = 0) {
  const size_t cols = size_t(c.spec.n_q_head) * size_t(c.d.E), first = size_t(c.batch.q_begin[i]);
  for (size_t j = 0; j < size_t(c.seqs[i].n); ++j)
    if (std::memcmp(all.data() + (first + j) * cols, alone.data() + j * cols, cols * 4) != 0) return int(j);
  return -1;
}
Seq tree_of(const TreeShape& shape, int kv_len) {
  return {.kv_len = kv_len, .n = int(shape.parent.size()), .mask = Mask::kTree, .parent = shape.parent};
}

TEST(CudaAttend, ATreesRowsArePlainDecodings) {
  NEEDS_GPU();
  Cases cases(31);
  // Borders of tiles and splits, and rings that end inside the tree: of 23 and of 55 rows. Each shape takes two in
  // turn.
  constexpr int kLens[] = {0, 17, 31, 50, 60, 64, 128};
  unsigned seed = 300;
  for (const Pair pair : kPairs)
    for (const int E : {64, 128, 256, 512})
      for (const int window : {0, 8, 40})
        for (const TreeShape& shape : tree_shapes())
          for (int n = 0; n < 2; ++n) {
            if (!is_made(pair, E, window) || cases.leave_out()) continue;
            if (pair.k == KvType::kF32 && E == 512) continue;
            const Dims d{.E = E,
                         .n_kv = E == 512 ? 1 : 2,
                         .group = E == 512 ? 8 : 2,
                         .window = window,
                         .margin = 16,
                         .k = pair.k,
                         .v = pair.v,
                         .shared = pair.shared};
            const int len = kLens[++seed % std::size(kLens)];
            const Case c(d, {tree_of(shape, len)}, 0, seed);
            const int node = first_difference(c, c.run(), nodes_alone(c));
            ASSERT_EQ(node, -1) << shape.name << " after " << len << ", k " << kv_type_name(d.k) << " v "
                                << kv_type_name(d.v) << ", E " << E << ", window " << window;
          }
}

TEST(CudaAttend, TreesAfterLongContexts) {
  NEEDS_GPU();
  Cases cases(7);
  const auto shapes = tree_shapes();
  unsigned seed = 400;
  for (const Pair pair : kPairs)
    for (const int E : {256, 512})
      for (const int window : {0, 1024})
        for (const TreeShape& shape : {shapes[5], shapes[8], shapes[10]}) {
          if (!is_made(pair, E, window) || cases.leave_out()) continue;
          if (pair.k == KvType::kF32) continue;
          const Dims d{.E = E,
                       .n_kv = 1,
                       .group = E == 512 ? 8 : 2,
                       .window = window,
                       .margin = 16,
                       .k = pair.k,
                       .v = pair.v,
                       .shared = pair.shared};
          const Case c(d, {tree_of(shape, 2040)}, 0, ++seed);  // where splits become longer
          ASSERT_EQ(first_difference(c, c.run(), nodes_alone(c)), -1)
              << shape.name << ", k " << kv_type_name(d.k) << ", E " << E << ", window " << window;
        }
}

// Trees, chains, a block and a long prompt in one step; partial results of five tokens at a time; staged rows.
TEST(CudaAttend, TreesBesideOthers) {
  NEEDS_GPU();
  Cases cases(7);
  unsigned seed = 500;
  const auto shapes = tree_shapes();
  for (const Pair pair : kPairs)
    for (const int E : {128, 256, 512})
      for (const int window : {0, 24})
        for (const int margin : {16, 4}) {
          if (!is_made(pair, E, window) || cases.leave_out()) continue;
          if (pair.k == KvType::kF32 && E == 512) continue;
          const Dims d{.E = E,
                       .n_kv = 1,
                       .group = E == 512 ? 8 : 2,
                       .window = window,
                       .margin = margin,
                       .k = pair.k,
                       .v = pair.v,
                       .shared = pair.shared,
                       .cap = window ? 0 : 200};
          const std::vector<Seq> seqs = {tree_of(shapes[5], 57),  {.kv_len = 90, .n = 11},
                                         tree_of(shapes[10], 0),  {.kv_len = 40, .n = 1},
                                         tree_of(shapes[8], 126), {.kv_len = 33, .n = 9, .mask = Mask::kBlock},
                                         {.kv_len = 30, .n = 100}};
          const Case c(d, seqs, 3, ++seed);
          const auto all = c.run();
          const size_t n_small = size_t(c.batch.host.shape.n_small) * size_t(c.spec.n_q_head * E);
          for (size_t i = 0; i < 5; ++i)
            EXPECT_EQ(first_difference(c, all, nodes_alone(c, i), i), -1)
                << "sequence " << i << ", k " << kv_type_name(d.k) << ", E " << E << ", window " << window
                << ", margin " << margin;
          const auto in_passes = attend_on_device(c.batch, c.cache.dev, c.q, c.spec, nullptr, 5);
          EXPECT_EQ(std::memcmp(all.data(), in_passes.data(), n_small * 4), 0)
              << "k " << kv_type_name(d.k) << ", E " << E << ", window " << window << ", margin " << margin;
        }
}

TEST(CudaAttend, TheLawOfTreesHasTeeth) {
  NEEDS_GPU();
  const auto shapes = tree_shapes();
  for (const Pair pair : kPairs)
    for (const int E : {256, 512}) {
      if (pair.k == KvType::kF32 || !is_made(pair, E, 0) || is_plain(pair, E)) continue;
      const Dims d{.E = E, .n_kv = 1, .group = E == 512 ? 8 : 2, .k = pair.k, .v = pair.v, .shared = pair.shared};
      Case c(d, {tree_of(shapes[5], 27)}, 0, 7);
      const auto alone = nodes_alone(c);
      ASSERT_EQ(first_difference(c, c.run(), alone), -1);
      c.batch.dev.shape.n_path = 8;  // more than there are
      EXPECT_EQ(first_difference(c, c.run(), alone), -1);
      c.batch.dev.shape.n_path = 0;  // rows taken in the order in which the step stores them
      EXPECT_EQ(first_difference(c, c.run(), alone), 8) << "the first node behind another branch";
      // The same keys, summed in another order.
      const Case chain(d, {tree_of(shapes[2], 27)}, 0, 7);
      const auto all = chain.run();
      EXPECT_EQ(first_difference(chain, all, nodes_alone(chain)), -1);
      EXPECT_GE(first_difference(chain, all, nodes_alone(chain, 0, path_backwards)), 0)
          << kv_type_name(d.k) << " " << E;
    }
}

}  // namespace
}  // namespace facet::test
