#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/kv_codec.h"
#include "model/dflash_config.h"

namespace facet {

// What a drafter thinks after ids[0 .. at) are committed and ids[at] is the newest token.
struct DraftLogitsConfig {
  std::string model, draft;
  std::string backend = "cpu";
  std::vector<int32_t> ids;
  int at = 0;
  int steps = 4;                            // MTP: passes of a greedy chain
  int window_extra = 0;                     // MTP: keys beyond the window of sliding layers
  BlockMask block_mask = BlockMask::kFile;  // DFlash
  std::optional<KvType> kv = {};            // empty: f32 on the reference backend, f16 elsewhere
  int chunk = 64;                           // tokens of one step of the target
  int n_threads = 0;                        // 0: one per physical core
};
struct DraftLogits {
  std::vector<float> logits;  // [rows, n_vocab]: DFlash, every slot of the block; MTP, every pass
  int rows = 0, n_vocab = 0;
  std::string dialect;
  std::vector<std::string> notes;  // for the user
};
// Fails when a file does not load, the drafter does not fit, or ids or `at` are outside their range.
Result<DraftLogits> draft_logits(const DraftLogitsConfig& c);

}  // namespace facet
