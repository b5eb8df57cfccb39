#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// An EAGLE-3 drafter (arXiv 2503.01840) for one target, as speculators trains it: one layer, whose input is a token
// beside the state of the row before it.
struct Eagle3Cfg {
  ModelCfg body;                      // n_vocab: rows of the head
  std::vector<int> taps;              // target layers whose output makes a feature row, ascending
  std::vector<double> freqs;          // RoPE, [head_dim / 2]
  std::vector<int32_t> id_map;        // token of each row of the head; empty: the row itself
  int trained = 3;                    // passes of a chain that it was trained for
  bool own_embedding = false;         // else the target's rows
  bool norm_before_residual = false;  // the stream begins with the normalised state
  bool norm_output = false;           // the state of the next pass is normalised by the output norm
  bool norm_before_fc = false;        // one norm of all features side by side
  bool fc_norm = false;               // a norm of each layer's features
  bool norm_qk = false;               // heads are normalised before RoPE (Qwen's layer)
  int max_draft() const { return std::min(7, 2 * trained); }
};

// As dflash_config.
Result<Eagle3Cfg> eagle3_config(const DrafterFile& file, const ModelCfg& target);

}  // namespace facet
