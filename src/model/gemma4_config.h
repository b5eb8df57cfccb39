#pragma once
#include "base/result.h"
#include "formats/gguf.h"
#include "model/types.h"

namespace facet {

// Metadata of a Gemma 4 text GGUF -> ModelCfg, every value checked against bounds, against each other and against
// the shapes of the tensors. Errors name file, key, expected and found.
Result<ModelCfg> gemma4_config(const GgufFile& file);

// Angles per position of the pairs of layer l, [head_dim / 2]: theta^(-2i/E), on full layers divided by
// rope_freqs (1 for the first quarter of the pairs, so large elsewhere that they do not rotate).
Result<std::vector<double>> gemma4_freqs(const GgufFile& file, const ModelCfg& m, int l);

}  // namespace facet
