#include "formats/random_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "formats/blocks.h"

namespace facet {
namespace {

using Draw = std::function<uint64_t()>;

float uniform(const Draw& draw) { return float(draw() >> 40) * 0x1p-24f; }

void fill(const Draw& draw, std::byte* to, size_t n) {
  for (size_t at = 0; at < n; at += 8) {
    const uint64_t r = draw();
    std::memcpy(to + at, &r, std::min<size_t>(8, n - at));
  }
}

template <class Block>
void set_step(Block& b, float step, const Draw&) {
  b.d = f32_to_f16(step);
}
void set_step(BlockIQ1_M& b, float step, const Draw&) {
  const uint16_t h = f32_to_f16(step);
  for (int k = 0; k < 4; ++k) b.scales[2 * k + 1] = uint8_t((b.scales[2 * k + 1] & 15) | (h >> (4 * k) & 15) << 4);
}
// A power of two or the one above, so often that squares have the mean that was asked for.
void set_step(BlockMXFP4& b, float step, const Draw& draw) {
  const int floor = std::ilogb(step);
  const float ratio = std::ldexp(step, -floor);
  b.e = uint8_t(128 + floor + (uniform(draw) < (ratio * ratio - 1) / 3));
}
void set_step(BlockNVFP4& b, float step, const Draw&) {
  uint8_t best = 0;
  for (uint8_t code = 0; code < 127; ++code)
    if (std::abs(half_of_ue4m3(code) - step) < std::abs(half_of_ue4m3(best) - step)) best = code;
  for (uint8_t& s : b.scales) s = best;
}

// Deviation of values for a step of 1.
template <class Block>
double deviation(DType t) {
  constexpr int kBlocks = 64;
  uint64_t state = 1;
  const Draw draw = [&] { return state = state * 6364136223846793005u + 1442695040888963407u, state ^ (state >> 29); };
  std::vector<float> v(Block::kElems);
  double sum = 0;
  for (int i = 0; i < kBlocks; ++i) {
    Block b;
    fill(draw, reinterpret_cast<std::byte*>(&b), sizeof b);
    set_step(b, 1, draw);
    dequantize_row(t, reinterpret_cast<const std::byte*>(&b), v.data(), Block::kElems);
    for (const float x : v) sum += double(x) * double(x);
  }
  return std::sqrt(sum / (kBlocks * Block::kElems));
}

template <class Block>
void blocks(DType t, float sigma, const Draw& draw, std::span<std::byte> to) {
  CHECK(to.size() % sizeof(Block) == 0, "{} bytes of {}", to.size(), dtype_name(t));
  static const double unit = deviation<Block>(t);
  for (size_t at = 0; at < to.size(); at += sizeof(Block)) {
    Block b;
    fill(draw, reinterpret_cast<std::byte*>(&b), sizeof b);
    set_step(b, float(sigma / unit) * (0.8f + 0.4f * uniform(draw)), draw);
    std::memcpy(to.data() + at, &b, sizeof b);
  }
}

using Fill = void (*)(DType, float, const Draw&, std::span<std::byte>);
Fill fill_of(DType t) {
  switch (t) {
    case DType::kIQ1_S:
      return blocks<BlockIQ1_S>;
    case DType::kIQ1_M:
      return blocks<BlockIQ1_M>;
    case DType::kIQ2_XXS:
      return blocks<BlockIQ2_XXS>;
    case DType::kIQ2_XS:
      return blocks<BlockIQ2_XS>;
    case DType::kIQ2_S:
      return blocks<BlockIQ2_S>;
    case DType::kIQ3_XXS:
      return blocks<BlockIQ3_XXS>;
    case DType::kIQ3_S:
      return blocks<BlockIQ3_S>;
    case DType::kIQ4_NL:
      return blocks<BlockIQ4_NL>;
    case DType::kMXFP4:
      return blocks<BlockMXFP4>;
    case DType::kNVFP4:
      return blocks<BlockNVFP4>;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_random_blocks(DType t) { return fill_of(t) != nullptr; }

void random_blocks(DType t, float sigma, const Draw& draw, std::span<std::byte> to) {
  const Fill f = fill_of(t);
  CHECK(f, "no random blocks of {}", dtype_name(t));
  f(t, sigma, draw, to);
}

}  // namespace facet
