#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "formats/gguf.h"
#include "formats/mixture.h"

namespace facet {

struct RequantizeOptions {
  bool allow_requantize = false;  // a source with quantised tensors loses a second time: only if asked for
  int n_threads = 1;              // the file does not depend on it
};

struct RequantizeReport {
  size_t converted = 0, copied = 0;  // tensors
  uint64_t bytes_in = 0, bytes_out = 0;
};

// Called with bytes of the source done and in all, after every piece.
using RequantizeProgress = std::function<void(uint64_t done, uint64_t total)>;

// Writes the model again, as one file, with the types that the mixture gives its tensors. Tensors and
// metadata keep their order and the metadata their types; general.file_type and general.quantization_version
// say what was done, and split.* keys go. Memory does not grow with the model. Refused before anything is
// written: a quantised source (unless allowed), an out that is a part of the source, a disk without room. A
// weight that the new type cannot hold (NaN, infinity, beyond the range of F16) is an Error, and leaves no
// file.
Result<RequantizeReport> requantize(const GgufFile& in, const std::string& out, const Mixture& mixture,
                                    const RequantizeOptions& options, const RequantizeProgress& progress);

// The type of every tensor of in, in file order. An Error if the metadata that the rules need is missing.
Result<std::vector<DType>> requantized_types(const GgufFile& in, const Mixture& mixture);

}  // namespace facet
