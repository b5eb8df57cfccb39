#include "backend/cuda/host_table.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "backend/cuda/kernels/matmul/matmul.h"
#include "base/threads.h"
#include "formats/widen.h"

namespace facet::cuda {

HostTable::~HostTable() {
  for (Buffer& b : buffer_) {
    if (b.host) cudaFreeHost(b.host);
    if (b.free) cudaEventDestroy(b.free);
  }
}

void HostTable::set(const TensorView& t, const TiledMatrix& as, DType kept) {
  table_ = t, tiles_ = as, kept_ = kept;
  tiles_.n_out = 0, tiles_.n_stack = 1;
}

int64_t HostTable::bytes(const TiledMatrix& as, DType kept, int max_tok) {
  TiledMatrix some = as;
  some.n_out = max_tok;
  return some.matrix_bytes() + int64_t(max_tok) * (int64_t(row_bytes(kept, as.n_in)) + 4);
}

bool HostTable::reserve(int max_tok) {
  if (max_tok <= max_tok_) return true;
  max_tok_ = tiles_.n_out = max_tok;
  const size_t raw = size_t(max_tok) * row_bytes(kept_, tiles_.n_in);
  grow(device_, memory_, size_t(tiles_.matrix_bytes()), "rows of a table in RAM");
  grow(device_, raw_, raw, "rows of a table in RAM");
  grow(device_, number_, size_t(max_tok), "rows of a table in RAM");
  tiles_.p = memory_;
  for (Buffer& b : buffer_) {
    if (b.free) FACET_CUDA_CHECK(cudaEventSynchronize(b.free));
    if (b.host) cudaFreeHost(b.host);
    b.host = static_cast<std::byte*>(device_.pinned(raw, "rows of a table in RAM"));
    if (!b.free) FACET_CUDA_CHECK(cudaEventCreateWithFlags(&b.free, cudaEventDisableTiming));
  }
  if (!device_.status()) return false;
  std::vector<int32_t> numbers(static_cast<size_t>(max_tok));
  std::iota(numbers.begin(), numbers.end(), 0);
  FACET_CUDA_CHECK(cudaMemcpyAsync(number_, numbers.data(), numbers.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                                   device_.stream()));
  FACET_CUDA_CHECK(cudaStreamSynchronize(device_.stream()));
  return true;
}

void HostTable::bring(const Step& s) {
  const int n = s.shape.n_tok;
  CHECK(n <= max_tok_, "{}: {} tokens, {} planned", table_.name, n, max_tok_);
  if (n == 0) return;
  Buffer& b = buffer_[size_t(next_)];
  next_ ^= 1;
  FACET_CUDA_CHECK(cudaEventSynchronize(b.free));
  const size_t from_row = row_bytes(table_.type, table_.ne[0]), row = row_bytes(kept_, table_.ne[0]);
  const int64_t n_row = table_.ne[1];
  parallel_ranges(n, n < 256 ? 1 : physical_cores(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      // Tokens of a drafter's step may be chosen on the device; it reads no such table.
      const int64_t id = std::clamp<int64_t>(s.token[t], 0, n_row - 1);
      const std::byte* from = table_.data.data() + size_t(id) * from_row;
      std::byte* to = b.host + size_t(t) * row;
      if (!table_.scale.empty())
        scale_row(table_.type, from, to, table_.ne[0], table_.scale[0]);
      else if (kept_ == table_.type)
        std::memcpy(to, from, row);
      else
        widen_row(table_.type, from, to, table_.ne[0]);
    }
  });
  const cudaStream_t stream = device_.stream();
  FACET_CUDA_CHECK(cudaMemcpyAsync(raw_, b.host, size_t(n) * row, cudaMemcpyHostToDevice, stream));
  FACET_CUDA_CHECK(cudaEventRecord(b.free, stream));
  TiledMatrix part = tiles_;
  part.n_out = n;
  repack(stream, part, raw_, kept_);
}

}  // namespace facet::cuda
