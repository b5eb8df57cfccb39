#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/step.h"

// Block-sparse prefill: attention of full layers over some of the blocks of cached rows, for the leading tokens of long
// prompts (Step::n_select). Approximate: what is read is chosen by an estimate and checked by samples.
//
//   block    kSelectRows rows, from multiples of it on: whole tiles of keys of every prefill kernel
//   mean     of kMeanRows keys, as they are decoded; made anew by every select_blocks, so that there is nothing that
//            could differ from the rows after a rewind, a fork or a restored state
//   tile     kSelectTokens tokens of a sequence, from its first token of the step on, and the query heads of one K/V
//            head. They share one list of blocks
//
// A row's score of a block is the best of its means times the query. The softmax of sqrt(kMeanRows) times these over
// the blocks says what share of the row's attention lies where, if keys are independent; that of kMeanRows times these
// the same if one key makes up all of a mean. A block's weight is the larger of the first one's average over the tile's
// rows and a quarter of the second one's largest, so that one row that needs one key is heard. Always read: the first
// block, those within kSelectNear rows before the tile, the tile's own. Others follow by weight until every row has its
// share.
//
// Then kSampleBlocks of the blocks left out, evenly by weight, are read, for scores alone. They give an estimate of the
// attention that was left out of each row, with a bound; a tile with a row beyond it is done again over all rows.
namespace facet {

constexpr int kSelectRows = 192, kMeanRows = 8, kBlockMeans = kSelectRows / kMeanRows;
constexpr int kSelectTokens = 32;
constexpr int kSelectNear = 512;
constexpr int kSelectQuestion = 256;  // tokens at a prompt's end that read everything: the question
constexpr int kSelectLeast = 5;       // blocks
// Scores of means as scores of single keys: these vary sqrt(kMeanRows) times as much, if they are independent.
constexpr float kSelectSpread = 2.8284271f;
constexpr float kSelectAlone = .25f;                // of the largest share that one key could have
constexpr float kSelectDense = .6f;                 // of the blocks: from there on all are read
constexpr int kSampleSets = 4, kSampleBlocks = 16;  // blocks in equal sets

// A tile's list, among all of a step's; begin: the sequence's first token.
FACET_HD inline int select_tile(int begin, int seq, int j0) { return begin / kSelectTokens + j0 / kSelectTokens + seq; }
FACET_HD inline int select_tiles(int n_tok, int n_seq) { return n_tok / kSelectTokens + n_seq + 1; }
// Blocks that a tile sees whose last token has this row; means that lie before a row.
FACET_HD inline int select_blocks_to(int last_row) { return last_row / kSelectRows + 1; }
FACET_HD inline int select_means_before(int row) { return row / kMeanRows; }
// Whether a tile whose first token has row `row0` always reads a block.
FACET_HD inline bool select_always(int block, int row0) {
  return block == 0 || (block + 1) * kSelectRows > row0 - kSelectNear;
}
// How many more of n_free blocks are read, where rows need `need` of them, n_always are read anyway.
FACET_HD inline int select_count(const SelectSpec& spec, int need, int n_always, int n_free) {
  const int n = n_always + n_free;
  const int least = int(spec.least * float(n) + .5f) - n_always, most = int(spec.most * float(n) + .5f) - n_always;
  if (need < least) need = least;
  if (need > most) need = most;
  if (need < kSelectLeast - n_always) need = kSelectLeast - n_always;
  if (need < 0) need = 0;
  if (need > n_free) need = n_free;
  return spec.most >= 1 && float(n_always + need) > kSelectDense * float(n) ? n_free : need;
}
// Which of n_out blocks left out, by weight, is sample i: every sixteenth part has one. A tile and a head have a start
// of their own.
FACET_HD inline int select_sample(int i, int n_out, int row0, int head) {
  if (n_out <= kSampleBlocks) return i < n_out ? i : -1;
  const uint32_t hash = (uint32_t(row0) * 2654435761u + uint32_t(head) * 40503u) >> 7;
  return int((int64_t(i) * n_out + hash % uint32_t(n_out)) / kSampleBlocks);
}
// What was left out of a row: lse of what was read and of each set of samples, natural logarithms.
struct LeftOut {
  float estimate, bound;  // shares of the row's attention
};
FACET_HD inline LeftOut left_out(float lse, const float (&set)[kSampleSets], int n_out) {
  if (n_out == 0) return {0, 0};
  float sum = 0, squares = 0;
  for (const float s : set) {
    const float x = expf(s - lse);
    sum += x, squares += x * x;
  }
  if (n_out <= kSampleBlocks) return {sum / (1 + sum), sum / (1 + sum)};  // all of it
  // Student's t of three degrees of freedom, one-sided 99.5 %, of sums of four blocks. These are no normal deviates: 95
  // % of the rows of tiles that pass leave out no more than they may (select_test).
  const float mean = sum / kSampleSets, scale = float(n_out) / (kSampleBlocks / kSampleSets);
  const float variance = fmaxf(0, squares / kSampleSets - mean * mean) / (kSampleSets - 1);
  const float error = 5.841f * sqrtf(variance * (1 - float(kSampleBlocks) / float(n_out)));
  const float most = scale * (mean + error);
  return {scale * mean / (1 + scale * mean), most < 1e30f ? most / (1 + most) : 1.f};
}

// What became of a sequence's tokens since it was last asked for.
struct Selected {
  int64_t blocks = 0, seen = 0;  // read, of those that tiles saw
  int64_t rows = 0, tiles = 0, repaired = 0;
  double left_out = 0;  // sum over rows, estimated
  void add(const Selected& o) {
    blocks += o.blocks, seen += o.seen, rows += o.rows, tiles += o.tiles, repaired += o.repaired;
    left_out += o.left_out;
  }
  double share() const { return seen > 0 ? double(blocks) / double(seen) : 1; }
  double recall() const { return rows > 0 ? 1 - left_out / double(rows) : 1; }
};

#if !defined(__CUDACC__)
// The choice of one tile. score [n_row][stride]: of the blocks, -inf where one has no mean yet. Ascending indices to
// `index`; returns their number. sample [kSampleBlocks]: of those left out, -1 where there are fewer.
int choose_blocks(const SelectSpec& spec, const float* score, int n_row, int64_t stride, int n_block, int row0,
                  int head, int32_t* index, int32_t* sample);
#endif

}  // namespace facet
