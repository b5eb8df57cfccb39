#pragma once
#include <cuda_runtime.h>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/kernels/moe/panel_rows.h"
#include "backend/cuda/kernels/route/route.h"

// Launchers of the mixture-of-experts verb. Everything is device memory.
namespace facet::cuda {

struct MoeExperts {
  TiledMatrix gate, up;  // stacks; up's strips start at up_strip (merged matrices: gate rows, then up rows)
  int up_strip = 0, d_expert = 0;
  TiledMatrix down;
  const float* router = nullptr;  // [N, D]
  const float* scale = nullptr;   // [N] or none
  int n_expert = 0, n_used = 0;
  Act act = Act::kGelu;
  const int16_t* slots = nullptr;  // [N] which matrix of the stacks an expert is, -1: of none; null: all, in order
};
struct MoeBuffers {
  Routing routing;
  __nv_bfloat16* hidden = nullptr;  // [T n_used, d_expert], by place in `pair`
  float* out = nullptr;             // [slot, D]
};

constexpr int kMoeSmallBatch = 256;  // most tokens of one launch of moe_small_batch
RouterArgs router_args(const MoeExperts&, Mat r, int n_tok, const Routing&);
// The routing of up to kMoeSmallBatch tokens, as route().
void route_small_batch(cudaStream_t, const RouterArgs&);
// The lists of a routing again, without the pairs whose experts are not on the GPU; `active` then holds slots.
void moe_place(cudaStream_t, const Routing&, const int16_t* slots, int n_expert, int n_tok, int n_used);
// times[e] += how often e is among n_slot experts.
void moe_count(cudaStream_t, unsigned* times, const int32_t* expert, int n_slot);
// out[slot] = expert(e[t]) of n_tok <= kMoeSmallBatch rows in bf16; then y[t] = sum over ranks of weight * out, in rank
// order. routed: e was there before the kernel before this one let it start, which it runs beside; so was what the
// routing writes, but for a token's experts with RouterArgs::ahead.
void moe_small_batch(cudaStream_t, const MoeExperts&, Mat e, int n_tok, const MoeBuffers&, bool routed = false);
void moe_small_batch_combine(cudaStream_t, Mat y, const float* out, const float* weight, int n_used);

// --- weights in RAM

// Page-locked memory of the host, which kernels reach too: rows for the CPU, and what it makes of them.
struct MoeHostRows {
  float* x = nullptr;         // [T, D]
  int32_t* expert = nullptr;  // [T n_used]
  float* weight = nullptr;    // [T n_used]
  float* y = nullptr;         // [T, D]
  // Exchanges are counted. `asked` is the newest whose rows are there, and job is what they are for; `done` the newest
  // whose y is there. Lines of their own.
  struct alignas(128) Word {
    uint64_t value = 0;
  };
  Word *asked = nullptr, *job = nullptr, *done = nullptr;
  unsigned* blocks = nullptr;  // of the device: blocks that have sent theirs, 0 between launches
  uint64_t* count = nullptr;   // of the device: exchanges so far
};
// Rows of x, with the experts and weights that the routing chose for them; n_used 0: without. Then asks for `job`.
// slots: MoeExperts'; of experts on the GPU the host is told -1.
void moe_send(cudaStream_t, const MoeHostRows& to, Mat x, const Routing&, int n_used, const int16_t* slots,
              const void* job);
// What the GPU has computed of those rows' experts.
struct MoePart {
  const float *out = nullptr, *weight = nullptr;  // [slot, D], [slot]
  const int32_t* expert = nullptr;                // [slot]
  const int16_t* slots = nullptr;                 // null: nothing
  int n_used = 0;
};
// Waits until the newest exchange is done; adds part to it.
void moe_receive(cudaStream_t, Mat y, const MoeHostRows& from, const MoePart& part = {});

// --- large batches

// Matrices become panels in bf16: blocks of [rows, 64 columns] in which a row is 128 bytes and its 16-byte chunks are
// exchanged by chunk ^= row % 8, so that a block copied into shared memory as it is, is an operand of tensor cores.
// Columns beyond the matrix are zeros. Expert weights: [expert, M tile of 128 rows, block]; gate and up share M tiles,
// eight rows of either in turn. Activations: [N tile, block], where an N tile holds up to kMoeTile of one expert's
// tokens. Those of products straight from codes are f16 instead, and of every 16 columns the even ones come first, then
// the odd ones (expand_tiles.cuh); hidden ones are 1 / kMoeHiddenUnit of what they are.
constexpr int kMoeTile = 256;               // tokens of an N tile at most, in steps of 16
constexpr int kMoeStrip = 128;              // weight rows of an M tile
constexpr float kMoeHiddenUnit = 64;        // f16 then reaches 4.2 million
constexpr int kMoeSortTokens = 64;          // of a block in the sort by expert
constexpr int kMoeRouterParts = 8;          // of a router row, summed apart
constexpr int kMoeLargeBatchTokens = 8192;  // of one pass; more take several

struct MoeSizes {
  int d = 0, d_expert = 0, n_expert = 0, n_used = 0, n_tok = 0;  // at most
};
struct MoeLargeBatch {
  float* logits = nullptr;        // [part, T, N]
  float* weight = nullptr;        // [slot]
  int32_t* expert = nullptr;      // [slot]
  int2* place = nullptr;          // [slot] N tile, row in it
  int32_t* before = nullptr;      // [T / kMoeSortTokens, N] pairs of an expert in earlier blocks of tokens
  int4* tile = nullptr;           // [N tiles] expert, first row of all, rows, 0
  int32_t* tile_first = nullptr;  // [N + 1] of an expert
  unsigned* next = nullptr;       // [launch] work items taken
  __nv_bfloat16* rows = nullptr;  // panels: activations by N tile, then the experts' outputs, these always in bf16
  __nv_bfloat16* hidden = nullptr;
  __nv_bfloat16* weights = nullptr;  // of as many experts as fit
  int n_resident = 0;                // experts whose gate and up fit into `weights`
};
// The panel of weights holds all of a layer's experts, or as many at a time as fit into panel_bytes (at least one).
int64_t moe_large_batch_bytes(const MoeSizes&, int64_t panel_bytes);
MoeLargeBatch moe_large_batch_buffers(void* memory, const MoeSizes&, int64_t panel_bytes);

// route and moe_small_batch together for any number of tokens. Weights are unpacked once per kMoeLargeBatchTokens
// tokens. leave: y may be left as the sum of what is returned; without rows it is written.
MoePanelRows moe_large_batch(cudaStream_t, const MoeExperts&, Mat y, Mat e, Mat r, const MoeLargeBatch&,
                             bool leave = false);
void moe_combine(cudaStream_t, const MoePanelRows&, Mat y);

// The steps of moe_large_batch, for benches.
struct MoePass {
  MoeExperts w;
  MoeLargeBatch b;
  int n_tok = 0;
  int tile = kMoeTile;  // tokens of an N tile at most, on this GPU
  int d_blocks() const { return (w.down.n_out + 63) / 64; }
  int f_blocks() const { return (w.d_expert + 63) / 64; }
  int tiles_most() const { return w.n_expert + n_tok * w.n_used / tile; }
  MoePanelRows outputs() const { return {b.rows, b.place, b.tile, b.weight, w.n_used, d_blocks()}; }
};
void moe_route_large_batch(cudaStream_t, const MoePass&, Mat r);
void moe_gather(cudaStream_t, const MoePass&, Mat e);  // for the products that moe_takes_codes() says
void moe_unpack_up(cudaStream_t, const MoePass&, int expert0, int n);
void moe_unpack_down(cudaStream_t, const MoePass&, int expert0, int n);
void moe_grouped_up(cudaStream_t, const MoePass&, int expert0, int n, int launch);
void moe_grouped_down(cudaStream_t, const MoePass&, int expert0, int n, int launch);
bool moe_has_warpgroups();
// MoePass::tile. Of few tokens a small one, with twice what an expert has of them if all have as many: stages of rows
// are smaller then, and more of them are on their way.
int moe_tile_rows(const MoeExperts&, int n_tok);
// The grouped products of all experts straight from their codes: where the device takes them so, and no panels of
// weights are made.
bool moe_takes_codes(const MoeExperts&);
void moe_codes_up(cudaStream_t, const MoePass&);
void moe_codes_down(cudaStream_t, const MoePass&);

// --- the kernel of grouped_codes.cu
struct CodesArgs {
  const uint8_t* w[2];  // strips of gate and up, or of down twice
  int64_t matrix_bytes[2], strip_bytes;
  const void* in;  // panels
  void* out;
  const int4* tile;           // of N tiles: expert, first row, width
  const int32_t* tile_first;  // of experts
  unsigned* next;
  int n_expert, n_strip;
  int most_rows;     // of an N tile: a power of two
  int n_m, n_block;  // M tiles, blocks of 64 columns of the inner dimension
  int n_out_block;   // blocks of 64 columns of the output
  facet::Act act;
};
template <Tile kTile>
void launch_grouped_codes(cudaStream_t, const CodesArgs&, int items, bool up);

}  // namespace facet::cuda
