#pragma once
#include <cuda_runtime.h>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/mat.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/kernels/route/route.h"

// Launchers of matrix products. Everything is device memory unless it says host.
namespace facet::cuda {

// Reorders matrices [n_stack, n_out, n_in] as they lie in a file (raw) into tiles.
void repack(cudaStream_t, const TiledMatrix& to, const uint8_t* raw, DType type);
// The values of rows [first, first + n) of a tiled matrix, rounded to bf16, row-major with n_in columns. which: 0 or 1:
// they go where interleaved_row() has them (gemm.h); -1: one after the other.
void unpack_bf16(cudaStream_t, __nv_bfloat16* to, const TiledMatrix& w, int64_t stack, int first, int n,
                 int which = -1);

// Products with few rows. Up to three matrices with the same input in one launch (q, k and v); with glu, two matrices
// whose product is act(first) * second.
struct SkinnyMatrix {
  TiledMatrix w;
  int64_t stack = 0;
  float* y = nullptr;  // [T, n_out]
  int64_t y_stride = 0;
  float* y_also = nullptr;        // a second copy, with the same stride, if wanted
  __nv_bfloat16* y_bf = nullptr;  // the same in bf16, if wanted
  int64_t y_bf_stride = 0;
};
struct SkinnyWork {
  float* partial = nullptr;     // sums of some of the columns
  int64_t partial_floats = 0;   // that there is room for: with too few, many rows take several launches
  unsigned* counter = nullptr;  // zero between launches
  uint8_t* image = nullptr;     // activations in one or two bytes: the kernel's own, or x's
  bool image_ready = false;     // it is x's already, in one: of these n_tok rows, all columns; no matrix needs two
  const RouterArgs* beside = nullptr;  // a routing to be done meanwhile
  bool leave = false;                  // partial sums of one matrix are left to the reader of y, if there are any
  bool late = false;     // beside the product before it, which is in_turn and has the same x: needs nothing that one
                         // writes, and no sets if one will do
  bool in_turn = false;  // the next kernel starts when all before this one have ended
  bool ahead = false;  // the next kernel starts with this one: what it reads first was there when this one started, or
                       // it looks for it
  int thirds = 2;      // of a multiprocessor's shared memory, if few bytes are multiplied: what the next kernel leaves
};
constexpr int kSkinnyRows = 16;  // rows of one launch of the kernels that share nothing between warps
constexpr int kWideGroup = 32, kWideRows = 4 * kWideGroup;  // of those of more rows: in steps, and at most
// Floats, counters and bytes of it for a product with one such matrix; floats for kWideRows rows.
int64_t skinny_partials(const DeviceInfo&, const TiledMatrix&);
int64_t wide_partials(const DeviceInfo&, const TiledMatrix&);
int skinny_counters(const DeviceInfo&);
int64_t skinny_image_bytes(int64_t n_in);
// Columns of a matrix at most.
int64_t skinny_most_cols(const DeviceInfo&, Input);
// y[t] = W x[t] for t < n_tok; x [n_tok, n_in] in bf16. A row's bits depend on that row alone.
// What is left of a sum: p is null where y has it all.
Partials skinny(cudaStream_t, const SkinnyMatrix* m, int n_matrix, bool glu, facet::Act act, const __nv_bfloat16* x,
                int64_t x_stride, int n_tok, SkinnyWork);

// The same products of many rows, without sets and partial sums: matrices of codes, straight from their tiles
// (prompt.cu). images: room for rounded activations; with less than prompt_image_bytes(n_tok, n_in), or two bytes a
// value, rows come in parts.
void prompt(cudaStream_t, const SkinnyMatrix* m, int n_matrix, bool glu, facet::Act act, const __nv_bfloat16* x,
            int64_t x_stride, int n_tok, uint8_t* images, int64_t images_bytes);
int64_t prompt_image_bytes(int64_t n_tok, int64_t n_in);

}  // namespace facet::cuda
