#pragma once
#include <string>

#include "base/result.h"
#include "formats/gguf.h"
#include "model/drafter_file.h"

namespace facet {

// Writes a drafter as GGUF in llama.cpp's dialect of its kind (dflash, gemma4-assistant). Matrices keep their type,
// vectors become F32, the ordering of a clustered head I32. With a target its vocabulary is written too, which other
// engines want and facet does not need. Returns the bytes written.
Result<uint64_t> convert_drafter(const DrafterFile& in, const GgufFile* target, const std::string& out);

}  // namespace facet
