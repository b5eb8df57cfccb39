#include "compose/media_encoder.h"

#include "backend/cpu/cpu_fast.h"
#include "base/hash.h"
#include "compose/open_media.h"

namespace facet {

std::string mark_of(const MmprojFile& file) {
  Hash128 h;
  for (const TensorView& t : file.tensors()) {
    h.add(t.name);
    h.add(int64_t(t.data.size()));
    h.add(t.data.first(std::min<size_t>(t.data.size(), 4096)));
  }
  return hex(h.digest());
}

Result<std::unique_ptr<MediaEncoder>> open_media_cpu(MmprojFile file, int budget, int n_threads, CpuIsa isa) {
  return MediaEncoderOn<CpuFast>::open(std::move(file), budget, n_threads, isa);
}

}  // namespace facet
