#include "backend/cuda/loader.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/kernels/matmul/matmul.h"
#include "base/print.h"
#include "base/threads.h"
#include "formats/widen.h"

namespace facet::cuda {
namespace {

// Also on a thread that nobody asks for an error, and of what was queued before. A GPU that failed is lost to the process.
void check(const TensorView& t, const Device& device, cudaError_t e) {
  if (e == cudaSuccess) return;
  print_err(
      "facet: GPU {}: {} cannot be brought to it: {} (start again; dmesg may say more; --backend cpu needs no GPU)\n",
      device.info().id, t.name, cudaGetErrorString(e));
  std::_Exit(1);
}

}  // namespace

Loader::~Loader() {
  for (Buffer& b : buffer_) {
    if (b.host) cudaFreeHost(b.host);
    if (b.free) cudaEventDestroy(b.free);
  }
}

bool Loader::make(Buffer& b, size_t bytes) {
  if (b.host) return true;
  b.host = static_cast<std::byte*>(device_.pinned(bytes, "weights on their way"));
  b.device = static_cast<uint8_t*>(device_.allocate(bytes, "weights on their way"));
  if (!b.device) return false;
  FACET_CUDA_CHECK(cudaEventCreateWithFlags(&b.free, cudaEventDisableTiming));
  return true;
}
bool Loader::reserve() { return make(buffer_[0], kPiece) && make(buffer_[1], kPiece); }

bool Loader::load(const TiledMatrix& stack, const TensorView& t, DType kept) {
  TiledMatrix to = stack;
  // Matrices of whole strips lie behind each other as the rows of one would.
  if (to.n_out % kTileRows == 0 && t.scale.empty()) to.n_out *= to.n_stack, to.n_stack = 1;
  const int64_t from_row = int64_t(row_bytes(t.type, to.n_in)), row = int64_t(row_bytes(kept, to.n_in));
  const int64_t rows = std::max<int64_t>(int64_t(kPiece) / row / kTileRows, 1) * kTileRows;
  for (int64_t i = 0; i < to.n_stack; ++i)
    for (int64_t first = 0; first < to.n_out; first += rows) {
      const int64_t n = std::min(rows, to.n_out - first);
      Buffer& b = buffer_[size_t(next_)];
      next_ ^= 1;
      const size_t bytes = size_t(std::max<int64_t>(rows * row, int64_t(kPiece)));
      if (!make(b, bytes)) return false;
      CHECK(size_t(n * row) <= std::max<size_t>(kPiece, size_t(kTileRows * row)), "{}: a row of {} bytes", t.name, row);
      check(t, device_, cudaEventSynchronize(b.free));
      const std::byte* from = t.data.data() + (i * to.n_out + first) * from_row;
      const int threads = physical_cores();
      if (kept == t.type && t.scale.empty()) {
        constexpr int64_t kCopy = 1 << 20;
        parallel_for((n * row + kCopy - 1) / kCopy, threads, [&](int64_t piece) {
          const int64_t at = piece * kCopy;
          std::memcpy(b.host + at, from + at, size_t(std::min(kCopy, n * row - at)));
        });
      } else {
        parallel_for(n, threads, [&](int64_t r) {
          const std::byte* src = from + r * from_row;
          std::byte* dst = b.host + r * row;
          t.scale.empty() ? widen_row(t.type, src, dst, to.n_in)
                          : scale_row(t.type, src, dst, to.n_in, t.scale[size_t(i)]);
        });
      }
      check(t, device_, cudaMemcpyAsync(b.device, b.host, size_t(n * row), cudaMemcpyHostToDevice, stream_));
      TiledMatrix part = to;
      part.p = to.strip(i, int(first / kTileRows));
      part.n_out = int(n), part.n_stack = 1;
      repack(stream_, part, b.device, kept);
      check(t, device_, cudaEventRecord(b.free, stream_));
    }
  return true;
}

}  // namespace facet::cuda
