#include "backend/cuda/kernels/attention/device_kv_layout.cuh"

#include <cstring>
#include <vector>

#include "backend/cuda/kernels/attention.h"
#include "base/check.h"
#include "formats/blocks.h"

namespace facet::cuda {
namespace {

// Codes and scales of a row of blocks, unpacked.
struct Row {
  std::vector<uint8_t> code;
  std::vector<uint16_t> scale;
};

template <class Block, class Get>
Row unpack(const std::byte* src, int E, Get get) {
  Row row{std::vector<uint8_t>(size_t(E)), std::vector<uint16_t>(size_t(E) / 32)};
  for (size_t b = 0; b < row.scale.size(); ++b) {
    Block block;
    std::memcpy(&block, src + b * sizeof block, sizeof block);
    std::memcpy(&row.scale[b], &block, 2);  // the scale comes first in all of them
    for (int i = 0; i < 32; ++i) row.code[b * 32 + size_t(i)] = get(block, i);
  }
  return row;
}

Row from_blocks(KvType t, const std::byte* src, int E) {
  switch (t) {
    case KvType::kQ8_0:
      return unpack<BlockQ8_0>(src, E, [](const BlockQ8_0& b, int i) { return uint8_t(b.qs[i] + 128); });
    case KvType::kQ4_0:
      return unpack<BlockQ4_0>(src, E,
                               [](const BlockQ4_0& b, int i) { return uint8_t(b.qs[i % 16] >> (i / 16 * 4) & 15); });
    default:
      return unpack<BlockTQ3_0>(src, E, [](const BlockTQ3_0& b, int i) {
        return uint8_t((b.low[i / 4] >> (2 * (i % 4)) & 3) | (b.high[i / 8] >> (i % 8) & 1) << 2);
      });
  }
}

template <class Block, class Put>
void pack(const Row& row, std::byte* dst, Put put) {
  for (size_t b = 0; b < row.scale.size(); ++b) {
    Block block{};
    std::memcpy(&block, &row.scale[b], 2);
    for (int i = 0; i < 32; ++i) put(block, i, row.code[b * 32 + size_t(i)]);
    std::memcpy(dst + b * sizeof block, &block, sizeof block);
  }
}

}  // namespace

namespace {
// Bytes of a vector, or of a shared row.
size_t bytes_of(KvType t, int E) {
  const size_t bytes = E == kSharedCols ? kv_shared_bytes(t, 512) : kv_row_bytes(t, E);
  CHECK(size_t(device_kv_bytes(t, E)) == bytes && E % 64 == 0, "{} values of {}", E, kv_type_name(t));
  return bytes;
}
}  // namespace

void kv_device_from_blocks(KvType t, const std::byte* blocks, std::byte* device_row, int E) {
  const size_t bytes = bytes_of(t, E);
  if (!device_kv_has_scales(t)) {
    std::memcpy(device_row, blocks, bytes);
    return;
  }
  const Row row = from_blocks(t, blocks, E);
  const int n_word = device_kv_code_bytes(t, E) / 4;
  for (int w = 0; w < n_word; ++w) {
    const uint32_t word = device_kv_word(t, row.code.data(), w, E);
    std::memcpy(device_row + 4 * w, &word, 4);
  }
  std::memset(device_row + 4 * n_word, 0, bytes - size_t(4 * n_word));
  std::memcpy(device_row + 4 * n_word, row.scale.data(), row.scale.size() * 2);
}

void kv_blocks_from_device(KvType t, const std::byte* device_row, std::byte* blocks, int E) {
  const size_t bytes = bytes_of(t, E);
  if (!device_kv_has_scales(t)) {
    std::memcpy(blocks, device_row, bytes);
    return;
  }
  std::memset(blocks, 0, bytes);
  Row row{std::vector<uint8_t>(size_t(E)), std::vector<uint16_t>(size_t(E) / 32)};
  for (int d = 0; d < E; ++d)
    row.code[size_t(d)] = uint8_t(device_kv_code(t, reinterpret_cast<const uint8_t*>(device_row), d, E));
  std::memcpy(row.scale.data(), device_row + device_kv_code_bytes(t, E), row.scale.size() * 2);
  switch (t) {
    case KvType::kQ8_0:
      return pack<BlockQ8_0>(row, blocks, [](BlockQ8_0& b, int i, uint8_t q) { b.qs[i] = int8_t(int(q) - 128); });
    case KvType::kQ4_0:
      return pack<BlockQ4_0>(row, blocks,
                             [](BlockQ4_0& b, int i, uint8_t q) { b.qs[i % 16] |= uint8_t(q << (i / 16 * 4)); });
    default:
      return pack<BlockTQ3_0>(row, blocks, [](BlockTQ3_0& b, int i, uint8_t q) {
        b.low[i / 4] |= uint8_t((q & 3) << (2 * (i % 4)));
        b.high[i / 8] |= uint8_t((q >> 2) << (i % 8));
      });
  }
}

}  // namespace facet::cuda
