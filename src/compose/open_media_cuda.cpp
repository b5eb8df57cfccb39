#include "backend/cuda/cuda.h"
#include "compose/media_encoder.h"
#include "compose/open_media.h"

namespace facet {

Result<std::unique_ptr<MediaEncoder>> open_media_cuda(MmprojFile file, int budget, int gpu) {
  return MediaEncoderOn<Cuda>::open(std::move(file), budget, gpu);
}

}  // namespace facet
