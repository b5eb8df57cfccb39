#pragma once
#include <cstdint>
#include <limits>

#include "backend/cpu/simd.h"

// Sizes that the files of CpuFast share.
namespace facet {

constexpr int kPieceCols = 64;  // output columns of one piece when few tokens take part
constexpr float kNone = -std::numeric_limits<float>::infinity();

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline int64_t padded(int64_t cols) { return round_up(cols, kChunkCols); }
inline int64_t tile_floats(int64_t cols) {
  return padded(cols) * (4 + 1 + 1);
}  // codes, sub-scales, scales with minima
inline int64_t panel_bytes(int64_t cols) { return padded(cols) / kGroupCols * kPanelBytes; }

// Products of many rows by weights without a kernel for their codes: a block's weight rows and columns, and x's rows.
constexpr int kManyFloats = 64;  // rows from which on
constexpr int64_t kFloatRows = 16, kFloatCols = 256, kFloatTok = 96;
inline int64_t float_floats(int64_t max_tok) {
  return max_tok >= kManyFloats ? kFloatRows * (kFloatCols + kFloatTok * 17) + 64 : 0;
}

constexpr int kEncoderQueries = 48;  // that a thread takes at a time
inline int64_t encoder_cols(int head_dim) { return round_up(head_dim, 16); }
inline int64_t encoder_thread_floats(int head_dim) {
  return head_dim > 0 ? kEncoderQueries * (kEncoderKeys + encoder_cols(head_dim) + 2) + 64 : 0;
}

}  // namespace facet
