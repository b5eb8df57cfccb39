#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// Rows of the K/V cache: one head vector of head_dim values, encoded on its own. The same row always gives
// the same bytes, whatever else is encoded, so a cache can be compared, saved and restored by its bytes.
//
// Quantised rows are stored rotated: every group of min(128, head_dim) values is multiplied by the
// orthonormal R = S2 H S1, with H the normalised Sylvester-Hadamard matrix and S1, S2 fixed signs. Rotation
// spreads outliers over the group, which the block types cannot represent. Since q.k = (R q).(R k) and sum p
// v = R^-1 sum p (R v), attention rotates Q once, works on decoded rows as they are, and rotates its output
// back once.
namespace facet {

enum class KvType : uint8_t { kF16, kQ8_0, kQ4_0, kTQ3_0, kF32 };  // F32: exact, the reference's

std::span<const KvType> kv_types();                              // all of them, in the order of the enumeration
const char* kv_type_name(KvType t);                              // as options and files spell it: "f16", "q8_0"
std::optional<KvType> kv_type_from_name(std::string_view name);  // case-insensitive
std::string kv_type_names();                                     // "f16, q8_0, ... or f32", for messages
inline bool kv_rotated(KvType t) { return t != KvType::kF16 && t != KvType::kF32; }

// Bytes of one encoded row. head_dim is a power of two of at least 32.
size_t kv_row_bytes(KvType t, int head_dim);

void kv_rotate(float* x, int n);    // x = R x, in groups of min(128, n); n is a power of two of at least 32
void kv_unrotate(float* x, int n);  // x = R^-1 x

// Rotates (if kv_rotated) and encodes; x is not changed. Any input is safe; a row that is not finite, or
// beyond the range of f16, decodes to unspecified values.
void kv_encode(KvType t, const float* x, std::byte* dst, int head_dim);
// The stored values: in the rotated domain if kv_rotated.
void kv_decode(KvType t, const std::byte* src, float* y, int head_dim);

}  // namespace facet
