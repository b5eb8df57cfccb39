#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// Rows of the K/V cache: one head vector of head_dim values, encoded on its own (or a shared row, below). The same row
// always gives the same bytes, whatever else is encoded, so a cache can be compared, saved and restored by its bytes.
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

// Types of keys and values.
struct KvPair {
  KvType k = KvType::kF16, v = KvType::kF16;
  bool operator==(const KvPair&) const = default;
  std::string name() const;  // "q8_0", or "q8_0/q4_0": keys, values
};
std::optional<KvPair> kv_pair_from_name(std::string_view name);
// Those of layers [first, last], where they are not the other layers'.
struct KvOfLayers {
  int first = 0, last = 0;
  KvPair kv = {};
  bool operator==(const KvOfLayers&) const = default;
};

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

// Shared rows, of layers whose K and V are one projection: V = rms(u), and K = V times a gain, with the first eighth of
// its pairs (i, i + head_dim / 2) rotated by position. One row holds both. With `own` the channels of pairs that may
// rotate and `rest` the others, each in ascending order:
//
//   [ K's own | V's rest | V's own ]        K is the first head_dim values, V the last
//
// K's rest lacks its gain, which goes into the query. The values are encoded in groups of kv_own(head_dim), each
// rotated by itself, so that K's and V's parts can be decoded alone.
enum class KvLayout : uint8_t { kSplit, kShared };

int kv_own(int head_dim);  // channels that K has of its own: a power of two of at least 32
constexpr bool kv_may_share(int head_dim) { return head_dim >= 64; }  // else there would be no rest
inline bool kv_is_own(int channel, int head_dim) { return channel % (head_dim / 2) < kv_own(head_dim) / 2; }
size_t kv_shared_bytes(KvType t, int head_dim);  // a multiple of 16
size_t kv_shared_v_at(KvType t, int head_dim);   // where V's bytes begin
void kv_encode_shared(KvType t, const float* k, const float* v, std::byte* dst, int head_dim);

// What a query is multiplied with a decoded row of K as, and what a sum of decoded rows of V means: order and rotation
// of the two layouts. x and y are not the same memory.
void kv_query(KvType t, bool shared, const float* x, float* y, int head_dim);
void kv_result(KvType t, bool shared, const float* x, float* y, int head_dim);

}  // namespace facet
