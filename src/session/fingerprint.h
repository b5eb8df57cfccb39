#pragma once
#include <span>
#include <string>

#include "api/engine.h"
#include "formats/gguf.h"
#include "formats/session_file.h"
#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// Two engines of the same fingerprint may exchange the states of sequences: the same weights, vocabulary, RoPE and
// drafters, K/V types and layout of rows, backend, the same weights in RAM, and, where the bits of rows depend on them, tokens a step; and the
// same version of the program and number of its arithmetic (backend/arithmetic.h), which stand for what rows mean.
//
// Weights are known by all metadata, the table of tensors, and of each tensor its first and last 4 KiB and 14 pieces
// of 4 KiB evenly between (all of it up to 64 KiB): training, merging and quantising change every tensor nearly
// everywhere, and reading all of a large model would take longer than it takes to start.
SessionHeader::Fingerprint session_fingerprint(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                                               std::span<const DrafterFile> drafters);

// What a model file or a drafter holds, 32 hexadecimal digits: metadata, and weights as above.
std::string file_fingerprint(const GgufFile& file);
std::string drafter_fingerprint(const DrafterFile& file);

}  // namespace facet
