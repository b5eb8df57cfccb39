#pragma once
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// Which tokens of its own block a token sees in sliding layers. kFile: what the file says; published files say
// nothing, which means causal.
enum class BlockMask : uint8_t { kFile, kCausal, kBidirectional };

// A DFlash drafter for one target.
struct DflashCfg {
  ModelCfg body;              // n_vocab: rows of the head; embed_scale and softcap: the target's, unless the file says
  std::vector<int> taps;      // target layers whose output makes a feature row, ascending
  int block = 0;              // tokens of a block: one known, block - 1 drafted
  int mask_id = 0;            // the token that stands for the unknown ones
  std::vector<double> freqs;  // RoPE, [head_dim / 2], for every layer
  std::vector<int32_t> id_map;  // token of each row of the head; empty: the row itself
};

// Checks the drafter against its tensors and against the target. Errors name the key and both values.
Result<DflashCfg> dflash_config(const DrafterFile& file, const ModelCfg& target, BlockMask mask = BlockMask::kFile);

}  // namespace facet
