#pragma once
#include "base/result.h"
#include "formats/gguf.h"
#include "model/types.h"

namespace facet {

// A model's file without the encoders of pictures and sound that some converters put beside the text model.
Result<GgufFile> open_gemma4(const std::string& path);

// Metadata of a Gemma 4 text GGUF -> ModelCfg, every value checked against bounds, against each other and against
// the shapes of the tensors. Errors name file, key, expected and found.
Result<ModelCfg> gemma4_config(const GgufFile& file);

// Angles per position of the pairs of layer l, [head_dim / 2]: theta^(-2i/E), on full layers divided by
// rope_freqs (1 for the first quarter of the pairs, so large elsewhere that they do not rotate).
Result<std::vector<double>> gemma4_freqs(const GgufFile& file, const ModelCfg& m, int l);

}  // namespace facet
