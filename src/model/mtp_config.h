#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// An MTP assistant for one target.
struct MtpCfg {
  ModelCfg body;  // every layer is query_only; kv_source: the donor, a layer of the target
  int d_target = 0;
  std::vector<std::vector<double>> freqs;  // RoPE of each layer, [head_dim / 2]
  int n_cluster = 0, top_k = 0;            // 0: a head over all tokens
  std::vector<int32_t> order;              // [V] tokens, cluster after cluster
  std::vector<std::string> notes;          // what a user should know
};

// Checks the assistant against its tensors and against the target, and finds the donors. window_extra widens the
// sliding layers by so many keys (transformers' eager masks admit 2 more than the model's definition).
Result<MtpCfg> mtp_config(const DrafterFile& file, const ModelCfg& target, int window_extra = 0);

}  // namespace facet
