#pragma once
#include <bit>
#include <cstdint>

// Conversions between float and its 16-bit relatives, round to nearest even. Usable from host and .cu files.
namespace facet {

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, mag = h & 0x7FFFu;
  if (mag >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((mag & 0x3FFu) << 13));
  // Scaling by 2^112 re-biases the exponent and is exact for subnormals too.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(mag << 13) * 0x1p112f));
}

inline uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000u, mag = u & 0x7FFFFFFFu;
  if (mag >= 0x7F800000u) return uint16_t(sign | 0x7C00u | (mag > 0x7F800000u ? 0x200u | ((mag >> 13) & 0x3FFu) : 0u));
  if (mag >= 0x477FF000u) return uint16_t(sign | 0x7C00u);  // rounds to 65536 or more
  if (mag < 0x38800000u) {                                  // subnormal: let the adder round at 2^-24
    const float r = std::bit_cast<float>(mag) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(r) - 0x3F000000u));
  }
  return uint16_t(sign | ((mag - 0x38000000u + 0xFFFu + ((mag >> 13) & 1u)) >> 13));
}

inline float bf16_to_f32(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

inline uint16_t f32_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t((u >> 16) | 64u);
  return uint16_t((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

}  // namespace facet
