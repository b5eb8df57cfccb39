#include "backend/cuda/loader.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/kernels/matmul/matmul.h"
#include "base/threads.h"
#include "formats/widen.h"

namespace facet::cuda {

Loader::~Loader() {
  for (Buffer& b : buffer_) {
    if (b.host) cudaFreeHost(b.host);
    if (b.free) cudaEventDestroy(b.free);
  }
}

bool Loader::load(const TiledMatrix& to, const TensorView& t, DType kept) {
  const cudaStream_t stream = device_.stream();
  const int64_t from_row = int64_t(row_bytes(t.type, to.n_in)), row = int64_t(row_bytes(kept, to.n_in));
  const int64_t rows = std::max<int64_t>(int64_t(kPiece) / row / kTileRows, 1) * kTileRows;
  for (int64_t stack = 0; stack < to.n_stack; ++stack)
    for (int64_t first = 0; first < to.n_out; first += rows) {
      const int64_t n = std::min(rows, to.n_out - first);
      Buffer& b = buffer_[size_t(next_)];
      next_ ^= 1;
      const size_t bytes = size_t(std::max<int64_t>(rows * row, int64_t(kPiece)));
      if (!b.host) {
        b.host = static_cast<std::byte*>(device_.pinned(bytes, "weights on their way"));
        b.device = static_cast<uint8_t*>(device_.allocate(bytes, "weights on their way"));
        if (!b.device) return false;
        FACET_CUDA_CHECK(cudaEventCreateWithFlags(&b.free, cudaEventDisableTiming));
      }
      CHECK(size_t(n * row) <= std::max<size_t>(kPiece, size_t(kTileRows * row)), "{}: a row of {} bytes", t.name, row);
      FACET_CUDA_CHECK(cudaEventSynchronize(b.free));
      const std::byte* from = t.data.data() + (stack * to.n_out + first) * from_row;
      const int threads = physical_cores();
      if (kept == t.type && t.scale.empty()) {
        constexpr int64_t kCopy = 1 << 20;
        parallel_for((n * row + kCopy - 1) / kCopy, threads, [&](int64_t i) {
          std::memcpy(b.host + i * kCopy, from + i * kCopy, size_t(std::min(kCopy, n * row - i * kCopy)));
        });
      } else {
        parallel_for(n, threads, [&](int64_t r) {
          const std::byte* src = from + r * from_row;
          std::byte* dst = b.host + r * row;
          t.scale.empty() ? widen_row(t.type, src, dst, to.n_in)
                          : scale_row(t.type, src, dst, to.n_in, t.scale[size_t(stack)]);
        });
      }
      FACET_CUDA_CHECK(cudaMemcpyAsync(b.device, b.host, size_t(n * row), cudaMemcpyHostToDevice, stream));
      TiledMatrix part = to;
      part.p = to.strip(stack, int(first / kTileRows));
      part.n_out = int(n), part.n_stack = 1;
      repack(stream, part, b.device, kept);
      FACET_CUDA_CHECK(cudaEventRecord(b.free, stream));
    }
  return true;
}

}  // namespace facet::cuda
