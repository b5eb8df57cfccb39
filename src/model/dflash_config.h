#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// Which tokens of its own block a token sees in sliding layers. kFile: what the file says; published files say
// nothing, which means causal.
enum class BlockMask : uint8_t { kFile, kCausal, kBidirectional };

// What chooses a token at a slot with regard to the one before it (DSpark, arXiv 2607.05147): W2 W1[token before] is
// added to the slot's logits, behind their soft cap. W1 is by token, W2 by row of the head.
struct MarkovCfg {
  int rank = 0;    // 0: none
  int n_from = 0;  // tokens of W1: the target's
  bool has_confidence = false;
  // Of the confidence head: sigmoid(hidden . H + markov . W1[token before] + bias) is the chance that the token is right
  // if those before it are. H: the slot's state behind the output norm.
  std::vector<float> hidden = {}, markov = {};
  float bias = 0;
};

// What chooses among a slot's likeliest tokens with regard to the one before it (DFlash 2): a candidate's logit and
// (P[token before] * (Hp H)) . S[candidate]. P and S stay in the file: a few rows are read for each slot.
struct SelectorCfg {
  int rank = 0;                                 // 0: none
  int top_k = 0;                                // candidates
  TensorView predecessor = {}, successor = {};  // [V, rank]
};
// Indices of the candidates, the best score first. score: the candidates' logits but for a constant, which become their
// scores. hidden: [rank] Hp H of the slot.
std::vector<int> select_candidates(const SelectorCfg& s, int32_t before, std::span<const float> hidden,
                                   std::span<const int32_t> candidate, std::span<float> score);

// hidden: [D] of the slot, markov: [rank] of the token before it. 0 where that is no number.
float confidence_of(const MarkovCfg& m, std::span<const float> hidden, std::span<const float> markov);

// A drafter of blocks for one target: DFlash; DSpark, which has a Markov head; DFlash 2, which has convolutions and a
// selector.
struct DflashCfg {
  ModelCfg body;                           // n_vocab: rows of the head; embed_scale and softcap: drafter_rules.h
  std::vector<int> taps;                   // target layers whose output makes a feature row, ascending
  int block = 0;                           // slots of a block: the known token, and mask_id in the others
  bool from_anchor = false;                // slot i is about the token behind its own position, else about its own
  int mask_id = 0;                         // the token that stands for the unknown ones
  std::vector<std::vector<double>> freqs;  // RoPE by layer, [head_dim / 2]
  std::vector<int32_t> id_map;             // token of each row of the head; empty: the row itself
  bool shares_embedding = false;           // the file's rows are copies of the target's, and not loaded
  MarkovCfg markov = {};
  int conv_taps = 0, conv_group = 0;  // of DFlash 2's convolutions, and channels that share a kernel; 0: none
  SelectorCfg selector = {};
  int max_draft() const { return from_anchor ? block : block - 1; }
  // The slots see one another: a shorter block would be another one.
  bool whole_block() const;
};

// Checks the drafter against its tensors and against the target. Errors name the key and both values.
Result<DflashCfg> dflash_config(const DrafterFile& file, const ModelCfg& target, BlockMask mask = BlockMask::kFile);

}  // namespace facet
