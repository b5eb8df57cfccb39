#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/cpu/isa.h"
#include "formats/dtype.h"
#include "formats/kv_codec.h"

// Inner loops of CpuFast, one implementation per instruction set, chosen once at run time.
//
// How a quantised row is multiplied. An activation row is cut into groups of 32, each a scale dx and 32 signed bytes:
// one form for every weight type, so a row is quantised once for all matrices that read it. A weight group of 32 has
// integer codes, a scale w and sometimes a minimum m. For output o and token t,
//
//   lane[g mod 8] += float(dot_g) * (w_g * dx_g)       dot_g: exact integer, sub-scales of 16 elements included
//   lane[g mod 8] += m_g * (dx_g * sum of codes)       only for types with a minimum
//   lane[g mod 8] += float(dot'_g) * (w'_g * dx_g)     only for types with a second scale, w', for the last sixteen
//   columns y = ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))
//
// for groups g in ascending order, every product and sum rounded to f32, no fused operation. The order is the same in
// every kernel below, so a row's bits depend neither on the number of tokens beside it nor on the machine.
//
// The files that implement this are compiled for instruction sets the machine may lack. They therefore define
// nothing with external linkage but their table, and call no inline function of another header.
namespace facet {

constexpr int kGroupCols = 32;     // columns that share an activation scale
constexpr int kChunkCols = 256;    // columns of eight groups; quantised rows are padded with zeros to a multiple
constexpr int kTileRows = 16;      // weight rows of a packed tile
constexpr int kMaxGemvTok = 48;    // the largest SimdKernels::gemv_tok
constexpr int kRecordBytes = 768;  // of QuantRow::record, at most
constexpr int kPanelRows = 16;     // tokens of SimdKernels::panel
constexpr int kPanelBytes = 640;   // of one of its groups
constexpr int kSplitRows = 256;    // cache rows of one pass of attention
constexpr int kPartKeys = kSplitRows + 64;  // with the siblings of a tree

// One quantised activation row of n columns, padded.
struct QuantRow {
  int8_t* q;       // [n] codes of -127..127
  float* d;        // [n / 32] scales; NaN if the group holds one
  float* ds;       // [n / 32] scale times the sum of the group's codes
  int16_t* sum16;  // [n / 16] sums of codes
  // [n / 256] chunks once more, for kernels with groups in their lanes, as SimdKernels::interleave wrote them: four
  // columns of each group at a time.
  std::byte* record;
};

// Sixteen weight rows, unpacked so that the rows lie in lanes. Group g = 8 c + j is at index i = j * n_chunk + c:
// the groups of one lane of the sum follow each other. A table's pack and gemm may agree on another order in the same
// room.
struct PackedTile {
  uint8_t* code;  // [8 n_chunk][8][16 rows][4] bytes, four columns at a time
  float* w;       // [8 n_chunk][16 rows]
  float* m;       // [8 n_chunk][16 rows] minima, or second scales
  int32_t* sub;   // [8 n_chunk][2][16 rows] scales of 16 columns, for types that have them
  int n_chunk;
};

// One K/V head, one range of kSplitRows cache rows, the query heads of some tokens. A key's place is the row it has in
// its query's past without what that query does not see: its cache row, or in a tree the row it will have once its
// path is committed. Sums go by places, so that a path through a tree has the bits of a chain.
struct AttendPart {
  int n_query, head_dim, n_key;
  int group;             // queries i / group belong to one token
  const int16_t* place;  // [n_key] from the start of the range, ascending along a path; null: 0, 1, ...
  float scale;
  KvType k_type, v_type;
  const std::byte* const* k;  // [n_key] encoded head vectors; null: no query sees the key
  const std::byte* const* v;
  const uint8_t* sees;  // [n_query / group][kPartKeys]
  const float* query;   // [n_query, head_dim]
  float* rows;          // [16, head_dim] scratch
  float* score;         // [n_query, kPartKeys] scratch
  float* out;           // [n_query, head_dim] sum of exp(score - top) v; not written where top is -inf
  float* top;           // [n_query] largest score, -inf when no row is seen
  float* sum;           // [n_query] of exp(score - top)
};

// Attention of an encoder: one head, one range of a picture's keys, some of its queries. Ranges are taken in order.
constexpr int kEncoderKeys = 512;  // of a range, at most; all but the last have as many
struct EncoderPart {
  int n_query, n_key, head_dim;
  int value_cols;  // head_dim, rounded up to whole vectors
  float scale;
  const float* query;  // [n_query, head_dim]
  int64_t query_stride;
  const float* k;  // [n_key / 16][head_dim][16]: sixteen keys side by side
  const float* v;  // [n_key, value_cols], columns beyond head_dim anything finite
  float* score;    // [n_query, kEncoderKeys] scratch
  float* out;      // [n_query, value_cols] of the ranges so far, as top and sum: 0, -inf and 0 before the first
  float* top;      // [n_query] largest score
  float* sum;      // [n_query] of exp(score - top)
};

// Part of a product of many rows of floats: some columns of some weight rows. The bits are those of SimdKernels::dots.
struct DotsPart {
  int n_row, n_tok;
  int64_t begin, n;  // columns: begin is a multiple of sixteen
  bool first;        // no range before this one
  const float* w;    // [n_row, n] from column begin
  int64_t w_stride;
  const float* const* x;  // [n_tok] whole rows
  float* sum;             // [n_tok, n_row, 16] lanes between ranges
  float* y;               // the last range: results, else null
  int64_t y_stride;
};

struct SimdKernels {
  static constexpr int kTypes = int(DType::kCount);
  const char* name;

  void (*quantize)(const float* x, int64_t n, const QuantRow* to);
  void (*interleave)(int64_t n,
                     const QuantRow* row);  // fills its records; null: no product reads them. One token's never does
  bool records_in_gemm;                     // gemm reads them too
  // Up to sixteen rows once more, for kernels with tokens in the rows of a tile: [8 n_chunk] groups in the order of
  // PackedTile, each [16][32] codes, then [16] d, then [16] ds; zeros beyond n_tok. Null: gemm does not read them.
  void (*panel)(int64_t n, int n_tok, const QuantRow* x, std::byte* to);
  // Quantised types; null: the type has no such kernel and rows are decoded to f32. gemv: up to gemv_tok tokens, weight
  // rows as they lie, y[t * stride + o]; beyond that, tiles are packed first.
  int gemv_tok;
  void (*gemv[kTypes])(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x,
                       float* y, int64_t stride);
  void (*pack[kTypes])(const std::byte* w, int64_t row_bytes, int n_row, int64_t n_in, const PackedTile* to);
  void (*gemm[kTypes])(const PackedTile* w, int n_tok, const QuantRow* x, const std::byte* panels, float* y,
                       int64_t stride);  // y[t * stride + 0 .. 15]
  // F32, F16, BF16: y[t * stride + o]
  void (*dots[kTypes])(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok,
                       const float* const* x, float* y, int64_t stride);

  void (*attend)(const AttendPart* p);
  void (*encoder_attend)(const EncoderPart* p);
  void (*dots_part)(const DotsPart* p);
  void (*widen[kTypes])(const std::byte* p, float* y, int64_t n);  // F32, F16, BF16
  float (*sum_squares)(const float* x, int64_t n);
  void (*gelu_mul)(const float* g, const float* u, float* y, int64_t n);  // y = gelu(g) * u, the tanh form
  void (*silu_mul)(const float* g, const float* u, float* y, int64_t n);
  void (*softcap)(float* x, float cap, int64_t n);          // cap * tanh(x / cap)
  void (*to_f16)(const float* x, std::byte* y, int64_t n);  // null: no faster than kv_encode
};

const SimdKernels& simd_kernels(CpuIsa isa);  // kAuto: the best there is

extern const SimdKernels kScalarKernels;
#if defined(__x86_64__)
extern const SimdKernels kAvx2Kernels;
extern const SimdKernels kAvx512Kernels;
extern const SimdKernels kAmxKernels;  // pack, panel, gemm and gemv_tok only
#endif

}  // namespace facet
