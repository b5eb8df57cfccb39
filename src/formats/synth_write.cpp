// Weights of a synthetic model file. Every block is random: codes are fresh bits of a counter-based
// generator, scales come from a table of valid block heads prepared per row length. That runs at several
// GB/s, so the disk decides, and no two rows are alike, so that logits have no exact ties.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/half.h"
#include "formats/blocks.h"
#include "formats/random_blocks.h"
#include "formats/synth.h"

namespace facet {
namespace {

constexpr size_t kPieceBytes = size_t(4) << 20;
constexpr uint64_t kReportBytes = uint64_t(32) << 20;
constexpr size_t kHeads = 1024;     // prepared block heads, a power of two
constexpr size_t kGauss = 1 << 16;  // prepared normal values

// splitmix64: a counter and a mixer, so that a tensor's data depends on its seed alone.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  float uniform(float lo, float hi) { return lo + (hi - lo) * float(next() >> 40) * 0x1p-24f; }
  float normal() {
    const float u = uniform(1e-7f, 1.0f), v = uniform(0.0f, 6.2831853f);
    return std::sqrt(-2.0f * std::log(u)) * std::cos(v);
  }
  void fill(void* p, size_t n) {
    auto* out = static_cast<unsigned char*>(p);
    for (; n >= 8; n -= 8, out += 8) {
      const uint64_t r = next();
      std::memcpy(out, &r, 8);
    }
    if (n == 0) return;
    const uint64_t r = next();
    std::memcpy(out, &r, n);
  }

 private:
  uint64_t state_;
};

// Deviation of codes that are uniform on 0..n-1; their mean is (n - 1) / 2.
float code_deviation(int n) { return std::sqrt((float(n) * float(n) - 1.0f) / 12.0f); }

uint16_t scale_for(float sigma, int codes, float group_scale, Random& r) {
  return f32_to_f16(sigma / (group_scale * code_deviation(codes)) * r.uniform(0.8f, 1.25f));
}

// Flips the sign of a scale at random. Codes centred on n/2 have a mean of half a step, which would add up
// over a row.
uint16_t either_sign(uint16_t d, Random& r) { return uint16_t(d ^ (r.next() & 0x8000u)); }

// The minimum that centres unsigned codes.
uint16_t centre(uint16_t d, int codes) { return f32_to_f16(f16_to_f32(d) * 0.5f * float(codes - 1)); }

// head() sets the scales of a block for weights of deviation sigma; codes() fills the rest with random bits.
void head(BlockQ4_0& b, float sigma, Random& r) { b.d = either_sign(scale_for(sigma, 16, 1, r), r); }
void head(BlockQ5_0& b, float sigma, Random& r) { b.d = either_sign(scale_for(sigma, 32, 1, r), r); }
void head(BlockQ8_0& b, float sigma, Random& r) { b.d = scale_for(sigma, 255, 1, r); }
void head(BlockQ5_1& b, float sigma, Random& r) {
  b.d = scale_for(sigma, 32, 1, r);
  b.m = uint16_t(centre(b.d, 32) ^ 0x8000u);
}

// Scale and minimum of a group are equal, so that dmin = d * mean code centres it.
void k4_scales(uint8_t* s, Random& r) {
  std::memset(s, 0, 12);
  for (int j = 0; j < 8; ++j) {
    const auto v = unsigned(32 + r.next() % 32);
    if (j < 4) {
      s[j] |= uint8_t(v);
      s[j + 4] |= uint8_t(v);
    } else {
      s[j + 4] = uint8_t((v & 15) | ((v & 15) << 4));
      s[j - 4] |= uint8_t((v >> 4) << 6);
      s[j] |= uint8_t((v >> 4) << 6);
    }
  }
}
void head(BlockQ4_K& b, float sigma, Random& r) {
  b.d = scale_for(sigma, 16, 48, r);
  b.dmin = centre(b.d, 16);
  k4_scales(b.scales, r);
}
void head(BlockQ5_K& b, float sigma, Random& r) {
  b.d = scale_for(sigma, 32, 48, r);
  b.dmin = centre(b.d, 32);
  k4_scales(b.scales, r);
}
void head(BlockQ6_K& b, float sigma, Random& r) {
  b.d = scale_for(sigma, 64, 64, r);
  for (int8_t& s : b.scales) s = int8_t((48 + int(r.next() % 33)) * (r.next() & 1 ? 1 : -1));
}

void codes(BlockQ4_0& b, Random& r) { r.fill(b.qs, sizeof b.qs); }
void codes(BlockQ5_0& b, Random& r) {
  r.fill(b.qh, sizeof b.qh);
  r.fill(b.qs, sizeof b.qs);
}
void codes(BlockQ5_1& b, Random& r) {
  r.fill(b.qh, sizeof b.qh);
  r.fill(b.qs, sizeof b.qs);
}
void codes(BlockQ8_0& b, Random& r) {
  r.fill(b.qs, sizeof b.qs);
  for (int8_t& q : b.qs) q = q == -128 ? int8_t(-127) : q;  // encoders never write -128
}
void codes(BlockQ4_K& b, Random& r) { r.fill(b.qs, sizeof b.qs); }
void codes(BlockQ5_K& b, Random& r) {
  r.fill(b.qh, sizeof b.qh);
  r.fill(b.qs, sizeof b.qs);
}
void codes(BlockQ6_K& b, Random& r) {
  r.fill(b.ql, sizeof b.ql);
  r.fill(b.qh, sizeof b.qh);
}

// Streams one tensor to the writer piece by piece and reports.
class Sink {
 public:
  Sink(GgufWriter& out, uint64_t total, const SynthProgress& progress)
      : out_(out), total_(total), progress_(progress), piece_(kPieceBytes) {}
  std::byte* piece() { return piece_.data(); }
  Status send(size_t bytes) {
    done_ += bytes;
    if (progress_ && done_ >= next_report_) {
      progress_(done_, total_);
      next_report_ = done_ + kReportBytes;
    }
    return out_.write({piece_.data(), bytes});
  }

 private:
  GgufWriter& out_;
  uint64_t total_, done_ = 0, next_report_ = 0;
  const SynthProgress& progress_;
  std::vector<std::byte> piece_;
};

// n units of fixed size, made by make(unit pointer).
template <class Unit, class Make>
Status stream(Sink& sink, uint64_t n, Make make) {
  constexpr size_t kPer = kPieceBytes / sizeof(Unit);
  while (n > 0) {
    const size_t now = size_t(std::min<uint64_t>(n, kPer));
    for (size_t i = 0; i < now; ++i) {
      Unit u{};
      make(u);
      std::memcpy(sink.piece() + i * sizeof u, &u, sizeof u);
    }
    if (Status s = sink.send(now * sizeof(Unit)); !s) return s;
    n -= now;
  }
  return Ok{};
}

template <class Block>
Status stream_blocks(Sink& sink, const SynthTensor& t, uint64_t elements, Random& r) {
  std::vector<Block> heads(kHeads);
  for (Block& b : heads) {
    std::memset(&b, 0, sizeof b);
    head(b, 1.0f / std::sqrt(float(t.ne[0])), r);
  }
  uint64_t pick = 0;
  return stream<Block>(sink, elements / Block::kElems, [&](Block& b) {
    pick = pick * 5 + 1;  // full period over the table
    b = heads[pick % kHeads];
    codes(b, r);
  });
}

// 16 bits of every draw select one prepared value each.
template <class Value>
Status stream_values(Sink& sink, uint64_t elements, const std::vector<Value>& table, Random& r) {
  uint64_t bits = 0;
  int left = 0;
  return stream<Value>(sink, elements, [&](Value& v) {
    if (left == 0) {
      bits = r.next();
      left = 4;
    }
    v = table[bits & (kGauss - 1)];
    bits >>= 16;
    --left;
  });
}

// Of a skewed router's rows.
std::vector<float> router_lengths(const SynthTensor& t, Random& r) {
  std::vector<float> length(size_t(t.ne[1]));
  for (size_t i = 0; i < length.size(); ++i) length[i] = float(std::pow(double(i + 1), -t.skew));
  for (size_t i = length.size(); i > 1; --i) std::swap(length[i - 1], length[r.next() % i]);
  return length;
}

Status stream_f32(Sink& sink, const SynthTensor& t, uint64_t elements, Random& r) {
  uint64_t i = 0;
  const std::vector<float> length = t.skew > 0 ? router_lengths(t, r) : std::vector<float>();
  return stream<float>(sink, elements, [&](float& v) {
    switch (t.fill) {
      case SynthFill::kRopeFreqs:
        v = i++ < elements / 4 ? 1.0f : 1e30f;
        break;
      case SynthFill::kUnit:
        v = 1.0f + 0.05f * r.uniform(-1.0f, 1.0f);
        break;
      case SynthFill::kRouter:
        v = r.normal();
        if (!length.empty()) v *= length[size_t(i++ / uint64_t(t.ne[0]))];
        break;
      case SynthFill::kShift:
        v = 3.0f * r.normal();
        break;
      case SynthFill::kClipLow:
        v = -1.5f;
        break;
      case SynthFill::kClipHigh:
        v = 1.25f;
        break;
      case SynthFill::kNormal:
        v = r.normal() / std::sqrt(float(t.ne[0]));
        break;
    }
  });
}

Status stream_random(Sink& sink, const SynthTensor& t, uint64_t elements, Random& r) {
  const DTypeInfo& info = dtype_info(t.type);
  const size_t per_piece = kPieceBytes / size_t(info.block_bytes);
  for (uint64_t left = elements / uint64_t(info.block); left > 0;) {
    const size_t n = size_t(std::min<uint64_t>(left, per_piece)) * size_t(info.block_bytes);
    random_blocks(t.type, 1.0f / std::sqrt(float(t.ne[0])), [&] { return r.next(); }, {sink.piece(), n});
    if (Status s = sink.send(n); !s) return s;
    left -= n / size_t(info.block_bytes);
  }
  return Ok{};
}

Status stream_tensor(Sink& sink, const SynthTensor& t, uint64_t seed) {
  Random r(seed);
  uint64_t n = 1;
  for (int64_t d : t.ne) n *= uint64_t(d);
  switch (t.type) {
    case DType::kF32:
      return stream_f32(sink, t, n, r);
    case DType::kF16:
    case DType::kBF16: {
      std::vector<uint16_t> table(kGauss);
      for (uint16_t& v : table) {
        const float x = r.normal() / std::sqrt(float(t.ne[0]));
        v = t.type == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
      }
      return stream_values(sink, n, table, r);
    }
    case DType::kQ4_0:
      return stream_blocks<BlockQ4_0>(sink, t, n, r);
    case DType::kQ5_0:
      return stream_blocks<BlockQ5_0>(sink, t, n, r);
    case DType::kQ5_1:
      return stream_blocks<BlockQ5_1>(sink, t, n, r);
    case DType::kQ8_0:
      return stream_blocks<BlockQ8_0>(sink, t, n, r);
    case DType::kQ4_K:
      return stream_blocks<BlockQ4_K>(sink, t, n, r);
    case DType::kQ5_K:
      return stream_blocks<BlockQ5_K>(sink, t, n, r);
    case DType::kQ6_K:
      return stream_blocks<BlockQ6_K>(sink, t, n, r);
    default:
      CHECK(has_random_blocks(t.type), "{}: no generator for {}", t.name, dtype_name(t.type));
      return stream_random(sink, t, n, r);
  }
}

void declare(const SynthPlan& plan, GgufWriter& w) {
  for (const SynthMeta& m : plan.meta) std::visit([&](const auto& v) { w.add(m.key, v); }, m.v);
  for (const SynthTensor& t : plan.tensors) w.add_tensor(t.name, t.type, t.ne);
}

}  // namespace

Status synth_skew_router(SynthPlan& plan, double skew) {
  bool any = false;
  for (SynthTensor& t : plan.tensors)
    if (t.fill == SynthFill::kRouter) t.skew = skew, any = true;
  if (any || skew == 0) return Ok{};
  return Error{"--router-skew", "expected a preset with experts, found none", "use 26b-a4b, or leave it out"};
}

uint64_t synth_bytes(const SynthPlan& plan) {
  GgufWriter w;
  declare(plan, w);
  return w.total_bytes();
}

Status synth_write(const SynthPlan& plan, const std::string& path, uint64_t seed, const SynthProgress& progress) {
  GgufWriter w;
  declare(plan, w);
  if (Status s = check_output(path); !s) return s;
  if (Status s = check_room(path, w.total_bytes()); !s) return s;
  if (Status s = w.begin(path); !s) return s;
  Sink sink(w, w.total_bytes(), progress);
  Random seeds(seed);
  for (const SynthTensor& t : plan.tensors)
    if (Status s = stream_tensor(sink, t, seeds.next()); !s) return s;
  return w.finish();
}

}  // namespace facet
